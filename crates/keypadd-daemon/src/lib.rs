//! The program `keypadd`: reads the command line and runs one command. Each command has its own
//! file in `verbs`; only logging outlives it, so two daemons can run in one process.
//!
//! A library, so that other programs of the workspace can start the same daemon.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod command_line;
mod control;
mod daemon;
pub mod limits;
mod replacement;
mod status;
mod verbs;

use std::process::ExitCode;

/// Runs this process's command; prints its error on standard error.
pub fn main() -> ExitCode {
    match verbs::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

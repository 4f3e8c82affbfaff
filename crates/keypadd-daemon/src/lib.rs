//! The program `keypadd`: reads the command line and runs one command. Each command has its own
//! file in `verbs`; only logging outlives it, so two daemons can run in one process.
//!
//! A library, so that other programs of the workspace can start the same daemon.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod command_line;
mod control;
mod daemon;
pub mod kit;
#[cfg(test)]
mod limits;
mod replacement;
mod status;
mod verbs;

use std::process::ExitCode;

use kit::Kit;

pub use verbs::is_daemon;

/// Runs this process's command; prints its error on standard error. A daemon answers measurements
/// with `kit`; without one, `keypadd-bench` runs it where it is to answer them.
pub fn main(kit: Option<Kit>) -> ExitCode {
    match verbs::run(kit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

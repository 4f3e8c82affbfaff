//! Benchmarks keypadd, and answers benchmarks. `keypadd bench` runs this program, so help and errors
//! call it that. Told to `serve` or to `run`, it is the daemon of `keypadd`, which starts it where
//! measurements are to be answered.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answering;
mod cli;
mod keeping;
mod networks;
mod paths;
mod run;

use std::process::ExitCode;

use cli::Cli;
use keypadd_cli::error::Error;
use keypadd_cli::{block_on, logging, shutdown};

fn main() -> ExitCode {
    if keypadd_daemon::is_daemon() {
        return keypadd_daemon::main(Some(answering::KIT));
    }
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn start() -> Result<(), Error> {
    let Some(cli) = keypadd_cli::read::<Cli>()? else { return Ok(()) };
    keypadd_transport::keep_freed_memory();
    logging::start(&cli.log.flags.settings, cli.log.verbose, true);
    block_on(async { run::run(cli.workload, shutdown::on_signals()?).await })
}

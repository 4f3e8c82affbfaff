//! `keypadd`: reads the command line and runs one verb. What a verb does is in its own file; what a
//! daemon is made of comes from the libraries (docs/ARCHITECTURE.md). Nothing here outlives a verb
//! except logging, so two daemons can run in one process.

mod cli;
mod error;
mod keyfile;
mod keygen;
mod logging;
mod shutdown;

use std::process::ExitCode;

use cli::Verb;
use error::Error;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn run() -> Result<(), Error> {
    let Some(cli) = cli::read()? else {
        return Ok(());
    };
    logging::start(&cli.log)?;
    match cli.verb {
        Verb::Keygen(args) => keygen::keygen(args),
        Verb::Pubkey(args) => keygen::pubkey(args),
        Verb::Serve(_) | Verb::Connect(_) | Verb::Status(_) => Ok(()),
    }
}

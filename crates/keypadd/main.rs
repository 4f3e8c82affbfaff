//! `keypadd`: reads the command line and runs one verb. What a verb does is in its own file; what a
//! daemon is made of comes from the libraries (docs/ARCHITECTURE.md). Nothing here outlives a verb
//! except logging, so two daemons can run in one process.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod check;
mod cli;
mod collect;
mod completions;
mod configfile;
mod connect;
mod control;
mod daemon;
mod demo;
mod error;
mod figures;
mod keyfile;
mod keygen;
mod logging;
mod man;
mod metrics;
mod pooling;
mod rates;
mod ready;
mod reload;
mod results;
mod run;
mod serve;
mod shutdown;
mod sources;
mod status;
mod stdio;

use std::process::ExitCode;

use cli::Verb;
use error::{Error, Exit, system};
use keypadd_config::values::LogFormat;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn run() -> Result<(), Error> {
    let Some(mut cli) = cli::read()? else { return Ok(()) };
    if let Verb::Run(args) = cli.verb {
        return run_from_file(args, &mut cli.log);
    }
    // `-W` runs inside other programs, and `demo` and `bench` draw: their user wants to hear of trouble only.
    let quiet = match &cli.verb {
        Verb::Connect(args) => args.stdio.is_some(),
        Verb::Demo(_) | Verb::Bench(_) => true,
        _ => false,
    };
    logging::start(&cli.log, quiet);
    let format = cli.log.log_format.unwrap_or_default();
    match cli.verb {
        Verb::Keygen(args) => keygen::keygen(args),
        Verb::Pubkey(args) => keygen::pubkey(args),
        Verb::Run(_) => Ok(()),
        Verb::Reload(args) => reload::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Completions(args) => completions::run(args),
        Verb::Man(args) => man::run(args),
        Verb::Status(args) => status::run(args),
        Verb::Demo(args) => block_on(async { demo::run(args, signals()?).await }),
        Verb::Bench(args) => block_on(async { bench::run(args, signals()?).await }),
        Verb::Serve(args) => {
            let settings = serve::Settings::read(*args)?;
            block_on(async {
                serve::run(settings, signals()?, |ready| ready::say(ready, format)).await
            })
        }
        Verb::Connect(args) => {
            let silent = quiet && cli.log.verbose == 0;
            let settings = connect::Settings::read(*args)?;
            block_on(async {
                let say = |ready: &ready::ClientReady| {
                    if !silent {
                        ready::say(ready, format);
                    }
                };
                connect::run(settings, signals()?, say).await
            })
        }
    }
}

/// The file says how to log, unless the command line does: it is read first.
fn run_from_file(args: cli::ConfigArgs, log: &mut cli::LogFlags) -> Result<(), Error> {
    let settings = run::Settings::read(args)?;
    if log.log.is_none() && log.verbose == 0 {
        log.log = settings.log().map(str::to_owned);
    }
    let in_file = match settings.log_format() {
        Some(LogFormat::Json) => cli::LogFormat::Json,
        Some(LogFormat::Text) | None => cli::LogFormat::Text,
    };
    let format = log.log_format.unwrap_or(in_file);
    log.log_format = Some(format);
    logging::start(log, false);
    block_on(async {
        let shutdown = shutdown::on_signals_but_hangup().map_err(|error| no_signals(&error))?;
        run::run(settings, shutdown, |ready| ready::say(ready, format)).await
    })
}

fn signals() -> Result<shutdown::Shutdown, Error> {
    shutdown::on_signals().map_err(|error| no_signals(&error))
}

fn no_signals(error: &std::io::Error) -> Error {
    Error::new(Exit::Runtime, format!("cannot handle signals: {}", system(error)))
}

/// Runs a daemon to its end. What is then still blocked, such as a read of standard input, is left
/// behind.
fn block_on(daemon: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = Runtime::new().map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot start threads: {}", system(&error)))
    })?;
    let ended = runtime.block_on(daemon);
    runtime.shutdown_background();
    ended
}

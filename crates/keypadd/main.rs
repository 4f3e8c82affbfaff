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
mod figures;
mod keygen;
mod man;
mod metrics;
mod pooling;
mod rates;
mod ready;
mod reload;
mod run;
mod serve;
mod sources;
mod status;
mod stdio;

use std::process::ExitCode;

use cli::{Cli, Verb};
use error::Error;
use keypadd_cli::{block_on, error, keyfile, logging, results, shutdown};
use keypadd_config::values::LogFormat;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn run() -> Result<(), Error> {
    let Some(mut cli) = keypadd_cli::read::<Cli>()? else { return Ok(()) };
    if let Verb::Run(args) = cli.verb {
        return run_from_file(args, &mut cli.log);
    }
    if let Verb::Bench(_) = cli.verb {
        return Err(bench::start());
    }
    // `-W` runs inside other programs, and `demo` draws: their user wants to hear of trouble only.
    let quiet = match &cli.verb {
        Verb::Connect(args) => args.stdio.is_some(),
        Verb::Demo(_) => true,
        _ => false,
    };
    logging::start(&cli.log, quiet);
    let format = cli.log.log_format.unwrap_or_default();
    match cli.verb {
        Verb::Keygen(args) => keygen::keygen(args),
        Verb::Pubkey(args) => keygen::pubkey(args),
        Verb::Run(_) | Verb::Bench(_) => Ok(()),
        Verb::Reload(args) => reload::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Completions(args) => completions::run(args),
        Verb::Man(args) => man::run(args),
        Verb::Status(args) => status::run(args),
        Verb::Demo(args) => block_on(async { demo::run(args, shutdown::on_signals()?).await }),
        Verb::Serve(args) => {
            let settings = serve::Settings::read(*args)?;
            block_on(async {
                serve::run(settings, shutdown::on_signals()?, |ready| ready::say(ready, format))
                    .await
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
                connect::run(settings, shutdown::on_signals()?, say).await
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
        let shutdown = shutdown::on_signals_but_hangup()?;
        run::run(settings, shutdown, |ready| ready::say(ready, format)).await
    })
}

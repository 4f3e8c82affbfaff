//! Commands: each reads its flags and runs. `serve`, `connect` and `run` start a daemon.

mod bench;
mod check;
mod completions;
mod connect;
mod connections;
mod demo;
mod doctor;
mod drain;
mod forward;
mod invite;
mod join;
mod keygen;
mod pairing;
mod peers;
mod reload;
mod run;
mod serve;
mod status;

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::{block_on, logging, manual, shutdown};

use crate::command_line::{Cli, ConfigArgs, LogFlags, Verb, definition};
use crate::daemon::ready;
use crate::kit::Kit;
use crate::replacement::take;

pub use bench::is_daemon;

/// Runs the command of this process.
///
/// # Errors
/// The exit code says what went wrong, as the help of the program lists them.
pub(crate) fn run(kit: Option<Kit>) -> Result<(), Error> {
    let Some(cli) = keypadd_cli::read::<Cli>()? else { return Ok(()) };
    if take::is_begun() && !can_replace(&cli.verb) {
        let cause = "only `serve`, `connect` and `run` can replace a daemon";
        return Err(Error::new(Exit::Usage, cause));
    }
    // Before any key is read. `bench` and `demo` use no key of this host.
    if !matches!(cli.verb, Verb::Bench(_) | Verb::Demo(_)) {
        keypadd_sandbox::forbid_core_dumps();
    }
    if let Verb::Run(args) = cli.verb {
        return run_from_file(args, cli.log, kit);
    }
    // `-W` runs inside other programs, `demo` draws, pairing prints its own messages: these log
    // only warnings and errors.
    let quiet = match &cli.verb {
        Verb::Connect(args) => args.stdio.is_some(),
        Verb::Demo(_) | Verb::Invite(_) | Verb::Join(_) => true,
        _ => false,
    };
    let log = &cli.log.flags.settings;
    logging::start(log, cli.log.verbose, quiet);
    let format = log.log_format.value;
    match cli.verb {
        Verb::Keygen(args) => keygen::keygen(args),
        Verb::Pubkey(args) => keygen::pubkey(args),
        Verb::Run(_) => Ok(()),
        Verb::Bench(_) => Err(bench::start()),
        Verb::Reload(args) => reload::run(args),
        Verb::Forward(args) => forward::run(args),
        Verb::Drain(args) => drain::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Completions(args) => completions::run(args),
        Verb::Man(args) => manual::write(definition(), args.directory),
        Verb::Status(args) => status::run(args),
        Verb::Connections(args) => connections::run(args),
        Verb::Peers(args) => peers::run(args),
        Verb::Invite(args) => {
            let options = invite::InviteOptions::read(*args)?;
            block_on(async { invite::run(options, shutdown::on_signals()?).await })
        }
        Verb::Join(args) => {
            let options = join::JoinOptions::read(*args)?;
            block_on(async { join::run(options, shutdown::on_signals()?).await })
        }
        Verb::Demo(args) => block_on(async { demo::run(args, shutdown::on_signals()?).await }),
        Verb::Serve(args) => {
            let options = serve::ServeOptions::read(*args, kit)?.confined()?;
            block_on(async {
                serve::run(options, shutdown::on_signals()?, |ready| ready::say(ready, format))
                    .await
            })
        }
        Verb::Connect(args) => {
            let silent = quiet && cli.log.verbose == 0;
            let options = connect::ConnectOptions::read(*args)?.confined()?;
            block_on(async {
                let say = |ready: &ready::ClientReady| {
                    if !silent {
                        ready::say(ready, format);
                    }
                };
                connect::run(options, shutdown::on_signals()?, say).await
            })
        }
    }
}

/// Whether this command is a daemon's, which `keypadd reload --binary` may start.
fn can_replace(verb: &Verb) -> bool {
    match verb {
        Verb::Serve(_) | Verb::Run(_) => true,
        Verb::Connect(args) => args.stdio.is_none(),
        _ => false,
    }
}

/// Runs a daemon from a file. The file's log settings apply where the command line has none, so it
/// is read first.
fn run_from_file(args: ConfigArgs, log: LogFlags, kit: Option<Kit>) -> Result<(), Error> {
    let options = run::RunOptions::read(args, kit)?;
    let (file, mut flags) = (options.settings(), log.flags.settings);
    if flags.log.is_none() && log.verbose == 0 {
        flags.log = file.log.clone();
    }
    if flags.log_format.at.is_none() {
        flags.log_format = file.log_format.clone();
    }
    logging::start(&flags, log.verbose, false);
    let format = flags.log_format.value;
    let others = run::Others::look(&options);
    let options = options.confined()?;
    let ended = block_on(async {
        let shutdown = shutdown::on_signals_except_hangup()?;
        run::run(options, shutdown, |ready| ready::say(ready, format)).await
    });
    ended.map_err(|error| others.explain(error))
}

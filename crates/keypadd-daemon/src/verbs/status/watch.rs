//! `keypadd status --watch`: prints the status every second: redrawn on a terminal, else one block,
//! or one line of JSON, after another. Exits on Ctrl-C or when no daemon answers.

use std::io::{self, IsTerminal};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::results::print;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::{query, show};
use crate::command_line::StatusArgs;

/// Refresh interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Moves the cursor home and clears the screen (ECMA-48, CUP and ED).
const HOME: &str = "\x1b[H\x1b[J";

/// Prints the status until Ctrl-C or SIGTERM.
///
/// # Errors
/// Exit 5: no daemon answers. Exit 1: signals or standard output fail.
pub(super) fn run(args: &StatusArgs) -> Result<(), Error> {
    let failed = |error: io::Error| {
        Error::new(Exit::Runtime, format!("cannot install signal handlers: {}", system(&error)))
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let stops = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
        let [interrupt, terminate] = stops;
        repeat(args, interrupt.map_err(failed)?, terminate.map_err(failed)?).await
    })
}

async fn repeat(
    args: &StatusArgs,
    mut interrupt: Signal,
    mut terminate: Signal,
) -> Result<(), Error> {
    let draws = !args.json && io::stdout().is_terminal();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut first = true;
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let daemons = query(args).map_err(|error| match first {
            true => error,
            false => Error::new(Exit::Unreachable, "the daemon has exited"),
        })?;
        let text = show(args, daemons);
        let frame = match (draws, args.json || first) {
            (true, _) => format!("{HOME}{text}"),
            (false, true) => text,
            (false, false) => format!("\n{text}"),
        };
        if !print(frame.as_bytes())? {
            return Ok(());
        }
        first = false;
    }
}

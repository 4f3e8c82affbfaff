//! `keypadd status --watch`: prints the status every second: redrawn on a terminal, else one block,
//! or one line of JSON, after another. Exits on Ctrl-C, on q, or when no daemon answers.

use std::future::pending;
use std::io::{self, IsTerminal};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::results::print;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use super::screen::{Keys, frame};
use super::{query, show};
use crate::command_line::StatusArgs;
use crate::control::STATUS_REQUEST;

/// Refresh interval.
const INTERVAL: Duration = Duration::from_secs(1);

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
    let (mut keys, mut typed) = (None, None);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut first = true;
    loop {
        // Once it is in the foreground.
        if draws && keys.is_none() {
            keys = Keys::read();
            typed = keys.as_ref().map(Keys::quit);
        }
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = quit(&mut typed) => return print(b"\n").map(drop),
            _ = ticks.tick() => {}
        }
        let daemons =
            query(args.socket.as_deref(), STATUS_REQUEST).map_err(|error| match first {
                true => error,
                false => Error::new(Exit::Unreachable, "the daemon has exited"),
            })?;
        let frame = match (draws, args.json || first) {
            (true, _) => frame(daemons),
            (false, true) => show(args, daemons),
            (false, false) => format!("\n{}", show(args, daemons)),
        };
        if !print(frame.as_bytes())? {
            return Ok(());
        }
        first = false;
    }
}

/// Completes when somebody types q at the terminal.
async fn quit(typed: &mut Option<oneshot::Receiver<()>>) {
    if let Some(typed) = typed
        && typed.await.is_ok()
    {
        return;
    }
    // There is no terminal, or it is gone.
    *typed = None;
    pending().await
}

//! Stops a daemon on Ctrl-C, SIGTERM or SIGHUP, immediately or after draining.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;
use std::{fs, io};

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, Exit, system};

/// Starts a shutdown; dropping it does too.
#[derive(Debug)]
pub struct Trigger(watch::Sender<Option<Ending>>);

/// Waits for a shutdown.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Option<Ending>>);

/// How to stop a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Close open connections.
    AtOnce,
    /// Let open connections finish, up to the drain timeout.
    Drain,
}

/// A connected pair.
pub fn switch() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(None);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Starts a shutdown unless one has started.
    pub fn end(&self, ending: Ending) {
        self.0.send_if_modified(|thrown| {
            let first = thrown.is_none();
            thrown.get_or_insert(ending);
            first
        });
    }
}

impl Shutdown {
    /// Returns once a shutdown has started.
    pub async fn thrown(&self) -> Ending {
        let mut receiver = self.0.clone();
        // An error means that the trigger was dropped.
        let thrown = receiver.wait_for(Option::is_some).await;
        thrown.ok().and_then(|thrown| *thrown).unwrap_or(Ending::AtOnce)
    }

    /// Whether a shutdown has started.
    pub fn is_thrown(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Returns once a shutdown has started, with the time to drain: `drain`, or zero to stop at
    /// once.
    pub async fn drained(self, drain: Duration) -> Duration {
        match self.thrown().await {
            Ending::AtOnce => Duration::ZERO,
            Ending::Drain => drain,
        }
    }
}

/// Drains on SIGTERM; stops immediately on Ctrl-C (SIGINT) and on SIGHUP, which comes from a closed terminal,
/// or from ssh to its ProxyCommand. A second signal exits the process immediately.
///
/// # Errors
/// Exit 1: the signal handlers cannot be installed.
pub fn on_signals() -> Result<Shutdown, Error> {
    on_these(Signals::new())
}

/// Like [`on_signals`], for a daemon that reloads on SIGHUP.
///
/// # Errors
/// As for [`on_signals`].
pub fn on_signals_but_hangup() -> Result<Shutdown, Error> {
    on_these(Signals::new().map(|signals| Signals { hangup: None, ..signals }))
}

fn on_these(signals: io::Result<Signals>) -> Result<Shutdown, Error> {
    let mut signals = signals.map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot install signal handlers: {}", system(&error)))
    })?;
    let (trigger, shutdown) = switch();
    tokio::spawn(async move {
        let (_, ending) = signals.next().await;
        trigger.end(ending);
        std::process::exit(signals.next().await.0);
    });
    Ok(shutdown)
}

/// Runs a daemon's control tasks on this thread until it ends; event loops and blocking work have their own
/// threads. Abandons threads that are still blocked then, as in a read of standard input.
///
/// # Errors
/// Exit 1: threads cannot be started; and the daemon's own errors.
pub fn block_on(daemon: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    block_on_pinned(pin!(daemon))
}

/// Compiled once for all commands.
fn block_on_pinned(daemon: Pin<&mut dyn Future<Output = Result<(), Error>>>) -> Result<(), Error> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot start its event loop: {}", system(&error)))
    })?;
    let ended = runtime.block_on(daemon);
    runtime.shutdown_background();
    ended
}

/// The signals that stop the process.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if SIGHUP is ignored or handled elsewhere.
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let hangup = (!hangup_is_ignored()).then(|| signal(SignalKind::hangup()));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Waits for a signal; returns its exit code, 128 plus its number, and how to stop.
    async fn next(&mut self) -> (i32, Ending) {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => (130, Ending::AtOnce),
            _ = self.terminate.recv() => (143, Ending::Drain),
            _ = hung_up => (129, Ending::AtOnce),
        }
    }
}

/// Whether the process was started with SIGHUP ignored, as by nohup(1), which a handler would undo
/// (proc(5), SigIgn: a hexadecimal mask whose lowest bit is SIGHUP).
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

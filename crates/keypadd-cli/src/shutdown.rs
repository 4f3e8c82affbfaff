//! One switch that ends a daemon: thrown by Ctrl-C, SIGTERM or SIGHUP. It says whether what is open may
//! finish, and knows nothing of what that is.

use std::future::pending;
use std::time::Duration;
use std::{fs, io};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, Exit, system};

/// Held by whoever may end the daemon. Dropping it ends the daemon too.
#[derive(Debug)]
pub struct Trigger(watch::Sender<Option<Ending>>);

/// Held by whatever has to end.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Option<Ending>>);

/// How a daemon is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// What is open is cut off.
    AtOnce,
    /// What is open may finish first, within the time that the daemon gives it.
    Drain,
}

/// A switch that has not been thrown.
pub fn switch() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(None);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Ends the daemon in this way, unless it is ending already.
    pub fn end(&self, ending: Ending) {
        self.0.send_if_modified(|thrown| {
            let first = thrown.is_none();
            thrown.get_or_insert(ending);
            first
        });
    }
}

impl Shutdown {
    /// Returns once the switch is thrown, at once if it was already.
    pub async fn thrown(&self) -> Ending {
        let mut receiver = self.0.clone();
        // An error means that the trigger is gone, which ends the daemon as well.
        let thrown = receiver.wait_for(Option::is_some).await;
        thrown.ok().and_then(|thrown| *thrown).unwrap_or(Ending::AtOnce)
    }

    /// Returns once the switch is thrown, with the time that is left for what is still open: this much
    /// of it if it may finish.
    pub async fn drained(self, drain: Duration) -> Duration {
        match self.thrown().await {
            Ending::AtOnce => Duration::ZERO,
            Ending::Drain => drain,
        }
    }
}

/// A switch thrown by SIGTERM, after which what is open may finish; and by Ctrl-C (SIGINT) and SIGHUP, with
/// which a terminal or ssh hangs up on its ProxyCommand, after which it may not. A second signal ends the
/// process on the spot, for the user who does not want to wait.
///
/// # Errors
/// Exit 1: the operating system refuses the signal handlers.
pub fn on_signals() -> Result<Shutdown, Error> {
    on_these(Signals::new())
}

/// As [`on_signals`], for a daemon to whom SIGHUP means another thing.
///
/// # Errors
/// As for [`on_signals`].
pub fn on_signals_but_hangup() -> Result<Shutdown, Error> {
    on_these(Signals::new().map(|signals| Signals { hangup: None, ..signals }))
}

fn on_these(signals: io::Result<Signals>) -> Result<Shutdown, Error> {
    let mut signals = signals.map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot handle signals: {}", system(&error)))
    })?;
    let (trigger, shutdown) = switch();
    tokio::spawn(async move {
        let (_, ending) = signals.next().await;
        trigger.end(ending);
        std::process::exit(signals.next().await.0);
    });
    Ok(shutdown)
}

/// Runs a daemon to its end. What is then still blocked, such as a read of standard input, is left
/// behind.
///
/// # Errors
/// Exit 1: the system has no threads for it. And the daemon's own.
pub fn block_on(daemon: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = Runtime::new().map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot start threads: {}", system(&error)))
    })?;
    let ended = runtime.block_on(daemon);
    runtime.shutdown_background();
    ended
}

/// The signals that end us.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where a hangup is to be ignored.
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

    /// Waits for one and returns the exit code that a shell expects of it, 128 and its number, and what
    /// it asks for.
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

/// Whether we were started by nohup(1) or its like: then a hangup must not end us, and a handler
/// would undo that (proc(5), SigIgn: a mask in hexadecimal, SIGHUP its lowest bit).
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

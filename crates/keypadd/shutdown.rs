//! One switch that ends a daemon: thrown by Ctrl-C, SIGTERM or SIGHUP in the program, by hand in a test or
//! where two daemons share a process. Knows nothing of what it ends.

use std::future::pending;
use std::time::Duration;
use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Held by whoever may end the daemon. Dropping it ends the daemon too.
#[derive(Debug)]
pub(crate) struct Trigger(watch::Sender<bool>);

/// Held by whatever has to end.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

/// A switch that has not been thrown.
pub(crate) fn switch() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Ends the daemon. Doing it twice changes nothing.
    pub(crate) fn throw(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Returns once the switch is thrown, at once if it was already.
    pub(crate) async fn thrown(&self) {
        let mut receiver = self.0.clone();
        // An error means that the trigger is gone, which ends the daemon as well.
        let _ = receiver.wait_for(|thrown| *thrown).await;
    }

    /// Returns once the switch is thrown, with no time for what is still open.
    pub(crate) async fn at_once(self) -> Duration {
        self.thrown().await;
        Duration::ZERO
    }
}

/// A switch thrown by Ctrl-C (SIGINT), SIGTERM, or SIGHUP, with which a terminal or ssh hangs up on
/// its ProxyCommand. A second signal ends the process on the spot, for the user who does not want to
/// wait for the other end's goodbye.
///
/// # Errors
/// The operating system refuses the signal handlers.
pub(crate) fn on_signals() -> io::Result<Shutdown> {
    on_these(Signals::new()?)
}

/// As [`on_signals`], for a daemon to whom SIGHUP means another thing.
///
/// # Errors
/// As for [`on_signals`].
pub(crate) fn on_signals_but_hangup() -> io::Result<Shutdown> {
    on_these(Signals { hangup: None, ..Signals::new()? })
}

fn on_these(mut signals: Signals) -> io::Result<Shutdown> {
    let (trigger, shutdown) = switch();
    tokio::spawn(async move {
        signals.next().await;
        trigger.throw();
        std::process::exit(signals.next().await);
    });
    Ok(shutdown)
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

    /// Waits for one and returns the exit code that a shell expects of it: 128 and its number.
    async fn next(&mut self) -> i32 {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = hung_up => 129,
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

//! Stops a daemon on Ctrl-C, SIGTERM or SIGHUP, immediately or after draining.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;
use std::{fs, io};

use rustix::process::{self, Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, Exit, system};

/// Starts a shutdown; dropping it does too.
#[derive(Debug)]
pub struct Trigger(watch::Sender<Option<ShutdownMode>>);

/// Waits for a shutdown.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Option<ShutdownMode>>);

/// The open files that a daemon needs: its own, its reserve, and a few for forwards.
const DESCRIPTORS_MIN: u64 = 128;

/// How to stop a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Close open connections.
    Immediate,
    /// Let open connections finish, up to the drain timeout.
    Drain,
}

/// A connected pair.
pub fn channel() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(None);
    (Trigger(sender), Shutdown(receiver))
}

impl Trigger {
    /// Starts a shutdown unless one has started.
    pub fn request(&self, mode: ShutdownMode) {
        self.0.send_if_modified(|requested| {
            let first = requested.is_none();
            requested.get_or_insert(mode);
            first
        });
    }
}

impl Shutdown {
    /// Returns once a shutdown has started.
    pub async fn requested(&self) -> ShutdownMode {
        let mut receiver = self.0.clone();
        // An error means that the trigger was dropped.
        let requested = receiver.wait_for(Option::is_some).await;
        requested.ok().and_then(|requested| *requested).unwrap_or(ShutdownMode::Immediate)
    }

    /// Whether a shutdown has started.
    pub fn is_requested(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Returns once a shutdown has started, with the time to drain: `drain`, or zero to stop at
    /// once.
    pub async fn drain_time(self, drain: Duration) -> Duration {
        match self.requested().await {
            ShutdownMode::Immediate => Duration::ZERO,
            ShutdownMode::Drain => drain,
        }
    }
}

/// Drains on SIGTERM; stops immediately on Ctrl-C (SIGINT) and on SIGHUP, which comes from a closed
/// terminal, or from ssh to its ProxyCommand. A second signal exits the process immediately.
///
/// # Errors
/// Exit 1: the signal handlers cannot be installed.
pub fn on_signals() -> Result<Shutdown, Error> {
    install_handlers(Signals::new())
}

/// Like [`on_signals`], for a daemon that reloads on SIGHUP.
///
/// # Errors
/// As for [`on_signals`].
pub fn on_signals_except_hangup() -> Result<Shutdown, Error> {
    install_handlers(Signals::new().map(|signals| Signals { hangup: None, ..signals }))
}

fn install_handlers(signals: io::Result<Signals>) -> Result<Shutdown, Error> {
    let mut signals = signals.map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot install signal handlers: {}", system(&error)))
    })?;
    let (trigger, shutdown) = channel();
    tokio::spawn(async move {
        let (_, mode) = signals.next().await;
        trigger.request(mode);
        std::process::exit(signals.next().await.0);
    });
    Ok(shutdown)
}

/// Runs a daemon's control tasks on this thread until it ends; event loops and blocking work have
/// their own threads. Abandons threads that are still blocked then, as in a read of standard input.
///
/// # Errors
/// Exit 1: threads cannot be started, or too few files opened; and the daemon's own errors.
pub fn block_on(daemon: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    block_on_pinned(pin!(daemon))
}

/// Compiled once for all commands.
fn block_on_pinned(daemon: Pin<&mut dyn Future<Output = Result<(), Error>>>) -> Result<(), Error> {
    raise_descriptor_limit()?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot start its event loop: {}", system(&error)))
    })?;
    let ended = runtime.block_on(daemon);
    runtime.shutdown_background();
    ended
}

/// Raises the soft limit of open files to the hard one: each forwarded connection takes a
/// descriptor, two once it is bulk, and the soft limit is commonly 1,024 for the sake of select(2).
///
/// # Errors
/// Exit 1: no forward would work.
fn raise_descriptor_limit() -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    if let Some(files) = limit.maximum.filter(|files| *files < DESCRIPTORS_MIN) {
        let cause =
            format!("only {files} open files are allowed; at least {DESCRIPTORS_MIN} are needed");
        let hint = "raise `ulimit -Hn`, or LimitNOFILE= in the systemd unit";
        return Err(Error::new(Exit::Runtime, cause).hint(hint));
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
    Ok(())
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
        // Handled for good, so that a log that may not grow fails to be written, as on a full disk,
        // and does not end the process.
        let _ = signal(SignalKind::from_raw(process::Signal::XFSZ.as_raw()))?;
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Waits for a signal; returns its exit code, 128 plus its number, and how to stop.
    async fn next(&mut self) -> (i32, ShutdownMode) {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => (130, ShutdownMode::Immediate),
            _ = self.terminate.recv() => (143, ShutdownMode::Drain),
            _ = hung_up => (129, ShutdownMode::Immediate),
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

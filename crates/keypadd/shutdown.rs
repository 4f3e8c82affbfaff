//! One switch that ends a daemon: thrown by Ctrl-C or SIGTERM in the program, by hand in a test or
//! where two daemons share a process. Knows nothing of what it ends.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
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
}

/// A switch thrown by Ctrl-C (SIGINT) or SIGTERM. A second signal ends the process on the spot, for
/// the user who does not want to wait for the other end's goodbye.
///
/// # Errors
/// The operating system refuses the signal handlers.
pub(crate) fn on_signals() -> io::Result<Shutdown> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (trigger, shutdown) = switch();
    tokio::spawn(async move {
        let code = tokio::select! {
            _ = interrupt.recv() => 130, // 128 + SIGINT, what a shell expects
            _ = terminate.recv() => 143, // 128 + SIGTERM
        };
        trigger.throw();
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
        std::process::exit(code);
    });
    Ok(shutdown)
}

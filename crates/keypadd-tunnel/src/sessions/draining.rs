//! Says whether a server drains: it accepts no new sessions, and asks its clients to make their
//! connections elsewhere. That can be taken back. A shutdown goes further: it takes no more
//! connections either.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

/// How far a client has come in leaving its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The server does not ask for it.
    #[default]
    No,
    /// The server asks for it.
    Asked,
    /// New connections go elsewhere.
    Done,
}

/// Whether a server drains or shuts down; clones share it, and it outlives the server.
#[derive(Clone, Debug, Default)]
pub struct Draining(Arc<watch::Sender<Phase>>);

/// What a server does with clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The server accepts new sessions and serves them.
    #[default]
    Serving,
    /// The server accepts no new sessions. What is still open at a given time is reset.
    Draining {
        /// When that is; `None` if connections stay until they end.
        until: Option<Instant>,
    },
    /// The server takes neither sessions nor connections; a session without connections ends.
    Stopping,
}

impl Draining {
    /// Begins to drain the server, or sets another time; what is open after that is reset. Does
    /// nothing during a shutdown.
    pub fn begin(&self, time: Option<Duration>) {
        // A time that no clock reaches is none.
        let until = time.and_then(|time| Instant::now().checked_add(time));
        self.set(Phase::Draining { until });
    }

    /// Serves again. Does nothing during a shutdown.
    pub fn end(&self) {
        self.set(Phase::Serving);
    }

    /// Whether the server accepts no new sessions.
    pub fn is_on(&self) -> bool {
        *self.0.borrow() != Phase::Serving
    }

    /// How much of the time is left, if there is a limit; zero after it.
    pub fn left(&self) -> Option<Duration> {
        match *self.0.borrow() {
            Phase::Draining { until } => Some(until?.saturating_duration_since(Instant::now())),
            Phase::Serving | Phase::Stopping => None,
        }
    }

    /// The server shuts down.
    pub(crate) fn stop(&self) {
        self.0.send_replace(Phase::Stopping);
    }

    /// Completes when the server shuts down.
    pub(crate) async fn stopped(&self) {
        // Fails only without a sender, and this has it.
        let _ = self.subscribe().wait_for(|phase| *phase == Phase::Stopping).await;
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }

    fn set(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let changes = *now != Phase::Stopping && *now != phase;
            if changes {
                *now = phase;
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_can_be_taken_back_until_the_server_shuts_down() {
        let draining = Draining::default();
        draining.begin(Some(Duration::from_secs(60)));
        assert!(draining.is_on());
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(draining.left(), Some(Duration::from_secs(40)));
        draining.begin(None);
        assert_eq!((draining.is_on(), draining.left()), (true, None));
        draining.end();
        assert!(!draining.is_on());
        draining.begin(Some(Duration::MAX));
        assert_eq!((draining.is_on(), draining.left()), (true, None));
        draining.stop();
        draining.end();
        assert!(draining.is_on());
        draining.stopped().await;
    }
}

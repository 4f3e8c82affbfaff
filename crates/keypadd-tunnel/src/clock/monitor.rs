//! Checks the clocks twice a second and tells connections of a jump.

use std::sync::Arc;
use std::time::Duration;

use tokio::{sync::watch, task::JoinSet, time::sleep};
use tracing::warn;

use crate::clock::{
    egress_gate::EgressGate,
    jump::{Clocks, Jump},
};

/// The clocks are read this often, so that a jump is known and acted on within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The task that looks at the clocks; dropped, it stops.
#[derive(Debug)]
pub(crate) struct Watchman {
    jumps: Jumps,
    egress: EgressGate,
    _task: JoinSet<()>,
}

/// Where jumps are heard of, from the moment on when it was made.
#[derive(Debug)]
pub(crate) struct Jumps(watch::Receiver<Option<Jump>>);

impl Watchman {
    /// Starts to look. Needs a tokio runtime.
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let (sender, receiver) = watch::channel(None);
        let egress = EgressGate::new(clocks);
        let watched = egress.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                tokio::select! {
                    () = sleep(LOOK_EVERY) => {}
                    () = watched.jumped() => {}
                }
                if let Some(jump) = watched.check() {
                    warn!("{jump}: all connections are closed and made anew, with fresh keys");
                    sender.send_replace(Some(jump));
                }
            }
        });
        Self { jumps: Jumps(receiver), egress, _task: task }
    }

    /// What shuts at a jump; whoever has an endpoint opens it again.
    pub(crate) fn egress(&self) -> EgressGate {
        self.egress.clone()
    }

    /// Jumps from now on.
    pub(crate) fn jumps(&self) -> Jumps {
        let mut receiver = self.jumps.0.clone();
        receiver.mark_unchanged();
        Jumps(receiver)
    }
}

impl Jumps {
    /// Completes with the next jump.
    pub(crate) async fn next(&mut self) -> Jump {
        loop {
            if self.0.changed().await.is_err() {
                // The watchman is gone, and with it whatever he watched for.
                return std::future::pending().await;
            }
            if let Some(jump) = *self.0.borrow_and_update() {
                return jump;
            }
        }
    }
}

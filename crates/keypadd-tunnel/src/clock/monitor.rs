//! Checks the clocks twice a second and notifies connections of a jump.

use std::sync::Arc;
use std::time::Duration;

use tokio::{sync::watch, task::JoinSet, time::sleep};
use tracing::warn;

use crate::clock::{
    egress_gate::EgressGate,
    jump::{Clocks, Jump},
};

/// Time between two checks, so that a jump is detected and handled within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the task that checks the clocks; the task stops on drop.
#[derive(Debug)]
pub(crate) struct ClockMonitor {
    jumps: Jumps,
    gate: EgressGate,
    _task: JoinSet<()>,
}

/// Receives the jumps detected since it was created; a clone also receives those that the original
/// has not received yet.
#[derive(Clone, Debug)]
pub(crate) struct Jumps(watch::Receiver<Option<Jump>>);

impl ClockMonitor {
    /// Starts the task. Needs a tokio runtime.
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let (sender, receiver) = watch::channel(None);
        let gate = EgressGate::new(clocks);
        let checked = gate.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                tokio::select! {
                    () = sleep(CHECK_INTERVAL) => {}
                    () = checked.jumped() => {}
                }
                if let Some(jump) = checked.check() {
                    warn!("{jump}: closing all connections; reconnecting with new keys");
                    sender.send_replace(Some(jump));
                }
            }
        });
        Self { jumps: Jumps(receiver), gate, _task: task }
    }

    /// The gate that shuts at a jump. The owner of the endpoint must reopen it.
    pub(crate) fn gate(&self) -> EgressGate {
        self.gate.clone()
    }

    /// A receiver of the jumps from now on.
    pub(crate) fn jumps(&self) -> Jumps {
        let mut receiver = self.jumps.0.clone();
        receiver.mark_unchanged();
        Jumps(receiver)
    }
}

impl Jumps {
    /// Waits for the next jump.
    pub(crate) async fn next(&mut self) -> Jump {
        loop {
            if self.0.changed().await.is_err() {
                // The monitor was dropped, with everything that uses it.
                return std::future::pending().await;
            }
            if let Some(jump) = *self.0.borrow_and_update() {
                return jump;
            }
        }
    }
}

//! Checks the clocks twice a second and notifies connections of a jump.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::clock::{
    egress_gate::{EgressGate, Jumped},
    jump::{Clocks, Jump},
};

/// Time between two checks, so that a jump is detected and handled within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the task that checks the clocks; the task stops on drop.
#[derive(Debug)]
pub(crate) struct ClockMonitor {
    gate: EgressGate,
    _task: JoinSet<()>,
}

/// Receives the jumps detected since it was created; a clone also receives those that the original
/// has not received yet.
#[derive(Clone, Debug)]
pub(crate) struct Jumps(watch::Receiver<Jumped>);

impl ClockMonitor {
    /// Starts the task. Needs a tokio runtime.
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let gate = EgressGate::new(clocks);
        let checked = gate.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                sleep(CHECK_INTERVAL).await;
                checked.check();
            }
        });
        Self { gate, _task: task }
    }

    /// The gate that drops what connections from before a jump would send.
    pub(crate) fn gate(&self) -> EgressGate {
        self.gate.clone()
    }

    /// A receiver of the jumps from now on.
    pub(crate) fn jumps(&self) -> Jumps {
        Jumps(self.gate.jumps())
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
            if let Some(jump) = self.0.borrow_and_update().last {
                return jump;
            }
        }
    }
}

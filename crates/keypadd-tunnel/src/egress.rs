//! Drops all output after a clock jump until every older connection is closed.
//!
//! After a jump this process may be a copy, and its original may have sent other bytes under the
//! packet numbers that come next here. Not even a goodbye may leave then: it would be sealed with
//! keystream that was used already. So the clocks are read before every send; a check twice a
//! second would come too late for the first of them. Knows nothing of connections but their number.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use keypadd_provider::Histogram;
use keypadd_transport::{Egress, Endpoint};
use tokio::{sync::Notify, time::sleep};

use crate::clock::{Clocks, Jump, Readings, jump};

/// How often connections are counted while the gate is shut.
const GLANCE: Duration = Duration::from_millis(20);

/// Whether anything may be sent; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct EgressGate(Arc<State>);

#[derive(Debug)]
struct State {
    clocks: Arc<dyn Clocks>,
    /// The clocks at the last check.
    last: Mutex<Readings>,
    shut: AtomicBool,
    jumped: Notify,
}

impl EgressGate {
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let last = Mutex::new(clocks.read());
        let (shut, jumped) = (AtomicBool::new(false), Notify::new());
        Self(Arc::new(State { clocks, last, shut, jumped }))
    }

    /// Reads the clocks. Shuts the gate if they have jumped since the last check.
    pub(crate) fn check(&self) -> Option<Jump> {
        let mut last = self.last();
        let now = self.0.clocks.read();
        let jump = self.compare(&last, &now);
        *last = now;
        jump
    }

    /// Completes when a send has found a jump between two checks: the next check is due.
    pub(crate) async fn jumped(&self) {
        self.0.jumped.notified().await;
    }

    /// Whether sends are dropped.
    pub(crate) fn is_shut(&self) -> bool {
        self.0.shut.load(Ordering::Acquire)
    }

    /// Opens a shut gate once the endpoint has no connection left: what was sealed before is gone
    /// with the last one. Whoever has connections must have closed them.
    pub(crate) async fn reopen(&self, endpoint: &Endpoint) {
        while self.is_shut() {
            match endpoint.open_connections() {
                0 => self.0.shut.store(false, Ordering::Release),
                _ => sleep(GLANCE).await,
            }
        }
    }

    fn may_send(&self) -> bool {
        if self.is_shut() {
            return false;
        }
        let last = self.last();
        let jumped = self.compare(&last, &self.0.clocks.read()).is_some();
        if jumped {
            self.0.jumped.notify_one();
        }
        !jumped
    }

    fn compare(&self, last: &Readings, now: &Readings) -> Option<Jump> {
        let jump = jump(last, now);
        if jump.is_some() {
            self.0.shut.store(true, Ordering::Release);
        }
        jump
    }

    /// Held until the clocks are read and compared, so that no reading is compared with a later one.
    /// Readings are plain numbers, which no panic can leave half changed.
    fn last(&self) -> MutexGuard<'_, Readings> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate and the histogram as the transport asks for them.
#[derive(Debug)]
pub(crate) struct MeteredEgress {
    pub(crate) gate: EgressGate,
    pub(crate) send_seconds: Arc<Histogram>,
}

impl Egress for MeteredEgress {
    fn may_send(&self) -> bool {
        self.gate.may_send()
    }

    fn observe_send(&self, per_packet: Duration) {
        self.send_seconds.observe(per_packet);
    }
}

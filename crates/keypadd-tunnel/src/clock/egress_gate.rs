//! Drops all output after a clock jump until every older connection is closed.
//!
//! After a jump this process may be a restored copy, and the original may have used the next packet
//! numbers already. Then not even a CONNECTION_CLOSE may be sent: it would reuse keystream. So the
//! clocks are read before every send; the monitor's check twice a second would be too late for the
//! first packets. Knows nothing of connections except how many are open.

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

use crate::clock::jump::{Clocks, Jump, Readings, jump};

/// Time between two counts of the open connections while the gate is shut.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Decides whether packets may be sent; clones share one gate.
#[derive(Clone, Debug)]
pub(crate) struct EgressGate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    clocks: Arc<dyn Clocks>,
    /// The readings of the last check.
    last: Mutex<Readings>,
    shut: AtomicBool,
    jumped: Notify,
}

impl EgressGate {
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let last = Mutex::new(clocks.read());
        let (shut, jumped) = (AtomicBool::new(false), Notify::new());
        Self(Arc::new(GateState { clocks, last, shut, jumped }))
    }

    /// Reads the clocks, and shuts the gate if they have jumped since the last check.
    pub(crate) fn check(&self) -> Option<Jump> {
        let mut last = self.last();
        let now = self.0.clocks.read();
        let jump = self.compare(&last, &now);
        *last = now;
        jump
    }

    /// Waits until a send detects a jump: then a check is due at once.
    pub(crate) async fn jumped(&self) {
        self.0.jumped.notified().await;
    }

    /// Whether sends are dropped.
    pub(crate) fn is_shut(&self) -> bool {
        self.0.shut.load(Ordering::Acquire)
    }

    /// Waits until the endpoint has no connection, and opens the gate: then no packet sealed before
    /// the jump is left. The owner of the connections must close them.
    pub(crate) async fn reopen(&self, endpoint: &Endpoint) {
        while self.is_shut() {
            match endpoint.open_connections() {
                0 => self.0.shut.store(false, Ordering::Release),
                _ => sleep(POLL_INTERVAL).await,
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

    /// Locked until the clocks are read and compared, so that no reading is compared with a later
    /// one. Readings are plain numbers, which no panic can leave half changed.
    fn last(&self) -> MutexGuard<'_, Readings> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate and the send-time histogram behind the transport's interface.
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

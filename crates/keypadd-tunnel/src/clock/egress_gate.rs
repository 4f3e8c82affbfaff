//! Drops all output of connections from before a clock jump.
//!
//! After a jump this process may be a restored copy, and the original may have used the next packet
//! numbers already. Then not even a CONNECTION_CLOSE may be sent: it would reuse keystream. So the
//! clocks are read before every send; the monitor's check twice a second would be too late for the
//! first packets. Each jump begins an epoch, and a connection sends only in its own: new ones wait
//! for nothing. Knows no connections.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keypadd_provider::Histogram;
use keypadd_transport::Egress;
use tokio::sync::watch;
use tracing::warn;

use crate::clock::jump::{Clocks, Jump, Readings, jump};

/// Decides whether packets may be sent; clones share one gate.
#[derive(Clone, Debug)]
pub(crate) struct EgressGate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    clocks: Arc<dyn Clocks>,
    /// The readings of the last check, or of the last jump.
    last: Mutex<Readings>,
    jumps: watch::Sender<Jumped>,
}

/// The jumps so far. One value, so that a connection of the epoch after a jump is not ended by it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Jumped {
    /// Their number.
    epoch: u64,
    pub(crate) last: Option<Jump>,
}

impl EgressGate {
    pub(crate) fn new(clocks: Arc<dyn Clocks>) -> Self {
        let last = Mutex::new(clocks.read());
        Self(Arc::new(GateState { clocks, last, jumps: watch::Sender::default() }))
    }

    /// Reads the clocks, and begins an epoch if they have jumped since the last check.
    pub(crate) fn check(&self) {
        self.compare(true);
    }

    /// Receives the jumps from now on.
    pub(crate) fn jumps(&self) -> watch::Receiver<Jumped> {
        self.0.jumps.subscribe()
    }

    fn epoch(&self) -> u64 {
        self.0.jumps.borrow().epoch
    }

    fn may_send(&self, epoch: u64) -> bool {
        self.compare(false);
        epoch == self.epoch()
    }

    /// Reads and compares the clocks. They are locked meanwhile, so that no reading is compared
    /// with a later one. Readings are plain numbers, which no panic can leave half changed.
    fn compare(&self, is_check: bool) {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.clocks.read();
        let jump = jump(&last, &now);
        if is_check || jump.is_some() {
            *last = now;
        }
        if jump.is_some() {
            self.0.jumps.send_modify(|jumps| {
                *jumps = Jumped { epoch: jumps.epoch + 1, last: jump };
            });
        }
        drop(last);
        if let Some(jump) = jump {
            warn!("{jump}: closing all connections; reconnecting with new keys");
        }
    }
}

/// The gate and the send-time histogram behind the transport's interface.
#[derive(Debug)]
pub(crate) struct MeteredEgress {
    pub(crate) gate: EgressGate,
    pub(crate) send_seconds: Arc<Histogram>,
}

impl Egress for MeteredEgress {
    fn epoch(&self) -> u64 {
        self.gate.epoch()
    }

    fn may_send(&self, epoch: u64) -> bool {
        self.gate.may_send(epoch)
    }

    fn observe_send(&self, per_packet: Duration) {
        self.send_seconds.observe(per_packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::jump::SystemClocks;

    /// Clocks that show what they are set to.
    #[derive(Debug)]
    struct SetClocks(Mutex<Readings>);

    impl Clocks for SetClocks {
        fn read(&self) -> Readings {
            *self.0.lock().unwrap()
        }
    }

    impl SetClocks {
        fn new() -> Arc<Self> {
            Arc::new(Self(Mutex::new(SystemClocks.read())))
        }

        fn set_time(&self, millis: i128) {
            self.0.lock().unwrap().realtime_nanos += millis * 1_000_000;
        }
    }

    #[test]
    fn a_jump_ends_what_was_made_before_and_nothing_else_even_if_only_a_send_has_seen_it() {
        let clocks = SetClocks::new();
        let gate = EgressGate::new(Arc::<SetClocks>::clone(&clocks));
        let mut jumps = gate.jumps();
        let mut older = Vec::new();
        for _ in 0..1_000 {
            let epoch = gate.epoch();
            assert!(gate.may_send(epoch));
            clocks.set_time(2_000);
            assert!(!gate.may_send(epoch));
            older.push(epoch);
            // At once, and this jump is not told again.
            assert!(gate.may_send(gate.epoch()));
            assert!(jumps.has_changed().unwrap() && jumps.borrow_and_update().last.is_some());
            gate.check();
            assert!(gate.may_send(gate.epoch()) && !jumps.has_changed().unwrap());
        }
        assert!(!older.iter().any(|epoch| gate.may_send(*epoch)));
    }

    #[test]
    fn clocks_are_compared_with_those_of_the_last_check() {
        let clocks = SetClocks::new();
        let gate = EgressGate::new(Arc::<SetClocks>::clone(&clocks));
        let began = gate.epoch();
        clocks.set_time(700);
        assert!(gate.may_send(began));
        gate.check();
        clocks.set_time(700);
        assert!(gate.may_send(began));
        clocks.set_time(700);
        assert!(!gate.may_send(began));
    }
}

//! Sends a probe each tenth of a second while the peer does not respond, so that a path's return is noticed
//! within that.
//!
//! quinn-proto's probe timeouts double without a bound (RFC 9002 6.2.1): after a blackout of 20 s its next
//! probe may be 16 s away.

use std::time::{Duration, Instant};

use super::Driver;

/// Between probes, each some 40 bytes; the peer timeout bounds how many there are.
const INTERVAL: Duration = Duration::from_millis(100);

/// Silence before the first probe, if something is in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// Silence before the first probe of an idle path: a keep-alive, sent by then, has not been answered.
const IDLE_PATIENCE: Duration = Duration::from_secs(4);

/// Since when nothing has arrived.
#[derive(Debug, Default)]
pub(super) struct Silence {
    datagrams: u64,
    heard_at: Option<Instant>,
    probe_at: Option<Instant>,
}

impl Silence {
    /// When the next probe is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probe_at
    }

    /// So many datagrams have arrived ever; whether to probe now. `waits`: something is in flight.
    fn is_probe_due(&mut self, now: Instant, datagrams: u64, waits: bool) -> bool {
        if self.datagrams != datagrams || self.heard_at.is_none() {
            (self.datagrams, self.heard_at) = (datagrams, Some(now));
        }
        let heard_at = self.heard_at.unwrap_or(now);
        let patience = if waits { PATIENCE } else { IDLE_PATIENCE };
        let first = heard_at + patience;
        let due = now >= first && self.probe_at.is_none_or(|at| at <= now);
        self.probe_at = Some(if now >= first {
            if due { now + INTERVAL } else { self.probe_at.unwrap_or(now + INTERVAL) }
        } else {
            first
        });
        due
    }
}

impl Driver {
    pub(super) fn probe_silence(&mut self, now: Instant) {
        if !self.proved || self.lost {
            return;
        }
        let datagrams = self.connection.stats().udp_rx.datagrams;
        if self.silence.is_probe_due(now, datagrams, self.gate.waits()) {
            self.connection.ping();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_path_is_probed_ten_times_a_second_until_something_arrives() {
        let start = Instant::now();
        let mut silence = Silence::default();
        let mut probes = Vec::new();
        for tick in 0..60 {
            let now = start + INTERVAL / 2 * tick;
            if silence.is_probe_due(now, if tick < 25 { 1 } else { 2 }, true) {
                probes.push(tick);
            }
        }
        assert_eq!(probes, [20, 22, 24, 45, 47, 49, 51, 53, 55, 57, 59]);
    }

    #[test]
    fn an_idle_path_is_left_to_its_keep_alives() {
        let (start, mut silence) = (Instant::now(), Silence::default());
        for second in 0..4 {
            assert!(!silence.is_probe_due(start + Duration::from_secs(second), 1, false));
        }
        assert!(silence.is_probe_due(start + IDLE_PATIENCE, 1, false));
    }
}

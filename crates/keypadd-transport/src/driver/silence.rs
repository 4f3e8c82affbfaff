//! Probes every 100 ms while the peer does not respond, so that a path's return is noticed within
//! that time.
//!
//! quinn-proto's probe timeouts double without bound (RFC 9002 6.2.1): after an outage of 20 s its
//! next probe may be 16 s away.

use std::time::{Duration, Instant};

/// Between probes of about 40 bytes each; the peer timeout bounds their number.
const INTERVAL: Duration = Duration::from_millis(100);

/// Silence before the first probe if something is in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// Silence before the first probe of an idle path: a keep-alive was sent by then and has not been
/// answered.
const IDLE_PATIENCE: Duration = Duration::from_secs(4);

/// How long nothing has arrived.
#[derive(Debug, Default)]
pub(super) struct Silence {
    datagrams: u64,
    /// STREAM frames sent by the time something last arrived.
    streamed: u64,
    waits: bool,
    since: Option<Instant>,
    probing: bool,
    probe_at: Option<Instant>,
}

impl Silence {
    /// When the next probe is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probe_at
    }

    /// Whether to probe now, given all datagrams that have arrived and all STREAM frames sent so
    /// far. `in_flight` is the gate's answer, which ignores a few bytes.
    pub(super) fn is_probe_due(
        &mut self,
        now: Instant,
        datagrams: u64,
        streamed: u64,
        in_flight: bool,
    ) -> bool {
        let heard = self.since.is_none() || self.datagrams != datagrams;
        if heard {
            (self.datagrams, self.streamed) = (datagrams, streamed);
        }
        let waits = in_flight || self.streamed != streamed;
        let begins_to_wait = waits && !self.waits && !self.probing;
        if heard || begins_to_wait {
            self.since = Some(now);
        }
        self.waits = waits;
        // Lost data is retransmitted when a later packet is acknowledged (RFC 9002 6.1). Without
        // one it would wait for a probe timeout that has kept doubling.
        let ended = heard && std::mem::take(&mut self.probing);
        let patience = if waits { PATIENCE } else { IDLE_PATIENCE };
        let first = self.since.unwrap_or(now) + patience;
        if now < first {
            self.probe_at = Some(first);
            return ended;
        }
        let due = !self.probing || self.probe_at.is_none_or(|at| at <= now);
        if due {
            (self.probing, self.probe_at) = (true, Some(now + INTERVAL));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_path_is_probed_ten_times_a_second_and_once_when_something_arrives() {
        let start = Instant::now();
        let mut silence = Silence::default();
        let mut probes = Vec::new();
        for tick in 0..60 {
            let now = start + INTERVAL / 2 * tick;
            if silence.is_probe_due(now, if tick < 25 { 1 } else { 2 }, 0, true) {
                probes.push(tick);
            }
        }
        assert_eq!(probes, [20, 22, 24, 25, 45, 47, 49, 51, 53, 55, 57, 59]);
    }

    #[test]
    fn an_idle_path_is_left_to_its_keep_alives_and_is_silent_a_second_after_bytes_were_sent() {
        let (start, mut silence) = (Instant::now(), Silence::default());
        for second in 0..4 {
            assert!(!silence.is_probe_due(start + Duration::from_secs(second), 1, 0, false));
        }
        assert!(silence.is_probe_due(start + IDLE_PATIENCE, 1, 0, false));

        let mut silence = Silence::default();
        let given = start + 2 * PATIENCE;
        assert!(!silence.is_probe_due(start, 1, 0, false));
        assert!(!silence.is_probe_due(given, 1, 9, false));
        assert_eq!(silence.deadline(), Some(given + PATIENCE));
        assert!(silence.is_probe_due(given + PATIENCE, 1, 9, false));
    }
}

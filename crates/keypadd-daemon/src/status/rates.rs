//! Measures each session's packet rate over the last seconds, and how long the pool lasts at that
//! rate. The daemon samples its counters every second; this file reads no clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keypadd_pool::{Direction, HEAD_BYTES, PartLevel};
use keypadd_tunnel::SessionStatus;

/// Sampling interval.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// Samples kept: rates are over the last ten seconds.
const SAMPLES: usize = 11;

/// Packets per second below which a session is idle: only acknowledgments and keep-alives.
const IDLE_BELOW: f64 = 1.0;

/// UDP payload bytes of a packet that keystream does not cover: a QUIC short header with the
/// longest connection ID, and the tag (RFC 9000 section 17.3.1).
const OVERHEAD_BYTES: f64 = 41.0;

/// The rates of a daemon's sessions; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates(Arc<Mutex<VecDeque<Sample>>>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    sessions: BTreeMap<u64, [Count; 2]>,
}

/// Packets and their bytes in one direction, since the session began.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: u64,
    bytes: u64,
}

/// One direction of one session over the last seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Packets per second.
    pub(crate) packets: f64,
    /// Mean packet size in bytes.
    bytes: f64,
}

impl Rates {
    /// Adds a sample of the open sessions.
    pub(crate) fn sample(&self, now: Instant, sessions: &[SessionStatus]) {
        let counts = |status: &SessionStatus| {
            let sent = Count { packets: status.sent_packets, bytes: status.sent_bytes };
            let received =
                Count { packets: status.received_datagrams, bytes: status.received_bytes };
            (status.id, [sent, received])
        };
        let sample = Sample { at: now, sessions: sessions.iter().map(counts).collect() };
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back(sample);
        while samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// The rate of a session; `None` before two samples.
    pub(crate) fn of(&self, session: u64, direction: Direction) -> Option<Rate> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of =
            |sample: &Sample| Some((sample.at, sample.sessions.get(&session)?[direction as usize]));
        let (began, first) = samples.iter().find_map(of)?;
        let (ended, last) = samples.iter().rev().find_map(of)?;
        let seconds = ended.duration_since(began).as_secs_f64();
        if seconds == 0.0 {
            return None;
        }
        let packets = last.packets.saturating_sub(first.packets) as f64;
        let bytes = last.bytes.saturating_sub(first.bytes) as f64;
        Some(Rate { packets: packets / seconds, bytes: bytes / packets.max(1.0) })
    }
}

impl Rate {
    /// How long the pool lasts: short packets use heads only, longer ones both parts. `None` while
    /// the session is idle.
    pub(crate) fn seconds_left(&self, head: PartLevel, body: PartLevel) -> Option<f64> {
        let short = self.bytes - OVERHEAD_BYTES <= HEAD_BYTES as f64;
        let packets = if short { head.packets } else { head.packets.min(body.packets) };
        (self.packets >= IDLE_BELOW).then(|| packets as f64 / self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(packets: u64) -> PartLevel {
        PartLevel { packets, ..PartLevel::default() }
    }

    #[test]
    fn short_packets_use_heads_and_long_ones_the_scarcer_part() {
        let typing = Rate { packets: 10.0, bytes: 90.0 };
        assert_eq!(typing.seconds_left(level(100), level(5)), Some(10.0));
        let bulk = Rate { packets: 1000.0, bytes: 1452.0 };
        assert_eq!(bulk.seconds_left(level(8000), level(500)), Some(0.5));
    }

    #[test]
    fn an_idle_session_has_no_estimate_of_time_left() {
        let idle = Rate { packets: 0.2, bytes: 60.0 };
        assert_eq!(idle.seconds_left(level(100), level(100)), None);
        assert_eq!(Rates::default().of(1, Direction::Send), None);
    }
}

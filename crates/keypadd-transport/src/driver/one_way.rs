//! Measures how long packets wait on the way back, so that bulk slows down for the queue that it causes, on the
//! way there, and not for one of the other direction.
//!
//! A sender of bulk asks, in a DATAGRAM frame (RFC 9221), and the receiver answers with its clock's time. What
//! passes from then to the answer's arrival contains the unknown difference of two clocks; what exceeds the least
//! seen is waiting time. The frames share packets with data and ACKs. A peer that does not answer changes nothing,
//! and one that lies gets a queue longer by a few milliseconds. Knows clocks and frames, no window.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::congestion::Windowed;

/// The least is that of the last 10 to 20 s, as of round trips: clocks drift apart.
const LEAST_TIME: Duration = Duration::from_secs(10);

/// What has waited is the least of the last 100 to 200 ms: answers come in bursts, as ACKs do.
const RECENT_TIME: Duration = Duration::from_millis(100);

/// Questions in a round trip, and limits on the time between two.
const QUESTIONS: u32 = 4;
const INTERVAL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// First bytes of the frames: no flow's, whose frames begin with the ID of their stream and perhaps bit 1. Stream 0
/// is the session's control stream.
const QUESTION: u8 = 0;
const ANSWER: u8 = 2;

/// Keeps differences from the first one positive.
const MIDDLE_MICROS: u32 = 1 << 31;

/// Questions and answers of one connection.
pub(crate) struct OneWay {
    /// Zero of this end's clock.
    epoch: Option<Instant>,
    asked_at: Option<Instant>,
    /// The answer to be sent.
    answer: Option<u32>,
    path: Path,
}

/// What is known of one network path.
struct Path {
    peer: Option<SocketAddr>,
    /// From the peer's time to the arrival of the first answer, in microseconds; wraps.
    first: Option<u32>,
    least: Windowed,
    recent: Windowed,
}

impl OneWay {
    pub(crate) fn new() -> Self {
        Self { epoch: None, asked_at: None, answer: None, path: Path::new(None) }
    }

    /// A question to `peer`, if one is due while bulk is sent.
    pub(crate) fn question(
        &mut self,
        peer: SocketAddr,
        rtt: Duration,
        now: Instant,
    ) -> Option<Bytes> {
        if self.path.peer != Some(peer) {
            self.path = Path::new(Some(peer));
        }
        let interval = (rtt / QUESTIONS).clamp(INTERVAL.0, INTERVAL.1);
        if self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < interval) {
            return None;
        }
        self.asked_at = Some(now);
        Some(Bytes::from_static(&[QUESTION]))
    }

    /// The answer that is due.
    pub(crate) fn answer(&mut self) -> Option<Bytes> {
        let [a, b, c, d] = self.answer.take()?.to_be_bytes();
        Some(Bytes::copy_from_slice(&[ANSWER, a, b, c, d]))
    }

    /// Takes a frame that is no flow's; returns how long answers wait, if it is one.
    pub(crate) fn arrive(&mut self, frame: &[u8], now: Instant) -> Option<Duration> {
        let micros = self.micros(now);
        match *frame {
            [QUESTION] => self.answer = Some(micros),
            [ANSWER, a, b, c, d] => {
                let since = micros.wrapping_sub(u32::from_be_bytes([a, b, c, d]));
                return Some(self.path.waited(since, now));
            }
            _ => {}
        }
        None
    }

    /// Forgets the path: this end has moved.
    pub(crate) fn start_afresh(&mut self) {
        self.path = Path::new(None);
    }

    /// This end's clock; wraps.
    fn micros(&mut self, now: Instant) -> u32 {
        now.saturating_duration_since(*self.epoch.get_or_insert(now)).as_micros() as u32
    }
}

impl Path {
    fn new(peer: Option<SocketAddr>) -> Self {
        let (least, recent) = (Windowed::min(LEAST_TIME), Windowed::min(RECENT_TIME));
        Self { peer, first: None, least, recent }
    }

    fn waited(&mut self, since: u32, now: Instant) -> Duration {
        let first = *self.first.get_or_insert(since);
        let micros = since.wrapping_sub(first).wrapping_add(MIDDLE_MICROS);
        let way = Duration::from_micros(micros.into());
        self.least.insert(now, way);
        self.recent.insert(now, way);
        // After a pause the recent one may be older than what is remembered as the least.
        self.recent.get().saturating_sub(self.least.get())
    }
}

/// Whether a frame is for [`OneWay::arrive`].
pub(crate) fn is_one_way(frame: &[u8]) -> bool {
    matches!(frame.first(), Some(&(QUESTION | ANSWER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PEER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    /// Asks at `now` over ways of these delays, the one back with its queue; returns what has waited.
    fn ask(
        [near, far]: [&mut OneWay; 2],
        now: Instant,
        [there, back]: [Duration; 2],
    ) -> Option<Duration> {
        let question = near.question(PEER, 20 * MS, now)?;
        assert_eq!(far.arrive(&question, now + there), None);
        let answer = far.answer().unwrap();
        near.arrive(&answer, now + there + back)
    }

    #[test]
    fn a_queue_counts_on_the_way_back_only_and_whatever_the_clocks_say() {
        // The peer's clock is behind by an hour and wraps in between.
        let start = Instant::now() + Duration::from_secs(3_600);
        let (mut near, mut far) = (OneWay::new(), OneWay::new());
        far.epoch = Some(start - Duration::from_micros(u32::MAX.into()) + 150 * MS);
        near.epoch = Some(start);
        let mut now = start;
        let mut waited = |there, back, times| {
            let mut last = None;
            for _ in 0..times {
                last = ask([&mut near, &mut far], now, [there, back]);
                now += 10 * MS;
            }
            last.unwrap()
        };
        assert_eq!(waited(10 * MS, 10 * MS, 30), Duration::ZERO);
        assert_eq!(waited(90 * MS, 10 * MS, 30), Duration::ZERO);
        assert_eq!(waited(10 * MS, 14 * MS, 30), 4 * MS);
        assert_eq!(waited(10 * MS, 10 * MS, 1), Duration::ZERO);
        near.start_afresh();
        let mut waited = |back| ask([&mut near, &mut far], now + back * 10, [MS, back]).unwrap();
        assert_eq!(waited(50 * MS), Duration::ZERO);
        assert_eq!(waited(51 * MS), Duration::ZERO, "the least of several");
    }

    #[test]
    fn what_is_left_of_a_least_of_long_ago_is_no_waiting_time() {
        // The least is forgotten while it still counts as recent.
        let (mut path, start) = (Path::new(None), Instant::now());
        for (at, since) in [(0, 9_000), (9_950, 1_000), (10_000, 5_000), (20_001, 5_000)] {
            assert!(path.waited(since, start + at * MS) <= 4 * MS, "after {at} ms");
        }
    }

    #[test]
    fn frames_of_flows_and_garbage_are_no_answers() {
        let (mut one_way, now) = (OneWay::new(), Instant::now());
        for frame in [&[][..], &[1], &[4], &[QUESTION, 0], &[ANSWER], &[ANSWER, 1, 2, 3, 4, 5]] {
            assert_eq!(one_way.arrive(frame, now), None);
            assert!(one_way.answer().is_none(), "{frame:?}");
        }
        let fragment_of_stream_1 = [3, 0, 1, 0, 2, 0, 0];
        assert!(!is_one_way(&[]) && !is_one_way(&fragment_of_stream_1) && !is_one_way(&[0x40, 4]));
    }
}

//! Measures the queueing delays of the forward and of the return path apart. So bulk slows down for
//! the queue on the forward path, which it causes, and not for one on the return path.
//!
//! A sender of bulk asks, in a DATAGRAM frame (RFC 9221) with its clock's time, and the receiver
//! answers with its own. A one-way delay contains the unknown difference of the two clocks; what
//! exceeds the least seen is queueing. The frames share packets with data and ACKs. A peer that
//! does not answer changes nothing, and one that lies gets a queue longer by some 30 ms. Knows
//! clocks and frames, no window.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::congestion::{Waits, Windowed};

/// The least is that of the last 10 to 20 s, as of round trips: clocks drift apart.
const LEAST_TIME: Duration = Duration::from_secs(10);

/// The delay of the return path is the least of the last 100 to 200 ms: answers come in bursts, as
/// ACKs do.
const RECENT_TIME: Duration = Duration::from_millis(40);

/// Questions in a round trip, and limits on the time between two.
const QUESTIONS: u32 = 4;
const INTERVAL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// First bytes of the frames: no flow's, whose frames begin with the ID of their stream and perhaps
/// bit 1. Stream 0 is the session's control stream. Times follow: of the question, and in an answer
/// of its arrival.
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
    answer: Option<[u32; 2]>,
    /// In memory of its own, since most connections never ask.
    path: Option<Box<Path>>,
}

/// What is known of one network path.
struct Path {
    peer: SocketAddr,
    forward: Way,
    back: Way,
    recent_back: Windowed,
    recent_round_trip: Windowed,
}

/// One way of a path, between two clocks.
struct Way {
    /// Its delay when first seen, in microseconds; wraps.
    first: Option<u32>,
    least: Windowed,
}

impl OneWay {
    pub(crate) fn new() -> Self {
        Self { epoch: None, asked_at: None, answer: None, path: None }
    }

    /// A question to `peer`, if one is due while bulk is sent.
    pub(crate) fn question(
        &mut self,
        peer: SocketAddr,
        rtt: Duration,
        now: Instant,
    ) -> Option<Bytes> {
        if self.path.as_ref().is_none_or(|path| path.peer != peer) {
            self.path = Some(Box::new(Path::new(peer)));
        }
        let interval = (rtt / QUESTIONS).clamp(INTERVAL.0, INTERVAL.1);
        if self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < interval) {
            return None;
        }
        self.asked_at = Some(now);
        let [a, b, c, d] = self.micros(now).to_be_bytes();
        Some(Bytes::copy_from_slice(&[QUESTION, a, b, c, d]))
    }

    /// The answer that is due.
    pub(crate) fn answer(&mut self) -> Option<Bytes> {
        let [[a, b, c, d], [e, f, g, h]] = self.answer.take()?.map(u32::to_be_bytes);
        Some(Bytes::copy_from_slice(&[ANSWER, a, b, c, d, e, f, g, h]))
    }

    /// Takes a frame that is no flow's; returns how long packets wait, if it is an answer.
    pub(crate) fn arrive(&mut self, frame: &[u8], now: Instant) -> Option<Waits> {
        let micros = self.micros(now);
        let (kind, times) = frame.split_first()?;
        let (times, []) = times.as_chunks() else { return None };
        match (*kind, times) {
            (QUESTION, &[asked]) => {
                self.answer = Some([u32::from_be_bytes(asked), micros]);
                None
            }
            (ANSWER, &[asked, arrived]) => {
                let [asked, arrived] = [asked, arrived].map(u32::from_be_bytes);
                Some(self.path.as_mut()?.waits(asked, arrived, micros, now))
            }
            (_, _) => None,
        }
    }

    /// Forgets the path: this end has moved.
    pub(crate) fn start_afresh(&mut self) {
        self.path = None;
    }

    /// This end's clock; wraps.
    fn micros(&mut self, now: Instant) -> u32 {
        now.saturating_duration_since(*self.epoch.get_or_insert(now)).as_micros() as u32
    }
}

impl Path {
    fn new(peer: SocketAddr) -> Self {
        let recent = Windowed::min(RECENT_TIME);
        Self {
            peer,
            forward: Way::new(),
            back: Way::new(),
            recent_back: recent,
            recent_round_trip: recent,
        }
    }

    /// An answer to what was asked at one time of this end's clock arrives at another; the peer's
    /// is `arrived`.
    fn waits(&mut self, asked: u32, arrived: u32, micros: u32, now: Instant) -> Waits {
        let forward = self.forward.delay(arrived.wrapping_sub(asked), now);
        let forward = forward.saturating_sub(self.forward.least.get());
        let back = self.back.delay(micros.wrapping_sub(arrived), now);
        let round_trip = Duration::from_micros(micros.wrapping_sub(asked).into());
        self.recent_back.insert(now, back);
        self.recent_round_trip.insert(now, round_trip.saturating_sub(forward));
        Waits {
            forward,
            // After a pause the recent one may be older than what is remembered as the least.
            back: self.recent_back.get().saturating_sub(self.back.least.get()),
            round_trip: self.recent_round_trip.get(),
        }
    }
}

impl Way {
    fn new() -> Self {
        Self { first: None, least: Windowed::min(LEAST_TIME) }
    }

    /// The one-way delay of a packet, comparable to that of another.
    fn delay(&mut self, micros: u32, now: Instant) -> Duration {
        let first = *self.first.get_or_insert(micros);
        let micros = micros.wrapping_sub(first).wrapping_add(MIDDLE_MICROS);
        let delay = Duration::from_micros(micros.into());
        self.least.insert(now, delay);
        delay
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

    /// Asks at `now` over ways of these delays, the one back with its queue; returns what has
    /// waited.
    fn ask(
        [near, far]: [&mut OneWay; 2],
        now: Instant,
        [forward, back]: [Duration; 2],
    ) -> Option<Waits> {
        let question = near.question(PEER, 20 * MS, now)?;
        assert_eq!(far.arrive(&question, now + forward), None);
        let answer = far.answer().unwrap();
        near.arrive(&answer, now + forward + back)
    }

    fn waits(forward: Duration, back: Duration, round_trip: Duration) -> Waits {
        Waits { forward, back, round_trip }
    }

    #[test]
    fn a_queue_counts_on_its_own_way_only_and_whatever_the_clocks_say() {
        // The peer's clock is behind by an hour and wraps in between.
        let start = Instant::now() + Duration::from_secs(3_600);
        let (mut near, mut far) = (OneWay::new(), OneWay::new());
        far.epoch = Some(start - Duration::from_micros(u32::MAX.into()) + 150 * MS);
        near.epoch = Some(start);
        let mut now = start;
        let zero = Duration::ZERO;
        let mut asked = |forward, back, times| {
            let mut last = None;
            for _ in 0..times {
                last = ask([&mut near, &mut far], now, [forward, back]);
                now += 10 * MS;
            }
            last.unwrap()
        };
        assert_eq!(asked(10 * MS, 10 * MS, 30), waits(zero, zero, 20 * MS));
        assert_eq!(asked(90 * MS, 10 * MS, 30), waits(80 * MS, zero, 20 * MS));
        assert_eq!(asked(10 * MS, 14 * MS, 30), waits(zero, 4 * MS, 24 * MS));
        assert_eq!(asked(10 * MS, 10 * MS, 1), waits(zero, zero, 20 * MS));
        near.start_afresh();
        let mut asked = |back| ask([&mut near, &mut far], now + back * 10, [MS, back]).unwrap();
        assert_eq!(asked(50 * MS), waits(zero, zero, 51 * MS));
        assert_eq!(asked(51 * MS), waits(zero, zero, 51 * MS), "the least of several");
    }

    #[test]
    fn what_is_left_of_a_least_of_long_ago_is_no_waiting_time() {
        // The least is forgotten while it still counts as recent.
        let (mut path, start) = (Path::new(PEER), Instant::now());
        for (at, back) in [(0, 9_000), (9_950, 1_000), (10_000, 5_000), (20_001, 5_000)] {
            assert!(path.waits(0, 0, back, start + at * MS).back <= 4 * MS, "after {at} ms");
        }
    }

    #[test]
    fn frames_of_flows_and_garbage_are_no_answers() {
        let (mut one_way, now) = (OneWay::new(), Instant::now());
        let frames =
            [&[][..], &[1], &[4], &[QUESTION], &[QUESTION, 0, 0, 0], &[ANSWER; 8], &[ANSWER; 13]];
        for frame in frames {
            assert_eq!(one_way.arrive(frame, now), None);
            assert!(one_way.answer().is_none(), "{frame:?}");
        }
        let fragment_of_stream_1 = [3, 0, 1, 0, 2, 0, 0];
        assert!(!is_one_way(&[]) && !is_one_way(&fragment_of_stream_1) && !is_one_way(&[0x40, 4]));
    }
}

//! Measures each session's rates over the last seconds, how long the pool lasts at them, and
//! whether the peer answers. The daemon samples its counters twice a second; this file reads no
//! clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keypadd_pool::{Direction, HEAD_BYTES, PartLevel};
use keypadd_tunnel::SessionCounts;

/// Sampling interval.
pub(crate) const EVERY: Duration = Duration::from_millis(500);

/// Samples kept: rates are over the last ten seconds.
const SAMPLES: usize = 21;

/// Samples of which the first and the last give a session's bytes per second.
const RECENT: usize = 5;

/// For how long packets have no answer until the peer counts as silent; a path may take longer.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many round trips an answer may take.
const ROUND_TRIPS: f64 = 2.0;

/// Packets per second below which a session is idle: only acknowledgments and keep-alives.
const IDLE_BELOW: f64 = 1.0;

/// UDP payload bytes of a packet that keystream does not cover: a QUIC short header with the
/// longest connection ID, and the tag (RFC 9000 section 17.3.1).
const OVERHEAD_BYTES: f64 = 41.0;

/// The rates of a daemon's sessions; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates(Arc<Mutex<Sampled>>);

/// What is known of the sessions.
#[derive(Debug, Default)]
struct Sampled {
    samples: VecDeque<Sample>,
    /// As of the last sample.
    answers: BTreeMap<u64, Answers>,
}

/// The counts of all sessions at one moment. A gateway has thousands of sessions, and each is in
/// every sample: nothing else is here.
#[derive(Debug)]
struct Sample {
    at: Instant,
    sessions: BTreeMap<u64, [Count; 2]>,
}

/// Whether the peer answers.
#[derive(Clone, Copy, Debug)]
struct Answers {
    /// When something last arrived, and how many ack-eliciting frames had been sent by then.
    heard: (Instant, u64),
    /// Since when something that was sent after that has no answer.
    unanswered: Option<Instant>,
    /// How long an answer may take.
    patience: Duration,
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
    pub(crate) fn sample(&self, now: Instant, sessions: &[SessionCounts]) {
        let counts = |session: &SessionCounts| {
            let sent = Count { packets: session.sent_packets, bytes: session.sent_bytes };
            let received =
                Count { packets: session.received_datagrams, bytes: session.received_bytes };
            (session.id, [sent, received])
        };
        let sample = Sample { at: now, sessions: sessions.iter().map(counts).collect() };
        let mut sampled = self.sampled();
        let Sampled { samples, answers } = &mut *sampled;
        let last = samples.back();
        let answer = |session: &SessionCounts| {
            let counts = sample.sessions.get(&session.id)?;
            let before = last.and_then(|last| last.sessions.get(&session.id));
            let before = before.zip(answers.get(&session.id));
            let is_silent = |before: &[Count; 2]| before[1].packets == counts[1].packets;
            let before = before.and_then(|(before, answers)| is_silent(before).then_some(answers));
            Some((session.id, Answers::of(session, before, now)))
        };
        *answers = sessions.iter().filter_map(answer).collect();
        samples.push_back(sample);
        while samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// A panic cannot leave it half changed.
    fn sampled(&self) -> MutexGuard<'_, Sampled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rate of a session; `None` before two samples.
    pub(crate) fn of(&self, session: u64, direction: Direction) -> Option<Rate> {
        let Sampled { samples, .. } = &*self.sampled();
        let of = |sample: &Sample| Some((sample.at, sample.count(session, direction)?));
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

    /// A session's bytes per second in the last two seconds; `None` before two samples.
    pub(crate) fn bytes_per_second(&self, session: u64, direction: Direction) -> Option<f64> {
        let Sampled { samples, .. } = &*self.sampled();
        let last = samples.back()?;
        let mut recent = samples.iter().skip(samples.len().saturating_sub(RECENT));
        let first = recent.find(|sample| sample.sessions.contains_key(&session))?;
        let [before, now] = [first.count(session, direction)?, last.count(session, direction)?];
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        (seconds > 0.0).then(|| now.bytes.saturating_sub(before.bytes) as f64 / seconds)
    }

    /// For how long nothing has arrived from a session's peer, if it owes an answer; `None` if it
    /// does not.
    pub(crate) fn silent_seconds(&self, session: u64, now: Instant) -> Option<f64> {
        let answers = *self.sampled().answers.get(&session)?;
        let waited = now.saturating_duration_since(answers.unanswered?);
        let silent = now.saturating_duration_since(answers.heard.0);
        (waited >= answers.patience).then_some(silent.as_secs_f64())
    }
}

impl Sample {
    fn count(&self, session: u64, direction: Direction) -> Option<Count> {
        Some(self.sessions.get(&session)?[direction as usize])
    }
}

impl Answers {
    /// `before`: as of the last sample, if nothing has arrived since. The peer need not answer what
    /// only acknowledges.
    fn of(session: &SessionCounts, before: Option<&Self>, now: Instant) -> Self {
        let sent = session.sent_ack_eliciting_frames;
        let trips = Duration::try_from_secs_f64(ROUND_TRIPS * session.rtt_seconds);
        let patience = trips.unwrap_or(PATIENCE).max(PATIENCE);
        match before {
            Some(answers) => {
                let is_owed = sent > answers.heard.1;
                let unanswered = answers.unanswered.or_else(|| is_owed.then_some(now));
                Self { unanswered, patience, ..*answers }
            }
            None => Self { heard: (now, sent), unanswered: None, patience },
        }
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

    /// A session that has sent and received so many packets of 1000 bytes.
    fn session(sent: u64, received: u64) -> SessionCounts {
        SessionCounts {
            id: 1,
            rtt_seconds: 0.05,
            sent_packets: sent,
            sent_ack_eliciting_frames: sent,
            received_datagrams: received,
            sent_bytes: 1000 * sent,
            received_bytes: 1000 * received,
        }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_silent_within_three_seconds_and_an_idle_one_is_not() {
        let (rates, start) = (Rates::default(), Instant::now());
        let at = |nth: u32, sent, received| {
            let now = start + EVERY * nth;
            rates.sample(now, &[session(sent, received)]);
            rates.silent_seconds(1, now)
        };
        assert_eq!(at(0, 1, 1), None);
        assert_eq!(at(1, 9, 9), None);
        // It is idle.
        assert_eq!(at(2, 9, 9), None);
        assert_eq!(at(3, 9, 9), None);
        // Cut right after this sample: what follows has no answer.
        assert_eq!(at(4, 10, 10), None);
        assert_eq!(at(5, 12, 10), None);
        assert_eq!(at(6, 13, 10), Some(1.0));
        assert_eq!(rates.silent_seconds(1, start + EVERY * 7), Some(1.5));
        assert_eq!(at(8, 15, 11), None);
    }

    #[test]
    fn what_only_acknowledges_needs_no_answer() {
        let (rates, start) = (Rates::default(), Instant::now());
        let at = |nth: u32, sent_packets, received| {
            let now = start + EVERY * nth;
            let counts = session(9, received);
            rates.sample(now, &[SessionCounts { sent_packets, ..counts }]);
            rates.silent_seconds(1, now)
        };
        assert_eq!(at(0, 20, 8), None);
        // The peer's keep-alive is acknowledged, and nothing else is sent for seconds.
        assert_eq!(at(1, 20, 9), None);
        for nth in 2..6 {
            assert_eq!(at(nth, 21, 9), None);
        }
    }

    #[test]
    fn bytes_per_second_are_those_of_the_last_two_seconds() {
        let (rates, start) = (Rates::default(), Instant::now());
        for (nth, sent) in [(0, 0), (1, 100), (2, 100), (3, 100), (4, 101), (5, 102)] {
            rates.sample(start + EVERY * nth, &[session(sent, 2 * sent)]);
        }
        assert_eq!(rates.bytes_per_second(1, Direction::Send), Some(1000.0));
        assert_eq!(rates.bytes_per_second(1, Direction::Receive), Some(2000.0));
        assert_eq!(rates.bytes_per_second(2, Direction::Send), None);
    }

    #[test]
    fn an_idle_session_has_no_estimate_of_time_left() {
        let idle = Rate { packets: 0.2, bytes: 60.0 };
        assert_eq!(idle.seconds_left(level(100), level(100)), None);
        assert_eq!(Rates::default().of(1, Direction::Send), None);
    }
}

//! Shares a full queue with others as CUBIC does (RFC 9438), and tells when they have left it.
//!
//! A flow that keeps the queue short starves next to one that fills it. So once others are found
//! (`suspicion`), the window is CUBIC's until tests find the queue empty again (like Copa's mode
//! switch, NSDI 2018 section 4). Only losses near the longest delay count, when the queue may have
//! overflowed: others are taken as random.
//!
//! In a queue shorter than the round trip, CUBIC's sawtooth (RFC 9438 4.6) often ends low, and a
//! test may find the queue empty although others are there: two tests have to agree. Several flows
//! of ours that compete see each other's queue. So a flow joins another's test, and a test lasts as
//! long as the delay falls. Knows delays and losses, no rounds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, Cubic, CubicConfig},
};

use crate::{
    constants::{
        CONFIRM_INTERVAL, CUBIC_BETA, EMPTY_TESTS, FALL, FULL_SHARE, JOIN_PART, PEAK_TIME,
        TEST_INTERVAL, TEST_TRIPS,
    },
    extremes::Windowed,
};

/// The window for competing with others, from when they were found until they have left.
#[derive(Clone, Debug)]
pub(crate) struct Competition {
    cubic: Cubic,
    /// The longest queue delay of late, which is that of a full queue.
    longest: Windowed,
    /// Queue delay of the last packet.
    delay: Duration,
    /// Queue delay at the end of the last round.
    round_delay: Duration,
    test_at: Option<Instant>,
    /// Tests in succession that found the queue empty.
    empty: u32,
}

impl Competition {
    /// Begins with a window of this many bytes, in packets of `mtu` bytes.
    pub(crate) fn new(now: Instant, window: f64, mtu: u64) -> Self {
        Self {
            cubic: cubic(now, window, mtu),
            longest: Windowed::max(PEAK_TIME),
            delay: Duration::ZERO,
            round_delay: Duration::ZERO,
            test_at: None,
            empty: 0,
        }
    }

    /// CUBIC's window.
    pub(crate) fn window(&self) -> u64 {
        self.cubic.window()
    }

    /// Records the queue delay of a packet.
    pub(crate) fn sample(&mut self, now: Instant, delay: Duration) {
        self.delay = delay;
        self.longest.insert(now, delay);
    }

    pub(crate) fn acked(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        limited: bool,
        rtt: &RttEstimator,
    ) {
        self.cubic.on_ack(now, sent, bytes, limited, rtt);
    }

    /// Records a loss; returns whether it counts.
    pub(crate) fn lost(
        &mut self,
        now: Instant,
        sent: Instant,
        persistent: bool,
        bytes: u64,
    ) -> bool {
        let counts = self.delay >= self.longest.get().mul_f64(FULL_SHARE);
        if counts {
            self.cubic.on_congestion_event(now, sent, persistent, bytes);
        }
        counts
    }

    /// Whether to test again that others keep the queue full, at the end of a round with this
    /// delay. `loses` says whether a loss has counted recently.
    pub(crate) fn is_test_due(
        &mut self,
        now: Instant,
        floor: Duration,
        delay: Duration,
        loses: bool,
    ) -> bool {
        let interval = if self.empty == 0 { TEST_INTERVAL } else { CONFIRM_INTERVAL };
        let interval = interval.max(TEST_TRIPS * floor);
        let at = *self.test_at.get_or_insert_with(|| now + interval);
        let former = std::mem::replace(&mut self.round_delay, delay);
        let joins = self.empty == 0
            && delay < former.mul_f64(FALL)
            && !loses
            && at < now + interval / JOIN_PART;
        at <= now || joins
    }

    /// Ends a test that found the queue empty or not; returns whether nobody else fills it. If
    /// others may, CUBIC starts again from what the path `carries` without a queue: its window may
    /// have grown large against another flow of ours.
    pub(crate) fn tested(&mut self, now: Instant, empty: bool, carries: f64, mtu: u64) -> bool {
        self.test_at = None;
        self.empty = if empty { self.empty + 1 } else { 0 };
        if self.empty >= EMPTY_TESTS {
            return true;
        }
        if empty && carries < self.window() as f64 {
            self.cubic = cubic(now, carries, mtu);
        }
        false
    }
}

/// CUBIC with this window, as after a loss.
fn cubic(now: Instant, window: f64, mtu: u64) -> Cubic {
    let mut config = CubicConfig::default();
    config.initial_window((window / CUBIC_BETA) as u64);
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let mut cubic = Cubic::new(Arc::new(config), now, mtu);
    // Leave slow start.
    cubic.on_congestion_event(now, now, false, 0);
    cubic
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const MTU: u64 = 1_200;
    const WINDOW: f64 = 1e5;
    /// So short that it does not prolong the time between tests.
    const FLOOR: Duration = Duration::from_millis(20);

    fn competition() -> (Competition, Instant) {
        let now = Instant::now();
        (Competition::new(now, WINDOW, MTU), now)
    }

    /// Whether that is the window, but for rounding.
    fn has_window(competition: &Competition, window: f64) -> bool {
        (competition.window() as f64 - window).abs() < 2.0
    }

    #[test]
    fn losses_count_and_reduce_the_window_only_while_the_queue_is_nearly_full() {
        let (mut competition, now) = competition();
        assert!(has_window(&competition, WINDOW));
        competition.sample(now, 40 * MS);
        for (delay, counts, window) in [(29, false, WINDOW), (30, true, CUBIC_BETA * WINDOW)] {
            competition.sample(now, delay * MS);
            assert_eq!(competition.lost(now + MS, now + MS, false, MTU), counts);
            assert!(has_window(&competition, window));
        }
    }

    #[test]
    fn a_test_is_due_six_seconds_or_24_round_trips_after_the_last_and_sooner_to_confirm_it() {
        for (floor, interval, confirms) in [
            (FLOOR, TEST_INTERVAL, CONFIRM_INTERVAL),
            (SECOND / 8, TEST_INTERVAL, 3 * SECOND),
            (SECOND, 24 * SECOND, 24 * SECOND),
        ] {
            let (mut competition, mut now) = competition();
            for (empty, interval) in [(false, interval), (true, interval), (false, confirms)] {
                let mut is_due = |at| competition.is_test_due(now + at, floor, 50 * MS, false);
                assert!(!is_due(Duration::ZERO), "it is counted from the first round");
                assert!(!is_due(interval - MS) && is_due(interval));
                now += interval;
                assert!(!competition.tested(now, empty, WINDOW, MTU));
            }
        }
    }

    #[test]
    fn a_test_joins_anothers_that_lets_the_delay_fall_in_the_latter_half_of_the_time_before_it() {
        let (mut competition, start) = competition();
        let mut is_due =
            |at, delay, loses| competition.is_test_due(start + at * MS, FLOOR, delay * MS, loses);
        for (at, delay, loses, due) in [
            (0, 100, false, false),
            (3_000, 50, false, false),
            // Not below the share of the delay, but at it.
            (3_001, 44, false, false),
            (3_002, 38, true, false),
            (3_003, 60, false, false),
            (3_004, 52, false, true),
        ] {
            assert_eq!(is_due(at, delay, loses), due, "at {at} ms");
        }
    }

    #[test]
    fn a_test_that_confirms_another_joins_none() {
        let (mut competition, start) = competition();
        assert!(!competition.tested(start, true, WINDOW, MTU));
        let mut is_due = |at, delay| competition.is_test_due(start + at, FLOOR, delay, false);
        assert!(!is_due(Duration::ZERO, 100 * MS));
        assert!(!is_due(CONFIRM_INTERVAL - MS, 50 * MS));
        assert!(is_due(CONFIRM_INTERVAL, 50 * MS));
    }

    #[test]
    fn others_have_left_once_two_tests_in_succession_find_the_queue_empty() {
        let (mut competition, now) = competition();
        let found = [true, false, true, true];
        let left = found.map(|empty| competition.tested(now, empty, WINDOW, MTU));
        assert_eq!(left, [false, false, false, true]);
    }

    #[test]
    fn a_window_beyond_what_the_path_carries_is_given_up_only_if_the_queue_was_empty() {
        for (empty, carries, window) in
            [(false, 0.5 * WINDOW, WINDOW), (true, 2.0 * WINDOW, WINDOW), (true, 5e4, 5e4)]
        {
            let (mut competition, now) = competition();
            assert!(!competition.tested(now, empty, carries, MTU));
            assert!(has_window(&competition, window), "{empty} {carries}");
        }
    }
}

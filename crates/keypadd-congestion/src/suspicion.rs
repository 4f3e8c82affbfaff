//! Detects competing flows that keep the queue full: the delay persists although this flow's window
//! would let the queue drain.
//!
//! The delay of a queue shorter than the round trip falls below the one that counts now and then.
//! So a short delay only slows detection down, and after competing a smaller one suffices to
//! compete again, with at most the same window. Knows delays and rates, no window but the last one.

use std::time::{Duration, Instant};

use crate::constants::{
    COMPETE_SHARE, RATE_TIME, RECENT_TRIPS, STANDS, STANDS_AGAIN, STANDS_LEAK, STANDS_MORE,
    STANDS_ROUNDS, STANDS_TIME, STANDS_TIME_AGAIN, STANDS_TIME_MAX, SUSPICION,
};

/// For how long the delay has stood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspicion {
    /// Rounds of standing delay, less what rounds without have taken back.
    rounds: u32,
    since: Option<Instant>,
    /// The highest recent rate: usually that before the delay made it shrink.
    rate: f64,
    rate_at: Option<Instant>,
    /// When a loss last counted in competition.
    lost_at: Option<Instant>,
    /// When competition last ended, and with what window.
    left: Option<(Instant, u64)>,
}

impl Suspicion {
    /// The window when competition ended, if that was recently.
    fn left_window(&self, now: Instant) -> Option<u64> {
        let (at, window) = self.left?;
        (now.saturating_duration_since(at) < SUSPICION).then_some(window)
    }

    /// The rate of the last call of [`Self::reference_rate`].
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// The highest recent rate, including this one. A flow that others have slowed down accepts a
    /// longer queue and would not see theirs.
    pub(crate) fn reference_rate(&mut self, now: Instant, rate: f64) -> f64 {
        let is_old = self.rate_at.is_none_or(|at| now.saturating_duration_since(at) > RATE_TIME);
        if rate >= self.rate || (is_old && self.since.is_none() && self.left_window(now).is_none())
        {
            (self.rate, self.rate_at) = (rate, Some(now));
        }
        self.rate
    }

    /// Ends a round of this rate, round trip and delay; `usual` is the delay of this flow's own
    /// queue at [`Self::reference_rate`]. Returns the window to compete with once others are found.
    pub(crate) fn round(
        &mut self,
        now: Instant,
        (rate, rtt): (f64, Duration),
        (delay, usual): (Duration, Duration),
    ) -> Option<f64> {
        let left = self.left_window(now);
        let (stands, (time, trips)) = match left {
            Some(_) => (STANDS_AGAIN, STANDS_TIME_AGAIN),
            None => (STANDS, STANDS_TIME),
        };
        if delay <= usual.mul_f64(stands) + STANDS_MORE {
            self.rounds = self.rounds.saturating_sub(STANDS_LEAK);
            if self.rounds == 0 {
                self.since = None;
            }
            return None;
        }
        self.rounds += 1;
        let since = *self.since.get_or_insert(now);
        let time = (trips * rtt.saturating_sub(delay)).clamp(time, STANDS_TIME_MAX);
        let stood = now.saturating_duration_since(since);
        let found = stood >= time && (self.rounds >= STANDS_ROUNDS || stood >= STANDS_TIME_MAX);
        found.then(|| {
            let most = self.rate.max(rate) * rtt.as_secs_f64();
            left.map_or(COMPETE_SHARE * most, |left| most.min(left as f64))
        })
    }

    /// Records a loss that counts in competition.
    pub(crate) fn lost(&mut self, now: Instant) {
        self.lost_at = Some(now);
    }

    /// Whether such a loss was within a few round trips of this length.
    pub(crate) fn has_lost(&self, now: Instant, round_trip: Duration) -> bool {
        let recent = RECENT_TRIPS * round_trip;
        self.lost_at.is_some_and(|lost| now.saturating_duration_since(lost) < recent)
    }

    /// Competition has ended with this window: nobody else fills the queue.
    pub(crate) fn leave(&mut self, now: Instant, window: u64) {
        (self.left, self.rate_at) = (Some((now, window)), Some(now));
        self.reset();
    }

    /// Forgets for how long the delay has stood.
    pub(crate) fn reset(&mut self) {
        (self.rounds, self.since) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// Delay of this flow's own queue; more than 7 ms counts, and 6 ms after competing.
    const USUAL: Duration = Duration::from_millis(4);

    /// Ends rounds of this delay, `step` apart, the first one now. Returns after how many of them
    /// others are found, and with what window.
    fn find(
        suspicion: &mut Suspicion,
        mut now: Instant,
        step: Duration,
        (rtt, delay): (Duration, Duration),
    ) -> Option<(u32, f64)> {
        (1..=100).find_map(|count| {
            let window = suspicion.round(now, (1e6, rtt), (delay, USUAL));
            now += step;
            window.map(|window| (count, window))
        })
    }

    /// After how many rounds others are found, whose times are in milliseconds.
    fn rounds_to_find(suspicion: &mut Suspicion, now: Instant, times: [u32; 3]) -> Option<u32> {
        let [step, rtt, delay] = times.map(|time| time * MS);
        find(suspicion, now, step, (rtt, delay)).map(|(rounds, _)| rounds)
    }

    #[test]
    fn others_are_found_when_the_delay_has_stood_for_six_rounds_and_24_trips_within_bounds() {
        for (times, rounds) in [
            // That may be this flow's own queue.
            ([50, 17, 7], None),
            // Half a second at least.
            ([50, 20, 10], Some(11)),
            ([50, 60, 10], Some(25)),
            // Six rounds take longer.
            ([200, 20, 10], Some(6)),
            // Four seconds at most, in however few rounds.
            ([500, 1_010, 10], Some(9)),
            ([1_000, 1_010, 10], Some(5)),
        ] {
            let found = rounds_to_find(&mut Suspicion::default(), Instant::now(), times);
            assert_eq!(found, rounds, "{times:?}");
        }
    }

    #[test]
    fn a_round_without_delay_takes_two_back_and_the_time_begins_again_when_none_is_left() {
        for (step, before, rounds) in
            [(50, 1, 11), (50, 2, 11), (50, 3, 7), (50, 8, 2), (200, 3, 5), (200, 5, 3)]
        {
            let (mut suspicion, mut now) = (Suspicion::default(), Instant::now());
            for delay in std::iter::repeat_n(10, before).chain([7]) {
                assert_eq!(suspicion.round(now, (1e6, 20 * MS), (delay * MS, USUAL)), None);
                now += step * MS;
            }
            let found = rounds_to_find(&mut suspicion, now, [step, 20, 10]);
            assert_eq!(found, Some(rounds), "after {before} rounds of {step} ms");
        }
    }

    #[test]
    fn a_flow_competes_with_most_of_what_it_had_before_others_slowed_it_down() {
        for (former, highest) in [(2e6, 2e6), (1e5, 1e6)] {
            let (mut suspicion, now) = (Suspicion::default(), Instant::now());
            suspicion.reference_rate(now, former);
            let found = find(&mut suspicion, now, 100 * MS, (20 * MS, 10 * MS));
            assert_eq!(found, Some((6, COMPETE_SHARE * (highest * 0.02))));
        }
    }

    #[test]
    fn for_twenty_seconds_after_competing_less_suffices_to_do_so_again_with_no_larger_window() {
        let start = Instant::now();
        let soon = SUSPICION / 2;
        for (after, step, round, found) in [
            // A fifth of a second at least.
            (soon, 30, (27, 7), Some((8, 1e4))),
            (soon, 100, (107, 7), Some((7, 1e4))),
            (soon, 30, (9, 7), Some((8, 1e6 * 0.009))),
            (soon, 30, (27, 6), None),
            (SUSPICION, 30, (27, 7), None),
        ] {
            let mut suspicion = Suspicion::default();
            assert!(rounds_to_find(&mut suspicion, start, [100, 20, 10]).is_some());
            let left = start + soon;
            suspicion.leave(left, 10_000);
            let round = (round.0 * MS, round.1 * MS);
            let again = find(&mut suspicion, left + after, step * MS, round);
            assert_eq!(again, found, "{after:?} {round:?}");
        }
    }

    #[test]
    fn the_highest_rate_counts_for_ten_seconds_and_while_others_may_be_why_it_fell() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        let after = |suspicion: &mut Suspicion, ms, rate| {
            let reference = suspicion.reference_rate(start + ms * MS, rate);
            assert_eq!(suspicion.rate(), reference);
            reference
        };
        for (ms, rate, reference) in [
            (0, 100.0, 100.0),
            (6_000, 100.0, 100.0),
            (16_000, 50.0, 100.0),
            (16_001, 50.0, 50.0),
            (16_002, 60.0, 60.0),
        ] {
            assert_eq!(after(&mut suspicion, ms, rate), reference, "after {ms} ms");
        }
        suspicion.round(start, (60.0, 20 * MS), (10 * MS, USUAL));
        assert_eq!(after(&mut suspicion, 40_000, 1.0), 60.0, "a queue stands");
        suspicion.reset();
        assert_eq!(after(&mut suspicion, 40_000, 40.0), 40.0);
        suspicion.leave(start + 50_000 * MS, 10_000);
        assert_eq!(after(&mut suspicion, 69_999, 1.0), 40.0, "it competed");
        assert_eq!(after(&mut suspicion, 70_000, 1.0), 1.0);
    }

    #[test]
    fn a_loss_is_recent_for_three_round_trips() {
        let (mut suspicion, now) = (Suspicion::default(), Instant::now());
        assert!(!suspicion.has_lost(now, MS));
        suspicion.lost(now);
        assert!(suspicion.has_lost(now + 29 * MS, 10 * MS));
        assert!(!suspicion.has_lost(now + 30 * MS, 10 * MS));
    }
}

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

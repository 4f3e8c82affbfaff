//! Detects that filling ahead is in vain: bulk uses pads up faster than a filler makes them that hardly gets
//! CPU time. What it gets then are gaps between the time slices of threads that carry the bulk. Using
//! them costs these threads more than cheap pads save: they wait longer for a CPU, and often share a core.
//!
//! Knows no clock and no thread: the caller reports elapsed and spent time.

use std::time::Duration;

/// A filler at work is judged after this time.
const WATCHED: Duration = Duration::from_millis(10);
/// It rests this long before it tries again.
const REST: Duration = Duration::from_secs(1);
/// The CPUs are busy if a filler at work runs less than one part in this many of the time.
const BUSY_SHARE: u32 = 2;

/// Totals at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) now: Duration,
    /// CPU time that the filler has spent.
    pub(crate) spent: Duration,
    /// Bytes that it has generated.
    pub(crate) made: u64,
    /// Bytes of pads that packets have needed.
    pub(crate) needed: u64,
}

/// Watches a filler at work.
#[derive(Debug, Default)]
pub(crate) struct Saturation {
    /// When it began to be watched; `None` while it has nothing to do or rests.
    start: Option<Progress>,
    rests_until: Duration,
}

impl Saturation {
    /// The filler has nothing to do, or rests for another reason.
    pub(crate) fn pause(&mut self) {
        self.start = None;
    }

    /// How long a filler at work must rest, if at all.
    pub(crate) fn rest(&mut self, now: Progress) -> Option<Duration> {
        let start = *self.start.get_or_insert(now);
        let passed = now.now.saturating_sub(start.now);
        if passed >= WATCHED {
            let ran = now.spent.saturating_sub(start.spent);
            let needed = now.needed.saturating_sub(start.needed);
            let is_outrun = now.made - start.made < needed;
            if is_outrun && ran * BUSY_SHARE < passed {
                self.rests_until = now.now + REST;
            }
            self.start = Some(now);
        }
        let rest = self.rests_until.saturating_sub(now.now);
        if rest.is_zero() {
            return None;
        }
        self.start = None;
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps a filler for `seconds`: in a millisecond it runs for `ran` microseconds and makes `made` bytes,
    /// unless it rests, and packets need `needed`. Returns the bytes made.
    fn run(seconds: u64, ran: u64, made: u64, needed: u64) -> u64 {
        let mut saturation = Saturation::default();
        let zero = Duration::ZERO;
        let mut progress = Progress { now: zero, spent: zero, made: 0, needed: 0 };
        for _ in 0..seconds * 1000 {
            if saturation.rest(progress).is_none() {
                progress.spent += Duration::from_micros(ran);
                progress.made += made;
            }
            progress.needed += needed;
            progress.now += Duration::from_millis(1);
        }
        progress.made
    }

    #[test]
    fn a_filler_without_cpu_time_that_is_outrun_rests_most_of_the_time_and_tries_again() {
        let made = run(10, 200, 10, 40) / 10;
        assert!((50..200).contains(&made), "{made} of 10,000 ms");
    }

    #[test]
    fn a_filler_that_has_a_core_or_keeps_up_or_serves_nobody_does_not_rest() {
        for (ran, made, needed) in [(600, 10, 40), (200, 10, 10), (200, 10, 0)] {
            assert_eq!(run(10, ran, made, needed), 100_000, "{ran} us, {made} of {needed}");
        }
    }

    #[test]
    fn a_pause_is_not_time_without_a_cpu() {
        let mut saturation = Saturation::default();
        let at = |millis, spent| Progress {
            now: Duration::from_millis(millis),
            spent: Duration::from_millis(spent),
            made: 0,
            needed: millis,
        };
        assert_eq!(saturation.rest(at(0, 0)), None);
        saturation.pause();
        assert_eq!(saturation.rest(at(1000, 0)), None);
        assert_eq!(saturation.rest(at(1010, 5)), None);
        assert_eq!(saturation.rest(at(1020, 5)), Some(REST));
        assert_eq!(saturation.rest(at(1021, 5)), Some(REST - Duration::from_millis(1)));
        assert_eq!(saturation.rest(at(2020, 5)), None);
    }
}

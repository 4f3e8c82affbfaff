//! Detects that filling ahead is in vain: bulk uses pads up faster than a filler makes them that
//! hardly gets CPU time. What it gets then are gaps between the time slices of threads that carry
//! the bulk. Using them costs these threads more than cheap pads save: they wait longer for a CPU,
//! and often share a core.
//!
//! Knows no clock and no thread: the caller reports elapsed and spent time.

use std::time::Duration;

/// A filler at work is judged each time it has worked for this long.
const WATCHED: Duration = Duration::from_millis(10);
/// How much longer a filler must have been outrun than not before it rests. After a longer burst
/// the pool is refilled a rest later, and bulk without a pause pays for no more of the filler's
/// work than this.
const PATIENCE: Duration = Duration::from_millis(30);
/// How long a filler rests before it looks whether the bulk goes on. It takes no commands
/// meanwhile.
const REST: Duration = Duration::from_millis(250);
/// While bulk goes on it tries again after one rest, then after twice as many each time, up to
/// these: 8 s.
const RESTS_MAX: u32 = 32;
/// Bulk goes on while packets come at more than one part in this many of the rate that outran the
/// filler.
const BULK_SHARE: f64 = 4.0;
/// The CPUs are busy if a filler at work runs less than one part in this many of the time.
const BUSY_SHARE: u32 = 2;

/// Totals at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) now: Duration,
    /// CPU time that the filler has spent; zero if that is not reported.
    pub(crate) spent: Duration,
    /// Pads that it has made.
    pub(crate) made: u64,
    /// Packets that needed whole pads.
    pub(crate) needed: u64,
}

/// Watches a filler.
#[derive(Debug, Default)]
pub(crate) struct Saturation {
    /// When it was last judged, or a rest ends.
    start: Progress,
    /// The filler has had something to do since.
    works: bool,
    /// How much longer it was outrun than not.
    outrun: Duration,
    /// Packets per second that needed whole pads when it was last outrun.
    bulk: f64,
    /// Rests until the next try, and how many there were before the last one.
    rests_left: u32,
    rests: u32,
}

impl Saturation {
    /// The filler has nothing to do, or rests for another reason.
    pub(crate) fn pause(&mut self) {
        self.works = false;
    }

    /// How long a filler that is about to work must rest, if at all.
    pub(crate) fn rest(&mut self, now: Progress) -> Option<Duration> {
        let rest = self.start.now.saturating_sub(now.now);
        if !rest.is_zero() {
            return Some(rest);
        }
        let passed = now.now - self.start.now;
        let needed = now.needed.saturating_sub(self.start.needed);
        if self.rests_left > 0 {
            return self.end_rest(now, needed as f64 / (REST + passed).as_secs_f64());
        }
        if self.works && passed < WATCHED {
            return None;
        }
        let ran = now.spent.saturating_sub(self.start.spent);
        let lacks_cpu = !ran.is_zero() && ran * BUSY_SHARE < passed;
        let is_outrun = self.works && lacks_cpu && now.made - self.start.made < needed;
        (self.start, self.works) = (now, true);
        if !is_outrun {
            self.outrun = self.outrun.saturating_sub(passed);
            return None;
        }
        self.outrun = PATIENCE.min(self.outrun + passed);
        if self.outrun < PATIENCE {
            return None;
        }
        self.bulk = needed as f64 / passed.as_secs_f64();
        self.rests = (self.rests * 2).clamp(1, RESTS_MAX);
        self.rests_left = self.rests;
        Some(self.begin_rest(now))
    }

    fn begin_rest(&mut self, now: Progress) -> Duration {
        self.start = Progress { now: now.now + REST, ..now };
        REST
    }

    /// A rest has ended in which packets came at this rate.
    fn end_rest(&mut self, now: Progress, rate: f64) -> Option<Duration> {
        if rate * BULK_SHARE <= self.bulk {
            *self = Self::default();
        }
        (self.start, self.works) = (now, true);
        self.rests_left = self.rests_left.saturating_sub(1);
        (self.rests_left > 0).then(|| self.begin_rest(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filler that runs for `ran` microseconds in a millisecond and makes `made` pads in it,
    /// unless it rests, while packets need `needed`.
    struct Run {
        saturation: Saturation,
        progress: Progress,
    }

    impl Run {
        fn new() -> Self {
            let zero = Duration::ZERO;
            let progress = Progress { now: zero, spent: zero, made: 0, needed: 0 };
            Self { saturation: Saturation::default(), progress }
        }

        /// Steps for some milliseconds; returns in how many the filler worked.
        fn on(&mut self, millis: u64, ran: u64, made: u64, needed: u64) -> u64 {
            let worked = |_: &u64| {
                let works = self.saturation.rest(self.progress).is_none();
                if works {
                    self.progress.spent += Duration::from_micros(ran);
                    self.progress.made += made;
                }
                self.progress.needed += needed;
                self.progress.now += Duration::from_millis(1);
                works
            };
            (0..millis).filter(worked).count() as u64
        }
    }

    #[test]
    fn a_filler_without_cpu_time_rests_once_it_was_outrun_for_a_while_and_tries_ever_less_often() {
        let mut run = Run::new();
        assert_eq!(run.on(30, 200, 10, 40), 30);
        for (seconds, tries) in [(8, 5), (8, 1), (80, 10)] {
            let worked = run.on(seconds * 1000, 200, 10, 40);
            assert!(worked.abs_diff(tries * 10) <= 11, "{worked} ms of {seconds} s");
        }
    }

    #[test]
    fn a_filler_works_on_half_a_second_after_bulk_has_ended() {
        for seconds in [2, 4, 30] {
            for shift in 0..50 {
                let mut run = Run::new();
                run.on(seconds * 1000 + 10 * shift, 200, 10, 40);
                run.on(450, 200, 10, 0);
                assert_eq!(run.on(500, 200, 10, 0), 500, "{seconds} s");
                assert_eq!(run.on(20, 200, 10, 40), 20, "it is patient again");
            }
        }
    }

    #[test]
    fn a_filler_that_gets_no_cpu_when_its_rest_ends_is_not_patient_again() {
        let mut run = Run::new();
        run.on(1_100, 200, 10, 40);
        run.progress.now += Duration::from_secs(2);
        run.progress.needed += 80_000;
        let worked = run.on(1_000, 200, 10, 40);
        assert!(worked < 30, "{worked} ms");
    }

    #[test]
    fn a_filler_that_has_a_core_or_keeps_up_or_serves_nobody_or_does_not_report_does_not_rest() {
        for (ran, made, needed) in [(600, 10, 40), (200, 10, 10), (200, 10, 0), (0, 10, 40)] {
            assert_eq!(
                Run::new().on(10_000, ran, made, needed),
                10_000,
                "{ran}: {made} of {needed}"
            );
        }
    }

    #[test]
    fn bursts_shorter_than_the_time_between_them_never_end_in_a_rest() {
        let mut run = Run::new();
        for _ in 0..10 {
            assert_eq!(run.on(15, 200, 10, 40) + run.on(35, 200, 10, 0), 50);
        }
    }

    #[test]
    fn a_moment_with_a_core_or_nothing_to_do_hardly_delays_a_rest() {
        for (ran, made) in [(900, 50), (0, 0)] {
            let mut run = Run::new();
            assert_eq!(run.on(20, 200, 10, 40) + run.on(10, ran, made, 40), 30);
            run.saturation.pause();
            run.on(30, 200, 10, 40);
            assert!(run.on(100, 200, 10, 40) < 20);
        }
    }

    #[test]
    fn a_pause_is_not_time_without_a_cpu() {
        let mut run = Run::new();
        run.on(20, 200, 10, 40);
        run.saturation.pause();
        run.progress.now += Duration::from_secs(1);
        run.progress.needed += 100_000;
        assert_eq!(run.on(20, 200, 10, 40), 20);
    }

    #[test]
    fn a_filler_that_rested_works_on_once_it_keeps_up() {
        let mut run = Run::new();
        run.on(3_000, 200, 10, 40);
        assert!(run.on(2_000, 200, 10, 9) > 1_400);
        assert_eq!(run.on(20, 200, 10, 40), 20, "it is patient again");
    }
}

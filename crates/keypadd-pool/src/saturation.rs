//! Detects that filling ahead is in vain: bulk uses pads up faster than a filler makes them that hardly gets
//! CPU time. What it gets then are gaps between the time slices of threads that carry the bulk. Using
//! them costs these threads more than cheap pads save: they wait longer for a CPU, and often share a core.
//!
//! Knows no clock and no thread: the caller reports elapsed and spent time.

use std::time::Duration;

/// A filler at work is judged each time it has worked for this long.
const WATCHED: Duration = Duration::from_millis(10);
/// It rests once it was outrun for this much longer than not: no burst from a full pool takes as long.
const PATIENCE: Duration = Duration::from_secs(1);
/// It rests this long before it tries again, and takes no commands meanwhile.
const REST: Duration = Duration::from_millis(500);
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
    /// It has had something to do since.
    works: bool,
    /// How much longer it was outrun than not.
    outrun: Duration,
}

impl Saturation {
    /// The filler has nothing to do, or rests for another reason.
    pub(crate) fn pause(&mut self) {
        self.works = false;
    }

    /// How long a filler that is about to work must rest, if at all.
    pub(crate) fn rest(&mut self, now: Progress) -> Option<Duration> {
        let Self { start, works, outrun } = self;
        let rest = start.now.saturating_sub(now.now);
        if !rest.is_zero() {
            return Some(rest);
        }
        let passed = now.now - start.now;
        if *works && passed < WATCHED {
            return None;
        }
        let ran = now.spent.saturating_sub(start.spent);
        let lacks_cpu = !ran.is_zero() && ran * BUSY_SHARE < passed;
        let too_few = now.made - start.made < now.needed.saturating_sub(start.needed);
        let is_outrun = *works && lacks_cpu && too_few;
        (*start, *works) = (now, true);
        if !is_outrun {
            *outrun = outrun.saturating_sub(passed);
            return None;
        }
        *outrun = PATIENCE.min(*outrun + passed);
        if *outrun < PATIENCE {
            return None;
        }
        start.now += REST;
        *works = false;
        Some(REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filler that runs for `ran` microseconds in a millisecond and makes `made` pads in it, unless it
    /// rests, while packets need `needed`.
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
    fn a_filler_without_cpu_time_rests_once_it_was_outrun_for_a_second_and_tries_twice_a_second() {
        let mut run = Run::new();
        assert_eq!(run.on(1000, 200, 10, 40), 1000);
        let worked = run.on(10_000, 200, 10, 40);
        assert!((150..250).contains(&worked), "{worked} of 10,000 ms");
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
            assert_eq!(run.on(900, 200, 10, 40) + run.on(950, 200, 10, 0), 1850);
        }
    }

    #[test]
    fn a_moment_with_a_core_or_nothing_to_do_hardly_delays_a_rest() {
        for (ran, made) in [(900, 50), (0, 0)] {
            let mut run = Run::new();
            for _ in 0..18 {
                assert_eq!(run.on(60, 200, 10, 40) + run.on(10, ran, made, 40), 70);
                run.saturation.pause();
            }
            run.on(200, 200, 10, 40);
            assert!(run.on(100, 200, 10, 40) < 20);
        }
    }

    #[test]
    fn a_pause_is_not_time_without_a_cpu() {
        let mut run = Run::new();
        run.on(900, 200, 10, 40);
        run.saturation.pause();
        run.progress.now += Duration::from_secs(1);
        run.progress.needed += 100_000;
        assert_eq!(run.on(900, 200, 10, 40), 900);
    }

    #[test]
    fn a_filler_that_rested_works_on_once_it_keeps_up() {
        let mut run = Run::new();
        run.on(3_000, 200, 10, 40);
        assert!(run.on(2_000, 200, 10, 10) > 1_400);
        assert_eq!(run.on(900, 200, 10, 40), 900, "it is patient again");
    }
}

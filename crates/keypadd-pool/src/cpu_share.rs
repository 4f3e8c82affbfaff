//! Limits a filler's CPU time to a share of one core.
//!
//! Knows no clock and no thread: the caller reports elapsed and spent time.

use std::time::Duration;

/// Unused CPU time is kept for this long.
const KEPT_SECONDS: f64 = 1.0;
/// A filler that has spent its share rests until it has earned this much again, so that it does not
/// wake up for every piece of work.
const REST_SECONDS: f64 = 0.05;
/// No limit, in percent of one core.
pub(crate) const WHOLE_CORE: u64 = 100;

/// The state of a share.
#[derive(Debug, Default)]
pub(crate) struct CpuShare {
    at: Duration,
    spent: Duration,
    /// CPU time that may be spent now, as the time it takes to earn it.
    credit: f64,
    resting: bool,
}

impl CpuShare {
    /// How long a thread that has spent this much CPU time by `now` must rest, if at all.
    pub(crate) fn rest(
        &mut self,
        now: Duration,
        spent: Duration,
        percent: u64,
    ) -> Option<Duration> {
        let earned = now.saturating_sub(self.at).as_secs_f64();
        let used = spent.saturating_sub(self.spent).as_secs_f64();
        (self.at, self.spent) = (now, spent);
        if percent >= WHOLE_CORE {
            (self.credit, self.resting) = (0.0, false);
            return None;
        }
        let share = percent.max(1) as f64 / WHOLE_CORE as f64;
        self.credit = (self.credit + earned - used / share).min(KEPT_SECONDS);
        self.resting = self.credit <= if self.resting { REST_SECONDS } else { 0.0 };
        self.resting.then(|| Duration::from_secs_f64((REST_SECONDS - self.credit).max(0.001)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a thread that works whenever it may, for `seconds`, in pieces of this CPU time; returns
    /// the CPU time it spent and how often it rested.
    fn run(percent: u64, piece: Duration, seconds: u64) -> (Duration, u64) {
        let mut share = CpuShare::default();
        let (mut now, mut spent, mut rests) = (Duration::ZERO, Duration::ZERO, 0);
        while now < Duration::from_secs(seconds) {
            match share.rest(now, spent, percent) {
                Some(rest) => {
                    now += rest;
                    rests += 1;
                }
                None => {
                    now += piece;
                    spent += piece;
                }
            }
        }
        (spent, rests)
    }

    #[test]
    fn a_thread_keeps_to_its_share_with_few_long_rests() {
        for percent in [1, 10, 50, 99] {
            for piece in [Duration::from_micros(3), Duration::from_millis(14)] {
                let (spent, rests) = run(percent, piece, 30);
                let of_whole = spent.as_secs_f64() / 30.0 * 100.0;
                let wanted = percent as f64;
                assert!((0.95 * wanted..1.05 * wanted + 0.1).contains(&of_whole), "{of_whole}");
                assert!(rests <= 30 * 40, "{percent} %: {rests} rests");
            }
        }
    }

    #[test]
    fn a_whole_core_is_no_limit() {
        assert_eq!(run(100, Duration::from_millis(1), 5), (Duration::from_secs(5), 0));
    }

    #[test]
    fn an_unused_share_is_kept_for_a_second() {
        let mut share = CpuShare::default();
        let hour = Duration::from_secs(3600);
        assert_eq!(share.rest(hour, Duration::ZERO, 10), None);
        assert_eq!(share.rest(hour, Duration::from_millis(99), 10), None);
        let rest = share.rest(hour, Duration::from_millis(110), 10).expect("it has spent too much");
        assert!((0.149..0.151).contains(&rest.as_secs_f64()), "{rest:?}");
    }
}

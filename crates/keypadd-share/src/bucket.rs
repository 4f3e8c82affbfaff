//! Implements a token bucket: a burst of events, then one each interval. The caller passes the
//! time.

use std::time::{Duration, Instant};

/// The rate of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Events allowed at once.
    pub burst: u32,
    /// Time in which one more is allowed.
    pub interval: Duration,
}

impl Rate {
    /// One a minute, as for log lines whose cause does not go away.
    pub const ONE_A_MINUTE: Self = Self { burst: 1, interval: Duration::from_secs(60) };
}

/// A bucket, full at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    /// When it is full again; `None` if nothing was ever taken.
    full_at: Option<Instant>,
}

impl Bucket {
    /// A bucket from which nothing was taken.
    pub const FULL: Self = Self { full_at: None };

    /// How long until it is full again.
    pub fn full_in(&self, now: Instant) -> Duration {
        self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Takes what flows back in `time`, even if the bucket has less.
    pub fn charge(&mut self, time: Duration, now: Instant) {
        self.full_at = Some(now + self.full_in(now) + time);
    }

    /// Takes a token, or returns how long until there is one.
    ///
    /// # Errors
    /// The time to wait.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let wait = self.wait(rate, now);
        if !wait.is_zero() {
            return Err(wait);
        }
        self.charge(rate.interval, now);
        Ok(())
    }

    /// How long until there is a token.
    pub(crate) fn wait(&self, rate: Rate, now: Instant) -> Duration {
        (self.full_in(now) + rate.interval).saturating_sub(rate.interval * rate.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_at_once_and_then_one_each_interval() {
        let rate = Rate { burst: 3, interval: Duration::from_millis(100) };
        let start = Instant::now();
        let mut bucket = Bucket::FULL;
        let taken = (0..10).filter(|_| bucket.take(rate, start).is_ok()).count();
        assert_eq!(taken, 3);
        assert_eq!(bucket.take(rate, start), Err(Duration::from_millis(100)));
        assert_eq!(
            bucket.take(rate, start + Duration::from_millis(40)),
            Err(Duration::from_millis(60))
        );
        let later = start + Duration::from_millis(100);
        assert_eq!(bucket.take(rate, later), Ok(()));
        assert_eq!(bucket.take(rate, later), Err(Duration::from_millis(100)));
        let idle = start + Duration::from_secs(60);
        assert_eq!((0..10).filter(|_| bucket.take(rate, idle).is_ok()).count(), 3);
    }

    #[test]
    fn a_line_that_is_due_all_the_time_is_logged_once_a_minute() {
        let (mut bucket, start) = (Bucket::FULL, Instant::now());
        let due = |second: &u64| {
            bucket.take(Rate::ONE_A_MINUTE, start + Duration::from_secs(*second)).is_ok()
        };
        assert_eq!((0..180).filter(due).collect::<Vec<_>>(), [0, 60, 120]);
    }

    #[test]
    fn what_is_charged_flows_back_in_its_time() {
        let (mut bucket, start) = (Bucket::FULL, Instant::now());
        let second = Duration::from_secs(1);
        bucket.charge(2 * second, start);
        bucket.charge(second, start + second);
        assert_eq!(bucket.full_in(start + second), 2 * second);
        assert_eq!(bucket.full_in(start + 9 * second), Duration::ZERO);
        bucket.charge(second, start + 9 * second);
        assert_eq!(bucket.full_in(start + 9 * second), second, "it is never more than full");
    }
}

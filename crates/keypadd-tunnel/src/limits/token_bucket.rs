//! Implements a token bucket: a burst of events, then one each interval. The caller passes the time.

use std::time::{Duration, Instant};

/// The rate of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Events allowed at once.
    pub(crate) burst: u32,
    /// Time in which one more is allowed.
    pub(crate) interval: Duration,
}

/// A bucket, full at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// When it is full again.
    full_at: Instant,
}

impl TokenBucket {
    pub(crate) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Whether it is as good as a new one.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// Takes a token, or returns how long until there is one.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.max(now) + rate.interval;
        let ahead = full_at.saturating_duration_since(now);
        match ahead.checked_sub(rate.interval * rate.burst) {
            None | Some(Duration::ZERO) => {
                self.full_at = full_at;
                Ok(())
            }
            Some(wait) => Err(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_at_once_and_then_one_each_interval() {
        let rate = Rate { burst: 3, interval: Duration::from_millis(100) };
        let start = Instant::now();
        let mut bucket = TokenBucket::new(start);
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
}

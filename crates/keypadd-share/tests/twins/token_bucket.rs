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

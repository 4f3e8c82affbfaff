//! Limits how often the clients of a key resume sessions: each time, both ends go through all streams.
//!
//! All clients of a key may come back at once, and again; only then do further ones wait, each less than
//! the time in which as many are allowed again.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::token_bucket::{Rate, TokenBucket};

/// Sessions of a key that are resumed at once, at least.
const BURST_MIN: usize = 32;

/// Time in which as many may be resumed again.
const REFILL: Duration = Duration::from_secs(8);

/// The sessions that each key has resumed of late.
#[derive(Debug, Default)]
pub(crate) struct ResumeRate(Mutex<Vec<(u8, TokenBucket)>>);

impl ResumeRate {
    /// Counts another session of this key, which may have `sessions_max`, or returns how long until it may be
    /// resumed.
    pub(crate) fn take(&self, key: u8, sessions_max: usize, now: Instant) -> Result<(), Duration> {
        let burst =
            u32::try_from(sessions_max.saturating_mul(2).max(BURST_MIN)).unwrap_or(u32::MAX);
        let rate = Rate { burst, interval: REFILL / burst };
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|(_, bucket)| !bucket.is_full(now));
        if let Some((_, bucket)) = buckets.iter_mut().find(|(of, _)| *of == key) {
            return bucket.take(rate, now);
        }
        let mut bucket = TokenBucket::new(now);
        let taken = bucket.take(rate, now);
        buckets.push((key, bucket));
        taken
    }
}

//! Limits how often the clients of a key resume sessions: each time, both ends go through all streams.
//!
//! All clients of a key may come back at once, and again; only then do further ones wait, each less than
//! the time in which as many are allowed again.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use keypadd_provider::PublicKey;

use crate::limits::token_bucket::{Rate, TokenBucket};

/// Sessions of a key that are resumed at once, at least.
const BURST_MIN: usize = 32;

/// Time in which as many may be resumed again.
const REFILL: Duration = Duration::from_secs(8);

/// The sessions that each key has resumed of late.
#[derive(Debug, Default)]
pub(crate) struct ResumeRate(Mutex<Vec<(PublicKey, TokenBucket)>>);

impl ResumeRate {
    /// Counts another session of this key, which may have `sessions_max`, or returns how long until it may be
    /// resumed.
    pub(crate) fn take(
        &self,
        key: PublicKey,
        sessions_max: usize,
        now: Instant,
    ) -> Result<(), Duration> {
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

#[cfg(test)]
mod tests {
    use keypadd_provider::PrivateKey;

    use super::*;

    #[test]
    fn all_sessions_of_a_key_come_back_twice_at_once_and_then_some_each_second() {
        let [one, other] = [(); 2].map(|()| PrivateKey::generate().unwrap().public());
        let (rate, start) = (ResumeRate::default(), Instant::now());
        for (key, sessions_max, burst) in [(one, 16, 32), (other, 1_000, 2_000)] {
            let resumed =
                |now| (0..10_000).filter(|_| rate.take(key, sessions_max, now).is_ok()).count();
            assert_eq!(resumed(start), burst);
            assert_eq!(resumed(start + REFILL / 4), burst / 4);
        }
    }
}

//! Keeps a token bucket for each holder, in bounded memory.
//!
//! When too many holders are tracked, new ones share one bucket. The caller passes the time.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::bucket::{Bucket, Rate};

/// Sources of log lines tracked at once.
pub const SOURCES_MAX: usize = 1024;

/// What each holder has taken of late.
#[derive(Debug)]
pub struct Rates<H> {
    rate: Rate,
    holders_max: usize,
    buckets: Mutex<Buckets<H>>,
}

#[derive(Debug)]
struct Buckets<H> {
    tracked: HashMap<H, Bucket>,
    /// The bucket of all holders that are not tracked.
    others: Bucket,
}

/// The rate of log lines.
impl<S: Eq + Hash> Default for Rates<S> {
    fn default() -> Self {
        Self::log_lines()
    }
}

impl<H: Eq + Hash> Rates<H> {
    /// Allows each holder this rate. Tracks at most `holders_max` of them.
    pub fn new(rate: Rate, holders_max: usize) -> Self {
        let buckets = Buckets { tracked: HashMap::new(), others: Bucket::FULL };
        Self { rate, holders_max, buckets: Mutex::new(buckets) }
    }

    /// Allows each source one log line a minute, and those beyond 1,024 sources one together.
    pub fn log_lines() -> Self {
        Self::new(Rate::ONE_A_MINUTE, SOURCES_MAX)
    }

    /// Takes a token of this holder, or returns how long until there is one.
    ///
    /// # Errors
    /// The time to wait.
    pub fn take(&self, holder: H, now: Instant) -> Result<(), Duration> {
        self.buckets().of(holder, self.holders_max, now).take(self.rate, now)
    }

    /// Whether this holder had a token, which is taken.
    pub fn allow(&self, holder: H, now: Instant) -> bool {
        self.take(holder, now).is_ok()
    }

    /// Takes a token of this holder if another limit permits it, too. That is asked only if the
    /// holder has a token or is not tracked, and under the lock of this one.
    pub fn allow_if(&self, holder: H, now: Instant, permits: impl FnOnce() -> bool) -> bool {
        let mut buckets = self.buckets();
        let bucket = buckets.tracked.get(&holder);
        let has_token = bucket.is_none_or(|bucket| bucket.wait(self.rate, now).is_zero());
        has_token
            && permits()
            && buckets.of(holder, self.holders_max, now).take(self.rate, now).is_ok()
    }

    /// A panic cannot leave the buckets half changed.
    fn buckets(&self) -> MutexGuard<'_, Buckets<H>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Eq + Hash> Buckets<H> {
    /// The bucket that this holder takes from.
    fn of(&mut self, holder: H, holders_max: usize, now: Instant) -> &mut Bucket {
        if !self.tracked.contains_key(&holder) {
            // A full bucket is as good as a new one.
            self.tracked.retain(|_, bucket| !bucket.full_in(now).is_zero());
            if self.tracked.len() >= holders_max {
                return &mut self.others;
            }
        }
        self.tracked.entry(holder).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_source_logs_one_line_a_minute() {
        let lines = Rates::log_lines();
        let start = Instant::now();
        assert!(lines.allow("a", start));
        assert!(!lines.allow("a", start + MINUTE - Duration::from_millis(1)));
        assert!(lines.allow("b", start));
        assert!(lines.allow("a", start + MINUTE));
    }

    #[test]
    fn untracked_sources_share_one_line_and_use_no_memory() {
        let lines = Rates::log_lines();
        let start = Instant::now();
        let logged = (0..10 * SOURCES_MAX).filter(|&source| lines.allow(source, start)).count();
        assert_eq!(logged, SOURCES_MAX + 1);
        assert_eq!(lines.buckets().tracked.len(), SOURCES_MAX);
        assert!(lines.allow(usize::MAX, start + MINUTE));
        assert_eq!(lines.buckets().tracked.len(), 1);
    }

    #[test]
    fn another_limit_is_asked_only_for_what_this_one_allows() {
        let (lines, start) = (Rates::log_lines(), Instant::now());
        assert!(!lines.allow_if("a", start, || false));
        assert!(lines.allow_if("a", start, || true), "a line that was not written is not counted");
        assert!(!lines.allow_if("a", start, || panic!("it is asked though the source has none")));
    }
}

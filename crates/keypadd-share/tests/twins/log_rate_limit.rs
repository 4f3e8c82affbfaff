//! Limits log lines that a remote host can cause to one a minute for each kind and source.
//!
//! Bounded in memory: when too many sources are tracked, new ones share one line a minute. The
//! caller passes the time.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Time between two lines of one source.
const INTERVAL: Duration = Duration::from_secs(60);

/// Sources tracked at once.
const SOURCES_MAX: usize = 1024;

/// When each source last logged a line.
#[derive(Debug)]
pub(crate) struct LogRateLimit<S>(Mutex<LastLines<S>>);

#[derive(Debug)]
struct LastLines<S> {
    sources: HashMap<S, Instant>,
    /// The last line of a source that was not tracked.
    untracked: Option<Instant>,
}

impl<S> Default for LogRateLimit<S> {
    fn default() -> Self {
        Self(Mutex::new(LastLines { sources: HashMap::new(), untracked: None }))
    }
}

impl<S: Eq + Hash> LogRateLimit<S> {
    /// Whether this source may log a line now, if another limit, asked only then, permits it, too;
    /// otherwise the source is not remembered.
    pub(crate) fn allow_if(&self, source: S, now: Instant, permits: impl FnOnce() -> bool) -> bool {
        let recent = |then: Instant| now.saturating_duration_since(then) < INTERVAL;
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.sources.get(&source).is_some_and(|&then| recent(then)) {
            return false;
        }
        if !permits() {
            return false;
        }
        if last.sources.len() >= SOURCES_MAX {
            last.sources.retain(|_, then| recent(*then));
        }
        if last.sources.len() >= SOURCES_MAX {
            let allowed = !last.untracked.is_some_and(recent);
            if allowed {
                last.untracked = Some(now);
            }
            return allowed;
        }
        last.sources.insert(source, now);
        true
    }
}

//! Keeps a log readable while strangers knock: one line a minute for each source and kind.
//!
//! Bounded in memory: when too many sources are remembered at once, new ones share one line.
//! Time is an argument.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A source is heard once in this time.
const QUIET: Duration = Duration::from_secs(60);

/// Sources remembered at once.
const SOURCES_MAX: usize = 1024;

/// When each source was last heard.
#[derive(Debug)]
pub(crate) struct Notices<S>(Mutex<Heard<S>>);

#[derive(Debug)]
struct Heard<S> {
    sources: HashMap<S, Instant>,
    crowd: Option<Instant>,
}

impl<S> Default for Notices<S> {
    fn default() -> Self {
        Self(Mutex::new(Heard { sources: HashMap::new(), crowd: None }))
    }
}

impl<S: Eq + Hash> Notices<S> {
    /// Whether this source may be heard now; if so it will not be again for a minute.
    pub(crate) fn admit(&self, source: S, now: Instant) -> bool {
        let recent = |then: Instant| now.saturating_duration_since(then) < QUIET;
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.sources.get(&source).is_some_and(|&then| recent(then)) {
            return false;
        }
        if heard.sources.len() >= SOURCES_MAX {
            heard.sources.retain(|_, then| recent(*then));
        }
        if heard.sources.len() >= SOURCES_MAX {
            let admitted = !heard.crowd.is_some_and(recent);
            if admitted {
                heard.crowd = Some(now);
            }
            return admitted;
        }
        heard.sources.insert(source, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_heard_once_a_minute() {
        let notices = Notices::default();
        let start = Instant::now();
        assert!(notices.admit("a", start));
        assert!(!notices.admit("a", start + QUIET - Duration::from_millis(1)));
        assert!(notices.admit("b", start));
        assert!(notices.admit("a", start + QUIET));
    }

    #[test]
    fn a_crowd_is_heard_once_and_costs_no_memory() {
        let notices = Notices::default();
        let start = Instant::now();
        let heard = (0..10 * SOURCES_MAX).filter(|&source| notices.admit(source, start)).count();
        assert_eq!(heard, SOURCES_MAX + 1);
        assert_eq!(notices.0.lock().unwrap().sources.len(), SOURCES_MAX);
        assert!(notices.admit(usize::MAX, start + QUIET));
        assert_eq!(notices.0.lock().unwrap().sources.len(), 1);
    }
}

//! Who may take part in a handshake: a server's defence against floods of strangers.
//!
//! Counts, decides, and does nothing else. A spoofed source address costs at most one Retry packet
//! (RFC 9000 8.1.2) once a few handshakes are in flight. What a source holds is counted apart for
//! addresses that have proved themselves: nobody can use up the share of an address by forging it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Handshakes in flight above which an address must first prove itself.
const RETRY_ABOVE: usize = 8;

/// Handshakes in flight of one source: above it an address must prove itself, and above as many of
/// proved addresses the source is not answered.
const SOURCE_MAX: usize = 4;

/// Handshakes in flight above which nobody is answered.
const IGNORE_ABOVE: usize = 64;

/// What to do with an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Shake hands.
    Accept,
    /// Ask the address to prove itself.
    Retry,
    /// Say that there is no room.
    Refuse,
    /// Say nothing: this source has enough in flight.
    IgnoreSource,
    /// Say nothing: too much is in flight.
    IgnoreAll,
}

/// One attempt to connect and what it meets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Handshakes in flight.
    pub(crate) in_flight: usize,
    /// Those of the same source and as proved or unproved as this one.
    pub(crate) of_source: usize,
    /// Whether there is no room for a connection.
    pub(crate) full: bool,
    /// Whether the address has proved itself.
    pub(crate) validated: bool,
}

/// Decides on one attempt.
pub(crate) fn decide(attempt: Attempt) -> Verdict {
    let Attempt { in_flight, of_source, full, validated } = attempt;
    if validated && of_source >= SOURCE_MAX {
        Verdict::IgnoreSource
    } else if in_flight >= IGNORE_ABOVE {
        Verdict::IgnoreAll
    } else if !validated && (in_flight >= RETRY_ABOVE || of_source >= SOURCE_MAX) {
        Verdict::Retry
    } else if full {
        Verdict::Refuse
    } else {
        Verdict::Accept
    }
}

/// A count of things that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

/// One thing that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Count);

impl Count {
    pub(crate) fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts of things that live, by owner; owners of nothing are forgotten.
#[derive(Debug)]
pub(crate) struct Tally<K>(Arc<Mutex<HashMap<K, usize>>>);

/// One thing that is counted for its owner until it is dropped.
#[derive(Debug)]
pub(crate) struct Tallied<K: Eq + Hash> {
    tally: Arc<Mutex<HashMap<K, usize>>>,
    owner: K,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Tally<K> {
    pub(crate) fn now(&self, owner: &K) -> usize {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(owner).copied().unwrap_or(0)
    }

    pub(crate) fn add(&self, owner: K) -> Tallied<K> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(owner.clone()).or_default() += 1;
        Tallied { tally: Arc::clone(&self.0), owner }
    }

    /// Counts one more unless the owner has `max` already.
    pub(crate) fn add_below(&self, owner: K, max: usize) -> Option<Tallied<K>> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.get(&owner).copied().unwrap_or(0) >= max {
            return None;
        }
        *counts.entry(owner.clone()).or_default() += 1;
        drop(counts);
        Some(Tallied { tally: Arc::clone(&self.0), owner })
    }
}

impl<K: Eq + Hash> Drop for Tallied<K> {
    fn drop(&mut self) {
        let mut counts = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_meet_retry_then_silence() {
        for (in_flight, of_source, full, validated, verdict) in [
            (0, 0, false, false, Verdict::Accept),
            (7, 3, false, false, Verdict::Accept),
            (8, 0, false, false, Verdict::Retry),
            (8, 0, false, true, Verdict::Accept),
            (63, 3, false, true, Verdict::Accept),
            (64, 0, false, true, Verdict::IgnoreAll),
            (64, 0, false, false, Verdict::IgnoreAll),
            (0, 0, true, false, Verdict::Refuse),
            (8, 0, true, false, Verdict::Retry),
            // One source: first it must prove itself, and then it has had its share.
            (4, 4, false, false, Verdict::Retry),
            (8, 4, false, true, Verdict::IgnoreSource),
            (8, 4, true, true, Verdict::IgnoreSource),
        ] {
            let attempt = Attempt { in_flight, of_source, full, validated };
            assert_eq!(decide(attempt), verdict, "{attempt:?}");
        }
    }

    #[test]
    fn one_source_leaves_room_for_others() {
        let tally = Tally::default();
        let mut held = Vec::new();
        let mut attempt = |source: &'static str| {
            let of_source = tally.now(&source);
            let in_flight = held.len();
            let attempt = Attempt { in_flight, of_source, full: false, validated: true };
            let verdict = decide(attempt);
            if verdict == Verdict::Accept {
                held.push(tally.add(source));
            }
            verdict
        };
        for _ in 0..1000 {
            attempt("greedy");
        }
        assert_eq!(attempt("greedy"), Verdict::IgnoreSource);
        assert_eq!(attempt("modest"), Verdict::Accept);
    }

    #[test]
    fn what_is_dropped_is_not_counted() {
        let count = Count::default();
        let one = count.add();
        let two = count.add();
        drop(one);
        assert_eq!(count.now(), 1);
        drop(two);
        assert_eq!(count.now(), 0);
    }

    #[test]
    fn a_tally_stops_at_its_maximum_and_forgets_who_has_nothing() {
        let tally = Tally::default();
        let one = tally.add_below("key", 2).unwrap();
        let two = tally.add_below("key", 2).unwrap();
        assert!(tally.add_below("key", 2).is_none());
        assert!(tally.add_below("other", 2).is_some());
        drop((one, two));
        assert!(tally.0.lock().unwrap().is_empty());
    }
}

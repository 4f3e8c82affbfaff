//! Counts of things that live, by owner: a bound on what one key may hold.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

/// Counts by owner; owners of nothing are forgotten.
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

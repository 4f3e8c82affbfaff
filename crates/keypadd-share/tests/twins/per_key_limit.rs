//! Limits how many items each owner may hold at once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

/// Counts by owner; an owner without items takes no memory.
#[derive(Debug)]
pub(crate) struct PerKeyLimit<K>(Arc<Mutex<HashMap<K, usize>>>);

/// One item, counted for its owner until it is dropped.
#[derive(Debug)]
pub(crate) struct KeySlot<K: Eq + Hash> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    owner: K,
}

impl<K> Default for PerKeyLimit<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> PerKeyLimit<K> {
    /// Counts one more item, unless the owner has `max` already.
    pub(crate) fn acquire(&self, owner: K, max: usize) -> Option<KeySlot<K>> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.get(&owner).copied().unwrap_or(0) >= max {
            return None;
        }
        *counts.entry(owner.clone()).or_default() += 1;
        drop(counts);
        Some(KeySlot { counts: Arc::clone(&self.0), owner })
    }
}

impl<K: Eq + Hash> Drop for KeySlot<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

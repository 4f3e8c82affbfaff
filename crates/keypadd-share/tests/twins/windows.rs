//! The budget of window growth.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A connection may take this many times what it leaves of the budget, so that later ones always
/// find some (dynamic thresholds, Choudhury and Hahne 1998).
const SHARE: u64 = 3;

/// Bytes by which the windows of all connections of an endpoint may still grow.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Exchanges a connection's share for the one it wants, as far as it is entitled; returns what
    /// it has then.
    pub(crate) fn exchange(&self, has: u64, wanted: u64) -> u64 {
        let grant = |free: u64| {
            let share = SHARE.saturating_mul(free.saturating_add(has)) / (1 + SHARE);
            wanted.min(share.max(has))
        };
        let take = |free: u64| Some((free + has) - grant(free));
        match self.0.fetch_update(Relaxed, Relaxed, take) {
            Ok(free) | Err(free) => grant(free),
        }
    }
}

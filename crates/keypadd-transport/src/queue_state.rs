//! Decides which sender wakes a sleeping event loop, and whether its queue has room for another
//! datagram.
//!
//! Never sees a message. `tests/loom.rs` includes this file with loom's atomics and checks every
//! interleaving of senders and a loop.

use crate::sync::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The state of a loop's queue.
#[derive(Debug)]
pub(crate) struct QueueState {
    /// Whether the loop was woken and has not read the queue yet.
    woken: AtomicBool,
    datagrams: AtomicUsize,
    datagrams_max: usize,
}

impl QueueState {
    pub(crate) fn new(datagrams_max: usize) -> Self {
        Self { woken: AtomicBool::new(false), datagrams: AtomicUsize::new(0), datagrams_max }
    }

    /// Records a queued message; returns whether its sender must wake the loop.
    pub(crate) fn must_wake(&self) -> bool {
        !self.woken.swap(true, SeqCst)
    }

    /// The loop is about to read the queue, in this order: a message queued later wakes it again.
    pub(crate) fn begin_read(&self) {
        self.woken.store(false, SeqCst);
    }

    /// Reserves a place for a datagram, if there is one.
    pub(crate) fn reserve_place(&self) -> bool {
        let has_place = self.datagrams.fetch_add(1, SeqCst) < self.datagrams_max;
        if !has_place {
            self.release_place();
        }
        has_place
    }

    /// Frees the place of a datagram that the loop has taken.
    pub(crate) fn release_place(&self) {
        self.datagrams.fetch_sub(1, SeqCst);
    }
}

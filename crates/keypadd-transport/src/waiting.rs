//! Decides which sender wakes a sleeping event loop, and whether its queue has room for another datagram.
//!
//! Never sees a message. `tests/loom.rs` includes this file with loom's atomics and checks every interleaving
//! of senders and a loop.

use crate::sync::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// What waits for a loop.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Whether the loop has been woken and has not looked yet.
    woken: AtomicBool,
    datagrams: AtomicUsize,
    datagrams_max: usize,
}

impl Waiting {
    pub(crate) fn new(datagrams_max: usize) -> Self {
        Self { woken: AtomicBool::new(false), datagrams: AtomicUsize::new(0), datagrams_max }
    }

    /// A message was queued; whether its sender has to wake the loop.
    pub(crate) fn must_wake(&self) -> bool {
        !self.woken.swap(true, SeqCst)
    }

    /// The loop will take what is queued, in this order: a message queued later wakes it again.
    pub(crate) fn look(&self) {
        self.woken.store(false, SeqCst);
    }

    /// Takes a place for a datagram, if there is one.
    pub(crate) fn take_place(&self) -> bool {
        let has_place = self.datagrams.fetch_add(1, SeqCst) < self.datagrams_max;
        if !has_place {
            self.give_place_back();
        }
        has_place
    }

    /// The loop has taken a datagram.
    pub(crate) fn give_place_back(&self) {
        self.datagrams.fetch_sub(1, SeqCst);
    }
}

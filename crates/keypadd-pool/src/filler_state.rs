//! Shares the filler's counters with the rest of the pool, wakes it, and returns memory to it.
//!
//! Uses atomics and channels only; nothing here blocks.

use std::sync::{Arc, OnceLock};

use crate::arena::Unit;
use crate::sync::thread::Thread;
use crate::sync::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Relaxed},
    mpsc,
};

/// The filler's counters, settings and wake-up flag.
#[derive(Debug, Default)]
pub(crate) struct FillerState {
    pub(crate) thread: OnceLock<Thread>,
    /// Set by the first consumer that wants work done, cleared by the filler before it plans.
    pub(crate) wanted: AtomicBool,
    pub(crate) stop: AtomicBool,
    pub(crate) alive: AtomicBool,
    /// Why it ended, as a code; 0 while it runs.
    pub(crate) fault: AtomicU8,
    /// Its CPU limit, in percent of one core.
    pub(crate) max_cpu_percent: AtomicU64,
    /// Whether the kernel accepted SCHED_IDLE.
    pub(crate) idle_class: AtomicBool,
    pub(crate) thread_id: AtomicI32,
    pub(crate) fill_bytes: AtomicU64,
    pub(crate) fill_cpu_nanos: AtomicU64,
    /// Units that hold keystream.
    pub(crate) filled_units: AtomicU64,
    /// Units above the budget that stay mapped for a while.
    pub(crate) withheld_units: AtomicU64,
    /// Units locked into memory.
    pub(crate) locked_units: AtomicU64,
    pub(crate) pads_wasted: AtomicU64,
    /// Lanes have yet to get pads, or to give some back.
    pub(crate) unsettled: AtomicBool,
}

impl FillerState {
    /// Wakes the filler unless it has been woken already, or rests. Never blocks.
    pub(crate) fn wake(&self) {
        if !self.wanted.swap(true, AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// Takes the memory of dropped chunks, and counts wasted pads.
#[derive(Clone)]
pub(crate) struct MemoryReturn {
    units: mpsc::Sender<Box<[Unit]>>,
    filler: Arc<FillerState>,
}

impl MemoryReturn {
    pub(crate) fn new(units: mpsc::Sender<Box<[Unit]>>, filler: Arc<FillerState>) -> Self {
        Self { units, filler }
    }

    /// If the pool is gone, the memory, which is wiped, goes back to the kernel.
    pub(crate) fn take_back(&self, units: Box<[Unit]>) {
        let _ = self.units.send(units);
    }

    pub(crate) fn count_wasted(&self, pads: u64) {
        self.filler.pads_wasted.fetch_add(pads, Relaxed);
    }
}

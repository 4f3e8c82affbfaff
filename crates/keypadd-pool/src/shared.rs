//! What the filler and everybody else see of each other: figures, the bell that wakes it, and the
//! way home for memory. Atomics and channels only; nothing here waits for anybody.

use std::sync::{Arc, OnceLock};

use crate::arena::Unit;
use crate::cpu_share::WHOLE_CORE;
use crate::sync::thread::Thread;
use crate::sync::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Relaxed},
    mpsc,
};

/// Figures that everybody may read and the filler's bell.
#[derive(Debug)]
pub(crate) struct FillerShared {
    pub(crate) thread: OnceLock<Thread>,
    /// Set by the first consumer that wants work done, cleared by the filler before it looks.
    pub(crate) wanted: AtomicBool,
    pub(crate) stop: AtomicBool,
    pub(crate) alive: AtomicBool,
    /// Why it ended, as a code; 0 while it has not.
    pub(crate) fault: AtomicU8,
    /// How much of one core it may take.
    pub(crate) max_cpu_percent: AtomicU64,
    /// Whether the kernel accepted SCHED_IDLE.
    pub(crate) idle_class: AtomicBool,
    pub(crate) thread_id: AtomicI32,
    pub(crate) fill_bytes: AtomicU64,
    pub(crate) fill_cpu_nanos: AtomicU64,
    /// Units that hold keystream.
    pub(crate) filled_units: AtomicU64,
    /// Units that the kernel keeps out of swap.
    pub(crate) locked_units: AtomicU64,
    pub(crate) pads_wasted: AtomicU64,
}

impl Default for FillerShared {
    fn default() -> Self {
        Self {
            thread: OnceLock::new(),
            wanted: AtomicBool::default(),
            stop: AtomicBool::default(),
            alive: AtomicBool::default(),
            fault: AtomicU8::default(),
            max_cpu_percent: AtomicU64::new(WHOLE_CORE),
            idle_class: AtomicBool::default(),
            thread_id: AtomicI32::default(),
            fill_bytes: AtomicU64::default(),
            fill_cpu_nanos: AtomicU64::default(),
            filled_units: AtomicU64::default(),
            locked_units: AtomicU64::default(),
            pads_wasted: AtomicU64::default(),
        }
    }
}

/// A consumer's way to the filler.
#[derive(Clone, Debug)]
pub(crate) struct Wake(pub(crate) Arc<FillerShared>);

impl Wake {
    /// Wakes the filler unless somebody has already. Never blocks.
    pub(crate) fn filler(&self) {
        if !self.0.wanted.swap(true, AcqRel)
            && let Some(thread) = self.0.thread.get()
        {
            thread.unpark();
        }
    }
}

/// Where a chunk's memory goes when nobody gives the chunk back, and where waste is counted.
#[derive(Clone)]
pub(crate) struct Home {
    units: mpsc::Sender<Box<[Unit]>>,
    shared: Arc<FillerShared>,
}

impl Home {
    pub(crate) fn new(units: mpsc::Sender<Box<[Unit]>>, shared: Arc<FillerShared>) -> Self {
        Self { units, shared }
    }

    /// Without a receiver the pool is gone; the memory, wiped, goes back to the kernel.
    pub(crate) fn take_back(&self, units: Box<[Unit]>) {
        let _ = self.units.send(units);
    }

    pub(crate) fn count_wasted(&self, pads: u64) {
        self.shared.pads_wasted.fetch_add(pads, Relaxed);
    }
}

//! Maps the memory that holds keystream: one anonymous mapping per unit, in slabs of 2 MiB.
//!
//! Pages are kept out of core dumps and forked children, and locked into memory as far as the
//! process's limit allows. A unit is its own mapping, because safe code can return only whole ones.
//! The kernel merges adjacent ones, but counts each piece that holes leave against a limit
//! (vm.max_map_count) that threads need too: so `free_units` returns slabs. (`MADV_WIPEONFORK` would be wrong here: it would give a child
//! keystream of zeros.)

use std::ops::{Deref, DerefMut};
// Not from `sync.rs`: the loom model does not cover releasing memory.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use memmap2::{Advice, MmapMut};

/// Bytes of a unit, the smallest piece that the pool hands out: two pages.
pub(crate) const UNIT_BYTES: usize = 8192;

/// Units of a slab: 2 MiB.
const SLAB_UNITS: usize = 256;
/// A larger arena has larger slabs, so that it never has more pieces than these.
const SLABS_MAX: usize = 8192;

/// A larger budget waits this long for the unmapping of what a smaller one did not need.
const UNMAPPING_TIME: Duration = Duration::from_secs(10);

/// Identifies one slab; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlabId(u64);

impl SlabId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// One piece of pool memory. Dropping it returns its pages to the kernel; a filler must not do that
/// itself, see [`releaser`].
#[derive(Debug)]
pub(crate) struct Unit {
    pages: MmapMut,
    slab: SlabId,
    locked: bool,
}

impl Unit {
    /// The slab that the unit was mapped in.
    pub(crate) fn slab(&self) -> SlabId {
        self.slab
    }

    /// Whether the unit is locked into memory.
    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }

    #[cfg(test)]
    pub(crate) fn pretending_to_be_locked(self, locked: bool) -> Self {
        Self { locked, ..self }
    }
}

impl Deref for Unit {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages
    }
}

impl DerefMut for Unit {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages
    }
}

/// Maps `count` units.
///
/// # Errors
/// If the kernel refuses a mapping. A refused lock is not an error, see [`Unit::is_locked`].
pub(crate) fn map(count: usize) -> io::Result<Vec<Unit>> {
    let mut units = Vec::with_capacity(count);
    let slab_units = SLAB_UNITS.max(count.div_ceil(SLABS_MAX));
    let (mut may_lock, mut slab) = (true, SlabId::next());
    for nth in 0..count {
        if nth % slab_units == 0 {
            slab = SlabId::next();
        }
        let pages = MmapMut::map_anon(UNIT_BYTES)?;
        // If the kernel refuses these, memory could be dumped or inherited: fail rather than protect
        // less than documented.
        pages.advise(Advice::DontDump)?;
        pages.advise(Advice::DontFork)?;
        may_lock = may_lock && pages.lock().is_ok();
        units.push(Unit { pages, slab, locked: may_lock });
    }
    Ok(units)
}

/// How many of these are locked into memory.
pub(crate) fn locked(units: &[Unit]) -> usize {
    units.iter().filter(|unit| unit.is_locked()).count()
}

/// Counts a pool's mapped memory, so that changes of the budget that follow each other faster than the filler gives
/// memory back map no more than the largest of them.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Mapped>);

/// Units. Atomics of the loom model must not be used while this is locked.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The budget.
    pub(crate) wanted: usize,
    /// Mapped, and not passed on to be unmapped.
    pub(crate) mapped: usize,
    /// Passed on to be unmapped.
    pub(crate) unmapping: usize,
}

impl Ledger {
    /// Of a pool with this budget, all of it mapped.
    pub(crate) fn new(units: usize) -> Self {
        Self(Mutex::new(Mapped { wanted: units, mapped: units, unmapping: 0 }))
    }

    /// Locks it for a moment.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Mapped> {
        // Counts that a panic could leave half changed would only map too little.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the budget to `wanted` units and maps those that it lacks. Waits until all is unmapped that is to
    /// be.
    ///
    /// # Errors
    /// If the kernel refuses a mapping, `is_enough` the result, or unmapping takes longer than 10 s; the
    /// budget then stays as it was.
    pub(crate) fn resize(
        &self,
        wanted: usize,
        is_enough: impl FnOnce(&[Unit]) -> io::Result<()>,
    ) -> io::Result<Vec<Unit>> {
        let (before, missing) = {
            let mut counts = self.lock();
            // From now on the filler gives nothing back that this budget needs.
            let before = std::mem::replace(&mut counts.wanted, wanted);
            (before, wanted.saturating_sub(counts.mapped))
        };
        let new = match missing {
            0 => Ok(Vec::new()),
            missing => self.wait_for_unmapping().and_then(|()| map(missing)),
        };
        let new = new.and_then(|new| is_enough(&new).map(|()| new));
        let mut counts = self.lock();
        match &new {
            Ok(new) => counts.mapped += new.len(),
            Err(_) => counts.wanted = before,
        }
        new
    }

    fn wait_for_unmapping(&self) -> io::Result<()> {
        let deadline = Instant::now() + UNMAPPING_TIME;
        while self.lock().unmapping > 0 {
            if Instant::now() > deadline {
                let busy = "the memory of a larger budget is still being given back";
                return Err(io::Error::new(io::ErrorKind::TimedOut, busy));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Takes memory that will not be used again, see [`releaser`].
pub(crate) type Released = mpsc::Sender<Box<[Unit]>>;

/// Starts a thread that returns pages to the kernel, until the last sender is gone.
///
/// Unmapping holds the lock of all the process's mappings. A SCHED_IDLE thread may be preempted right
/// then, for seconds on a busy machine, and block whoever maps memory or starts a thread. So a filler
/// passes memory on to this thread, which runs in its creator's scheduling class.
pub(crate) fn releaser(ledger: Arc<Ledger>) -> io::Result<Released> {
    let (sender, unwanted) = mpsc::channel::<Box<[Unit]>>();
    let release = move || {
        for units in unwanted {
            let count = units.len();
            drop(units);
            let mut counts = ledger.lock();
            counts.unmapping = counts.unmapping.saturating_sub(count);
        }
    };
    thread::Builder::new().name("keypadd-unmap".into()).spawn(release)?;
    Ok(sender)
}

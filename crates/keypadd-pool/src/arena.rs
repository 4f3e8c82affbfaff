//! Maps the memory that holds keystream: slabs of 2 MiB, which the pool uses in units of 8 KiB.
//!
//! A slab is one anonymous mapping, kept out of core dumps and forked children, backed by one huge
//! page where the kernel has them, and locked into memory as far as the process's limit allows.
//! Pads lie far apart: in small pages, fetching one waits for a page-table walk. A slab is unmapped
//! with its last unit, so `free_units` returns whole ones. (`MADV_WIPEONFORK` would be wrong here:
//! it would give a child keystream of zeros.)
//!
//! Units of one slab belong to different owners, which safe code cannot express: what is unsafe
//! here is to use a unit's bytes, and to send them to another thread.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
// Not from `sync.rs`: the loom model does not cover releasing memory.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use memmap2::{Advice, MmapMut, MmapRaw};

/// Bytes of a unit, the smallest piece that the pool hands out: two pages.
pub(crate) const UNIT_BYTES: usize = 8192;

/// Units of a slab: 2 MiB, a huge page of x86-64 and of arm64 with pages of 4 KiB.
pub(crate) const SLAB_UNITS: usize = 256;
const SLAB_BYTES: usize = SLAB_UNITS * UNIT_BYTES;
/// A larger arena has larger slabs, so that it never has more mappings than these: the kernel
/// limits them (vm.max_map_count), and threads need some too.
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

/// One mapping, shared by its units.
#[derive(Debug)]
struct Slab {
    pages: MmapRaw,
    id: SlabId,
    locked: bool,
}

impl Slab {
    /// Maps this many units, and locks them if `may_lock`.
    fn map(units: usize, may_lock: bool) -> io::Result<Self> {
        let pages = map_aligned(units * UNIT_BYTES)?;
        // If the kernel refuses these, memory could be dumped or inherited: fail rather than
        // protect less than documented.
        pages.advise(Advice::DontDump)?;
        pages.advise(Advice::DontFork)?;
        // Before locking, which touches all pages. A kernel without huge pages refuses.
        let _ = pages.advise(Advice::HugePage);
        let locked = may_lock && pages.lock().is_ok();
        Ok(Self { pages: pages.into(), id: SlabId::next(), locked })
    }

    /// Divides the slab into its units.
    fn into_units(self) -> impl Iterator<Item = Unit> {
        let slab = Arc::new(self);
        (0..slab.pages.len() / UNIT_BYTES).map(move |nth| {
            let start = slab.pages.as_mut_ptr().wrapping_add(nth * UNIT_BYTES);
            let bytes = NonNull::new(start.cast()).expect("no mapping includes address 0");
            Unit { bytes, slab: Arc::clone(&slab) }
        })
    }
}

/// Maps this many bytes, so that huge pages fit if there is space for one.
fn map_aligned(bytes: usize) -> io::Result<MmapMut> {
    let pages = MmapMut::map_anon(bytes)?;
    let over = pages.as_ptr().addr() % SLAB_BYTES;
    if bytes < SLAB_BYTES || over == 0 {
        return Ok(pages);
    }
    // Linux aligns such mappings since 6.7. Older kernels map right below what was mapped last:
    // fill up the space above a boundary. Elsewhere the mapping is just as good, without huge
    // pages.
    drop(pages);
    let _filling = MmapMut::map_anon(over)?;
    MmapMut::map_anon(bytes)
}

/// One piece of pool memory. Dropping the last one of a slab returns its pages to the kernel; a
/// filler must not do that itself, see [`releaser`].
#[derive(Debug)]
pub(crate) struct Unit {
    /// Not an offset into the slab: a packet would wait for one more cache line.
    bytes: NonNull<[u8; UNIT_BYTES]>,
    slab: Arc<Slab>,
}

// SAFETY: a unit owns its bytes as a `Box` does: `Slab::into_units` makes one unit of each piece of
// a mapping, and a unit cannot be cloned. `Slab` is `Send` and `Sync` by itself.
unsafe impl Send for Unit {}
// SAFETY: as above; through a shared unit its bytes can only be read.
unsafe impl Sync for Unit {}

impl Unit {
    /// The slab that the unit is a piece of.
    pub(crate) fn slab(&self) -> SlabId {
        self.slab.id
    }

    /// Whether the unit is locked into memory.
    pub(crate) fn is_locked(&self) -> bool {
        self.slab.locked
    }
}

impl Deref for Unit {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes are mapped, readable and zeroed or written, as long as the unit holds
        // its slab. No other unit has them, and the mapping is used through units alone.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for Unit {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable, and this borrow of the unit is the only
        // one.
        unsafe { self.bytes.as_mut() }
    }
}

/// Maps `count` units.
///
/// # Errors
/// If the kernel refuses a mapping. A refused lock is not an error, see [`Unit::is_locked`].
pub(crate) fn map(count: usize) -> io::Result<Vec<Unit>> {
    let mut units = Vec::with_capacity(count);
    let slab_units = count.div_ceil(SLABS_MAX).next_multiple_of(SLAB_UNITS);
    // Units that the limit may still let us lock: halved by each refusal, so that all that it
    // allows is locked.
    let mut lockable = slab_units;
    while units.len() < count {
        let most = if lockable > 0 { lockable } else { slab_units };
        let wanted = most.min(count - units.len());
        let slab = Slab::map(wanted, lockable > 0)?;
        if lockable > 0 && !slab.locked {
            lockable = wanted / 2;
        } else {
            units.extend(slab.into_units());
        }
    }
    Ok(units)
}

/// Maps one slab that claims to be locked, or not to be.
#[cfg(test)]
pub(crate) fn slab_that_claims(locked: bool, units: usize) -> Vec<Unit> {
    let slab = Slab::map(units, false).expect("memory");
    Slab { locked, ..slab }.into_units().collect()
}

/// How many of these are locked into memory.
pub(crate) fn locked(units: &[Unit]) -> usize {
    units.iter().filter(|unit| unit.is_locked()).count()
}

/// Counts a pool's mapped memory, so that changes of the budget that follow each other faster than
/// the filler gives memory back map no more than the largest of them.
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

    /// Changes the budget to `wanted` units and maps those that it lacks. Waits until all is
    /// unmapped that is to be.
    ///
    /// # Errors
    /// If the kernel refuses a mapping, `is_enough` the result, or unmapping takes longer than 10
    /// s; the budget then stays as it was.
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
/// Unmapping holds the lock of all the process's mappings. A SCHED_IDLE thread may be preempted
/// right then, for seconds on a busy machine, and block whoever maps memory or starts a thread. So
/// a filler passes memory on to this thread, which runs in its creator's scheduling class.
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

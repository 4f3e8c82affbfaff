//! The memory that keystream lives in: anonymous mappings, one a unit.
//!
//! Knows pages, never what is written on them. They are kept out of core dumps and out of forked
//! children, and locked into memory as far as the process's limit allows. A unit is a mapping of its
//! own, so that a smaller budget gives pages back to the kernel, which sees neighbours as one area.
//! (`MADV_WIPEONFORK` would be wrong here: it hands a child keystream of zeros.)

use std::ops::{Deref, DerefMut};
// Not the makings of `sync.rs`: what becomes of memory that nobody uses is no matter of a model.
use std::sync::mpsc;
use std::{io, thread};

use memmap2::{Advice, MmapMut};

/// Bytes of a unit, the smallest piece that the pool hands out: two pages.
pub(crate) const UNIT_BYTES: usize = 8192;

/// One piece of pool memory; dropped, its pages go back to the kernel, which is not for a filler to do:
/// see [`releaser`].
#[derive(Debug)]
pub(crate) struct Unit {
    pages: MmapMut,
    locked: bool,
}

impl Unit {
    /// Whether the kernel promised to keep the unit out of swap.
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
/// When the kernel refuses a mapping. A refused lock is not an error: [`Unit::is_locked`] says so.
pub(crate) fn map(count: usize) -> io::Result<Vec<Unit>> {
    let mut units = Vec::with_capacity(count);
    let mut may_lock = true;
    for _ in 0..count {
        let pages = MmapMut::map_anon(UNIT_BYTES)?;
        // A kernel that refuses leaves memory that is dumped or inherited: rather no pool than
        // less protection than documented.
        pages.advise(Advice::DontDump)?;
        pages.advise(Advice::DontFork)?;
        may_lock = may_lock && pages.lock().is_ok();
        units.push(Unit { pages, locked: may_lock });
    }
    Ok(units)
}

/// How many of these the kernel promised to keep out of swap.
pub(crate) fn locked(units: &[Unit]) -> usize {
    units.iter().filter(|unit| unit.is_locked()).count()
}

/// Where memory goes that nobody will use again, see [`releaser`].
pub(crate) type Released = mpsc::Sender<Vec<Unit>>;

/// Starts a thread that gives pages back to the kernel, until the last sender is gone.
///
/// For that the kernel holds the lock of all the process's mappings. A thread that runs only when a CPU is
/// idle may be stopped right then, for seconds on a busy machine, and whoever maps memory or starts a thread
/// would wait for it. So a filler passes memory on to this thread, which is of its maker's class.
pub(crate) fn releaser() -> io::Result<Released> {
    let (sender, unwanted) = mpsc::channel::<Vec<Unit>>();
    let release = move || unwanted.into_iter().for_each(drop);
    thread::Builder::new().name("keypadd-unmap".into()).spawn(release)?;
    Ok(sender)
}

/// Overwrites keystream so that the stores cannot be elided: the memory outlives the call, and the
/// fence keeps the compiler from seeing a dead store in a caller that it inlined.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

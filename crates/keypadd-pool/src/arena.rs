//! The memory that keystream lives in: anonymous mappings cut into units at start-up.
//!
//! Knows pages, never what is written on them. The mappings are kept out of core dumps and out of
//! forked children, and locked into memory as far as the process's limit allows. They are leaked
//! on purpose: units travel between threads as owned slices, and a pool lives as long as its
//! daemon does. (`MADV_WIPEONFORK` would be wrong here: it hands a child keystream of zeros.)

use std::io;

use memmap2::{Advice, MmapMut};

/// Bytes of a unit, the smallest piece that the pool hands out: two pages.
pub(crate) const UNIT_BYTES: usize = 8192;

/// The arena is locked bank by bank, so that a small limit still locks what it can.
const BANK_BYTES: usize = 1 << 20;

/// One piece of arena memory.
pub(crate) type Unit = &'static mut [u8];

/// The units of a freshly mapped arena, and what became of locking it.
pub(crate) struct Arena {
    /// Locked units last, so that they are the first to be handed out.
    pub(crate) units: Vec<Unit>,
    /// Bytes that the kernel promised to keep out of swap.
    pub(crate) locked_bytes: usize,
}

impl Arena {
    /// Maps `budget_bytes`, rounded down to whole units.
    ///
    /// # Errors
    /// When the kernel refuses the mapping. A refused lock is not an error: it shows in
    /// `locked_bytes`.
    pub(crate) fn map(budget_bytes: usize) -> io::Result<Self> {
        let mut arena =
            Self { units: Vec::with_capacity(budget_bytes / UNIT_BYTES), locked_bytes: 0 };
        let mut may_lock = true;
        let mut left = budget_bytes - budget_bytes % UNIT_BYTES;
        while left > 0 {
            let bank_bytes = left.min(BANK_BYTES);
            let bank = MmapMut::map_anon(bank_bytes)?;
            // A kernel that refuses leaves memory that is dumped or inherited: rather no pool than
            // less protection than documented.
            bank.advise(Advice::DontDump)?;
            bank.advise(Advice::DontFork)?;
            if may_lock && bank.lock().is_ok() {
                arena.locked_bytes += bank_bytes;
            } else {
                may_lock = false;
            }
            let bank: &'static mut MmapMut = Box::leak(Box::new(bank));
            arena.units.extend(bank.chunks_exact_mut(UNIT_BYTES));
            left -= bank_bytes;
        }
        arena.units.reverse();
        Ok(arena)
    }
}

/// Overwrites keystream so that the stores cannot be elided: the memory outlives the call, and the
/// fence keeps the compiler from seeing a dead store in a caller that it inlined.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

//! Allocates short secrets in pages that are locked, and excluded from core dumps and forked
//! children.
//!
//! Locking stops at RLIMIT_MEMLOCK. Many secrets share a page; slots are reused and pages never
//! unmapped, so memory is bounded by the most secrets that were alive at one time. Holds only
//! bytes: the key schedules and hash states of libraries are on the heap (docs/argument.md, "What
//! stays in memory"). Knows no keys.

use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, MmapMut};
use zeroize::Zeroize;

/// Bytes that are mapped at a time: a page, on most machines.
const PAGE_BYTES: usize = 4096;

/// Longest secret.
pub(crate) const SECRET_BYTES_MAX: usize = 64;

/// Slots without an owner, all zero.
static FREE: Mutex<Vec<&'static mut [u8]>> = Mutex::new(Vec::new());

/// A secret of `N` bytes, at most [`SECRET_BYTES_MAX`]; wiped when dropped. It does not move in
/// memory when its owner does.
pub(crate) struct Secret<const N: usize> {
    slot: &'static mut [u8],
}

impl<const N: usize> Secret<N> {
    /// Zeros, to be filled in place. Aborts if there is no memory, as every allocation does.
    pub(crate) fn zeroed() -> Self {
        const { assert!(N <= SECRET_BYTES_MAX, "a secret fits a slot") };
        let mut free = free();
        loop {
            if let Some(slot) = free.pop() {
                return Self { slot };
            }
            let page = map_page()
                .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u8; PAGE_BYTES]>()));
            // Never unmapped, so its slots may have owners that outlive everything here.
            free.extend(Box::leak(Box::new(page)).chunks_exact_mut(SECRET_BYTES_MAX));
        }
    }

    /// A copy of these bytes; the owner of the original must wipe it.
    pub(crate) fn copied(bytes: &[u8; N]) -> Self {
        let mut secret = Self::zeroed();
        secret.copy_from_slice(bytes);
        secret
    }
}

impl<const N: usize> Deref for Secret<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slot[..N]
    }
}

impl<const N: usize> DerefMut for Secret<N> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slot[..N]
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        let slot = std::mem::take(&mut self.slot);
        slot.zeroize();
        free().push(slot);
    }
}

/// Ignores a failure to lock. Failing to exclude the page from dumps and children is an error: that
/// would protect less than documented.
fn map_page() -> io::Result<MmapMut> {
    let page = MmapMut::map_anon(PAGE_BYTES)?;
    page.advise(Advice::DontDump)?;
    page.advise(Advice::DontFork)?;
    let _ = page.lock();
    Ok(page)
}

fn free() -> MutexGuard<'static, Vec<&'static mut [u8]>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_secret_is_wiped_and_its_slot_is_free_again() {
        // Another test may take the slot first.
        let is_zero = (0..1000).find_map(|_| {
            let mut secret = Secret::<32>::zeroed();
            secret.fill(0xa5);
            let place = secret.as_ptr();
            drop(secret);
            let free = free();
            let slot = free.iter().find(|slot| slot.as_ptr() == place)?;
            Some(slot.iter().all(|byte| *byte == 0))
        });
        assert_eq!(is_zero, Some(true));
    }

    #[test]
    fn secrets_overlap_nowhere_and_stay_where_they_are() {
        let mut secrets: Vec<_> = (0..200).map(|_| Secret::<SECRET_BYTES_MAX>::zeroed()).collect();
        for (nth, secret) in secrets.iter_mut().enumerate() {
            secret.fill(nth as u8);
        }
        let places: Vec<_> = secrets.iter().map(|secret| secret.as_ptr()).collect();
        let moved: Vec<_> = secrets.into_iter().rev().collect();
        for (nth, secret) in moved.iter().rev().enumerate() {
            assert_eq!(secret.as_ptr(), places[nth]);
            assert!(secret.iter().all(|byte| *byte == nth as u8));
        }
    }
}

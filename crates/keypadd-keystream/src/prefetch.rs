//! Asks the CPU to fetch memory that is needed soon, where Rust can: on x86-64.

#![allow(unsafe_code)]

/// Fetches bytes into the caches, without waiting for them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    const LINE_BYTES: usize = 64;
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: a prefetch reads nothing that a program sees, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

/// Does nothing.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn prefetch(_: &[u8]) {}

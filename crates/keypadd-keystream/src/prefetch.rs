//! Asks the CPU to fetch memory that is needed soon, where Rust can: on x86-64.

#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Fetches bytes into the caches, without waiting for them.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes.len()).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that a program sees, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

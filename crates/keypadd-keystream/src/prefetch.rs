//! Asks the CPU to fetch memory that is needed soon, where Rust can: on x86-64.

#![allow(unsafe_code)]

/// Fetches a value, or the bytes of a slice, into the caches, without waiting for them. Follows no
/// pointers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    const LINE_BYTES: usize = 64;
    let start: *const i8 = std::ptr::from_ref(value).cast();
    for offset in (0..size_of_val(value)).step_by(LINE_BYTES) {
        // SAFETY: a prefetch reads nothing that a program sees, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) }
    }
}

/// Does nothing.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn prefetch<T: ?Sized>(_: &T) {}

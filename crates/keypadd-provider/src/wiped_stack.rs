//! Wipes the stack that code with secrets used: libraries leave copies of what they move there.
//! Later frames do not only show them: a value whose padding they are in may be moved to the heap.

use zeroize::zeroize_stack;

/// Computes with secrets, in a frame of its own, and wipes `BYTES` of the stack below this one. The
/// result must keep its own secrets on the heap.
pub(crate) fn with_wiped_stack<const BYTES: usize, T>(compute: impl FnOnce() -> T) -> T {
    let result = in_a_frame_of_its_own(compute);
    zeroize_stack::<BYTES>();
    result
}

#[inline(never)]
fn in_a_frame_of_its_own<T>(compute: impl FnOnce() -> T) -> T {
    compute()
}

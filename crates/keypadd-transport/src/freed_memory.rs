//! Keeps the memory of freed buffers for the next ones.
//!
//! Bulk data allocates and frees buffers at the end of a loop's heap all the time. By default,
//! glibc gives memory at the end of a heap back to the kernel as soon as it is 128 KiB. Each page
//! of the next buffer then faults, which takes a tenth of the CPU time of a transfer in bursts.

use std::hint::black_box;

/// glibc keeps twice as many bytes at the end of each heap.
const KEPT_BYTES: usize = 4 << 20;

/// Has freed memory kept for the life of this process. Call it once, before endpoints start. Other
/// C libraries are as before.
pub fn keep_freed_memory() {
    // Once a block that had a mapping of its own is freed, glibc takes blocks of its size from
    // heaps, and gives twice the size back at a time (mallopt(3), M_MMAP_THRESHOLD). No page of it
    // is touched.
    drop(black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}

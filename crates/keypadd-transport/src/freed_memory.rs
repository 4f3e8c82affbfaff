//! Keeps the memory of freed buffers for the next ones.
//!
//! Bulk data allocates and frees buffers at the end of a loop's heap all the time. glibc gives memory at
//! the end of a heap back to the kernel, by default as soon as it is 128 KiB, and each page of the next
//! buffer faults: a tenth of the CPU time of a transfer in bursts.

use std::hint::black_box;

/// glibc keeps twice as many bytes at the end of each heap.
const KEPT_BYTES: usize = 4 << 20;

/// Has freed memory kept for the life of this process. Other C libraries are as before.
pub(crate) fn keep() {
    // Once a block that had a mapping of its own is freed, glibc takes blocks of its size from heaps, and
    // gives twice the size back at a time (mallopt(3), M_MMAP_THRESHOLD). No page of it is touched.
    drop(black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Page faults of this thread that needed no disk (proc(5), minflt).
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn buffers_that_are_freed_and_allocated_again_fault_once() {
        keep();
        // A heap of its own.
        let thread = std::thread::spawn(|| {
            let buffers = || (0..12).map(|_| black_box(vec![1_u8; 256 << 10])).collect::<Vec<_>>();
            drop(buffers());
            let before = faults();
            (0..50).for_each(|_| drop(buffers()));
            faults() - before
        });
        // In all there are 50 * 768 pages.
        let faults = thread.join().unwrap();
        assert!(faults < 768, "{faults}");
    }
}

//! Counts page faults of buffers that are freed and allocated again. Runs in its own process:
//! another test that frees a large buffer has the same effect on glibc.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used)]

use std::hint::black_box;

use keypadd_transport::keep_freed_memory;

/// Page faults of this thread that needed no disk (proc(5), minflt).
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(7).unwrap().parse().unwrap()
}

/// The faults of a thread, which has a heap of its own.
fn faults_of_a_thread() -> u64 {
    let thread = std::thread::spawn(|| {
        // In all more than glibc keeps by default, in buffers too small for mappings of their own.
        let buffers = || (0..48).map(|_| black_box(vec![1_u8; 64 << 10])).collect::<Vec<_>>();
        drop(buffers());
        let before = faults();
        (0..50).for_each(|_| drop(buffers()));
        faults() - before
    });
    thread.join().unwrap()
}

#[test]
fn buffers_that_are_freed_and_allocated_again_fault_once() {
    // One round of buffers has 768 pages.
    let without = faults_of_a_thread();
    assert!(without > 10 * 768, "{without}");
    keep_freed_memory();
    let faults = faults_of_a_thread();
    assert!(faults < 768, "{faults}");
}

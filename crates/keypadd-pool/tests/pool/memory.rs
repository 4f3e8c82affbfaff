//! The arena's pages as the kernel sees them: not dumped, not inherited, locked as far as it said.

use std::fs;

use keypadd_pool::{Pool, PoolSettings};

const BUDGET_BYTES: usize = 4 << 20;

/// Bytes of this process's mappings that carry every one of these flags (proc(5), VmFlags).
fn mapped_bytes(flags: &[&str]) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("proc is mounted");
    let (mut sum, mut size) = (0, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Size:") {
            let kib: usize = kib.trim().trim_end_matches(" kB").parse().expect("a size in KiB");
            size = kib << 10;
        }
        if let Some(listed) = line.strip_prefix("VmFlags:") {
            let listed: Vec<&str> = listed.split_whitespace().collect();
            if flags.iter().all(|flag| listed.contains(flag)) {
                sum += size;
            }
        }
    }
    sum
}

/// Arenas are never unmapped, so other tests can only add to the sums.
#[test]
fn pool_memory_is_kept_out_of_core_dumps_and_of_children() {
    let guarded = ["dd", "dc"];
    let before = mapped_bytes(&guarded);
    let _pool = Pool::new(PoolSettings { budget_bytes: BUDGET_BYTES }).expect("a pool of 4 MiB");
    assert!(mapped_bytes(&guarded) >= before + BUDGET_BYTES);
}

#[test]
fn pool_memory_is_locked_as_far_as_the_snapshot_says() {
    let before = mapped_bytes(&["lo"]);
    let pool = Pool::new(PoolSettings { budget_bytes: BUDGET_BYTES }).expect("a pool of 4 MiB");
    let locked = pool.snapshot().locked_bytes as usize;
    assert!(locked <= BUDGET_BYTES);
    assert!(mapped_bytes(&["lo"]) >= before + locked);
}

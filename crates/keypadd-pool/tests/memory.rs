//! Checks the pool's pages as the kernel sees them: not dumped, not inherited, locked as reported,
//! released when the pool shrinks. Runs in a process of its own, one test at a time, because it
//! reads all mappings. Skipped where mappings do not show what they were advised to be, as under
//! qemu's user mode.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keypadd_keystream::{PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Direction, Lane, Pool, PoolSettings, PoolSnapshot, Stage, Traffic};
use memmap2::{Advice, MmapMut};

const MIB: usize = 1 << 20;

static TURN: Mutex<()> = Mutex::new(());

/// Waits for the other tests; `None` if these flags cannot be seen here.
fn turn() -> Option<MutexGuard<'static, ()>> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(pool_bytes(), 0);
    let page = MmapMut::map_anon(4096).expect("memory");
    for advice in [Advice::DontDump, Advice::DontFork] {
        page.advise(advice).expect("advice");
    }
    let shows = pool_bytes() > 0;
    if !shows {
        eprintln!("skipped: /proc/self/smaps does not show what madvise(2) was told");
    }
    shows.then_some(turn)
}

fn pool(budget_bytes: usize) -> Pool {
    Pool::new(PoolSettings { budget_bytes }).expect("a pool")
}

/// The flags of memory that is neither dumped nor inherited, as the pool's (proc(5), VmFlags).
const POOL: &[&str] = &["dd", "dc"];

/// A field of smaps, one for each of this process's mappings with all of these flags, in bytes.
fn field_of_mappings(field: &str, flags: &[&str]) -> Vec<usize> {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("proc is mounted");
    let (mut found, mut value) = (Vec::new(), 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix(field) {
            let kib: usize = kib.trim().trim_end_matches(" kB").parse().expect("a size in KiB");
            value = kib << 10;
        }
        if let Some(listed) = line.strip_prefix("VmFlags:") {
            let listed: Vec<&str> = listed.split_whitespace().collect();
            if flags.iter().all(|flag| listed.contains(flag)) {
                found.push(value);
            }
        }
    }
    found
}

/// Bytes of this process's mappings with all of these flags.
fn mapped_bytes(flags: &[&str]) -> usize {
    field_of_mappings("Size:", flags).iter().sum()
}

/// Bytes of the pool's mappings.
fn pool_bytes() -> usize {
    mapped_bytes(POOL)
}

/// Waits for a condition; the deadline only ends tests that would hang.
fn poll_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {condition}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A lane that takes as much as the pool gives one key.
fn greedy_lane(pool: &Pool) -> Lane {
    let keystream =
        SuiteKey::derive(Suite::AES_128_GCM, &[1; 16], &[2; 12]).keystream.expect("pads");
    pool.open_lane(
        Arc::clone(&keystream),
        &Traffic::new(Direction::Send),
        PacketNumber::new(0),
        Stage::Active,
    )
}

#[test]
fn pool_memory_is_neither_dumped_nor_inherited_and_is_unmapped_in_the_end() {
    let Some(_turn) = turn() else { return };
    let pool = pool(4 * MIB);
    assert_eq!(pool_bytes(), 4 * MIB);
    drop(pool);
    poll_until("all is unmapped", || pool_bytes() == 0);
}

#[test]
fn pool_memory_is_locked_as_the_snapshot_reports() {
    let Some(_turn) = turn() else { return };
    let before = mapped_bytes(&["lo"]);
    let pool = pool(4 * MIB);
    let locked = pool.snapshot().locked_bytes as usize;
    assert!(locked <= 4 * MIB);
    assert_eq!(mapped_bytes(&["lo"]), before + locked);
    drop(pool);
    poll_until("all is unmapped", || pool_bytes() == 0);
}

#[test]
fn pool_memory_is_in_few_mappings_and_huge_pages_where_the_kernel_has_them() {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(_turn) = turn() else { return };
    let pool = pool(64 * MIB);
    // Those of one slab each at most, and unlocked memory in huge pages only once it is used.
    let mappings = field_of_mappings("Size:", POOL).len();
    assert!(mappings <= 32, "{mappings}");
    let _lane = greedy_lane(&pool);
    poll_until("it is half full", || pool.snapshot().filled_bytes > 24 * MIB as u64);
    let huge: usize = field_of_mappings("AnonHugePages:", POOL).iter().sum();
    let setting = fs::read_to_string(SETTING).unwrap_or_default();
    println!("{mappings} mappings, {} MiB in huge pages; {}", huge / MIB, setting.trim());
    if !setting.is_empty() && !setting.contains("[never]") {
        assert!(huge > 0);
    }
    drop((_lane, pool));
    poll_until("all is unmapped", || pool_bytes() == 0);
}

#[test]
fn a_larger_budget_is_mapped_and_filled_at_once() {
    let Some(_turn) = turn() else { return };
    let pool = pool(2 * MIB);
    let _lane = greedy_lane(&pool);
    poll_until("it is half full", || pool.snapshot().filled_bytes > MIB as u64 / 2);
    pool.set_budget(16 * MIB).expect("memory");
    assert_eq!(pool.snapshot().budget_bytes, 16 * MIB as u64);
    assert_eq!(pool_bytes(), 16 * MIB);
    poll_until("it is half full again", || pool.snapshot().filled_bytes > 4 * MIB as u64);
    drop((_lane, pool));
    poll_until("all is unmapped", || pool_bytes() == 0);
}

#[test]
fn a_smaller_budget_releases_free_memory_at_once_and_the_rest_when_used_up() {
    let Some(_turn) = turn() else { return };
    let pool = pool(16 * MIB);
    let lane = greedy_lane(&pool);
    poll_until("it is half full", || pool.snapshot().filled_bytes > 4 * MIB as u64);
    pool.set_budget(2 * MIB).expect("a budget");
    // All but that of slabs that the lane holds a part of: one of locked memory and one of
    // unlocked.
    poll_until("free memory is gone", || {
        let PoolSnapshot { filled_bytes, withheld_bytes, .. } = pool.snapshot();
        pool_bytes() as u64 == filled_bytes + withheld_bytes && withheld_bytes < 4 * MIB as u64
    });
    assert!(pool_bytes() > 2 * MIB, "the lane keeps its memory");
    let kept = pool_bytes();
    pool.set_budget(4 * MIB).expect("a budget");
    drop(lane);
    poll_until("usage is within the budget", || pool_bytes() == 4 * MIB);
    assert!(kept > pool_bytes());
    poll_until("the counter follows", || pool.snapshot().locked_bytes <= 4 * MIB as u64);

    let _lane = greedy_lane(&pool);
    poll_until("it is half full", || pool.snapshot().filled_bytes > MIB as u64);
    assert_eq!(pool_bytes(), 4 * MIB);
    drop((_lane, pool));
    poll_until("all is unmapped", || pool_bytes() == 0);
}

#[test]
fn a_budget_too_small_for_a_chunk_changes_nothing() {
    let Some(_turn) = turn() else { return };
    let pool = pool(2 * MIB);
    pool.set_budget(8192).expect_err("too small");
    assert_eq!(pool.snapshot().budget_bytes, 2 * MIB as u64);
    assert_eq!(pool_bytes(), 2 * MIB);
    drop(pool);
    poll_until("all is unmapped", || pool_bytes() == 0);
}

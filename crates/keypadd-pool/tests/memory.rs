//! Checks the pool's pages as the kernel sees them: not dumped, not inherited, locked as reported,
//! released when the pool shrinks. Runs in a process of its own, one test at a time, because it
//! reads all mappings. Skipped where mappings do not show what they were advised to be, as under qemu's user mode.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keypadd_keystream::{PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Direction, Lane, Pool, PoolSettings, Stage, Traffic};
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

/// Bytes of this process's mappings with all of these flags (proc(5), VmFlags).
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

/// Bytes of the pool's mappings, which are neither dumped nor inherited.
fn pool_bytes() -> usize {
    mapped_bytes(&["dd", "dc"])
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
    poll_until("free memory is gone", || pool_bytes() as u64 == pool.snapshot().filled_bytes);
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

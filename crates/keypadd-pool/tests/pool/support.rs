//! Provides pools, keys and waiting to the pool's tests.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_keystream::{
    InlineKeystream, KeystreamKey, PacketNumber, SEGMENT_PACKETS, Suite, SuiteKey,
};
use keypadd_pool::{Coverage, Direction, Lane, Part, Pool, PoolSettings, Stage, Traffic};

pub(crate) const SEGMENT: u64 = SEGMENT_PACKETS as u64;
pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn pool(budget_bytes: usize) -> Pool {
    Pool::new(PoolSettings { budget_bytes }).expect("a pool")
}

pub(crate) fn key(suite: Suite, seed: u8) -> Arc<KeystreamKey> {
    let key: Vec<u8> = (0..suite.protection().key_bytes() as u8)
        .map(|index| index.wrapping_mul(29).wrapping_add(seed))
        .collect();
    SuiteKey::derive(suite, &key, &[seed ^ 0xa5; 12]).keystream.expect("not a null cipher")
}

/// The first bytes of a packet's pad, generated inline.
pub(crate) fn inline_pad(key: &Arc<KeystreamKey>, number: u64, bytes: usize) -> Vec<u8> {
    let mut pad = vec![0; bytes];
    InlineKeystream::new(Arc::clone(key)).write(PacketNumber::new(number), 0, &mut pad);
    pad
}

pub(crate) fn all_memory_is_free(pool: &Pool) -> bool {
    pool.snapshot().filled_bytes == 0
}

/// Waits for a condition; the deadline only ends tests that would hang.
pub(crate) fn poll_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {condition}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn open(
    pool: &Pool,
    key: &Arc<KeystreamKey>,
    direction: Direction,
    stage: Stage,
) -> Lane {
    pool.open_lane(Arc::clone(key), &Traffic::new(direction), PacketNumber::new(0), stage)
}

/// Moves a lane to a packet; returns the coverage of its pad.
pub(crate) fn seek(lane: &mut Lane, number: PacketNumber, pad_bytes: usize) -> Coverage {
    lane.seek(number, pad_bytes);
    lane.peek(number, pad_bytes).coverage()
}

/// Takes a pad into zeros, the first `mask_bytes` as the mask; returns the bytes, and which parts
/// the pool had.
pub(crate) fn take(
    lane: &mut Lane,
    number: u64,
    mask_bytes: usize,
    bytes: usize,
) -> (Vec<u8>, [bool; 2]) {
    let mut pad = vec![0; bytes];
    let (mask, data) = pad.split_at_mut(mask_bytes);
    let taken = lane.take(PacketNumber::new(number), mask, data, 0, || ());
    (pad, [taken.head, taken.body])
}

pub(crate) fn level_bytes(lane: &Lane) -> u64 {
    Part::ALL.map(|part| lane.level(part).bytes).iter().sum()
}

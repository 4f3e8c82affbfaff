//! What the pool's tests share: pools, keys, and waiting for what a filler does.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_keystream::{InlineKeystream, KeystreamKey, PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Pool, PoolSettings};

pub(crate) fn pool(budget_bytes: usize) -> Pool {
    Pool::new(PoolSettings { budget_bytes }).expect("a pool")
}

pub(crate) fn key(suite: Suite, seed: u8) -> Arc<KeystreamKey> {
    let key: Vec<u8> = (0..suite.protection().key_bytes() as u8)
        .map(|index| index.wrapping_mul(29).wrapping_add(seed))
        .collect();
    SuiteKey::derive(suite, &key, &[seed ^ 0xa5; 12]).keystream.expect("no cipher is null")
}

/// The first bytes of a packet's pad, made inline.
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

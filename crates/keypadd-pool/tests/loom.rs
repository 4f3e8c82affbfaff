//! Model-checks the interleavings of a consumer and a filler with loom: the window of chunks in
//! use, a phase switch, recalls, and shutdown. Runs the shipped code with the primitives of
//! `src/sync.rs` replaced. Only under `cfg(loom)`:
//!
//!     RUSTFLAGS="--cfg loom" cargo test --release -p keypadd-pool --test loom
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{InlineKeystream, KeystreamKey, PacketNumber, Suite, SuiteKey};
use keypadd_pool::{
    Coverage, Direction, Filler, FillerHost, HEAD_BYTES, Lane, Part, Pool, PoolSettings, Priority,
    Stage, Step, Taken, Traffic,
};
use loom::model::Builder;
use loom::thread;

/// One body chunk, the smallest pool; or as many head chunks.
const UNITS: usize = 11;
const UNIT_BYTES: usize = 8192;
const SEGMENT: u64 = 64;

/// Explores all interleavings with at most `changes` preemptions, or `LOOM_MAX_PREEMPTIONS` if set.
fn model(changes: usize, claim: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(changes));
    builder.max_branches = 20_000;
    builder.check(claim);
}

fn pool() -> (Pool, Filler) {
    Pool::with_filler(PoolSettings { budget_bytes: UNITS * UNIT_BYTES }).expect("a pool")
}

fn key(seed: u8) -> Arc<KeystreamKey> {
    SuiteKey::derive(Suite::AES_128_GCM, &[seed; 16], &[7; 12]).keystream.expect("pads")
}

fn open(pool: &Pool, key: &Arc<KeystreamKey>, direction: Direction, stage: Stage) -> Lane {
    pool.open_lane(Arc::clone(key), &Traffic::new(direction), PacketNumber::new(0), stage)
}

/// Takes the pad of a packet; what comes from the pool must be that packet's keystream.
fn take(lane: &mut Lane, key: &Arc<KeystreamKey>, number: u64) -> bool {
    let number = PacketNumber::new(number);
    // As for an unauthenticated packet: what a peek sees must still be there after verification.
    let peek = lane.peek(number, 32);
    let (seen, mask) = (peek.coverage(), peek.mask(32).map(<[u8]>::to_vec));
    let (mut pad, mut found) = ([0; 32], false);
    let taken = lane.take(number, &mut [], &mut pad, 0, || found = true);
    let served = taken.head;
    assert!(seen != Coverage::Hit || served);
    assert_eq!((taken.bytes, taken.body, found), (if served { 32 } else { 0 }, false, served));
    let mut expected = [0; 32];
    if served {
        InlineKeystream::new(Arc::clone(key)).write(number, 0, &mut expected);
    }
    assert_eq!(pad, expected);
    assert!(mask.is_none_or(|mask| mask == expected));
    // A pad is taken only once. (After a miss, the filler may have pushed it by now.)
    if served {
        assert_eq!(lane.take(number, &mut [], &mut [0; 32], 0, || ()), Taken::NOTHING);
    }
    served
}

fn steps(filler: &mut Filler, most: usize) {
    for _ in 0..most {
        if filler.step(Duration::ZERO) != Step::Worked {
            break;
        }
    }
}

/// Checks that all memory was returned.
fn settle(pool: &Pool, filler: &mut Filler) {
    while filler.step(Duration::ZERO) == Step::Worked {}
    assert_eq!(pool.snapshot().filled_bytes, 0);
}

#[test]
fn a_window_moving_while_it_is_filled_serves_each_pad_once_and_right() {
    for direction in [Direction::Send, Direction::Receive] {
        model(2, move || {
            let (pool, mut filler) = pool();
            let key = key(1);
            let mut lane = open(&pool, &key, direction, Stage::Active);
            steps(&mut filler, 1);
            let consumer = thread::spawn(move || {
                for number in [0, 1, SEGMENT, 0, 2, 3 * SEGMENT] {
                    take(&mut lane, &key, number);
                }
            });
            steps(&mut filler, 3);
            consumer.join().expect("no panic");
            settle(&pool, &mut filler);
        });
    }
}

#[test]
fn a_consumer_that_uses_a_chunk_up_at_once_finds_the_next_one() {
    model(2, || {
        let (pool, mut filler) = pool();
        let key = key(1);
        let mut lane = open(&pool, &key, Direction::Send, Stage::Active);
        let next = PacketNumber::new(SEGMENT);
        let consumer = thread::spawn(move || {
            if take(&mut lane, &key, 0) {
                lane.seek(next, HEAD_BYTES);
            }
            lane
        });
        steps(&mut filler, 2);
        let mut lane = consumer.join().expect("no panic");
        while filler.step(Duration::ZERO) == Step::Worked {}
        lane.seek(next, HEAD_BYTES);
        assert_eq!(lane.peek(next, HEAD_BYTES).coverage(), Coverage::Hit);
    });
}

#[test]
fn a_finished_phase_gives_its_memory_to_the_next_one() {
    model(2, || {
        let (pool, mut filler) = pool();
        let (old_key, new_key) = (key(1), key(2));
        let mut old = open(&pool, &old_key, Direction::Send, Stage::Active);
        let mut new = open(&pool, &new_key, Direction::Send, Stage::Standby);
        steps(&mut filler, 2);
        let consumer = thread::spawn(move || {
            take(&mut old, &old_key, 5);
            new.seek(PacketNumber::new(5), 0);
            new.set_stage(Stage::Active);
            old.set_stage(Stage::Dormant);
            take(&mut new, &new_key, 6);
            drop(old);
            take(&mut new, &new_key, SEGMENT + 7);
        });
        steps(&mut filler, 3);
        consumer.join().expect("no panic");
        settle(&pool, &mut filler);
    });
}

#[test]
fn recalled_chunks_come_back_and_kept_ones_stay_right() {
    // Two preemptions take minutes, which `scripts/nightly` has.
    model(1, || {
        let (pool, mut filler) = pool();
        let (early_key, late_key) = (key(1), key(2));
        let mut early = open(&pool, &early_key, Direction::Send, Stage::Active);
        while filler.step(Duration::ZERO) == Step::Worked {}
        assert!(early.level(Part::Head).packets > 4 * SEGMENT);
        let mut late: Vec<Lane> =
            (0..2).map(|_| open(&pool, &late_key, Direction::Send, Stage::Active)).collect();
        let consumer = thread::spawn(move || {
            for number in [0, 2 * SEGMENT] {
                take(&mut early, &early_key, number);
            }
            early
        });
        steps(&mut filler, 2);
        let mut early = consumer.join().expect("no panic");
        // After one more packet, every lane has the minimum.
        for _ in 0..2 {
            while filler.step(Duration::ZERO) == Step::Worked {}
            early.seek(PacketNumber::new(2 * SEGMENT), HEAD_BYTES);
        }
        assert!(late.iter().all(|lane| lane.level(Part::Head).packets >= SEGMENT));
        late.clear();
        drop(early);
        settle(&pool, &mut filler);
    });
}

/// A host without a clock.
struct Timeless;

impl FillerHost for Timeless {
    fn lower_priority(&mut self) -> Priority {
        Priority::Idle
    }

    fn cpu_time(&mut self) -> Duration {
        Duration::ZERO
    }

    fn now(&mut self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_filler_ends_with_its_pool_in_any_order_and_misses_no_wakeup() {
    for lane_goes_first in [true, false] {
        // A filler that kept sleeping would be a deadlock, which loom reports.
        model(2, move || {
            let settings = PoolSettings { budget_bytes: UNITS * UNIT_BYTES };
            let pool = Pool::with_host(settings, Timeless).expect("a pool");
            let key = key(1);
            let mut lane = open(&pool, &key, Direction::Send, Stage::Dormant);
            take(&mut lane, &key, 0);
            if lane_goes_first {
                drop(lane);
                drop(pool);
            } else {
                drop(pool);
                take(&mut lane, &key, SEGMENT);
            }
        });
    }
}

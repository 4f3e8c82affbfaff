//! Tests what becomes of memory, late chunks, long packets and fast key changes.

use std::sync::mpsc::{Receiver, channel};

use keypadd_keystream::{KeystreamKey, PacketNumber, Suite, SuiteKey};

use super::*;
use crate::arena::{SLAB_UNITS, UNIT_BYTES};
use crate::chunk::{Chunk, PAD_BYTES, Part};
use crate::demand::{Direction, Traffic};
use crate::lane::Lane;
use crate::lane_view::Stage;
use crate::pool::{Pool, PoolSettings};

const UNITS: usize = 128;

/// A pool with a full lane, and the memory that the filler passes on for release.
fn filled() -> (Pool, Filler, Lane, Receiver<Box<[Unit]>>) {
    filled_of(UNITS)
}

fn filled_of(units: usize) -> (Pool, Filler, Lane, Receiver<Box<[Unit]>>) {
    let settings = PoolSettings { budget_bytes: units * UNIT_BYTES };
    let (pool, mut filler) = Pool::with_filler(settings).expect("memory");
    let (sender, released) = channel();
    filler.released = sender;
    let (traffic, first) = (Traffic::new(Direction::Send), PacketNumber::new(0));
    let lane = pool.open_lane(key(1), &traffic, first, Stage::Active);
    fill(&mut filler);
    (pool, filler, lane, released)
}

fn key(byte: u8) -> Arc<KeystreamKey> {
    let key = SuiteKey::derive(Suite::AES_128_GCM, &[byte; 16], &[2; 12]).keystream;
    key.expect("pads")
}

fn fill(filler: &mut Filler) {
    while filler.step(Duration::ZERO) == Step::Worked {}
}

fn units(released: &Receiver<Box<[Unit]>>) -> usize {
    released.try_iter().map(|units| units.len()).sum()
}

#[test]
fn a_lane_that_has_ended_leaves_its_memory_to_others_and_keeps_pads_for_late_packets() {
    let (pool, mut filler, mut lane, _released) = filled();
    let full = lane.level(Part::Body).packets;
    let packet = PacketNumber::new(10);
    lane.seek(packet, PAD_BYTES);
    let next = pool.open_lane(key(3), &Traffic::new(Direction::Send), packet, Stage::Active);
    lane.end();
    fill(&mut filler);
    assert!(next.level(Part::Body).packets + 128 > full, "{full}");
    assert!(lane.level(Part::Body).packets <= 64);
    assert_eq!(lane.peek(packet, PAD_BYTES).bytes(), PAD_BYTES);
}

#[test]
fn the_filler_passes_memory_above_a_smaller_budget_on_and_does_not_unmap_it() {
    const MANY: usize = 24 * UNITS;
    let (pool, mut filler, _lane, released) = filled_of(MANY);
    let free = filler.free.units();
    assert_eq!(units(&released), 0);
    pool.set_budget((MANY - free) * UNIT_BYTES).expect("a smaller budget");
    fill(&mut filler);
    assert!(free > SLAB_UNITS, "{free}");
    assert_eq!(units(&released), free / SLAB_UNITS * SLAB_UNITS);
    assert_eq!(filler.free.withheld(), free % SLAB_UNITS);
    assert_eq!(filler.free.units(), 0);
}

#[test]
fn budgets_that_change_faster_than_the_filler_runs_map_no_more_than_the_largest() {
    let (pool, mut filler, _lane, released) = filled();
    for _ in 0..20 {
        pool.set_budget(4 * UNITS * UNIT_BYTES).expect("a larger budget");
        pool.set_budget(UNITS * UNIT_BYTES).expect("a smaller budget");
    }
    pool.set_budget(2 * UNITS * UNIT_BYTES).expect("a budget");
    fill(&mut filler);
    assert_eq!(units(&released), 2 * UNITS);
    assert_eq!(filler.mapped_units, 2 * UNITS);
}

#[test]
fn a_stopping_filler_releases_free_queued_and_returning_memory() {
    let (pool, filler, mut lane, released) = filled();
    for number in [0, 1 << 8] {
        lane.seek(PacketNumber::new(number), 1);
    }
    pool.set_budget((UNITS + 3) * UNIT_BYTES).expect("a larger budget");
    drop(lane);
    drop((pool, filler));
    assert_eq!(units(&released), UNITS + 3);
}

#[test]
fn packets_too_long_for_a_pad_use_up_no_pads() {
    let (pool, mut filler, mut lane, _released) = filled_of(8 * UNITS);
    let mut pass = |seconds: std::ops::Range<u64>| {
        for second in seconds {
            let first = second * SEGMENT_PACKETS as u64;
            (first..).take(SEGMENT_PACKETS).for_each(|pn| lane.pass(PacketNumber::new(pn)));
            while filler.step(Duration::from_secs(second)) == Step::Worked {}
        }
    };
    // What the lane holds at first is given up; meanwhile the rate becomes known.
    pass(0..100);
    let before = pool.snapshot().fill_bytes_total;
    pass(100..200);
    assert_eq!(pool.snapshot().fill_bytes_total, before);
}

#[test]
fn keystrokes_after_packets_too_long_for_a_pad_wake_the_filler_and_hit() {
    let (_pool, mut filler, mut lane, _released) = filled();
    let mut number = 0;
    let mut next = || {
        number += 1;
        PacketNumber::new(number - 1)
    };
    // A minute of them, with the filler awake, and then silence.
    for second in 0..60 {
        (0..1_000).for_each(|_| lane.pass(next()));
        while filler.step(Duration::from_secs(second)) == Step::Worked {}
    }
    let mut found = 0;
    for stroke in 0..32 {
        let mut byte = [0];
        found += lane.take(next(), &mut [], &mut byte, 0, || ()).bytes;
        let woken = filler.state.wanted.load(Relaxed);
        let now = Duration::from_secs(70) + Duration::from_millis(100) * stroke;
        while woken && filler.step(now) == Step::Worked {}
    }
    assert_eq!(found, 16);
}

#[test]
fn a_chunk_that_came_too_late_does_not_hide_the_next_one() {
    let (_pool, mut filler, mut lane, _released) = filled();
    let mut fill_segment = |segment: u64| {
        filler.collect();
        let units = filler.free.take(Part::Head).expect("free memory");
        let segment = PacketNumber::new(segment * SEGMENT_PACKETS as u64).segment();
        let feed = &mut filler.feeds[0];
        let home = filler.home.clone();
        feed.push(Part::Head, Chunk::fill(feed.key, &key(1), segment, Part::Head, units, home));
    };
    let mut has_head = |segment: u64| {
        let number = PacketNumber::new(segment * SEGMENT_PACKETS as u64);
        lane.take(number, &mut [], &mut [0], 0, || ()).head
    };
    // While the filler makes segment 999, the numbers jump to the next one.
    assert!(!has_head(1_000));
    fill_segment(999);
    // A late packet draws it.
    assert!(has_head(999));
    fill_segment(1_000);
    assert!(has_head(1_000));
}

#[test]
fn keys_that_change_faster_than_the_filler_runs_do_not_grow_its_queue_and_the_last_is_served() {
    let settings = PoolSettings { budget_bytes: UNITS * UNIT_BYTES };
    let (pool, mut filler) = Pool::with_filler(settings).expect("memory");
    let key = key(1);
    let (traffic, first) = (Traffic::new(Direction::Send), PacketNumber::new(0));
    let open = || pool.open_lane(key.clone(), &traffic, first, Stage::Active);
    let mut lane = open();
    for _ in 0..1000 {
        lane = open();
    }
    filler.collect();
    assert!(filler.feeds.is_empty(), "all that were queued are closed");
    let mut is_hit = |number: u64| {
        let taken = lane.take(PacketNumber::new(number), &mut [], &mut [0; 16], 0, || {});
        taken.bytes == 16
    };
    assert!(!is_hit(0), "this packet queues the lane");
    fill(&mut filler);
    assert!(is_hit(1));
}

#[test]
fn a_lane_that_is_gone_leaves_no_key_to_a_filler_that_does_not_run() {
    let (pool, mut filler, lane, _released) = filled();
    let (traffic, first) = (Traffic::new(Direction::Send), PacketNumber::new(0));
    // One that the filler knows, one that is queued for it, and those that wait to be queued.
    for known in [true, false, false, false, false, false] {
        let key = key(3);
        let (gone, key) = (Arc::downgrade(&key), key);
        let other = pool.open_lane(key, &traffic, first, Stage::Active);
        if known {
            fill(&mut filler);
        }
        assert_eq!(gone.strong_count(), 1);
        drop(other);
        assert_eq!(gone.strong_count(), 0);
    }
    // Nor does it fill them later.
    fill(&mut filler);
    assert_eq!(filler.feeds.len(), 1);
    drop(lane);
}

//! Tests lanes and their memory: right bytes, bounded work, kept budget.

use std::io::ErrorKind;
use std::time::Duration;

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS, Suite};
use keypadd_pool::{
    BODY_BYTES, Coverage, Direction, HEAD_BYTES, Lane, PAD_BYTES, Part, Pool, PoolSettings, Stage,
    Step,
};

use crate::support::*;

/// Pads of the chunks kept for late packets, two of each part.
const KEPT_PADS: u64 = 2 * 2 * SEGMENT;

/// Waits until the pool has as much of the packet's pad as it can hold.
fn await_pad(lane: &mut Lane, number: u64) {
    poll_until("the pad is available", || {
        seek(lane, PacketNumber::new(number), PAD_BYTES) == Coverage::Hit
    });
}

#[test]
fn a_lane_serves_the_same_bytes_as_inline() {
    let lengths = [0, 1, 16, 17, 127, 128, 129, 700, 1471, 1472, 1473, 2000];
    let pool = pool(4 * MIB);
    for suite in Suite::ALL {
        let key = key(suite, 1);
        let mut lane = open(&pool, &key, Direction::Send, Stage::Active);
        let mut number = 0;
        for mask_bytes in [0, 16, 32] {
            for bytes in lengths.into_iter().filter(|&bytes| bytes >= mask_bytes) {
                await_pad(&mut lane, number);
                let coverage = seek(&mut lane, PacketNumber::new(number), bytes);
                let (pad, served) = take(&mut lane, number, mask_bytes, bytes);
                let mut expected = inline_pad(&key, number, bytes);
                expected[bytes.min(PAD_BYTES)..].fill(0);
                assert!(pad == expected, "{suite} {number}: {bytes} bytes");
                assert_eq!(served, [bytes > 0, bytes > HEAD_BYTES], "{bytes} bytes");
                let fits = match bytes {
                    0 => Coverage::Miss,
                    1..=PAD_BYTES => Coverage::Hit,
                    _ => Coverage::Partial,
                };
                assert_eq!(coverage, fits, "{bytes} bytes");
                number += 7;
            }
        }
    }
}

#[test]
fn every_packet_of_a_segment_has_its_own_pad() {
    let pool = pool(4 * MIB);
    for suite in Suite::ALL {
        let key = key(suite, 2);
        let mut lane = open(&pool, &key, Direction::Send, Stage::Active);
        for number in 0..2 * SEGMENT + 1 {
            await_pad(&mut lane, number);
            let (pad, _) = take(&mut lane, number, 16, PAD_BYTES);
            assert!(pad == inline_pad(&key, number, PAD_BYTES), "{suite} {number}");
        }
    }
}

#[test]
fn a_packet_that_does_without_its_pad_leaves_none_of_it_in_the_pool() {
    type Leave = fn(&mut Lane, PacketNumber);
    let declined: Leave = |lane, number| {
        let taken = lane.take(number, &mut [0; 16], &mut [0; PAD_BYTES], PAD_BYTES + 1, || ());
        assert_eq!(taken.bytes, 0);
    };
    let skipped: Leave = |lane, number| lane.skip(number, PAD_BYTES);
    let passed: Leave = |lane, number| lane.pass(number);
    for (direction, leave) in [
        (Direction::Send, declined),
        (Direction::Send, passed),
        (Direction::Receive, skipped),
        (Direction::Receive, passed),
    ] {
        let pool = pool(4 * MIB);
        let mut lane = open(&pool, &key(Suite::AES_256_GCM, 3), direction, Stage::Active);
        await_pad(&mut lane, 5);
        leave(&mut lane, PacketNumber::new(5));
        assert_eq!(lane.peek(PacketNumber::new(5), PAD_BYTES).bytes(), 0);
        assert_eq!(take(&mut lane, 5, 0, PAD_BYTES).1, [false, false]);
        assert_eq!(pool.snapshot().pads_wasted_total, 2, "a head and a body");
        assert_eq!(take(&mut lane, 6, 0, PAD_BYTES).1, [true, true], "another packet has its own");
    }
}

#[test]
fn a_pad_is_taken_once_however_little_of_it_was_used() {
    let pool = pool(4 * MIB);
    let key = key(Suite::AES_256_GCM, 3);
    let mut lane = open(&pool, &key, Direction::Receive, Stage::Active);
    let number = PacketNumber::new(5);
    await_pad(&mut lane, 5);
    assert_eq!(take(&mut lane, 5, 0, 1).1, [true, false]);
    assert_eq!(take(&mut lane, 5, 0, 100), (vec![0; 100], [false, false]));
    assert_eq!(lane.peek(number, 100).coverage(), Coverage::Miss);
    assert_eq!(lane.peek(number, 100).mask(32), None);
    // The body was not taken yet.
    assert_eq!(lane.peek(number, PAD_BYTES).coverage(), Coverage::Partial);
    assert_eq!(take(&mut lane, 5, 0, PAD_BYTES).1, [false, true]);
    assert_eq!(lane.peek(number, PAD_BYTES).coverage(), Coverage::Miss);
}

#[test]
fn a_peek_neither_takes_nor_moves_anything() {
    let pool = pool(4 * MIB);
    let key = key(Suite::AES_256_GCM, 4);
    let mut lane = open(&pool, &key, Direction::Receive, Stage::Active);
    await_pad(&mut lane, 0);
    let expected = inline_pad(&key, 3, 32);
    for _ in 0..3 {
        let peek = lane.peek(PacketNumber::new(3), PAD_BYTES);
        assert_eq!((peek.mask(32), peek.coverage()), (Some(&expected[..]), Coverage::Hit));
        for far in [1 << 20, 1 << 40, (1 << 62) - 1] {
            assert_eq!(lane.peek(PacketNumber::new(far), PAD_BYTES).coverage(), Coverage::Miss);
        }
    }
    assert_eq!(seek(&mut lane, PacketNumber::new(3), PAD_BYTES), Coverage::Hit);
    let (pad, _) = take(&mut lane, 3, 16, PAD_BYTES);
    assert!(pad == inline_pad(&key, 3, PAD_BYTES));
}

#[test]
fn a_sender_gives_up_past_segments_and_a_receiver_keeps_two() {
    let pool = pool(8 * MIB);
    let key = key(Suite::AES_128_GCM, 5);
    for (direction, kept) in [(Direction::Send, 0), (Direction::Receive, 2)] {
        let mut lane = open(&pool, &key, direction, Stage::Active);
        for segment in 0..6 {
            await_pad(&mut lane, segment * SEGMENT);
            for behind in 1..=segment {
                let number = (segment - behind) * SEGMENT + segment;
                let coverage = seek(&mut lane, PacketNumber::new(number), PAD_BYTES);
                let expected = if behind <= kept { Coverage::Hit } else { Coverage::Miss };
                assert_eq!(coverage, expected, "{direction:?}: {behind} behind {segment}");
            }
        }
    }
}

#[test]
fn a_jump_by_two_to_the_forty_costs_no_more_than_what_was_queued() {
    for direction in [Direction::Send, Direction::Receive] {
        let settings = PoolSettings { budget_bytes: 4 * MIB };
        let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
        let key = key(Suite::TRIPLE_DES_CTR_HMAC_SHA256, 6);
        let mut lane = open(&pool, &key, direction, Stage::Active);
        let mut at_hand = 0;
        let mut before = pool.snapshot();
        for jump in 0..20 {
            let number = jump << 40;
            // The packet only gives chunks up; it neither generates nor wipes anything.
            lane.seek(PacketNumber::new(number), PAD_BYTES);
            let jumped = pool.snapshot();
            assert_eq!(jumped.fill_bytes_total, before.fill_bytes_total);
            assert_eq!(jumped.pads_wasted_total, before.pads_wasted_total);
            // The filler fills the free room once, from the packet's segment on.
            while filler.step(Duration::ZERO) == Step::Worked {}
            assert_eq!(
                seek(&mut lane, PacketNumber::new(number), PAD_BYTES),
                Coverage::Hit,
                "{jump}"
            );
            let (pad, _) = take(&mut lane, number, 0, PAD_BYTES);
            assert!(pad == inline_pad(&key, number, PAD_BYTES));
            let after = pool.snapshot();
            let made = after.fill_bytes_total - jumped.fill_bytes_total;
            assert!(made <= after.budget_bytes, "{made} bytes made");
            let given_up = after.pads_wasted_total - before.pads_wasted_total;
            assert!(given_up <= at_hand + KEPT_PADS, "{jump}: {given_up} of {at_hand}");
            assert!(after.filled_bytes <= after.budget_bytes);
            at_hand = Part::ALL.map(|part| lane.level(part).packets).iter().sum::<u64>() + 2;
            before = after;
        }
        // All memory comes back.
        drop(lane);
        while filler.step(Duration::ZERO) == Step::Worked {}
        assert!(all_memory_is_free(&pool));
    }
}

#[test]
fn memory_comes_back_when_lanes_close_while_the_filler_pushes() {
    let pool = pool(4 * MIB);
    let key = key(Suite::AES_128_GCM, 7);
    for round in 0..200 {
        let mut lane = open(&pool, &key, Direction::Receive, Stage::Active);
        match round % 4 {
            // Drop it at once, when something is there, in use, and far ahead.
            0 => {}
            1 => poll_until("a chunk is available", || level_bytes(&lane) > 0),
            2 => await_pad(&mut lane, 3 * SEGMENT),
            _ => {
                lane.seek(PacketNumber::new(1 << 30), PAD_BYTES);
            }
        }
        drop(lane);
    }
    poll_until("all memory is free", || all_memory_is_free(&pool));
}

#[test]
fn a_dormant_lane_is_not_filled() {
    let pool = pool(4 * MIB);
    let key = key(Suite::AES_128_GCM, 9);
    let dormant = open(&pool, &key, Direction::Send, Stage::Dormant);
    let mut active = open(&pool, &key, Direction::Send, Stage::Active);
    // By now the filler has seen both lanes and skipped the first.
    await_pad(&mut active, 0);
    assert_eq!(level_bytes(&dormant), 0);
    dormant.set_stage(Stage::Imminent);
    poll_until("heads are available", || dormant.level(Part::Head).packets > 0);
    assert_eq!(dormant.level(Part::Body).packets, 0);
}

#[test]
fn a_lane_that_outlives_its_pool_runs_dry() {
    let pool = pool(2 * MIB);
    let key = key(Suite::AES_128_GCM, 10);
    let mut lane = open(&pool, &key, Direction::Receive, Stage::Active);
    await_pad(&mut lane, 0);
    drop(pool);
    let mut segment = 0;
    poll_until("the lane is dry", || {
        let number = segment * SEGMENT;
        segment += 1;
        let coverage = seek(&mut lane, PacketNumber::new(number), PAD_BYTES);
        if coverage == Coverage::Hit {
            let (pad, _) = take(&mut lane, number, 0, PAD_BYTES);
            assert!(pad == inline_pad(&key, number, PAD_BYTES), "{number}");
        }
        coverage == Coverage::Miss && level_bytes(&lane) == 0
    });
    lane.set_stage(Stage::Standby);
    let number = PacketNumber::new(1 << 40);
    assert_eq!(seek(&mut lane, number, PAD_BYTES), Coverage::Miss);
    assert_eq!(take(&mut lane, 1 << 40, 0, 9), (vec![0; 9], [false, false]));
}

#[test]
fn a_pool_too_small_for_a_chunk_is_refused() {
    let chunk_units = SEGMENT_PACKETS.div_ceil(8192 / BODY_BYTES);
    for budget_bytes in [0, 1, 8191, chunk_units * 8192 - 1] {
        let refused = Pool::new(PoolSettings { budget_bytes }).expect_err("too small");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    let smallest = pool(chunk_units * 8192);
    poll_until("the filler runs", || all_memory_is_free(&smallest));
}

#[test]
fn bulk_that_outruns_the_filler_leaves_keystrokes_their_heads() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 4 * MIB }).expect("ok");
    let key = key(Suite::AES_128_GCM, 15);
    let mut lane = open(&pool, &key, Direction::Send, Stage::Active);
    while filler.step(Duration::ZERO) == Step::Worked {}
    // A packet every 50 us, one in 30 a keystroke, and a filler that generates 1.6 chunks per
    // segment where bulk needs two.
    let mut keystrokes = [0; 2];
    let mut bulk = [0; 2];
    for number in 0..100_000_u64 {
        let is_keystroke = number % 30 == 7;
        let bytes = if is_keystroke { 64 } else { PAD_BYTES };
        let is_hit = seek(&mut lane, PacketNumber::new(number), bytes) == Coverage::Hit;
        take(&mut lane, number, 16, bytes);
        let counts = if is_keystroke { &mut keystrokes } else { &mut bulk };
        counts[usize::from(is_hit)] += 1;
        if number % 40 == 0 {
            filler.step(Duration::from_micros(50) * number as u32);
        }
    }
    assert!(bulk[0] > 20_000, "bulk found its pads: {bulk:?}");
    assert_eq!(keystrokes[0], 0, "of {}", keystrokes[1]);
}

//! Tests how memory is shared: the budget, peers' allowances, and recalls.

use std::time::Duration;

use keypadd_keystream::{PacketNumber, Suite};
use keypadd_pool::{
    Coverage, Direction, Filler, HEAD_BYTES, Lane, PAD_BYTES, Part, Pool, PoolAllowance,
    PoolSettings, Stage, Step,
};

use crate::support::*;

#[test]
fn forty_lanes_together_stay_within_the_budget() {
    let pool = pool(8 * MIB);
    let budget = pool.snapshot().budget_bytes;
    let key = key(Suite::AES_128_GCM, 8);
    let stages = [Stage::Active, Stage::Active, Stage::Brief, Stage::Standby];
    let mut lanes: Vec<Lane> =
        (0..40).map(|index| open(&pool, &key, Direction::Receive, stages[index % 4])).collect();
    for step in 0..400_u64 {
        for (index, lane) in lanes.iter_mut().enumerate() {
            lane.seek(PacketNumber::new(step * (1 + index as u64 % 5)), PAD_BYTES);
        }
        // Nothing is consumed while the levels are read, so they can only read too high.
        let at_hand: u64 = lanes.iter().map(level_bytes).sum();
        assert!(at_hand <= budget, "{at_hand} of {budget}");
    }
    poll_until("every lane has pads", || {
        lanes.iter().all(|lane| lane.level(Part::Head).packets > 0)
    });
    let at_hand: u64 = lanes.iter().map(level_bytes).sum();
    assert!(at_hand <= budget, "{at_hand} of {budget}");
    drop(lanes);
    poll_until("all memory is free", || all_memory_is_free(&pool));
}

#[test]
fn a_lane_gives_back_what_another_needs_and_is_refilled_where_it_left_off() {
    // Heads for one lane and no body: the first lane takes the whole budget.
    let pool = pool(20 * 8192);
    let (early_key, late_key) = (key(Suite::AES_128_GCM, 11), key(Suite::AES_128_GCM, 12));
    let mut early = open(&pool, &early_key, Direction::Send, Stage::Active);
    poll_until("the early lane has the whole budget", || {
        early.level(Part::Head).packets >= 17 * SEGMENT
    });
    let mut late: Vec<Lane> =
        (0..9).map(|_| open(&pool, &late_key, Direction::Receive, Stage::Active)).collect();
    // It obeys the recall at its next packet, and keeps the nearest chunks.
    poll_until("the late lanes have their minimum", || {
        early.seek(PacketNumber::new(0), 0);
        late.iter().all(|lane| lane.level(Part::Head).packets >= SEGMENT)
    });
    assert!(early.level(Part::Head).packets < 17 * SEGMENT);
    assert_eq!(seek(&mut early, PacketNumber::new(0), HEAD_BYTES), Coverage::Hit);
    late.clear();
    for number in (0..40 * SEGMENT).step_by(17) {
        poll_until("the pad is available", || {
            seek(&mut early, PacketNumber::new(number), HEAD_BYTES) == Coverage::Hit
        });
        let (pad, _) = take(&mut early, number, 16, HEAD_BYTES);
        assert!(pad == inline_pad(&early_key, number, HEAD_BYTES), "{number}");
    }
    drop(early);
    poll_until("all memory is free", || all_memory_is_free(&pool));
}

#[test]
fn new_lanes_get_what_others_hold_besides_the_current_chunk() {
    let settings = PoolSettings { budget_bytes: 24 * 8192 };
    let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
    let key = key(Suite::AES_128_GCM, 14);
    let mut lanes = Vec::new();
    for newcomers in [12, 8] {
        lanes.extend((0..newcomers).map(|_| open(&pool, &key, Direction::Send, Stage::Active)));
        // A recall is obeyed at the next packet, which also draws a chunk.
        for _ in 0..3 {
            while filler.step(Duration::ZERO) == Step::Worked {}
            for lane in &mut lanes {
                lane.seek(PacketNumber::new(0), 0);
            }
        }
    }
    assert!(lanes.iter().all(|lane| lane.level(Part::Head).packets >= SEGMENT));
}

#[test]
fn all_connections_of_a_peer_stay_within_its_allowance() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 8 * MIB }).expect("ok");
    let key = key(Suite::AES_128_GCM, 16);
    let allowance = PoolAllowance::new(MIB as u64);
    let mut lanes = Vec::new();
    for newcomers in [1, 3, 8] {
        lanes.extend((0..newcomers).map(|_| {
            open(&pool.for_peer(allowance.clone()), &key, Direction::Receive, Stage::Active)
        }));
        for _ in 0..5 {
            while filler.step(Duration::ZERO) == Step::Worked {}
            let at_hand: u64 = lanes.iter().map(level_bytes).sum();
            assert!(at_hand <= MIB as u64, "{at_hand}");
            for lane in &mut lanes {
                lane.seek(PacketNumber::new(0), 0);
            }
        }
        assert!(lanes.iter().all(|lane| lane.level(Part::Head).packets >= SEGMENT));
    }
    // Peers without an allowance share the rest, and a raised allowance is used.
    let stranger = open(&pool, &key, Direction::Send, Stage::Active);
    while filler.step(Duration::ZERO) == Step::Worked {}
    assert!(level_bytes(&stranger) > 3 * MIB as u64);
    allowance.set(2 * MIB as u64);
    lanes[0].set_stage(Stage::Brief);
    while filler.step(Duration::ZERO) == Step::Worked {}
    assert!(lanes.iter().map(level_bytes).sum::<u64>() > MIB as u64);
}

#[test]
fn a_thousand_idle_connections_have_64_heads_each_way_in_64_mib() {
    let pool = pool(64 * MIB);
    let key = key(Suite::AES_128_GCM, 13);
    let mut lanes = Vec::new();
    for _ in 0..1000 {
        for direction in [Direction::Send, Direction::Receive] {
            for stage in [Stage::Brief, Stage::Active] {
                lanes.push(open(&pool, &key, direction, stage));
            }
        }
    }
    // The early lanes hold more than their share; each obeys the recall at its next packet.
    poll_until("every lane has 64 heads", || {
        for lane in &mut lanes {
            lane.seek(PacketNumber::new(0), 0);
        }
        lanes.iter().all(|lane| lane.level(Part::Head).packets >= SEGMENT)
    });
    let at_hand: u64 = lanes.iter().map(level_bytes).sum();
    assert!(at_hand <= pool.snapshot().budget_bytes);
    lanes.clear();
    poll_until("all memory is free", || all_memory_is_free(&pool));
}

/// Steps the filler until it has nothing to do at this time.
fn fill(filler: &mut Filler, now: Duration) {
    while filler.step(now) == Step::Worked {}
}

/// Takes all full pads of a segment.
fn carry_bulk(lane: &mut Lane, segment: u64) {
    for number in segment * SEGMENT..(segment + 1) * SEGMENT {
        lane.seek(PacketNumber::new(number), PAD_BYTES);
        take(lane, number, 16, PAD_BYTES);
    }
}

#[test]
fn idle_connections_that_carried_bulk_give_back_what_others_need() {
    // A fifth of a thousand connections in a fifth of 64 MiB, one after another.
    let settings = PoolSettings { budget_bytes: 64 * MIB / 5 };
    let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
    let (key, mut now) = (key(Suite::AES_128_GCM, 17), Duration::ZERO);
    let mut directions: Vec<[Lane; 2]> = Vec::new();
    let keep_alive = |directions: &mut Vec<[Lane; 2]>| {
        for lane in directions.as_flattened_mut() {
            lane.seek(PacketNumber::new(5 * SEGMENT), 0);
        }
    };
    let mut had_bodies = 0;
    for nth in 0..400 {
        let direction = [Direction::Send, Direction::Receive][nth % 2];
        let stages = [Stage::Active, Stage::Standby];
        let [mut lane, next] = stages.map(|stage| open(&pool, &key, direction, stage));
        for segment in 0..5 {
            fill(&mut filler, now);
            keep_alive(&mut directions);
            now += Duration::from_millis(100);
            fill(&mut filler, now);
            carry_bulk(&mut lane, segment);
        }
        had_bodies += u32::from(lane.level(Part::Body).packets > 0);
        directions.push([lane, next]);
        keep_alive(&mut directions);
        now += Duration::from_secs(15);
        fill(&mut filler, now);
    }
    assert!(had_bodies > 50, "only {had_bodies} had bodies");
    let rounds = (0..10).position(|_| {
        let has_floor = directions.iter().all(|[lane, next]| {
            lane.level(Part::Head).packets > 0 && next.level(Part::Head).packets >= SEGMENT
        });
        keep_alive(&mut directions);
        now += Duration::from_secs(15);
        fill(&mut filler, now);
        has_floor
    });
    assert!(rounds.is_some(), "some lanes stay below their share");
}

#[test]
fn a_pool_at_rest_is_full_and_divided_by_the_latest_traffic() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 8 * MIB }).expect("ok");
    let key = key(Suite::AES_128_GCM, 20);
    let mut lanes: Vec<Lane> =
        (0..4).map(|_| open(&pool, &key, Direction::Send, Stage::Active)).collect();
    fill(&mut filler, Duration::ZERO);
    assert!(pool.snapshot().is_settled);
    let share = lanes[0].level(Part::Body).packets;
    // Sooner than it reads rates, and so few at last that they do not wake it.
    let (mut now, mut looks) = (Duration::from_millis(10), 0);
    for segment in 0..6 {
        fill(&mut filler, now);
        carry_bulk(&mut lanes[0], segment);
    }
    loop {
        match filler.step(now) {
            Step::Worked => {}
            Step::Resting(rest) => (now, looks) = (now + rest, looks + 1),
            Step::Idle | Step::Stopped => break,
        }
    }
    assert_eq!(looks, 1, "it sleeps once no more packets come");
    assert!(!pool.snapshot().is_settled, "lanes have yet to give back");
    for _ in 0..3 {
        for lane in &mut lanes {
            lane.seek(PacketNumber::new(0), 0);
        }
        fill(&mut filler, now);
    }
    assert!(pool.snapshot().is_settled);
    let bulk = lanes[0].level(Part::Body).packets;
    assert!(bulk > 3 * share, "{bulk} instead of {share}");
}

#[test]
fn chunks_kept_for_late_packets_count_against_the_allowance() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 8 * MIB }).expect("ok");
    let (key, mut now) = (key(Suite::AES_128_GCM, 18), Duration::ZERO);
    let of_peer = pool.for_peer(PoolAllowance::new(MIB as u64));
    let mut lanes: Vec<Lane> =
        (0..16).map(|_| open(&of_peer, &key, Direction::Receive, Stage::Active)).collect();
    for round in 0..3 {
        for lane in &mut lanes {
            for segment in 5 * round..5 * round + 5 {
                now += Duration::from_millis(100);
                fill(&mut filler, now);
                carry_bulk(lane, segment);
            }
            fill(&mut filler, now);
            // This peer's lanes hold all memory that is not free.
            let held = pool.snapshot().filled_bytes;
            assert!(held <= MIB as u64, "round {round}: {held} bytes");
        }
    }
}

#[test]
fn a_dry_lane_gives_back_chunks_too_old_for_late_packets() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: MIB }).expect("a pool");
    let key = key(Suite::AES_128_GCM, 19);
    let mut lane = open(&pool, &key, Direction::Receive, Stage::Active);
    fill(&mut filler, Duration::ZERO);
    let chunks = lane.level(Part::Head).packets / SEGMENT;
    // The filler stops filling it.
    lane.set_stage(Stage::Dormant);
    for behind in 0..=3 {
        let number = PacketNumber::new((chunks - 1 + behind) * SEGMENT);
        lane.seek(number, PAD_BYTES);
        // The last one is this many segments late.
        let last = PacketNumber::new((chunks - 1) * SEGMENT + 1);
        let expected = if behind <= 2 { Coverage::Hit } else { Coverage::Miss };
        assert_eq!(lane.peek(last, HEAD_BYTES).coverage(), expected, "{behind} behind");
    }
    fill(&mut filler, Duration::ZERO);
    assert!(all_memory_is_free(&pool));
}

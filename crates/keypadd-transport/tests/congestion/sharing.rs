//! Tests how flows of ours share a line with each other and with CUBIC.

use std::time::Duration;

use crate::{
    MS, PAYLOAD, SECOND, bulk, cubic, median, queue_p99, rate, share, shares,
    world::{Traffic, World},
};

#[test]
fn flows_of_ours_share_a_line_and_keep_its_queue_short() {
    // On long paths flows approach equal shares slowly.
    for (rtt, flows, least) in
        [(20 * MS, 2, 0.85), (20 * MS, 4, 0.8), (60 * MS, 3, 0.6), (150 * MS, 3, 0.4)]
    {
        let mut world = bulk(50.0, rtt);
        world.run(3 * SECOND);
        for _ in 1..flows {
            world.add(rate(), Traffic::Up);
            world.run(3 * SECOND);
        }
        world.run(7 * SECOND);
        let received = |world: &World| (0..flows).map(|flow| world.received(flow)).collect();
        let before: Vec<u64> = received(&world);
        let queue = queue_p99(&mut world, 10 * SECOND);
        let after: Vec<u64> = received(&world);
        let shares: Vec<f64> = std::iter::zip(after, before)
            .map(|(after, before)| 8.0 * (after - before) as f64 / 10.0 / (50e6 * PAYLOAD))
            .collect();
        let at = format!("{shares:.3?} of the line, {rtt:?}, queue {queue:?}");
        assert!(shares.iter().all(|share| share * flows as f64 >= least), "{at}");
        assert!(shares.iter().sum::<f64>() >= 0.95, "{at}");
        assert!(queue <= 10 * MS, "{at}");
    }
}

#[test]
fn beside_cubic_each_flow_gets_a_third_of_a_line_with_a_short_queue() {
    beside_cubic(&[43, 86]);
}

#[test]
fn beside_cubic_each_flow_gets_a_third_of_a_line_with_a_long_queue() {
    beside_cubic(&[172, 344]);
}

/// Shares a line with CUBIC; 86 packets are what it carries in a round trip.
fn beside_cubic(queues: &[usize]) {
    for &packets in queues {
        // The line loses nothing at random, so the time at which CUBIC comes is what differs.
        let shares = shares(1..=5, |nth| {
            share_beside_cubic(50.0, packets, 3 * SECOND + 137 * MS * nth as u32)
        });
        // One of 48 such runs gave 0.28.
        let is_fair = (1.0 / 3.0..=2.0 / 3.0).contains(&median(&shares))
            && shares.iter().all(|share| (0.25..=0.75).contains(share));
        assert!(is_fair, "{shares:.3?} of a line with a queue of {packets} packets");
    }
}

/// A flow's share of what it and CUBIC, which comes then, get of a line with a queue of this
/// length.
fn share_beside_cubic(mbits: f64, packets: usize, then: Duration) -> f64 {
    let mut world = bulk(mbits, 20 * MS);
    world.change(|line| line.queue.packets = packets);
    world.run(then);
    let other = world.add(cubic(), Traffic::Up);
    world.run(5 * SECOND);
    let before = [world.received(0), world.received(other)];
    world.run(30 * SECOND);
    let [ours, other] = [world.received(0) - before[0], world.received(other) - before[1]];
    ours as f64 / (ours + other) as f64
}

#[test]
fn beside_cubic_in_a_queue_of_seconds_a_flow_keeps_a_share() {
    let share = share_beside_cubic(4.0, 1_000, 3 * SECOND + 137 * MS);
    assert!(share >= 0.2, "{share:.3}");
}

#[test]
fn a_line_that_cubic_has_left_is_full_with_a_short_queue() {
    let mut world = bulk(50.0, 20 * MS);
    let other = world.add(cubic(), Traffic::Up);
    world.run(6 * SECOND);
    world.flows[other].active = false;
    world.run(15 * SECOND);
    let queue = queue_p99(&mut world, 2 * SECOND);
    let share = share(&mut world, 0, 50.0, 2 * SECOND);
    assert!(share >= 0.9 && queue <= 8 * MS, "{share:.3}, {queue:?}");
}

#[test]
fn two_flows_of_ours_share_a_slow_line_and_keep_its_queue_short() {
    for n in 0..4 {
        let mut world = bulk(2.0, 20 * MS + n * Duration::from_micros(370));
        world.run(4 * SECOND);
        world.add(rate(), Traffic::Up);
        world.run(2 * SECOND);
        let before = [0, 1].map(|flow| world.received(flow));
        let queue = queue_p99(&mut world, 15 * SECOND);
        let shares = [0, 1].map(|flow| {
            8.0 * (world.received(flow) - before[flow]) as f64 / 15.0 / (2e6 * PAYLOAD)
        });
        assert!(shares.iter().all(|share| *share >= 0.3), "{n}: {shares:.3?}");
        assert!(queue <= 45 * MS, "{n}: {queue:?}");
    }
}

#[test]
fn flows_of_ours_that_begin_one_after_the_other_share_a_slow_line_and_keep_its_queue_short() {
    const FLOWS: usize = 4;
    for (mbits, n) in [(4.0, 0), (6.0, 0), (6.0, 1), (12.0, 0)] {
        let mut world = bulk(mbits, 20 * MS + n * Duration::from_micros(370));
        world.run(4 * SECOND);
        for _ in 1..FLOWS {
            world.add(rate(), Traffic::Up);
            world.run(2 * SECOND);
        }
        let at = format!("{mbits} Mbit/s, {n}");
        let received =
            |world: &World| -> Vec<u64> { (0..FLOWS).map(|flow| world.received(flow)).collect() };
        let before = received(&world);
        let queue = queue_p99(&mut world, 10 * SECOND);
        let bytes: Vec<_> =
            received(&world).iter().zip(before).map(|(now, then)| now - then).collect();
        let all: u64 = bytes.iter().sum();
        assert!(queue <= 30 * MS, "{at}: {queue:?}");
        assert!(bytes.iter().all(|of| 8 * of >= all), "{at}: {bytes:?}");
    }
}

#[test]
fn two_flows_of_ours_that_take_each_other_for_strangers_keep_the_queue_short_again_soon() {
    for mbits in [4.0, 6.0, 12.0] {
        for n in 0..8 {
            let mut world = bulk(mbits, 20 * MS + n * Duration::from_micros(370));
            world.run(4 * SECOND);
            world.add(rate(), Traffic::Up);
            // Two tests' time.
            world.run(11 * SECOND);
            let queue = queue_p99(&mut world, 2 * SECOND);
            assert!(queue <= 25 * MS, "{mbits} Mbit/s, {n}: {queue:?}");
        }
    }
}

#[test]
fn two_flows_of_ours_that_cubic_has_left_keep_the_queue_short_again() {
    let mut world = bulk(50.0, 20 * MS);
    world.run(3 * SECOND);
    world.add(rate(), Traffic::Up);
    let other = world.add(cubic(), Traffic::Up);
    world.run(10 * SECOND);
    world.flows[other].active = false;
    world.run(60 * SECOND);
    let queue = queue_p99(&mut world, 2 * SECOND);
    assert!(queue <= 8 * MS, "{queue:?}");
}

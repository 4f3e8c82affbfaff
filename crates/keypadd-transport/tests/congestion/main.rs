//! Tests congestion control in virtual time over emulated lines, through the production event
//! loops.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod mtu;
mod roaming;
mod sharing;
#[path = "../stepped/mod.rs"]
mod stepped;
mod trace;
mod world;

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use keypadd_transport::{
    Purpose,
    congestion::{self, Control},
};
use testbed::line::{LossPlace, Policer};
use world::{Congestion, Traffic, World, line, mbit};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Share of a line that stream bytes can use with packets of 1,452 bytes: headers, tags and frames
/// take the rest.
const PAYLOAD: f64 = 0.955;

fn rate() -> Congestion {
    (Purpose::Bulk, Control::Rate)
}

/// The receiver acknowledges every other packet, as TCP's does.
fn cubic() -> Congestion {
    (Purpose::Sparse, congestion::Congestion::Cubic.control())
}

/// A line of this many Mbit/s each way, with a bulk flow.
fn bulk(mbits: f64, rtt: Duration) -> World {
    bulk_of(Traffic::Up, mbits, rtt)
}

fn bulk_of(traffic: Traffic, mbits: f64, rtt: Duration) -> World {
    let mut world = World::new(line(mbits, rtt), line(mbits, rtt), 1);
    world.add(rate(), traffic);
    world
}

/// What a flow delivers in this time, as a share of what a line of this many Mbit/s carries.
fn share(world: &mut World, flow: usize, mbits: f64, time: Duration) -> f64 {
    let delivered = |world: &World| world.received(flow) + world.received_back(flow);
    let before = delivered(world);
    world.run(time);
    let bits = 8.0 * (delivered(world) - before) as f64;
    bits / time.as_secs_f64() / (mbits * 1e6 * PAYLOAD)
}

/// What a flow delivers with each of these seeds, sorted.
fn shares(seeds: RangeInclusive<u64>, deliver: impl FnMut(u64) -> f64) -> Vec<f64> {
    let mut shares: Vec<f64> = seeds.map(deliver).collect();
    shares.sort_by(f64::total_cmp);
    shares
}

fn median(shares: &[f64]) -> f64 {
    shares[shares.len() / 2]
}

/// The 99th percentile of the queue over this time.
fn queue_p99(world: &mut World, time: Duration) -> Duration {
    let mut seen = Vec::new();
    world.watch(time, MS, |world| seen.push(world.queue()));
    seen.sort();
    seen[seen.len() * 99 / 100]
}

#[test]
fn a_clean_line_is_full_after_start_up_and_its_queue_short() {
    // Thresholds with room for variation; the goal is 0.95, and 5 ms and two full packets.
    for (mbits, rtt, start_up, least, slack) in [
        (100.0, 20 * MS, SECOND, 0.95, 5 * MS),
        (100.0, 150 * MS, 6 * SECOND, 0.95, 9 * MS),
        (20.0, 20 * MS, SECOND, 0.95, 7 * MS),
        (2.0, 20 * MS, SECOND, 0.9, 20 * MS),
    ] {
        let mut world = bulk(mbits, rtt);
        let ping = world.add(rate(), Traffic::Ping);
        world.run(start_up);
        let (since, before) = (world.now(), world.received(0));
        let queue = queue_p99(&mut world, 4 * SECOND);
        let bits = 8.0 * (world.received(0) - before) as f64 / 4.0;
        let share = bits / (mbits * 1e6 * PAYLOAD);
        let at = format!("{mbits} Mbit/s, {rtt:?}: {share:.3} of the line, queue {queue:?}");
        assert!(share >= least, "{at}");
        assert!(queue <= slack, "{at}");
        let p99 = world.trips_p99(ping, since);
        assert!(p99 <= rtt + slack + MS, "{at}, ping {p99:?}");
    }
}

#[test]
fn a_bulk_source_that_is_often_read_dry_keeps_the_queue_short_too() {
    // Beyond 5 ms, the time of two full packets.
    for (mbits, slack) in [(100.0, 6 * MS), (20.0, 7 * MS), (2.0, 26 * MS)] {
        let mut world = World::new(line(mbits, 20 * MS), line(mbits, 20 * MS), 1);
        world.add(rate(), Traffic::Down);
        world.run(SECOND);
        let queue = queue_p99(&mut world, 4 * SECOND);
        assert!(queue <= slack, "{mbits} Mbit/s: {queue:?}");
    }
}

#[test]
fn start_up_fills_the_queue_of_a_slow_line_with_little_more_than_its_first_flight() {
    // A burst of 16 KiB and the initial window leave at once, which take 135 ms at 2 Mbit/s.
    for (mbits, most) in [(2.0, 160 * MS), (4.0, 80 * MS), (20.0, 70 * MS)] {
        let mut world = bulk(mbits, 20 * MS);
        let mut longest = Duration::ZERO;
        world.watch(SECOND, MS, |world| longest = longest.max(world.queue()));
        assert!(longest <= most, "{longest:?} at {mbits} Mbit/s");
    }
}

#[test]
fn a_fast_distant_line_is_full_three_seconds_after_the_start() {
    for compression in [0, 1, 3] {
        let mut world = bulk(300.0, 150 * MS);
        world.compress_acks(compression * MS);
        world.run(3 * SECOND);
        let share = share(&mut world, 0, 300.0, 2 * SECOND);
        assert!(share >= 0.9, "{share:.3} of the line with ACKs every {compression} ms");
    }
}

#[test]
fn random_loss_before_the_bottleneck_costs_nothing() {
    for (rtt, start_up) in [(20 * MS, 2 * SECOND), (150 * MS, 6 * SECOND)] {
        for (loss, least) in [(0.005, 0.97), (0.02, 0.97), (0.1, 0.97), (0.2, 0.9)] {
            let shares = shares(1..=5, |seed| {
                let mut world = World::new(line(50.0, rtt), line(50.0, rtt), seed);
                world.change(|line| line.loss = loss);
                world.add(rate(), Traffic::Up);
                world.run(start_up);
                share(&mut world, 0, 50.0, 8 * SECOND)
            });
            let is_fast = median(&shares) >= least && shares[0] >= 0.9;
            assert!(is_fast, "{shares:.3?} of the line at {loss}, {rtt:?}");
        }
    }
}

#[test]
fn one_stream_with_a_window_of_1_5_round_trips_fills_a_long_fast_lossy_path() {
    for (loss, seeds, least) in
        [(0.0, 1..=1, 0.95), (0.02, 1..=5, 0.97), (0.1, 1..=3, 0.95), (0.2, 1..=1, 0.9)]
    {
        let shares = shares(seeds, |seed| {
            let mut world = World::new(line(300.0, 150 * MS), line(300.0, 150 * MS), seed);
            world.window = 8 << 20;
            world.change(|line| line.loss = loss);
            world.add(rate(), Traffic::Up);
            world.run(5 * SECOND);
            share(&mut world, 0, 300.0, 3 * SECOND)
        });
        let is_fast = median(&shares) >= least && shares[0] >= 0.9;
        assert!(is_fast, "{shares:.3?} of the line at {loss}");
    }
}

#[test]
fn random_loss_behind_the_bottleneck_costs_what_is_lost() {
    for (loss, least) in [(0.02, 0.97), (0.1, 0.97), (0.2, 0.9)] {
        let mut world = bulk(50.0, 20 * MS);
        world.change(|line| (line.loss, line.loss_place) = (loss, LossPlace::AfterBottleneck));
        world.run(2 * SECOND);
        let share = share(&mut world, 0, 50.0 * (1.0 - loss), 8 * SECOND);
        assert!(share >= least, "{share:.3} of what is left at {loss}");
    }
}

#[test]
fn keystrokes_beside_bulk_under_loss_wait_for_one_recovery_at_p99() {
    // At 2 Mbit/s a full packet takes 6 ms; medians of twelve seeds are below 40 ms, some have 45.
    for (mbits, rtt, most) in [
        (100.0, 20 * MS, 40 * MS),
        (20.0, 20 * MS, 40 * MS),
        (2.0, 20 * MS, 50 * MS),
        (50.0, 150 * MS, 300 * MS),
    ] {
        for loss in [0.005, 0.02] {
            let mut world = bulk(mbits, rtt);
            let ping = world.add(rate(), Traffic::Ping);
            world.change_both(|line| line.loss = loss);
            world.run(3 * SECOND);
            let since = world.now();
            world.run(15 * SECOND);
            let trip = world.trips_p99(ping, since);
            assert!(trip < most, "{trip:?} at {mbits} Mbit/s, {rtt:?}, {loss}");
        }
    }
}

#[test]
fn loss_of_acks_costs_nothing() {
    let mut back = line(100.0, 20 * MS);
    back.loss = 0.3;
    let mut world = World::new(line(100.0, 20 * MS), back, 4);
    world.add(rate(), Traffic::Up);
    world.run(2 * SECOND);
    let share = share(&mut world, 0, 100.0, 3 * SECOND);
    assert!(share >= 0.95, "{share:.3}");
}

#[test]
fn acks_that_arrive_in_bursts_neither_starve_a_flow_nor_fill_the_queue() {
    let mut world = World::new(line(100.0, 20 * MS), line(100.0, 20 * MS), 1);
    world.compress_acks(10 * MS);
    world.add(rate(), Traffic::Up);
    world.run(2 * SECOND);
    let queue = queue_p99(&mut world, 2 * SECOND);
    let share = share(&mut world, 0, 100.0, 3 * SECOND);
    assert!(share >= 0.9 && queue <= 25 * MS, "{share:.3}, {queue:?}");
}

#[test]
fn half_the_bandwidth_is_met_and_twice_as_much_found_within_three_seconds() {
    halve_and_double(20 * MS);
}

#[test]
fn half_the_bandwidth_is_met_within_three_seconds_far_away_too() {
    halve_and_double(150 * MS);
}

fn halve_and_double(rtt: Duration) {
    let mut world = bulk(100.0, rtt);
    world.run(5 * SECOND);
    world.change(|line| line.bits_per_second = mbit(50.0));
    world.run(3 * SECOND);
    let queue = queue_p99(&mut world, SECOND);
    assert!(queue <= 9 * MS, "{queue:?}");
    assert!(share(&mut world, 0, 50.0, SECOND) >= 0.9);
    world.change(|line| line.bits_per_second = mbit(100.0));
    world.run(3 * SECOND);
    let share = share(&mut world, 0, 100.0, 2 * SECOND);
    assert!(share >= 0.9, "{share:.3}");
}

#[test]
fn a_deep_queue_stays_short() {
    let mut world = bulk(50.0, 20 * MS);
    world.change(|line| line.queue.packets = 100_000);
    world.run(SECOND);
    let queue = queue_p99(&mut world, 3 * SECOND);
    assert!(queue <= 5 * MS, "{queue:?}");
}

#[test]
fn on_a_slow_line_no_more_waits_than_the_least_window() {
    for (mbit, rtt) in [(0.5, 20 * MS), (0.25, 20 * MS), (0.5, 100 * MS), (0.5, 2 * MS)] {
        let mut world = bulk(mbit, rtt);
        world.run(10 * SECOND);
        // Several times as long as the shortest round trip is remembered.
        let queue = queue_p99(&mut world, 70 * SECOND);
        // Three packets' time.
        assert!(queue <= (36 * MS).div_f64(mbit), "{mbit} Mbit/s, {rtt:?}: {queue:?}");
    }
}

#[test]
fn a_line_that_marks_what_waits_has_a_shorter_queue_and_carries_no_less_than_with_cubic() {
    let run = |controller, mark_above| {
        let mut world = World::new(line(50.0, 20 * MS), line(50.0, 20 * MS), 1);
        world.add(controller, Traffic::Up);
        world.change(|line| line.mark_above = mark_above);
        world.run(2 * SECOND);
        (queue_p99(&mut world, 3 * SECOND), share(&mut world, 0, 50.0, 3 * SECOND))
    };
    let (unmarked, _) = run(rate(), None);
    for (above, most) in [(MS, unmarked.mul_f64(0.6)), (2 * MS, 5 * MS), (5 * MS, 5 * MS)] {
        let ((queue, share), (_, with_cubic)) =
            (run(rate(), Some(above)), run(cubic(), Some(above)));
        let at = format!("marks above {above:?}: {share:.3}, CUBIC {with_cubic:.3}, {queue:?}");
        assert!(share >= with_cubic && queue <= most, "{at}");
    }
}

#[test]
fn a_policer_is_not_sent_twice_what_it_passes() {
    let mut world = bulk(400.0, 20 * MS);
    let policer = Policer { bits_per_second: mbit(50.0).unwrap(), burst_bytes: 60_000 };
    world.change(|line| line.policer = Some(policer));
    world.run(3 * SECOND);
    let offered = world.offered();
    let share = share(&mut world, 0, 50.0, 5 * SECOND);
    let sent = 8.0 * (world.offered() - offered) as f64 / 5.0 / 50e6;
    assert!(share >= 0.8 && sent <= 1.4, "{share:.3} passed of {sent:.3} sent");
}

#[test]
fn both_directions_at_once_are_each_nearly_as_fast_as_one_alone_under_loss() {
    let shares = [5, 6, 7].map(|seed| {
        let rates = [Traffic::Up, Traffic::Both].map(|traffic| {
            let mut world = World::new(line(50.0, 20 * MS), line(50.0, 20 * MS), seed);
            world.add(rate(), traffic);
            world.change_both(|line| line.loss = 0.1);
            world.run(2 * SECOND);
            let before = [world.received(0), world.received_back(0)];
            world.run(8 * SECOND);
            [world.received(0) - before[0], world.received_back(0) - before[1]]
        });
        let [[alone, _], both] = rates;
        both.map(|bytes| bytes as f64 / alone as f64)
    });
    // The goal is 0.9 for each; some seeds give one direction 0.84 and the other 0.97.
    let mean = shares.as_flattened().iter().sum::<f64>() / 6.0;
    let least = shares.as_flattened().iter().copied().fold(1.0, f64::min);
    assert!(mean >= 0.9 && least >= 0.8, "{shares:.3?}");
}

#[test]
fn a_direction_does_not_slow_down_for_the_queue_of_the_other_one() {
    // What the slower direction carries besides bulk are the ACKs of the faster one.
    // Two packets, which the slower one carries at least, are 24 ms of 1 Mbit/s.
    for (down, up, least, most) in [
        (300.0, 300.0, [0.85, 0.85], 20 * MS),
        (300.0, 20.0, [0.85, 0.85], 20 * MS),
        (100.0, 10.0, [0.85, 0.85], 20 * MS),
        (10.0, 1.0, [0.75, 0.7], 45 * MS),
        (100.0, 2.0, [0.75, 0.65], 25 * MS),
        (50.0, 1.0, [0.75, 0.65], 45 * MS),
        (8.0, 0.5, [0.6, 0.55], 75 * MS),
    ] {
        for connections in [1, 2] {
            let mut world = World::new(line(up, 20 * MS), line(down, 20 * MS), 1);
            let flows = match connections {
                1 => [world.add(rate(), Traffic::Both); 2],
                _ => [Traffic::Down, Traffic::Up].map(|traffic| world.add(rate(), traffic)),
            };
            world.run(5 * SECOND);
            let received =
                |world: &World| [world.received_back(flows[0]), world.received(flows[1])];
            let before = received(&world);
            let time = if up > 100.0 { 4 * SECOND } else { 10 * SECOND };
            let queue = queue_p99(&mut world, time);
            let shares = [0, 1].map(|way| {
                let bits = 8.0 * (received(&world)[way] - before[way]) as f64;
                bits / time.as_secs_f64() / ([down, up][way] * 1e6 * PAYLOAD)
            });
            let at =
                format!("{shares:.3?} of {down} and {up} Mbit/s, {connections}, queue {queue:?}");
            assert!(std::iter::zip(shares, least).all(|(share, least)| share >= least), "{at}");
            assert!(queue <= most, "{at}");
        }
    }
}

#[test]
fn acks_of_bulk_take_a_third_of_a_way_back_that_is_fifty_times_slower() {
    let mut world = World::new(line(2.0, 20 * MS), line(100.0, 20 * MS), 1);
    world.add(rate(), Traffic::Down);
    world.run(5 * SECOND);
    let (received, offered) = (world.received_back(0), world.offered());
    world.run(5 * SECOND);
    let of_line = |bytes: u64, mbits| 8.0 * bytes as f64 / 5.0 / (mbits * 1e6);
    let share = of_line(world.received_back(0) - received, 100.0 * PAYLOAD);
    let acks = of_line(world.offered() - offered, 2.0);
    assert!(
        share >= 0.97 && acks <= 0.35,
        "{share:.3} of the line, ACKs {acks:.3} of the way back"
    );
}

#[test]
fn reordering_and_duplication_cost_a_tenth_at_most() {
    let mut world = bulk(50.0, 20 * MS);
    world.change(|line| (line.reorder, line.hold, line.duplicate) = (0.05, 10 * MS, 0.05));
    world.run(2 * SECOND);
    let share = share(&mut world, 0, 50.0, 4 * SECOND);
    assert!(share >= 0.9, "{share:.3}");
}

#[test]
fn a_flow_outlives_blackouts_and_heavy_loss_and_is_back_within_two_seconds() {
    outlive(20 * MS);
}

#[test]
fn a_flow_is_back_within_two_seconds_far_away_too() {
    outlive(150 * MS);
}

fn outlive(rtt: Duration) {
    let mut world = bulk(50.0, rtt);
    world.run(4 * SECOND);
    world.change_both(|line| line.cut = true);
    world.run(20 * SECOND);
    world.change_both(|line| line.cut = false);
    world.run(2 * SECOND);
    let after_blackout = share(&mut world, 0, 50.0, SECOND);
    assert!(after_blackout >= 0.8, "{after_blackout:.3}");
    world.change_both(|line| line.loss = 0.4);
    world.run(10 * SECOND);
    world.change_both(|line| line.loss = 0.0);
    world.run(3 * SECOND);
    let share = share(&mut world, 0, 50.0, SECOND);
    assert!(share >= 0.8, "{share:.3}");
}

#[test]
fn little_is_sent_over_a_path_that_has_come_to_carry_small_packets_only() {
    for (mbits, rtt) in [(100.0, 20 * MS), (100.0, 150 * MS), (20.0, 20 * MS)] {
        let mut world = bulk(mbits, rtt);
        world.run(4 * SECOND);
        world.change(|line| line.bytes_max = Some(1_100));
        world.run(8 * SECOND);
        let before = world.offered();
        world.run(4 * SECOND);
        let offered = 8e-6 * (world.offered() - before) as f64 / 4.0;
        // Eight packets in a round trip are 4 Mbit/s at 20 ms.
        assert!(offered <= 5.0, "{offered:.2} of {mbits} Mbit/s at {rtt:?}");

        world.change(|line| line.bytes_max = None);
        world.run(3 * SECOND);
        let share = share(&mut world, 0, mbits, SECOND);
        assert!(share >= 0.8, "{share:.3} of {mbits} Mbit/s at {rtt:?}");
    }
}

#[test]
fn the_end_of_a_connection_waits_for_no_window() {
    let mut world = bulk(2.0, 20 * MS);
    world.run(3 * SECOND);
    let queue = world.queue();
    let took = world.close(0);
    assert!(took <= 10 * MS + queue + 8 * MS, "{took:?} with a queue of {queue:?}");
}

#[test]
fn a_connection_whose_datagrams_take_too_much_cpu_time_gets_its_share_of_it_only() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    static EACH: AtomicU64 = AtomicU64::new(2);
    // The clock is read before and after each datagram.
    let clock = || Duration::from_micros(NOW.fetch_add(EACH.load(Relaxed), Relaxed));
    let mut world = bulk(50.0, 20 * MS);
    let until = world.now() + 60 * SECOND;
    world.measure_costs(0, clock, until);
    world.run(SECOND);
    assert!(share(&mut world, 0, 50.0, SECOND) > 0.9);
    EACH.store(1_000, Relaxed);
    world.run(SECOND);
    // A tenth of a core handles a hundred.
    let limited = share(&mut world, 0, 50.0, 3 * SECOND);
    EACH.store(2, Relaxed);
    world.run(5 * SECOND);
    let after = share(&mut world, 0, 50.0, SECOND);
    assert!(limited < 0.1 && after > 0.9, "{limited:.3} of the line, then {after:.3}");
}

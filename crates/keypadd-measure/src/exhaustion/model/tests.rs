//! Tests predictions of exhaustion against cases worked out by hand.

use super::*;

/// Two ends on two cores, with a cipher that costs 100 us per packet and traffic that costs 10.
fn slow_cipher() -> Calibration {
    Calibration {
        cores: 2.0,
        background: 0.0,
        fillers: 2.0,
        pads_per_cpu_second: 10_000.0,
        traffic: TrafficCost::new(vec![[1000.0, 10e-6]]).unwrap(),
        beside_fillers: TrafficCost::new(vec![[1000.0, 10e-6]]).unwrap(),
        level: 32_768.0,
        asleep_packets: 0.0,
    }
}

fn close(figure: f64, expected: f64) {
    assert!((figure / expected - 1.0).abs() < 1e-9, "{figure} instead of {expected}");
}

fn dry(burst: Burst) -> (f64, f64) {
    match burst {
        Burst::Dry { seconds, packets } => (seconds, packets),
        Burst::Lasts => panic!("the pool lasts"),
    }
}

#[test]
fn the_sustained_rate_leaves_the_fillers_exactly_what_they_need() {
    // By hand: (2 - 10e-6 r) / 2 / 100e-6 = r, so r = 20,000 / 2.1.
    close(slow_cipher().sustained(), 20_000.0 / 2.1);
    let rate = slow_cipher().sustained();
    close(slow_cipher().filled(rate), rate);
}

#[test]
fn with_one_filler_and_cores_to_spare_it_is_the_filler_that_limits() {
    let calibration = Calibration { cores: 8.0, fillers: 1.0, ..slow_cipher() };
    close(calibration.sustained(), 10_000.0);
}

#[test]
fn a_background_load_takes_its_share_and_a_full_one_all() {
    let half = Calibration { background: 0.5, ..slow_cipher() };
    close(half.sustained(), 10_000.0 / 2.1);
    // Only the share of the idle class is left: 3 parts in 1,027 each.
    let full = Calibration { background: 1.0, ..slow_cipher() };
    close(full.filled(0.0), 10_000.0 * 3.0 / 1027.0);
    close(full.sustained(), 10_000.0 * 3.0 / 1027.0);
}

#[test]
fn traffic_that_takes_every_core_leaves_what_a_full_load_leaves() {
    close(slow_cipher().filled(300_000.0), 10_000.0 * 3.0 / 1027.0);
}

#[test]
fn a_burst_uses_up_the_level_by_what_is_not_made_meanwhile() {
    // 20,000 per second: 0.9 of a core each makes 9,000.
    let (seconds, packets) = dry(slow_cipher().burst(20_000.0));
    close(seconds, 32_768.0 / 11_000.0);
    close(packets, seconds * 20_000.0);
}

#[test]
fn below_the_sustained_rate_a_burst_lasts_and_just_above_it_ends_late() {
    let calibration = slow_cipher();
    let rate = calibration.sustained();
    assert_eq!(calibration.burst(rate * 0.999), Burst::Lasts);
    let (seconds, _) = dry(calibration.burst(rate * 1.01));
    assert!(seconds > 100.0, "{seconds}");
}

#[test]
fn a_filler_that_wakes_late_has_made_less() {
    let calibration = Calibration { asleep_packets: 2768.0, ..slow_cipher() };
    let (seconds, _) = dry(calibration.burst(20_000.0));
    close(seconds, 2768.0 / 20_000.0 + 30_000.0 / 11_000.0);
    let never = Calibration { asleep_packets: 1e9, ..slow_cipher() };
    close(dry(never.burst(20_000.0)).1, 32_768.0);
}

#[test]
fn cost_between_two_rates_lies_on_the_line_of_their_cpu_time() {
    let cost = TrafficCost::new(vec![[10_000.0, 10e-6], [1000.0, 50e-6]]).unwrap();
    close(cost.at(500.0), 50e-6);
    close(cost.at(1000.0), 50e-6);
    close(cost.at(10_000.0), 10e-6);
    // 0.05 and 0.1 of a core; halfway 0.075, at 5,500 per second.
    close(cost.at(5500.0), 0.075 / 5500.0);
    close(cost.at(99_000.0), 10e-6);
    assert!(TrafficCost::new(vec![]).is_none());
    assert!(TrafficCost::new(vec![[0.0, 1.0]]).is_none());
    assert!(TrafficCost::new(vec![[1.0, f64::NAN]]).is_none());
}

#[test]
fn r_star_is_of_busy_fillers_and_bursts_are_of_full_pools() {
    let beside_fillers = TrafficCost::new(vec![[1000.0, 50e-6]]).unwrap();
    let calibration = Calibration { beside_fillers, ..slow_cipher() };
    // (2 - 50e-6 r) / 2 / 100e-6 = r
    close(calibration.sustained(), 20_000.0 / 2.5);
    close(dry(calibration.burst(20_000.0)).0, dry(slow_cipher().burst(20_000.0)).0);
}

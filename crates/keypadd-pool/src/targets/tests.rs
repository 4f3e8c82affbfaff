//! Tests how typical sessions divide the pool.

use super::*;
use crate::lane_view::Stage;

const TOTAL: usize = 8192; // 64 MiB

fn lane(stage: Stage) -> LaneView {
    let (kept, demand, recalled, allotment) = ([0; 2], [0.0; 2], [false; 2], None);
    LaneView {
        stage,
        traffic: 0,
        available: [0; 2],
        left: [u64::MAX; 2],
        kept,
        demand,
        too_long: [false; 2],
        recalled,
        allotment,
    }
}

/// An active lane with this many packets per second, and this many long ones among them.
fn carrying(packets: f64, long: f64) -> LaneView {
    LaneView { demand: [packets, long], ..lane(Stage::Active) }
}

fn idle() -> LaneView {
    carrying(0.0, 0.0)
}

/// The targets as a table.
fn shown(lanes: &[(&str, LaneView)], total: usize) -> String {
    let views: Vec<LaneView> = lanes.iter().map(|(_, view)| *view).collect();
    let mut table = String::from("lane                  short/s  long/s  heads  bodies    KiB\n");
    for ((name, view), target) in lanes.iter().zip(targets(&views, total)) {
        let (short, long, [heads, bodies]) = (view.short(), view.demand[1], target);
        let kib = units_of(target) * 8;
        table += &format!("{name:<21} {short:>7} {long:>7}  {heads:>5}  {bodies:>6} {kib:>6}\n");
    }
    table
}

#[test]
fn a_terminal_session_gets_nearly_all_heads() {
    let lanes = [
        ("keystrokes", carrying(12.0, 0.0)),
        ("echoes", carrying(13.0, 0.1)),
        ("keystrokes, fast", carrying(100.0, 0.0)),
        ("acknowledgments", carrying(110.0, 0.0)),
    ];
    let expected = "\
lane                  short/s  long/s  heads  bodies    KiB
keystrokes                 12       0    512      16   5504
echoes                   12.9     0.1    512      16   5504
keystrokes, fast          100       0    512      16   5504
acknowledgments           110       0    512       0   4096
";
    assert_eq!(shown(&lanes, TOTAL), expected);
}

#[test]
fn packets_too_long_for_a_pad_get_no_part_that_they_do_not_use() {
    let lanes = [
        ("too long", LaneView { too_long: [true; 2], ..idle() }),
        ("and keystrokes", LaneView { too_long: [false, true], ..carrying(10.0, 0.0) }),
        ("and full packets", carrying(9_000.0, 9_000.0)),
    ];
    let expected = "\
lane                  short/s  long/s  heads  bodies    KiB
too long                    0       0      0       0      0
and keystrokes             10       0    512       0   4096
and full packets            0    9000    512     448  43520
";
    assert_eq!(shown(&lanes, TOTAL), expected);
}

#[test]
fn a_file_transfer_gets_full_pads() {
    let lanes = [
        ("data", carrying(50_000.0, 50_000.0)),
        ("answers", carrying(20_000.0, 0.0)),
        ("after losses", carrying(20_000.0, 2_000.0)),
    ];
    let expected = "\
lane                  short/s  long/s  heads  bodies    KiB
data                        0   50000    512     448  43520
answers                 20000       0    512       0   4096
after losses            18000    2000    512       0   4096
";
    assert_eq!(shown(&lanes, TOTAL), expected);
}

#[test]
fn the_next_key_of_a_file_transfer_gets_what_this_one_has_no_packets_left_for() {
    let next_key = LaneView { stage: Stage::Standby, ..carrying(50_000.0, 50_000.0) };
    let targets_with = |left, total| {
        let data = LaneView { left: [left; 2], ..carrying(50_000.0, 50_000.0) };
        targets(&[data, next_key], total)
    };
    for (left, expected) in [
        (u64::MAX, [[512, 448], [64, 0]]),
        (500, [[500, 448], [64, 0]]),
        (100, [[100, 100], [412, 348]]),
        (0, [[0, 0], [512, 448]]),
    ] {
        assert_eq!(targets_with(left, TOTAL), expected, "{left} chunks left");
    }
    // A small pool does not prepare the next key earlier than it has room for.
    let [[heads, bodies], [next_heads, _]] = targets_with(u64::MAX, 512)[..] else { panic!() };
    assert_eq!(targets_with(heads, 512), [[heads, bodies], [next_heads, 0]]);
    assert_eq!(targets_with(10, 512), [[10, 10], [next_heads.max(heads - 10), bodies - 10]]);
}

#[test]
fn the_next_key_gets_no_bodies_if_it_may_begin_at_any_packet() {
    let data = LaneView { left: [100; 2], ..carrying(50_000.0, 50_000.0) };
    let next = LaneView { stage: Stage::Imminent, ..carrying(50_000.0, 50_000.0) };
    assert_eq!(targets(&[data, next], TOTAL), [[100, 100], [64, 0]]);
}

#[test]
fn a_mixed_session_keeps_a_reserve_of_heads_over_its_bodies() {
    let lanes = [("mixed", carrying(20_012.0, 20_000.0)), ("answers", carrying(10_000.0, 0.0))];
    for (total, expected) in [
        (
            TOTAL,
            "\
lane                  short/s  long/s  heads  bodies    KiB
mixed                      12   20000    512     448  43520
answers                 10000       0    512       0   4096
",
        ),
        (
            1024,
            "\
lane                  short/s  long/s  heads  bodies    KiB
mixed                      12   20000    148      56   6112
answers                 10000       0    132       0   1056
",
        ),
        (
            128,
            "\
lane                  short/s  long/s  heads  bodies    KiB
mixed                      12   20000     40       3    584
answers                 10000       0     39       0    312
",
        ),
    ] {
        assert_eq!(shown(&lanes, total), expected, "{total} units");
    }
}

#[test]
fn many_idle_connections_get_keystrokes_each_and_few_get_full_pads_too() {
    let connection = [Stage::Brief, Stage::Active, Stage::Brief, Stage::Active].map(lane);
    for (connections, expected) in [
        (1, [[16, 4], [512, 248]]),
        (10, [[16, 4], [123, 16]]),
        (100, [[16, 0], [20, 0]]),
        (1000, [[2, 0], [2, 0]]),
    ] {
        let lanes: Vec<LaneView> = connection.into_iter().cycle().take(4 * connections).collect();
        let targets = targets(&lanes, TOTAL);
        assert_eq!(targets[..2], expected, "{connections} connections");
        assert!(targets.iter().all(|[heads, _]| *heads >= FLOOR_HEADS));
    }
}

#[test]
fn one_greedy_connection_leaves_the_others_their_share() {
    let mut lanes = vec![("greedy", carrying(200_000.0, 200_000.0))];
    lanes.extend([("terminal", carrying(10.0, 0.0)); 3]);
    lanes.extend([("transfer", carrying(1_000.0, 1_000.0)), ("idle", idle())]);
    let expected = "\
lane                  short/s  long/s  heads  bodies    KiB
greedy                      0  200000    512     448  43520
terminal                   10       0    223       0   1784
terminal                   10       0    223       0   1784
terminal                   10       0    222       0   1776
transfer                    0    1000    222      56   6704
idle                        0       0    222       0   1776
";
    assert_eq!(shown(&lanes, TOTAL), expected);
}

#[test]
fn a_peer_with_an_allowance_keeps_to_it_and_the_others_get_the_rest() {
    let of = |peer, units| Some(Allotment { peer, units });
    let greedy = LaneView { allotment: of(1, 512), ..carrying(200_000.0, 200_000.0) };
    let modest = LaneView { allotment: of(2, TOTAL), ..carrying(12.0, 0.0) };
    let lanes = [
        ("greedy, 4 MiB", greedy),
        ("greedy, 4 MiB", greedy),
        ("modest, 64 MiB", modest),
        ("transfer", carrying(1_000.0, 1_000.0)),
    ];
    let expected = "\
lane                  short/s  long/s  heads  bodies    KiB
greedy, 4 MiB               0  200000     59      15   1792
greedy, 4 MiB               0  200000     59      15   1792
modest, 64 MiB             12       0    512      16   5504
transfer                    0    1000    512     448  43520
";
    assert_eq!(shown(&lanes, TOTAL), expected);
}

#[test]
fn targets_of_all_lanes_fit_the_arena_with_a_share_to_spare() {
    for total in [11, 22, 128, 1000, TOTAL] {
        for count in 1..200 {
            let lanes: Vec<LaneView> = (0..count)
                .map(|nth| LaneView {
                    allotment: (nth % 7 < 3)
                        .then_some(Allotment { peer: nth % 7, units: total / 9 }),
                    ..match nth % 5 {
                        0 => idle(),
                        1 => carrying(100.0 * nth as f64, 0.0),
                        2 => carrying(1e5, 1e5 / nth as f64),
                        3 => lane(Stage::Brief),
                        _ => lane(Stage::Standby),
                    }
                })
                .collect();
            let targets = targets(&lanes, total);
            let used = |of: &dyn Fn(&LaneView) -> bool| -> usize {
                let some = lanes.iter().zip(&targets).filter(|(lane, _)| of(lane));
                some.map(|(_, target)| units_of(*target) as usize).sum()
            };
            let all = used(&|_| true);
            assert!(all <= total - total / NEWCOMERS_SHARE, "{count} lanes, {all} of {total}");
            for peer in 0..3 {
                let its = used(&|lane| lane.allotment.is_some_and(|of| of.peer == peer));
                assert!(its <= total / 9, "{count} lanes, peer {peer}: {its}");
            }
            for (lane, [heads, bodies]) in lanes.iter().zip(&targets) {
                let most = lane.stage.most();
                assert!(*heads <= most[0] && *bodies <= most[1]);
                assert!(*heads >= heads_for(*bodies), "{heads} heads, {bodies} bodies");
            }
        }
    }
}

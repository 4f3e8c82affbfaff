//! Tests the order of refills, and which lanes give chunks back.

use super::*;
use crate::lane_view::{MAX_BODIES, MAX_HEADS, Stage};
use crate::targets::targets;

const TOTAL: usize = 8192; // 64 MiB

fn lane(stage: Stage, heads: u64, bodies: u64) -> LaneView {
    let (kept, demand, recalled, allotment) = ([0; 2], [0.0; 2], [false; 2], None);
    let available = [heads, bodies];
    LaneView {
        stage,
        traffic: 0,
        available,
        left: [u64::MAX; 2],
        kept,
        demand,
        too_long: [false; 2],
        recalled,
        allotment,
    }
}

/// An empty active lane with this many packets per second, and this many long ones among them.
fn carrying(packets: f64, long: f64) -> LaneView {
    LaneView { demand: [packets, long], ..lane(Stage::Active, 0, 0) }
}

fn idle() -> LaneView {
    carrying(0.0, 0.0)
}

fn plan(lanes: &[LaneView], free_units: usize) -> Plan {
    plan_refill(lanes, &targets(lanes, TOTAL), free_units, TOTAL)
}

#[test]
fn heads_come_before_bodies_and_the_emptiest_lane_first() {
    let lanes = [lane(Stage::Active, 40, 0), lane(Stage::Active, 3, 0)];
    let work = [
        Work { lane: 1, part: Part::Head, chunks: 8 },
        Work { lane: 0, part: Part::Head, chunks: 8 },
    ];
    assert_eq!(plan(&lanes, TOTAL), Plan { work: work.into(), recalls: Vec::new() });
}

#[test]
fn bodies_are_filled_once_heads_are_full() {
    let lanes = [lane(Stage::Active, MAX_HEADS, 0)];
    assert_eq!(plan(&lanes, TOTAL).work, [Work { lane: 0, part: Part::Body, chunks: 2 }]);
}

#[test]
fn full_and_dormant_lanes_get_no_work() {
    let full = [lane(Stage::Active, MAX_HEADS, MAX_BODIES), lane(Stage::Dormant, 0, 0)];
    assert_eq!(plan(&full, TOTAL), Plan::default());
}

#[test]
fn bodies_leave_memory_for_the_heads_of_later_connections() {
    let full_of_heads = [lane(Stage::Active, MAX_HEADS, 0); 5];
    for (early, least) in [(1, TOTAL / HEADS_ONLY_SHARE - 512), (5, TOTAL / NEWCOMERS_SHARE)] {
        let early = &full_of_heads[..early];
        let work = |lanes: &[LaneView], free| plan(lanes, free).work;
        let body = Work { lane: 0, part: Part::Body, chunks: 1 };
        assert_eq!(work(early, least + Part::Body.units()), [body]);
        assert_eq!(work(early, least + Part::Body.units() - 1), []);
        let newcomer = early.len();
        let heads = Work { lane: newcomer, part: Part::Head, chunks: 8 };
        assert_eq!(work(&[early, &[idle()]].concat(), least), [heads]);
    }
}

#[test]
fn every_lane_reaches_its_target_in_whatever_order_memory_came_back() {
    let mut lanes = [carrying(20_000.0, 20_000.0), carrying(10_000.0, 0.0), idle(), idle()];
    for total in [64, 128, 1024, TOTAL] {
        let targets = targets(&lanes, total);
        // After a burst, all heads have been filled again.
        for (lane, [heads, _]) in lanes.iter_mut().zip(&targets) {
            lane.available = [*heads, 0];
        }
        loop {
            let held: usize = lanes.iter().map(LaneView::units_available).sum();
            let Plan { work, .. } = plan_refill(&lanes, &targets, total - held, total);
            if work.is_empty() {
                break;
            }
            for Work { lane, part, chunks } in work {
                lanes[lane].available[part as usize] += chunks;
            }
        }
        assert_eq!(lanes.map(|lane| lane.available)[..], targets, "{total} units");
    }
}

#[test]
fn heads_beyond_what_bodies_need_wait_for_the_bodies() {
    let plan_of = |heads, bodies| plan(&[lane(Stage::Active, heads, bodies)], TOTAL).work;
    let heads = |chunks| [Work { lane: 0, part: Part::Head, chunks }];
    assert_eq!(plan_of(60, 0), heads(4));
    assert_eq!(plan_of(64, 60), heads(7));
    assert_eq!(plan_of(71, 60), [Work { lane: 0, part: Part::Body, chunks: 2 }]);
    assert_eq!(plan_of(448, 448), heads(8));
    assert_eq!(plan_of(509, 448), heads(3));
}

#[test]
fn a_peer_at_its_allowance_gets_no_more_and_recalls_its_own_lanes() {
    let of =
        |lane: LaneView| LaneView { allotment: Some(Allotment { peer: 1, units: 80 }), ..lane };
    let hoarder = of(lane(Stage::Active, 80, 0));
    let newcomer = of(carrying(10.0, 0.0));
    let stranger = lane(Stage::Active, 500, 0);
    let plan = plan(&[hoarder, newcomer, stranger], TOTAL);
    assert_eq!(plan.recalls, [Recall { lane: 0, part: Part::Head, keep: 33 }]);
    assert_eq!(plan.work, [Work { lane: 2, part: Part::Body, chunks: 2 }]);
}

#[test]
fn a_peer_whose_allowance_shrinks_gives_back_even_if_nobody_goes_short() {
    let of = |units: usize, lane: LaneView| LaneView {
        allotment: Some(Allotment { peer: 1, units }),
        ..lane
    };
    let held = lane(Stage::Active, 80, 0);
    assert_eq!(plan(&[of(80, held)], TOTAL).recalls, []);
    let keep = targets(&[of(40, held)], TOTAL)[0][Part::Head as usize];
    assert!(keep <= 40, "{keep}");
    let shrunk = plan(&[of(40, held)], TOTAL);
    assert_eq!(shrunk.recalls, [Recall { lane: 0, part: Part::Head, keep }]);
    assert_eq!(shrunk.work, []);
}

#[test]
fn a_lane_above_its_target_is_recalled_only_while_others_go_short() {
    let hoarder = lane(Stage::Active, MAX_HEADS, 500);
    let newcomer = carrying(1000.0, 1000.0);
    assert_eq!(plan(&[hoarder, newcomer], TOTAL).recalls, []);
    let short = plan(&[hoarder, newcomer], 0);
    assert_eq!(short.work, []);
    let keep = targets(&[hoarder, newcomer], TOTAL)[0][Part::Body as usize];
    assert!(keep < 100, "{keep}");
    assert_eq!(short.recalls, [Recall { lane: 0, part: Part::Body, keep }]);
    // Recalled once, and not filled until it has obeyed.
    let asked = LaneView { recalled: [false, true], available: [MAX_HEADS, 0], ..hoarder };
    let later = plan(&[asked, newcomer], TOTAL);
    assert_eq!(later.recalls, []);
    assert!(later.work.iter().all(|work| work.lane == 1), "{:?}", later.work);
}

#[test]
fn the_next_key_waits_until_this_one_has_all_that_it_needs() {
    let of_phase = |stage, bodies| LaneView {
        left: if stage == Stage::Active { [100; 2] } else { [u64::MAX; 2] },
        demand: [1e5; 2],
        ..lane(stage, 100, bodies)
    };
    let next = of_phase(Stage::Standby, 0);
    let work = |lanes: &[LaneView]| plan(lanes, TOTAL).work;
    let bodies = |lane| [Work { lane, part: Part::Body, chunks: 2 }];
    assert_eq!(work(&[of_phase(Stage::Active, 98), next]), bodies(0));
    assert_eq!(work(&[of_phase(Stage::Active, 100), next]), bodies(1));
}

#[test]
fn work_never_exceeds_what_is_free() {
    for free in 0..40 {
        for lanes in [
            vec![lane(Stage::Active, 0, 0); 5],
            vec![lane(Stage::Active, MAX_HEADS, 0); 3],
            vec![lane(Stage::Brief, 16, 0), lane(Stage::Standby, 0, 0)],
        ] {
            let used: usize = plan(&lanes, free)
                .work
                .iter()
                .map(|work| work.chunks as usize * work.part.units())
                .sum();
            assert!(used <= free, "{used} of {free}");
        }
    }
}

use super::*;

const TOTAL: usize = 8192; // 64 MiB

fn lane(stage: Stage, heads: u64, bodies: u64) -> LaneView {
    LaneView { stage, at_hand: [heads, bodies], demand: [0.0; 2], recalled: [false; 2] }
}

/// An active lane that holds nothing and carries so many packets a second, long ones among them.
fn carrying(packets: f64, long: f64) -> LaneView {
    LaneView { demand: [packets, long], ..lane(Stage::Active, 0, 0) }
}

fn idle() -> LaneView {
    carrying(0.0, 0.0)
}

fn plan(lanes: &[LaneView], free_units: usize) -> Plan {
    plan_refill(lanes, &targets(lanes, TOTAL), free_units, TOTAL)
}

fn units([heads, bodies]: &[u64; 2]) -> usize {
    *heads as usize + *bodies as usize * Part::Body.units()
}

#[test]
fn one_connection_gets_all_the_heads_it_may_have_and_bodies_in_the_rest() {
    // Both directions, in their first phase, with the second prepared.
    let lanes = [Stage::Brief, Stage::Active, Stage::Brief, Stage::Active];
    let lanes = lanes.map(|stage| lane(stage, 0, 0));
    assert_eq!(targets(&lanes, TOTAL), [[16, 4], [64, 268], [16, 4], [64, 268]]);
}

#[test]
fn bodies_go_where_long_packets_go() {
    let terminal = carrying(10.0, 0.0);
    let transfer = carrying(50_000.0, 50_000.0);
    let acknowledging = carrying(20_000.0, 0.0);
    let targets = targets(&[terminal, transfer, acknowledging, idle()], TOTAL);
    assert_eq!(targets, [[64, 8], [64, 512], [64, 8], [64, 7]]);
}

#[test]
fn in_a_small_arena_heads_that_are_needed_come_before_bodies() {
    let lanes = [carrying(10.0, 0.0), carrying(1000.0, 1000.0)];
    assert_eq!(targets(&lanes, 128), [[26, 0], [64, 2]]);
    // With fewer units than heads are needed, those who need little get it first.
    assert_eq!(targets(&lanes, 32), [[5, 0], [23, 0]]);
}

#[test]
fn a_thousand_idle_connections_have_a_head_chunk_in_every_lane() {
    let stages = [Stage::Brief, Stage::Active, Stage::Brief, Stage::Active];
    let lanes: Vec<LaneView> = (0..4000).map(|nth| lane(stages[nth % 4], 0, 0)).collect();
    assert!(targets(&lanes, TOTAL).iter().all(|[heads, _]| *heads >= FLOOR_HEADS));
}

#[test]
fn targets_of_all_lanes_fit_the_arena_with_a_share_to_spare() {
    for total in [22, 128, 1000, TOTAL] {
        for count in 1..200 {
            let lanes: Vec<LaneView> = (0..count)
                .map(|nth| match nth % 5 {
                    0 => idle(),
                    1 => carrying(100.0 * nth as f64, 0.0),
                    2 => carrying(1e5, 1e5 / nth as f64),
                    3 => lane(Stage::Brief, 0, 0),
                    _ => lane(Stage::Standby, 0, 0),
                })
                .collect();
            let targets = targets(&lanes, total);
            let used: usize = targets.iter().map(units).sum();
            assert!(used <= total - total / NEWCOMERS_SHARE, "{count} lanes, {used} of {total}");
            for (lane, target) in lanes.iter().zip(&targets) {
                let most = lane.stage.most();
                assert!(target[0] <= most[0] && target[1] <= most[1]);
            }
        }
    }
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
fn full_heads_let_bodies_in() {
    let lanes = [lane(Stage::Active, MAX_HEADS, 0)];
    assert_eq!(plan(&lanes, TOTAL).work, [Work { lane: 0, part: Part::Body, chunks: 2 }]);
}

#[test]
fn full_lanes_and_dormant_lanes_want_nothing() {
    let full = [lane(Stage::Active, MAX_HEADS, MAX_BODIES), lane(Stage::Dormant, 0, 0)];
    assert_eq!(plan(&full, TOTAL), Plan::default());
}

#[test]
fn bodies_leave_memory_for_the_heads_of_later_connections() {
    let early = lane(Stage::Active, MAX_HEADS, 0);
    assert!(plan(&[early], TOTAL / HEADS_ONLY_SHARE).work.is_empty());
    let work = plan(&[early, idle()], TOTAL / HEADS_ONLY_SHARE).work;
    assert_eq!(work, [Work { lane: 1, part: Part::Head, chunks: 8 }]);
}

#[test]
fn who_holds_too_much_gives_back_when_others_go_short_and_only_then() {
    let hoarder = lane(Stage::Active, MAX_HEADS, 500);
    let newcomer = carrying(1000.0, 1000.0);
    assert_eq!(plan(&[hoarder, newcomer], TOTAL).recalls, []);
    let short = plan(&[hoarder, newcomer], 0);
    assert_eq!(short.work, []);
    let keep = targets(&[hoarder, newcomer], TOTAL)[0][Part::Body as usize];
    assert!(keep < 100, "{keep}");
    assert_eq!(short.recalls, [Recall { lane: 0, part: Part::Body, keep }]);
    // Asked once, and not filled until it has obeyed.
    let asked = LaneView { recalled: [false, true], at_hand: [MAX_HEADS, 0], ..hoarder };
    let later = plan(&[asked, newcomer], TOTAL);
    assert_eq!(later.recalls, []);
    assert!(later.work.iter().all(|work| work.lane == 1), "{:?}", later.work);
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

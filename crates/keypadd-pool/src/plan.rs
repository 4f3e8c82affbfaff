//! What to fill next: a pure function of what every lane has and what the arena has free.
//!
//! Knows no threads, no keys and no clock. Heads come before bodies, because a head serves a
//! keystroke and is a tenth of the work; the emptiest lane comes first, because it is the
//! nearest to running dry; the active lanes share the arena evenly, with one share kept for
//! whoever connects next.

use crate::chunk::Part;

/// Most head chunks a lane holds: 4,096 packets, over half a minute of 100 packets a second.
pub(crate) const MAX_HEADS: u64 = 64;
/// Most body chunks a lane holds: 32,768 packets, 47 MB of full ones.
pub(crate) const MAX_BODIES: u64 = 512;
/// Head chunks that cover a first phase of 999 packets wherever it ends.
const FIRST_PHASE_HEADS: u64 = 16;
/// Body chunks for a first phase: enough for what a first burst can send before the rekey.
const FIRST_PHASE_BODIES: u64 = 4;
/// Head chunks of a key about to come into use.
const STANDBY_HEADS: u64 = 16;
/// One part in this many of the arena is for heads alone, so that idle bulk pads of early
/// connections do not leave later ones without pads for their keystrokes.
const HEADS_ONLY_SHARE: usize = 4;
/// Chunks of one piece of work: what a filler makes before it looks around again.
const BATCH: [u64; 2] = [8, 2];

/// How much a lane should be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A key far from use: nothing.
    Dormant,
    /// The next phase shortly before its use: heads near the current position.
    Standby,
    /// The first phase of a connection, which lasts under 1,000 packets: no more than those.
    Brief,
    /// A key in use.
    Active,
}

impl Stage {
    pub(crate) const ALL: [Self; 4] = [Self::Dormant, Self::Standby, Self::Brief, Self::Active];
}

/// What the plan needs to know of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneView {
    /// How much it should be filled.
    pub stage: Stage,
    /// Chunks in its queues, by part.
    pub queued: [u64; 2],
}

/// Chunks to make for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Index into the lanes given.
    pub lane: usize,
    /// Which part.
    pub part: Part,
    /// How many chunks, at least one.
    pub chunks: u64,
}

/// The next pieces of work, most urgent first; none when every lane is full or nothing is free.
/// The units of all pieces together are at most `free_units`.
pub(crate) fn plan_refill(lanes: &[LaneView], free_units: usize, total_units: usize) -> Vec<Work> {
    let targets = targets(lanes, total_units);
    for part in Part::ALL {
        let kept = if part == Part::Body { total_units / HEADS_ONLY_SHARE } else { 0 };
        let mut free = free_units.saturating_sub(kept) / part.units();
        let mut wanting: Vec<usize> = (0..lanes.len())
            .filter(|&lane| lanes[lane].queued[part as usize] < targets[lane][part as usize])
            .collect();
        let emptiness = |lane: usize| {
            let (queued, target) =
                (lanes[lane].queued[part as usize], targets[lane][part as usize]);
            queued * 1000 / target
        };
        wanting.sort_by_key(|&lane| emptiness(lane));
        let mut work = Vec::new();
        for lane in wanting {
            let deficit = targets[lane][part as usize] - lanes[lane].queued[part as usize];
            let chunks = deficit.min(BATCH[part as usize]).min(free as u64);
            if chunks > 0 {
                free -= chunks as usize;
                work.push(Work { lane, part, chunks });
            }
        }
        if !work.is_empty() {
            return work;
        }
    }
    Vec::new()
}

/// Chunks that each lane should hold, by part.
pub(crate) fn targets(lanes: &[LaneView], total_units: usize) -> Vec<[u64; 2]> {
    let active = lanes.iter().filter(|lane| lane.stage == Stage::Active).count();
    let share = (total_units / (active + 1)) as u64;
    let body_units = Part::Body.units() as u64;
    lanes
        .iter()
        .map(|lane| match lane.stage {
            Stage::Dormant => [0, 0],
            Stage::Standby => [STANDBY_HEADS.min(share), 0],
            Stage::Brief => {
                [FIRST_PHASE_HEADS.min(share), FIRST_PHASE_BODIES.min(share / 2 / body_units)]
            }
            Stage::Active => {
                let heads = (share / 4).clamp(1, MAX_HEADS);
                [heads, (share.saturating_sub(heads) / body_units).min(MAX_BODIES)]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: usize = 8192; // 64 MiB

    fn lane(stage: Stage, heads: u64, bodies: u64) -> LaneView {
        LaneView { stage, queued: [heads, bodies] }
    }

    #[test]
    fn heads_come_before_bodies_and_the_emptiest_lane_first() {
        let lanes = [lane(Stage::Active, 40, 0), lane(Stage::Active, 3, 0)];
        let work = plan_refill(&lanes, TOTAL, TOTAL);
        assert_eq!(
            work,
            [
                Work { lane: 1, part: Part::Head, chunks: 8 },
                Work { lane: 0, part: Part::Head, chunks: 8 }
            ]
        );
    }

    #[test]
    fn full_heads_let_bodies_in() {
        let lanes = [lane(Stage::Active, MAX_HEADS, 0)];
        assert_eq!(
            plan_refill(&lanes, TOTAL, TOTAL),
            [Work { lane: 0, part: Part::Body, chunks: 2 }]
        );
    }

    #[test]
    fn full_lanes_and_dormant_lanes_want_nothing() {
        let full = [lane(Stage::Active, MAX_HEADS, MAX_BODIES), lane(Stage::Dormant, 0, 0)];
        assert!(plan_refill(&full, TOTAL, TOTAL).is_empty());
    }

    #[test]
    fn bodies_leave_memory_for_the_heads_of_later_connections() {
        let early = lane(Stage::Active, MAX_HEADS, 0);
        assert!(plan_refill(&[early], TOTAL / HEADS_ONLY_SHARE, TOTAL).is_empty());
        let late = lane(Stage::Active, 0, 0);
        let work = plan_refill(&[early, late], TOTAL / HEADS_ONLY_SHARE, TOTAL);
        assert_eq!(work, [Work { lane: 1, part: Part::Head, chunks: 8 }]);
    }

    #[test]
    fn work_never_exceeds_what_is_free() {
        for free in 0..40 {
            for lanes in [
                vec![lane(Stage::Active, 0, 0); 5],
                vec![lane(Stage::Active, MAX_HEADS, 0); 3],
                vec![lane(Stage::Brief, 16, 0), lane(Stage::Standby, 0, 0)],
            ] {
                let used: usize = plan_refill(&lanes, free, TOTAL)
                    .iter()
                    .map(|work| work.chunks as usize * work.part.units())
                    .sum();
                assert!(used <= free, "{used} of {free}");
            }
        }
    }

    #[test]
    fn targets_of_all_lanes_fit_the_arena_with_a_share_to_spare() {
        for count in 1..200 {
            let lanes = vec![lane(Stage::Active, 0, 0); count];
            let used: u64 = targets(&lanes, TOTAL)
                .iter()
                .map(|[heads, bodies]| heads + bodies * Part::Body.units() as u64)
                .sum();
            assert!(used as usize <= TOTAL * count / (count + 1), "{count} lanes");
        }
    }
}

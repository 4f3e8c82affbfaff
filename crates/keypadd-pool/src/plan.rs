//! Who gets how much of the pool, and what to fill next: pure functions of what every lane needs
//! and has, and of the budget.
//!
//! Knows no threads, no keys and no clock. Every lane that may be used has a floor of one head
//! chunk. Above it come heads for the packets of the next half minute, because a head serves a
//! keystroke and is a tenth of the work, first for those who need few; then bodies by the rate of
//! long packets; what is left is spread evenly, since memory without keystream serves nobody. Who
//! holds more than that while others go short is asked to give back.

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
/// Head chunks that every lane is to have: 64 keystrokes.
const FLOOR_HEADS: u64 = 1;
/// Heads for this many seconds of the packets of late are more urgent than any body.
const HEADS_AHEAD_SECONDS: f64 = 30.0;
/// One part in this many of the arena is for heads alone, so that idle bulk pads of early
/// connections do not leave later ones without pads for their keystrokes.
const HEADS_ONLY_SHARE: usize = 4;
/// One part in this many is nobody's, until somebody new comes.
const NEWCOMERS_SHARE: usize = 8;
/// What is held above a target by no more than one part in this many is not asked back. The targets
/// and all that together stay below the arena: who goes short is always helped by recalls.
const SLACK_SHARE: u64 = 8;
/// Chunks of one piece of work: what a filler makes before it looks around again.
const BATCH: [u64; 2] = [8, 2];

/// How much a lane may be filled.
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

    /// Most chunks that a lane of this stage holds, by part.
    const fn most(self) -> [u64; 2] {
        match self {
            Self::Dormant => [0, 0],
            Self::Standby => [STANDBY_HEADS, 0],
            Self::Brief => [FIRST_PHASE_HEADS, FIRST_PHASE_BODIES],
            Self::Active => [MAX_HEADS, MAX_BODIES],
        }
    }
}

/// What the plan needs to know of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneView {
    /// How much it may be filled.
    pub stage: Stage,
    /// Chunks at hand, the one in use among them, by part.
    pub at_hand: [u64; 2],
    /// Packets a second that needed each part, lately.
    pub demand: [f64; 2],
    /// Parts that have been asked to give back and have not yet.
    pub recalled: [bool; 2],
}

impl LaneView {
    /// Memory at hand, in units.
    pub(crate) fn units(&self) -> usize {
        Part::ALL.iter().map(|&part| self.at_hand[part as usize] as usize * part.units()).sum()
    }
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

/// A lane that is to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recall {
    /// Index into the lanes given.
    pub lane: usize,
    /// Which part.
    pub part: Part,
    /// How many chunks it keeps, the one in use among them.
    pub keep: u64,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The next pieces of work, most urgent first; none when every lane is full or nothing is
    /// free. Their units together are at most what was free.
    pub work: Vec<Work>,
    /// Whose memory others need.
    pub recalls: Vec<Recall>,
}

/// Plans by targets, as [`targets`] gives them. Heads come before bodies, and the emptiest lane
/// first, because it is the nearest to running dry.
pub(crate) fn plan_refill(
    lanes: &[LaneView],
    targets: &[[u64; 2]],
    free_units: usize,
    total_units: usize,
) -> Plan {
    let mut plan = Plan::default();
    for part in Part::ALL {
        let kept = if part == Part::Body { total_units / HEADS_ONLY_SHARE } else { 0 };
        let mut free = free_units.saturating_sub(kept) / part.units();
        let deficit = |lane: usize| {
            let (view, at) = (&lanes[lane], part as usize);
            if view.recalled[at] { 0 } else { targets[lane][at].saturating_sub(view.at_hand[at]) }
        };
        let mut wanting: Vec<usize> = (0..lanes.len()).filter(|&lane| deficit(lane) > 0).collect();
        wanting.sort_by_key(|&lane| {
            lanes[lane].at_hand[part as usize] * 1000 / targets[lane][part as usize]
        });
        for lane in wanting {
            let chunks = deficit(lane).min(BATCH[part as usize]).min(free as u64);
            if chunks > 0 {
                free -= chunks as usize;
                plan.work.push(Work { lane, part, chunks });
            } else if plan.recalls.is_empty() {
                plan.recalls = recalls(lanes, targets);
            }
        }
        if !plan.work.is_empty() {
            break;
        }
    }
    plan
}

/// Lanes that hold clearly more than their targets, and have not been asked yet.
fn recalls(lanes: &[LaneView], targets: &[[u64; 2]]) -> Vec<Recall> {
    let mut recalls = Vec::new();
    for (lane, view) in lanes.iter().enumerate() {
        for part in Part::ALL {
            let (keep, at_hand) = (targets[lane][part as usize], view.at_hand[part as usize]);
            if !view.recalled[part as usize] && at_hand > keep + keep / SLACK_SHARE {
                recalls.push(Recall { lane, part, keep });
            }
        }
    }
    recalls
}

/// Chunks that each lane should hold, by part. All of them together leave a share of `total_units`
/// for newcomers.
pub(crate) fn targets(lanes: &[LaneView], total_units: usize) -> Vec<[u64; 2]> {
    let most: Vec<[u64; 2]> = lanes.iter().map(|lane| lane.stage.most()).collect();
    let heads_of = |most: &[u64; 2]| most[Part::Head as usize];
    let mut left = (total_units - total_units / NEWCOMERS_SHARE) as u64;
    let mut heads = vec![0; lanes.len()];

    let floors: Vec<u64> = most.iter().map(|most| heads_of(most).min(FLOOR_HEADS)).collect();
    share(&mut heads, &mut left, &floors, |_| 1.0);
    let needed: Vec<u64> = lanes
        .iter()
        .zip(&most)
        .map(|(lane, most)| {
            let chunks = lane.demand[Part::Head as usize] * HEADS_AHEAD_SECONDS / 64.0;
            heads_of(most).min(chunks.ceil() as u64)
        })
        .collect();
    share(&mut heads, &mut left, &needed, |_| 1.0);

    // Bodies leave heads their part of the arena, used or not.
    let for_heads = (total_units / HEADS_ONLY_SHARE) as u64;
    let used: u64 = heads.iter().sum();
    let mut body_left =
        (total_units as u64 - for_heads).saturating_sub(used).min(left) / Part::Body.units() as u64;
    let body_budget = body_left;
    let mut bodies = vec![0; lanes.len()];
    let wanted: Vec<u64> = most.iter().map(|most| most[Part::Body as usize]).collect();
    share(&mut bodies, &mut body_left, &wanted, |lane| lanes[lane].demand[Part::Body as usize]);

    // What nobody needs: as many heads as there may be, and bodies in the rest.
    let body_units = (body_budget - body_left) * Part::Body.units() as u64;
    let mut head_left = left - body_units;
    let wanted_heads: Vec<u64> = most.iter().map(heads_of).collect();
    share(&mut heads, &mut head_left, &wanted_heads, |_| 1.0);
    let used = heads.iter().sum::<u64>() + body_units;
    let mut body_left = body_left
        .min((total_units as u64 - for_heads).saturating_sub(used) / Part::Body.units() as u64)
        .min(head_left / Part::Body.units() as u64);
    share(&mut bodies, &mut body_left, &wanted, |_| 1.0);

    heads.into_iter().zip(bodies).map(|(heads, bodies)| [heads, bodies]).collect()
}

/// Gives out of `left` by weight, each lane up to `most` in all; a lane of no weight gets nothing.
/// What one lane cannot take goes to the others, and what division leaves over to the first.
fn share(given: &mut [u64], left: &mut u64, most: &[u64], weight: impl Fn(usize) -> f64) {
    let mut open: Vec<usize> =
        (0..given.len()).filter(|&lane| given[lane] < most[lane] && weight(lane) > 0.0).collect();
    while *left > 0 && !open.is_empty() {
        let (available, weights) =
            (*left as f64, open.iter().map(|&lane| weight(lane)).sum::<f64>());
        let before = *left;
        for &lane in &open {
            let part = (available * weight(lane) / weights) as u64;
            let more = part.min(most[lane] - given[lane]).min(*left);
            given[lane] += more;
            *left -= more;
        }
        open.retain(|&lane| given[lane] < most[lane]);
        if *left == before {
            // Less than one chunk each: one for as many as there are.
            for &lane in open.iter().take(*left as usize) {
                given[lane] += 1;
                *left -= 1;
            }
            break;
        }
    }
}

#[cfg(test)]
mod tests;

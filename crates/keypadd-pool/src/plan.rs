//! What to fill next, and who is to give back: pure functions of what every lane has and of what
//! `targets.rs` says that it should have.
//!
//! Knows no threads, no keys and no clock. Heads come before bodies as far as keystrokes and the
//! bodies at hand need them, then bodies, then the heads that are left. Who holds more than its target
//! while others go short is asked to give back, and so is a peer that holds more than it may.

use std::collections::{HashMap, HashSet};

use crate::chunk::Part;
use crate::targets::{HEADS_ONLY_SHARE, PLENTY_HEADS, heads_for};

/// Most head chunks a lane holds: 32,768 packets, 4 MiB.
pub(crate) const MAX_HEADS: u64 = 512;
/// Most body chunks a lane holds, 41 MB of full pads: as many as that many heads allow.
pub(crate) const MAX_BODIES: u64 = 448;
/// Head chunks that cover a first phase of 999 packets wherever it ends.
const FIRST_PHASE_HEADS: u64 = 16;
/// Body chunks for a first phase: enough for what a first burst can send before the rekey.
const FIRST_PHASE_BODIES: u64 = 4;
/// Head chunks of a key about to come into use.
const STANDBY_HEADS: u64 = 16;
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
    pub(crate) const fn most(self) -> [u64; 2] {
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
    /// Chunks that it keeps besides, for late packets, by part.
    pub kept: [u64; 2],
    /// Packets a second that needed each part, lately.
    pub demand: [f64; 2],
    /// Parts that have been asked to give back and have not yet.
    pub recalled: [bool; 2],
    /// What all lanes of its peer may hold together, if that is limited.
    pub allotment: Option<Allotment>,
}

/// Memory of one peer, whose lanes all have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Allotment {
    /// Tells it from others; no order is meant.
    pub peer: usize,
    /// What its lanes may hold.
    pub units: usize,
}

impl LaneView {
    /// Memory at hand, in units.
    pub(crate) fn units_at_hand(&self) -> usize {
        units(self.at_hand)
    }

    /// Memory that is kept besides, in units.
    pub(crate) fn units_kept(&self) -> usize {
        units(self.kept)
    }
}

fn units(chunks: [u64; 2]) -> usize {
    Part::ALL.iter().map(|&part| chunks[part as usize] as usize * part.units()).sum()
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

/// Plans by targets, as [`targets`](crate::targets::targets) gives them. The emptiest lane comes
/// first, because it is the nearest to running dry.
pub(crate) fn plan_refill(
    lanes: &[LaneView],
    targets: &[[u64; 2]],
    free_units: usize,
    total_units: usize,
) -> Plan {
    let held = held_by_allotment(lanes);
    let left = |(&of, &held): (&Allotment, &usize)| (of, of.units.saturating_sub(held));
    let mut free = Free { units: free_units, by_allotment: held.iter().map(left).collect() };
    let mut work = Vec::new();
    // Whose memory has run out: everybody's, or one peer's. A peer whose allotment has shrunk has none either,
    // though its lanes want no more.
    let overdrawn = held.iter().filter(|(of, held)| **held > of.units).map(|(of, _)| Some(*of));
    let mut short: HashSet<Option<Allotment>> = overdrawn.collect();
    for (part, wish) in [
        (Part::Head, urgent_heads as fn(&LaneView) -> u64),
        (Part::Body, |_| u64::MAX),
        (Part::Head, |_| u64::MAX),
    ] {
        let kept = if part == Part::Body { total_units / HEADS_ONLY_SHARE } else { 0 };
        let at = part as usize;
        let deficit = |lane: usize| {
            let view = &lanes[lane];
            let wanted = targets[lane][at].min(wish(view));
            if view.recalled[at] { 0 } else { wanted.saturating_sub(view.at_hand[at]) }
        };
        let mut wanting: Vec<usize> = (0..lanes.len()).filter(|&lane| deficit(lane) > 0).collect();
        wanting.sort_by_key(|&lane| lanes[lane].at_hand[at] * 1000 / targets[lane][at]);
        for lane in wanting {
            let wanted = deficit(lane).min(BATCH[at]);
            let chunks = free.take(wanted, part, kept, lanes[lane].allotment);
            if chunks > 0 {
                work.push(Work { lane, part, chunks });
            } else {
                short.insert(free.exhausted(part, lanes[lane].allotment));
            }
        }
        if !work.is_empty() {
            break;
        }
    }
    Plan { work, recalls: recalls(lanes, targets, &short) }
}

/// Heads that come before bodies: for keystrokes, and for the bodies that come next.
fn urgent_heads(lane: &LaneView) -> u64 {
    let bodies = lane.at_hand[Part::Body as usize] + BATCH[Part::Body as usize];
    PLENTY_HEADS.max(heads_for(bodies))
}

/// Memory that work may take.
struct Free {
    units: usize,
    by_allotment: HashMap<Allotment, usize>,
}

impl Free {
    /// Takes memory for as many of `chunks` as there is, and leaves `kept` units.
    fn take(&mut self, chunks: u64, part: Part, kept: usize, of: Option<Allotment>) -> u64 {
        let mut units = self.units.saturating_sub(kept);
        if let Some(left) = of.and_then(|of| self.by_allotment.get(&of)) {
            units = units.min(*left);
        }
        let chunks = chunks.min((units / part.units()) as u64);
        let taken = chunks as usize * part.units();
        self.units -= taken;
        if let Some(left) = of.and_then(|of| self.by_allotment.get_mut(&of)) {
            *left -= taken;
        }
        chunks
    }

    /// The allotment, if that is what had no memory for a chunk.
    fn exhausted(&self, part: Part, of: Option<Allotment>) -> Option<Allotment> {
        of.filter(|of| self.by_allotment.get(of).is_some_and(|left| *left < part.units()))
    }
}

fn held_by_allotment(lanes: &[LaneView]) -> HashMap<Allotment, usize> {
    let mut held = HashMap::new();
    for lane in lanes {
        if let Some(allotment) = lane.allotment {
            *held.entry(allotment).or_default() += lane.units_at_hand() + lane.units_kept();
        }
    }
    held
}

/// Lanes that hold clearly more than their targets, or keep what they are to have none of, and have not been
/// asked yet. Who is short for its own peer's sake is helped by that peer's lanes alone.
fn recalls(
    lanes: &[LaneView],
    targets: &[[u64; 2]],
    short: &HashSet<Option<Allotment>>,
) -> Vec<Recall> {
    let mut recalls = Vec::new();
    for (lane, view) in lanes.iter().enumerate() {
        if !short.contains(&None) && !short.contains(&view.allotment) {
            continue;
        }
        for part in Part::ALL {
            let (keep, at_hand) = (targets[lane][part as usize], view.at_hand[part as usize]);
            let too_much =
                at_hand > keep + keep / SLACK_SHARE || keep == 0 && view.kept[part as usize] > 0;
            if !view.recalled[part as usize] && too_much {
                recalls.push(Recall { lane, part, keep });
            }
        }
    }
    recalls
}

#[cfg(test)]
mod tests;

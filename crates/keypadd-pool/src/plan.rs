//! Plans what to fill next and which lanes must give chunks back: pure functions of what every lane
//! has and of its target (`targets.rs`).
//!
//! Fills heads first, as far as keystrokes and available bodies need them, then bodies, then the
//! remaining heads. A lane above its target must give back while others go short; so must a peer
//! above its limit. Knows no threads, keys or clock.

use std::collections::{HashMap, HashSet};

use crate::chunk::Part;
use crate::lane_view::{Allotment, LaneView, Stage, in_use};
use crate::targets::{HEADS_ONLY_SHARE, NEWCOMERS_SHARE, PLENTY_HEADS, heads_for};

/// A lane is not recalled unless it exceeds its target by more than one part in this many. Targets
/// plus that slack stay below the arena, so a recall always helps whoever goes short.
const SLACK_SHARE: u64 = 8;
/// Chunks per piece of work: what a filler generates before it plans again.
const BATCH: [u64; 2] = [8, 2];

/// Chunks to generate for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Index into the lanes given.
    pub lane: usize,
    /// Which part.
    pub part: Part,
    /// How many chunks, at least one.
    pub chunks: u64,
}

/// A lane that must give chunks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recall {
    /// Index into the lanes given.
    pub lane: usize,
    /// Which part.
    pub part: Part,
    /// The number of chunks it keeps, counting the current one.
    pub keep: u64,
}

/// What the filler does next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The next pieces of work, most urgent first; empty if every lane is full or nothing is free.
    /// Together they take at most the free units.
    pub work: Vec<Work>,
    /// Lanes whose memory others need.
    pub recalls: Vec<Recall>,
}

/// Plans towards the given [`targets`](crate::targets::targets). The emptiest lane comes first,
/// because it is closest to running dry.
pub(crate) fn plan_refill(
    lanes: &[LaneView],
    targets: &[[u64; 2]],
    free_units: usize,
    total_units: usize,
) -> Plan {
    let held = held_by_allotment(lanes);
    let left = |(&of, &held): (&Allotment, &usize)| (of, of.units.saturating_sub(held));
    let mut free = Free { units: free_units, by_allotment: held.iter().map(left).collect() };
    let in_use = in_use(lanes);
    let mut work = Vec::new();
    // Whose memory has run out: the pool's (`None`) or one peer's. A peer whose limit was lowered
    // is short even though its lanes want nothing.
    let overdrawn = held.iter().filter(|(of, held)| **held > of.units).map(|(of, _)| Some(*of));
    let mut short: HashSet<Option<Allotment>> = overdrawn.collect();
    for (part, wish) in [
        (Part::Head, urgent_heads as fn(&LaneView) -> u64),
        (Part::Body, |_| u64::MAX),
        (Part::Head, |_| u64::MAX),
    ] {
        let kept = if part == Part::Body { kept_for_heads(lanes, total_units) } else { 0 };
        let at = part as usize;
        let own = |lane: usize| {
            let view = &lanes[lane];
            let wanted = targets[lane][at].min(wish(view));
            if view.recalled[at] { 0 } else { wanted.saturating_sub(view.available[at]) }
        };
        // The packets of the key in use come first.
        let waits = |lane: usize| {
            let before =
                in_use.get(&lanes[lane].traffic).filter(|_| lanes[lane].stage == Stage::Standby);
            before.is_some_and(|&before| own(before) > 0)
        };
        let deficit = |lane: usize| if waits(lane) { 0 } else { own(lane) };
        let mut wanting: Vec<usize> = (0..lanes.len()).filter(|&lane| deficit(lane) > 0).collect();
        wanting.sort_unstable_by_key(|&lane| {
            (lanes[lane].available[at] * 1000 / targets[lane][at], lane)
        });
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

/// Heads that come before bodies: those for keystrokes and for the next bodies.
fn urgent_heads(lane: &LaneView) -> u64 {
    let bodies = lane.available[Part::Body as usize] + BATCH[Part::Body as usize];
    PLENTY_HEADS.max(heads_for(bodies))
}

/// Memory that bodies leave free, in units: what is for heads only, less the heads in it, but no
/// less than what is for new lanes.
fn kept_for_heads(lanes: &[LaneView], total_units: usize) -> usize {
    let without_bodies = |lane: &LaneView| {
        let [heads, bodies] = lane.available;
        heads.saturating_sub(heads_for(bodies)) as usize
    };
    let heads: usize = lanes.iter().map(without_bodies).sum();
    (total_units / HEADS_ONLY_SHARE).saturating_sub(heads).max(total_units / NEWCOMERS_SHARE)
}

/// Free memory, in all and by peer.
struct Free {
    units: usize,
    by_allotment: HashMap<Allotment, usize>,
}

impl Free {
    /// Takes memory for up to `chunks` chunks, leaving `kept` units; returns how many.
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

    /// The peer's limit, if that is what left no memory for a chunk.
    fn exhausted(&self, part: Part, of: Option<Allotment>) -> Option<Allotment> {
        of.filter(|of| self.by_allotment.get(of).is_some_and(|left| *left < part.units()))
    }
}

fn held_by_allotment(lanes: &[LaneView]) -> HashMap<Allotment, usize> {
    let mut held = HashMap::new();
    for lane in lanes {
        if let Some(allotment) = lane.allotment {
            *held.entry(allotment).or_default() += lane.units_available() + lane.units_kept();
        }
    }
    held
}

/// Recalls lanes that hold clearly more than their targets, or keep chunks while their target is
/// zero. A peer's own shortage recalls only that peer's lanes.
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
            let (keep, available) = (targets[lane][part as usize], view.available[part as usize]);
            let too_much =
                available > keep + keep / SLACK_SHARE || keep == 0 && view.kept[part as usize] > 0;
            if !view.recalled[part as usize] && too_much {
                recalls.push(Recall { lane, part, keep });
            }
        }
    }
    recalls
}

#[cfg(test)]
mod tests;

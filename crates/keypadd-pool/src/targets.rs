//! Divides the pool among lanes: a pure function of what every lane needs and of the budget.
//!
//! A body is useless without its packet's head, so every lane has more heads than bodies. The
//! surplus is a reserve for keystrokes when bulk traffic has used up the bodies. The pool goes, in
//! this order, to
//!
//! 1. one head chunk for every lane that may be used, unless its packets are too long;
//! 2. heads for expected packets, first for lanes that need few, because a head serves a keystroke
//!    at a tenth of the work;
//! 3. full pads for long packets, by their rate;
//! 4. all lanes evenly, since empty memory serves nobody.
//!
//! A key gets no more than it has packets left for; the rest of its share goes to the next one. A
//! peer with a limit is divided like a pool of its own. Knows no threads, keys or clock.

use std::collections::{BTreeMap, HashSet};

use crate::chunk::Part;
use crate::lane_view::{Allotment, LaneView, Stage, in_use};

/// The least head chunks of every lane: 64 keystrokes.
const FLOOR_HEADS: u64 = 1;
/// Head chunks that come before bodies that no long packet has needed: 4,096 packets, over half a
/// minute at 100 packets per second.
pub(crate) const PLENTY_HEADS: u64 = 64;
/// Heads for this many seconds of keystrokes, up to [`PLENTY_HEADS`], come before any body.
const HEADS_AHEAD_SECONDS: f64 = 30.0;
/// So do heads for this many seconds of all packets on a lane with keystrokes: bulk uses heads up
/// while the filler waits for an idle CPU.
const ABSENCE_SECONDS: f64 = 0.25;
/// Heads take at most one part in this many of the memory above the floors before bodies do.
const HEADS_FIRST_SHARE: u64 = 2;
/// Bodies per head of reserve.
const BODIES_A_RESERVE: u64 = 7;
/// A rate below this, in packets per second, counts as zero: keep-alives are not keystrokes.
const QUIET: f64 = 2.0;
/// A lane has long packets if at least one in this many is: a body is used up by each packet, used
/// or not.
const PACKETS_A_LONG_ONE: f64 = 8.0;
/// Body chunks of a lane that carries only keystrokes: 1,024 packets, a few screens of output.
const TERMINAL_BODIES: u64 = 16;
/// They last at least this long, or there are none. Acknowledgments use up thousands per second, in
/// vain.
const TERMINAL_BODIES_SECONDS: f64 = 10.0;
/// One part in this many of the arena is for heads only, so that idle bulk pads of early
/// connections leave later ones pads for their keystrokes.
pub(crate) const HEADS_ONLY_SHARE: usize = 4;
/// One part in this many stays unassigned, for new lanes.
pub(crate) const NEWCOMERS_SHARE: usize = 8;

/// Heads that a lane needs before it gets this many bodies: as many, plus the reserve.
pub(crate) const fn heads_for(bodies: u64) -> u64 {
    bodies + bodies.div_ceil(BODIES_A_RESERVE)
}

/// The chunks that each lane should hold, by part. Together they leave a share of `total_units` for
/// new lanes.
pub(crate) fn targets(lanes: &[LaneView], total_units: usize) -> Vec<[u64; 2]> {
    let mut targets = vec![[0; 2]; lanes.len()];
    let mut open: Vec<usize> = (0..lanes.len()).collect();
    let mut room = Room::of(total_units);
    loop {
        set(&mut targets, &open, lanes, room);
        // A peer above its limit is divided on its own from now on, and the others share the rest.
        let limited: Vec<(Allotment, Vec<usize>)> = lanes_by_allotment(&open, lanes)
            .into_iter()
            .filter(|(of, its)| units_of_all(&targets, its) > room_of(*of, its, lanes) as u64)
            .collect();
        if limited.is_empty() {
            return targets;
        }
        for (allotment, its) in &limited {
            set(&mut targets, its, lanes, Room::of(room_of(*allotment, its, lanes)));
            let used = units_of_all(&targets, its);
            room.all = room.all.saturating_sub(used);
            room.before_heads = room.before_heads.saturating_sub(used);
        }
        let settled: HashSet<Allotment> = limited.into_iter().map(|(of, _)| of).collect();
        open.retain(|&lane| !lanes[lane].allotment.is_some_and(|of| settled.contains(&of)));
    }
}

/// Memory to divide, in units.
#[derive(Clone, Copy)]
struct Room {
    all: u64,
    /// What heads and bodies may take together; the rest is for heads only.
    before_heads: u64,
}

impl Room {
    fn of(total_units: usize) -> Self {
        let all = total_units - total_units / NEWCOMERS_SHARE;
        let before_heads = total_units - total_units / HEADS_ONLY_SHARE;
        Self { all: all as u64, before_heads: before_heads as u64 }
    }
}

/// What a peer may hold besides the chunks kept for late packets, in units.
fn room_of(allotment: Allotment, its: &[usize], lanes: &[LaneView]) -> usize {
    allotment.units.saturating_sub(its.iter().map(|&lane| lanes[lane].units_kept()).sum())
}

fn units_of([heads, bodies]: [u64; 2]) -> u64 {
    heads + bodies * Part::Body.units() as u64
}

fn units_of_all(targets: &[[u64; 2]], some: &[usize]) -> u64 {
    some.iter().map(|&lane| units_of(targets[lane])).sum()
}

/// Sets the targets of some lanes, which share this room.
fn set(targets: &mut [[u64; 2]], some: &[usize], lanes: &[LaneView], room: Room) {
    let chosen: Vec<LaneView> = some.iter().map(|&lane| lanes[lane]).collect();
    for (&lane, target) in some.iter().zip(divide(&chosen, room)) {
        targets[lane] = target;
    }
}

/// The lanes of peers with a limit, in a deterministic order.
fn lanes_by_allotment(some: &[usize], lanes: &[LaneView]) -> BTreeMap<Allotment, Vec<usize>> {
    let mut by_allotment: BTreeMap<Allotment, Vec<usize>> = BTreeMap::new();
    for &lane in some {
        if let Some(allotment) = lanes[lane].allotment {
            by_allotment.entry(allotment).or_default().push(lane);
        }
    }
    by_allotment
}

fn divide(lanes: &[LaneView], room: Room) -> Vec<[u64; 2]> {
    let most: Vec<[u64; 2]> = lanes.iter().map(LaneView::most).collect();
    let heads_within =
        |chunks: u64| most.iter().map(|most| most[0].min(chunks)).collect::<Vec<_>>();
    let mut held = Held { heads: vec![0; lanes.len()], bodies: vec![0; lanes.len()] };

    held.give_heads(&heads_within(FLOOR_HEADS), room.all);
    let needed: Vec<u64> =
        lanes.iter().zip(&most).map(|(lane, most)| lane.heads_needed().min(most[0])).collect();
    let first = held.units() + room.all.saturating_sub(held.units()) / HEADS_FIRST_SHARE;
    held.give_heads(&needed, first);
    let bodies: Vec<u64> = most.iter().map(|most| most[1]).collect();
    held.give_pads(&bodies, room.before_heads.min(room.all), |lane| lanes[lane].long());

    // Memory that nobody needs yet.
    held.give_heads(&heads_within(PLENTY_HEADS), room.all);
    let bodies: Vec<u64> =
        lanes.iter().zip(&most).map(|(lane, most)| lane.bodies_unneeded().min(most[1])).collect();
    held.give_pads(&bodies, room.before_heads.min(room.all), |_| 1.0);
    held.give_heads(&heads_within(u64::MAX), room.all);
    let pairs = held.heads.into_iter().zip(held.bodies);
    let mut targets: Vec<[u64; 2]> = pairs.map(|(heads, bodies)| [heads, bodies]).collect();
    pass_on(&mut targets, lanes);
    targets
}

/// Limits lanes to the packets that their keys have left, and gives the rest of their share to the
/// next keys.
fn pass_on(targets: &mut [[u64; 2]], lanes: &[LaneView]) {
    let in_use = in_use(lanes);
    for (lane, view) in lanes.iter().enumerate().filter(|(_, view)| view.stage == Stage::Standby) {
        let Some(&before) = in_use.get(&view.traffic) else { continue };
        for part in Part::ALL.map(|part| part as usize) {
            let rest = targets[before][part].saturating_sub(lanes[before].left[part]);
            targets[lane][part] = targets[lane][part].max(rest);
        }
    }
    for (target, view) in targets.iter_mut().zip(lanes) {
        for part in Part::ALL.map(|part| part as usize) {
            target[part] = target[part].min(view.left[part]);
        }
    }
}

impl LaneView {
    /// Packets per second that need a body; zero if negligible.
    fn long(&self) -> f64 {
        let [packets, long] = self.demand;
        if long >= QUIET && packets <= long * PACKETS_A_LONG_ONE { long } else { 0.0 }
    }

    /// Packets per second that need no body.
    fn short(&self) -> f64 {
        (self.demand[Part::Head as usize] - self.demand[Part::Body as usize]).max(0.0)
    }

    fn has_keystrokes(&self) -> bool {
        self.short() >= QUIET
    }

    /// Head chunks to have before any body.
    fn heads_needed(&self) -> u64 {
        let ahead = (self.short() * HEADS_AHEAD_SECONDS / 64.0).min(PLENTY_HEADS as f64);
        let all = if self.has_keystrokes() { self.short() + self.long() } else { 0.0 };
        (all * ABSENCE_SECONDS / 64.0).max(ahead).ceil() as u64
    }

    /// The most chunks that it may be given, by part. Of a part that nearly all of its packets are
    /// too long for it gets none: chunks would be filled and given up unused, 64 packets at a time.
    fn most(&self) -> [u64; 2] {
        let most = self.stage.most();
        Part::ALL.map(|part| if self.too_long[part as usize] { 0 } else { most[part as usize] })
    }

    /// The most bodies to have of those that no long packet has needed.
    fn bodies_unneeded(&self) -> u64 {
        let used_up = self.demand[Part::Head as usize] * TERMINAL_BODIES_SECONDS / 64.0;
        match self.has_keystrokes() && self.long() == 0.0 {
            true if used_up > TERMINAL_BODIES as f64 => 0,
            true => TERMINAL_BODIES,
            false => u64::MAX,
        }
    }
}

/// What each lane has been given so far.
struct Held {
    heads: Vec<u64>,
    bodies: Vec<u64>,
}

impl Held {
    fn units(&self) -> u64 {
        let pairs = self.heads.iter().zip(&self.bodies);
        pairs.map(|(&heads, &bodies)| units_of([heads, bodies])).sum()
    }

    /// Gives heads evenly, each lane up to `most` in all, within `up_to` units for everything.
    fn give_heads(&mut self, most: &[u64], up_to: u64) {
        let mut left = up_to.saturating_sub(self.units());
        share(&mut self.heads, &mut left, most, |_| 1.0);
    }

    /// Gives bodies by weight, and the heads that they need.
    fn give_pads(&mut self, most: &[u64], up_to: u64, weight: impl Fn(usize) -> f64) {
        let mut left = up_to.saturating_sub(self.units());
        let costs: Vec<u64> = (0..most.len()).map(|lane| self.cost(lane, most[lane])).collect();
        let mut given = vec![0; most.len()];
        share(&mut given, &mut left, &costs, weight);
        for (lane, units) in given.into_iter().enumerate() {
            // At most one too many, because a body needs at most two heads.
            let mut bodies =
                (self.bodies[lane] + units / Part::Body.units() as u64).min(most[lane]);
            while bodies > self.bodies[lane] && self.cost(lane, bodies) > units {
                bodies -= 1;
            }
            if bodies > self.bodies[lane] {
                self.bodies[lane] = bodies;
                self.heads[lane] = self.heads[lane].max(heads_for(bodies));
            }
        }
    }

    /// The units needed to bring a lane to this many bodies.
    fn cost(&self, lane: usize, bodies: u64) -> u64 {
        let more = bodies.saturating_sub(self.bodies[lane]);
        let heads = heads_for(bodies).saturating_sub(self.heads[lane]);
        if more == 0 { 0 } else { more * Part::Body.units() as u64 + heads }
    }
}

/// Gives from `left` by weight, each lane up to `most` in all; a lane of zero weight gets nothing.
/// What one lane cannot take goes to the others, and a remainder of the division to the first ones.
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
            // Less than one each: one each, as far as it goes.
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

//! Describes a lane to the planner: its stage, what it holds and needs, and its peer's limit.

use std::collections::HashMap;

use crate::chunk::Part;

/// The most head chunks a lane holds: 32,768 packets, 4 MiB.
pub(crate) const MAX_HEADS: u64 = 512;
/// The most body chunks a lane holds, 41 MB: as many as [`MAX_HEADS`] allow.
pub(crate) const MAX_BODIES: u64 = 448;
/// Head chunks that cover a first phase of 999 packets wherever it ends.
const FIRST_PHASE_HEADS: u64 = 16;
/// Body chunks for a first phase: enough for the burst before the first key update.
const FIRST_PHASE_BODIES: u64 = 4;
/// Head chunks of a key about to come into use: 4,096 packets.
const NEXT_HEADS: u64 = 64;

/// How far a lane may be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A key far from use: not filled.
    Dormant,
    /// The next phase, which may begin at any packet: heads only, as those passed are given up.
    Imminent,
    /// The next phase, before its use: heads, and the pads that the one in use has no packets left
    /// for.
    Standby,
    /// The first phase of a connection: pads for its fewer than 1,000 packets.
    Brief,
    /// A key in use.
    Active,
}

impl Stage {
    pub(crate) const ALL: [Self; 5] =
        [Self::Dormant, Self::Imminent, Self::Standby, Self::Brief, Self::Active];

    /// The most chunks of its own share that a lane in this stage holds, by part.
    pub(crate) const fn most(self) -> [u64; 2] {
        match self {
            Self::Dormant => [0, 0],
            Self::Imminent | Self::Standby => [NEXT_HEADS, 0],
            Self::Brief => [FIRST_PHASE_HEADS, FIRST_PHASE_BODIES],
            Self::Active => [MAX_HEADS, MAX_BODIES],
        }
    }
}

/// The planner's view of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneView {
    /// How far it may be filled.
    pub stage: Stage,
    /// Identifies its direction of a connection, whose keys share a division of the pool.
    pub traffic: usize,
    /// Chunks with pads to come, counting the current one, by part.
    pub available: [u64; 2],
    /// The most chunks with pads to come that it has packets for before its key ends, by part.
    pub left: [u64; 2],
    /// Other chunks, kept for late packets, by part.
    pub kept: [u64; 2],
    /// Recent packets per second that needed each part.
    pub demand: [f64; 2],
    /// Parts that nearly all packets of late were too long to use.
    pub too_long: [bool; 2],
    /// Parts with an outstanding recall.
    pub recalled: [bool; 2],
    /// What all lanes of its peer together may hold, if limited.
    pub allotment: Option<Allotment>,
}

/// The memory limit of one peer, shared by all its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Allotment {
    /// Identifies the peer; the order has no meaning.
    pub peer: usize,
    /// The most that its lanes may hold.
    pub units: usize,
}

impl LaneView {
    /// Memory of available chunks, in units.
    pub(crate) fn units_available(&self) -> usize {
        units(self.available)
    }

    /// Memory of kept chunks, in units.
    pub(crate) fn units_kept(&self) -> usize {
        units(self.kept)
    }
}

/// The lanes in use, by traffic.
pub(crate) fn in_use(lanes: &[LaneView]) -> HashMap<usize, usize> {
    let active = lanes.iter().enumerate().filter(|(_, view)| view.stage == Stage::Active);
    active.map(|(lane, view)| (view.traffic, lane)).collect()
}

fn units(chunks: [u64; 2]) -> usize {
    Part::ALL.iter().map(|&part| chunks[part as usize] as usize * part.units()).sum()
}

//! Describes a lane to the planner: its stage, what it holds and needs, and its peer's limit.

use crate::chunk::Part;

/// The most head chunks a lane holds: 32,768 packets, 4 MiB.
pub(crate) const MAX_HEADS: u64 = 512;
/// The most body chunks a lane holds, 41 MB: as many as [`MAX_HEADS`] allow.
pub(crate) const MAX_BODIES: u64 = 448;
/// Head chunks that cover a first phase of 999 packets wherever it ends.
const FIRST_PHASE_HEADS: u64 = 16;
/// Body chunks for a first phase: enough for the burst before the first key update.
const FIRST_PHASE_BODIES: u64 = 4;
/// Body chunks of a key about to come into use: 3,584 packets, while the filler takes up the new key.
const STANDBY_BODIES: u64 = 56;
/// Its head chunks: as many, and their reserve.
const STANDBY_HEADS: u64 = 64;

/// How far a lane may be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A key far from use: not filled.
    Dormant,
    /// The next phase, which may begin at any packet: heads only, as those passed are given up.
    Imminent,
    /// The next phase, shortly before its use: pads for its first packets.
    Standby,
    /// The first phase of a connection: pads for its fewer than 1,000 packets.
    Brief,
    /// A key in use.
    Active,
}

impl Stage {
    pub(crate) const ALL: [Self; 5] =
        [Self::Dormant, Self::Imminent, Self::Standby, Self::Brief, Self::Active];

    /// The most chunks that a lane in this stage holds, by part.
    pub(crate) const fn most(self) -> [u64; 2] {
        match self {
            Self::Dormant => [0, 0],
            Self::Imminent => [STANDBY_HEADS, 0],
            Self::Standby => [STANDBY_HEADS, STANDBY_BODIES],
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
    /// Chunks with pads to come, counting the current one, by part.
    pub available: [u64; 2],
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

fn units(chunks: [u64; 2]) -> usize {
    Part::ALL.iter().map(|&part| chunks[part as usize] as usize * part.units()).sum()
}

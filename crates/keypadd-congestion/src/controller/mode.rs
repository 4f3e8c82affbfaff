//! Names the modes of a rate controller. It is in one of these at a time, and nothing else says
//! which:
//!
//! | from | event | to |
//! | --- | --- | --- |
//! | `StartUp` | delay, or a loss that cuts the window | `Settle` |
//! | `StartUp` | ECN mark | `Cruise` |
//! | `Settle` | end of a round: a queue stands, or a drain is due | `Drain` |
//! | `Settle` | end of a round: else | `Cruise` |
//! | `Cruise` | a drain is due | `Drain` |
//! | `Cruise` | others keep the queue full | `Compete` |
//! | `Cruise` | both in one round | `CompeteDrain` |
//! | `Drain` | a packet sent within it shows the delay | `Cruise` |
//! | `CompeteDrain` | a packet sent within it shows the delay | `Compete` |
//! | `Compete` | a test is due | `Test` |
//! | `Test` | the queue is empty as in the test before | `Cruise` |
//! | `Test` | else | `Compete` |
//! | any | persistent congestion | `StartUp` |
//!
//! What grows the window (`growth`), what losses mean (`losses`) and whether others are suspected
//! (`suspicion`) is known in any mode. Knows no measurements.

use std::{
    mem,
    time::{Duration, Instant},
};

use crate::competition::Competition;

/// What a controller does.
#[derive(Clone, Debug)]
pub(super) enum Mode {
    /// Doubles the window each round trip. Every packet has waited long since then, if any does.
    StartUp { waits_since: Option<Instant> },
    /// Waits for one round after start-up, which has just filled the path: in this one ACKs arrive
    /// as fast as it carries. The rate at which start-up sent is higher.
    Settle,
    /// Follows the rate and the delay.
    Cruise,
    /// Drains this flow's queue.
    Drain(Dip),
    /// Follows CUBIC against others.
    Compete(Competition),
    /// Drains this flow's queue, as was due in the round in which others were found.
    CompeteDrain(Competition, Dip),
    /// Tests whether others still keep the queue full.
    Test(Competition, Dip),
}

/// A window below the usual one, until a packet sent within it is acknowledged or for as long as
/// the delay falls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dip {
    pub(super) window: u64,
    pub(super) rounds: u32,
    pub(super) falling: Option<Falling>,
}

/// The delay of the last packet that waited less, and when that was known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Falling {
    pub(super) delay: Duration,
    pub(super) measured: Instant,
}

impl Mode {
    pub(super) fn is_start_up(&self) -> bool {
        matches!(self, Self::StartUp { .. })
    }

    /// Whether the queue of start-up, or of this flow, is being drained or is about to be.
    pub(super) fn empties_own_queue(&self) -> bool {
        matches!(self, Self::Settle) || self.dip().is_some()
    }

    pub(super) fn dip(&self) -> Option<Dip> {
        match self {
            Self::Drain(dip) | Self::CompeteDrain(_, dip) | Self::Test(_, dip) => Some(*dip),
            Self::StartUp { .. } | Self::Settle | Self::Cruise | Self::Compete(_) => None,
        }
    }

    pub(super) fn dip_mut(&mut self) -> Option<&mut Dip> {
        match self {
            Self::Drain(dip) | Self::CompeteDrain(_, dip) | Self::Test(_, dip) => Some(dip),
            Self::StartUp { .. } | Self::Settle | Self::Cruise | Self::Compete(_) => None,
        }
    }

    pub(super) fn competes(&self) -> bool {
        matches!(self, Self::Compete(_) | Self::CompeteDrain(..) | Self::Test(..))
    }

    pub(super) fn competition_mut(&mut self) -> Option<&mut Competition> {
        match self {
            Self::Compete(competition)
            | Self::CompeteDrain(competition, _)
            | Self::Test(competition, _) => Some(competition),
            Self::StartUp { .. } | Self::Settle | Self::Cruise | Self::Drain(_) => None,
        }
    }

    /// Begins to drain this flow's queue. For modes without a dip.
    pub(super) fn drain(&mut self, dip: Dip) {
        *self = match mem::replace(self, Self::Cruise) {
            Self::Compete(competition)
            | Self::CompeteDrain(competition, _)
            | Self::Test(competition, _) => Self::CompeteDrain(competition, dip),
            Self::StartUp { .. } | Self::Settle | Self::Cruise | Self::Drain(_) => Self::Drain(dip),
        };
    }

    /// Begins to test whether others keep the queue full, if it competes. For modes without a dip.
    pub(super) fn test(&mut self, dip: Dip) {
        *self = match mem::replace(self, Self::Cruise) {
            Self::Compete(competition)
            | Self::CompeteDrain(competition, _)
            | Self::Test(competition, _) => Self::Test(competition, dip),
            other @ (Self::StartUp { .. } | Self::Settle | Self::Cruise | Self::Drain(_)) => other,
        };
    }
}

//! Decides how far the window may grow in a round: not at all for some rounds, or in steps that get
//! larger while there is room. Knows rounds, no mode.

use crate::constants::{LONG_STEP, STEP};

/// The growth of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Rounds left without growth.
    hold: u32,
    /// Increase of the window in a round without a queue, over the one that keeps the queue.
    boost: f64,
}

impl Growth {
    /// May grow, by the least step.
    pub(super) fn new() -> Self {
        Self { hold: 0, boost: 1.0 }
    }

    pub(super) fn is_held(&self) -> bool {
        self.hold > 0
    }

    pub(super) fn boost(&self) -> f64 {
        self.boost
    }

    pub(super) fn end_round(&mut self) {
        self.hold = self.hold.saturating_sub(1);
    }

    /// Does not grow for this many rounds at least.
    pub(super) fn hold(&mut self, rounds: u32) {
        self.hold = self.hold.max(rounds);
    }

    /// Does not grow for this many rounds at most.
    pub(super) fn release(&mut self, rounds: u32) {
        self.hold = self.hold.min(rounds);
    }

    /// Does not grow for exactly this many rounds, and by the least step then.
    pub(super) fn restart(&mut self, rounds: u32) {
        *self = Self { hold: rounds, boost: 1.0 };
    }

    /// Grows by the least step: there is a queue.
    pub(super) fn reset_step(&mut self) {
        self.boost = 1.0;
    }

    /// Makes the next step larger, `most` of the queue to keep at most: there is room. On a long
    /// path, whose rounds are few, every step after the first is larger by a higher factor.
    pub(super) fn enlarge_step(&mut self, is_long: bool, most: f64) {
        let factor = if is_long && self.boost > 1.0 { LONG_STEP } else { STEP };
        self.boost = (factor * self.boost).min(most).max(1.0);
    }
}

//! Limits how much of a connection may be in flight by what this end has memory for.
//!
//! quinn-proto keeps what was sent until it is acknowledged, and what was acknowledged behind a
//! gap, too: [`KEPT_PER_FLIGHT`] times what is in flight. All but the first bytes of a connection
//! come out of a budget that all connections of a process share. Knows bytes only.

use std::sync::Arc;

use keypadd_share::{Budget, Part};

/// Bytes that quinn-proto may keep for each that may be in flight (its send window): what seven
/// round trips send if a fifth of the packets is lost, and data is acknowledged behind gaps.
pub const KEPT_PER_FLIGHT: u64 = 4;

/// A connection may keep a third of what it leaves free.
const SHARE: (u64, u64) = (1, 3);

/// Most bytes in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    first: u64,
    max: u64,
    part: Part,
}

impl Flight {
    /// From `first` bytes, which a connection may have whatever others take, to `max`.
    pub(crate) fn new(first: u64, max: u64, budget: Arc<Budget>) -> Self {
        Self { first: first.min(max), max, part: Part::of(budget) }
    }

    /// Whether it may become another; else it is all of it from the first.
    pub(crate) fn varies(&self) -> bool {
        self.first < self.max
    }

    /// Most bytes in flight now.
    pub(crate) fn most(&self) -> u64 {
        self.first + self.part.amount() / KEPT_PER_FLIGHT
    }

    /// Follows the window of congestion control: takes twice as much once that is reached, and
    /// gives back what is beyond four times as much. Returns whether the limit has changed.
    pub(crate) fn follow(&mut self, window: u64) -> bool {
        let most = self.most();
        let grows = window >= most && most < self.max;
        let shrinks = window < most / 4 && most > self.first;
        if !grows && !shrinks {
            return false;
        }
        let wanted = window.saturating_mul(2).clamp(self.first, self.max) - self.first;
        self.part.set(wanted.saturating_mul(KEPT_PER_FLIGHT), SHARE);
        self.most() != most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_in_flight_follows_the_window_as_far_as_there_is_memory() {
        let budget = Arc::new(Budget::new(800));
        let mut flight = Flight::new(10, 1_000, Arc::clone(&budget));
        assert!(!flight.follow(9) && flight.most() == 10);
        assert!(flight.follow(10) && flight.most() == 20);
        assert_eq!(budget.taken(), 10 * KEPT_PER_FLIGHT);
        assert!(flight.follow(500) && flight.most() == 60, "a quarter of the budget");
        let mut other = Flight::new(10, 1_000, Arc::clone(&budget));
        assert!(other.follow(500) && other.most() == 47, "a quarter of the rest");
        assert!(!flight.follow(500) && !flight.follow(15));
        assert!(flight.follow(14) && flight.most() == 28, "the window has shrunk");
        drop((flight, other));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_connection_that_may_have_all_from_the_first_takes_nothing() {
        let budget = Arc::new(Budget::new(0));
        let mut flight = Flight::new(1_000, 500, budget);
        assert!(!flight.varies() && !flight.follow(1 << 40) && flight.most() == 500);
    }
}

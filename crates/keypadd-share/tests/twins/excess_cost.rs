//! The CPU time that a connection has used in advance.

use std::time::{Duration, Instant};

/// The share of a core that the excess may take: one in this many.
const SHARE: u32 = 10;

/// The longest excess that a connection may have used in advance of its share.
const ADVANCE: Duration = Duration::from_millis(20);

/// What a client has left of it once it has proved a key: one that connects again and again does not have all of it
/// each time.
const ADVANCE_OF_PROVED: Duration = Duration::from_millis(2);

/// The excess of one connection that its share has not paid for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExcessCost {
    /// When the share will have paid for it.
    paid_at: Option<Instant>,
}

impl ExcessCost {
    pub(crate) fn charge(&mut self, excess: Duration, now: Instant) {
        if !excess.is_zero() {
            let from = self.paid_at.map_or(now, |at| at.max(now));
            self.paid_at = Some(from + excess * SHARE);
        }
    }

    /// Leaves a client that has just proved a key a part of its advance.
    pub(crate) fn proved(&mut self, now: Instant) {
        self.paid_at = self.paid_at.max(Some(now + (ADVANCE - ADVANCE_OF_PROVED) * SHARE));
    }

    /// Whether the connection's datagrams are dropped.
    pub(crate) fn is_too_high(&self, now: Instant) -> bool {
        self.paid_at.is_some_and(|at| at.saturating_duration_since(now) > ADVANCE * SHARE)
    }
}

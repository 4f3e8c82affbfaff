//! Carries a connection's congestion controller to another connection of the same path.
//!
//! Knows nothing of what the controller does.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use keypadd_congestion::Algorithm;

/// This host's address, if it is known, and the peer's.
pub(crate) type NetworkPath = (Option<IpAddr>, IpAddr);

/// A connection's controller for one that continues what it has sent.
pub(crate) struct HandedController {
    pub(crate) algorithm: Algorithm,
    pub(crate) path: NetworkPath,
    /// When it was handed over.
    pub(crate) at: Instant,
    /// Bytes that were in flight then on the connection that it comes from.
    pub(crate) in_flight: u64,
    /// The path's round trip.
    pub(crate) rtt: Duration,
}

impl HandedController {
    /// Bytes that are still in flight: what was leaves the path over a round trip.
    pub(crate) fn in_flight_at(&self, now: Instant) -> u64 {
        let left = self.rtt.saturating_sub(now.saturating_duration_since(self.at));
        (self.in_flight as f64 * left.as_secs_f64() / self.rtt.as_secs_f64().max(1e-6)) as u64
    }
}

impl fmt::Debug for HandedController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedController").field("path", &self.path).finish_non_exhaustive()
    }
}

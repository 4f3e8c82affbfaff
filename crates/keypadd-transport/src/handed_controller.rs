//! Carries a connection's congestion controller to another connection of the same path.
//!
//! Knows nothing of what the controller does.

use std::net::IpAddr;

use keypadd_congestion::Algorithm;

/// This host's address, if it is known, and the peer's.
pub(crate) type NetworkPath = (Option<IpAddr>, IpAddr);

/// A connection's controller for its sibling.
pub(crate) struct HandedController {
    pub(crate) algorithm: Algorithm,
    pub(crate) path: NetworkPath,
    /// Bytes in flight on the connection that it comes from.
    pub(crate) in_flight: u64,
}

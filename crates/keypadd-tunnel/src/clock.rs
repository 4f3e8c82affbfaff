//! Detects clock jumps, and drops all output of older connections. Also converts times for the
//! status.

use std::time::SystemTime;

pub(crate) mod clones;
pub(crate) mod egress_gate;
pub(crate) mod jump;
pub(crate) mod monitor;

/// Seconds since 1970; 0 for times before.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

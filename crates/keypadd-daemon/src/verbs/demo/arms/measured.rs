//! Holds the figures of one arm of the demo. Knows nothing of how the traffic is made or shown.

use std::fmt;
use std::time::Duration;

use keypadd_keystream::Suite;
use keypadd_traffic::Counts;
use serde::{Serialize, Serializer};

use crate::verbs::demo::traffic::Typed;

/// One of the demo's runs: a suite, with or without a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arm {
    pub(super) suite: Suite,
    pub(super) pool: bool,
}

/// The three arms, in the order in which they run.
pub(super) const ARMS: [Arm; 3] = [
    Arm { suite: Arm::SLOW, pool: true },
    Arm { suite: Arm::SLOW, pool: false },
    Arm { suite: Suite::AES_256_GCM, pool: true },
];

impl Arm {
    /// The suite that needs a pool.
    pub(super) const SLOW: Suite = Suite::TRIPLE_DES_CTR_HMAC_SHA1;

    /// `on` or `off`.
    pub(super) fn pool_label(self) -> &'static str {
        if self.pool { "on" } else { "off" }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, pool {}", self.suite, self.pool_label())
    }
}

/// The figures of one arm; `None` for those it has not reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Measured {
    /// Times from the moment a key was due to the moment its screen had arrived.
    pub(super) keystrokes: Option<Typed>,
    /// Median rate of the bursts that fit the pool, Mbit/s.
    pub(super) burst_mbit: Option<f64>,
    /// Rate once the sender has left the pool behind, Mbit/s.
    pub(super) beyond_mbit: Option<f64>,
    /// Packets and keystream of typing and bursts, both ends and both directions.
    pub(super) traffic: Counts,
    /// CPU that fillers spent in the whole arm, seconds.
    #[serde(rename = "filler_cpu_seconds", serialize_with = "seconds")]
    pub(super) filler_cpu: Duration,
    /// The part of it spent during the typing, seconds.
    #[serde(rename = "filler_cpu_typing_seconds", serialize_with = "seconds")]
    pub(super) filler_cpu_typing: Duration,
    /// Whether the pool, if there is one, was full each time the demo waited for it.
    pub(super) pool_was_full: bool,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

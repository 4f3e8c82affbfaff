//! What an auditor may put in place of the production choice: a log of traffic secrets, and phases
//! that end sooner.
//!
//! The default is what ships: no log, the limits of `limits.rs`. `client_config` and
//! `server_config` use it; the program and the tunnel never name this type, and a test of the
//! simulator (`tools/simulator`) reads their sources to see that they do not.

use std::sync::Arc;

use keypadd_keystream::Protection;
use rustls::{KeyLog, NoKeyLog};

use crate::limits::Limits;

/// Seams for `tools/simulator`; for nothing else.
#[derive(Clone, Debug)]
pub struct Seams {
    /// Is told every traffic secret of the handshake, in rustls's words.
    pub key_log: Arc<dyn KeyLog>,
    /// Ends phases after this many packets where that is sooner than the suite's own limit.
    pub phase_packets_max: u64,
}

impl Default for Seams {
    fn default() -> Self {
        Self { key_log: Arc::new(NoKeyLog), phase_packets_max: u64::MAX }
    }
}

impl Seams {
    /// The limits of a suite's keys; never above the suite's own.
    pub(crate) fn limits(&self, suite: Protection) -> Limits {
        Limits::of(suite).lowered_to(self.phase_packets_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_can_be_lowered_and_never_raised() {
        for suite in Protection::all() {
            let own = Limits::of(suite);
            for (packets_max, phase_packets) in [(u64::MAX, own.phase_packets()), (300, 300)] {
                let limits =
                    Seams { phase_packets_max: packets_max, ..Seams::default() }.limits(suite);
                assert_eq!(limits.phase_packets(), phase_packets, "{suite}");
                assert!(limits.hard_stop <= own.hard_stop && limits.hard_stop >= limits.reported);
            }
        }
    }

    #[test]
    fn nothing_is_logged_by_default() {
        assert!(!Seams::default().key_log.will_log("CLIENT_TRAFFIC_SECRET_0"));
    }
}

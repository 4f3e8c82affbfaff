//! Lets tests log traffic secrets and shorten key phases.
//!
//! The default is the production behavior: no log, the limits of `limits.rs`. `client_config` and
//! `server_config` use the default; the program and the tunnel never name this type, which a test
//! of the simulator (`tools/simulator`) checks in their sources.

use std::sync::Arc;

use keypadd_keystream::Protection;
use rustls::{KeyLog, NoKeyLog};

use crate::limits::KeyLimits;

/// Test hooks, for `tools/simulator` only.
#[derive(Clone, Debug)]
pub struct TestHooks {
    /// Receives every traffic secret of the handshake, as rustls logs them.
    pub key_log: Arc<dyn KeyLog>,
    /// Ends phases after this many packets, if that is below the suite's own limit.
    pub phase_packets_max: u64,
}

impl Default for TestHooks {
    fn default() -> Self {
        Self { key_log: Arc::new(NoKeyLog), phase_packets_max: u64::MAX }
    }
}

impl TestHooks {
    /// The limits of a suite's keys, never above the suite's own.
    pub(crate) fn limits(&self, suite: Protection) -> KeyLimits {
        KeyLimits::of(suite).lowered_to(self.phase_packets_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_can_be_lowered_and_never_raised() {
        for suite in Protection::all() {
            let own = KeyLimits::of(suite);
            for (packets_max, phase_packets) in [(u64::MAX, own.phase_packets()), (300, 300)] {
                let limits = TestHooks { phase_packets_max: packets_max, ..TestHooks::default() }
                    .limits(suite);
                assert_eq!(limits.phase_packets(), phase_packets, "{suite}");
                assert!(limits.hard_stop <= own.hard_stop && limits.hard_stop >= limits.reported);
            }
        }
    }

    #[test]
    fn nothing_is_logged_by_default() {
        assert!(!TestHooks::default().key_log.will_log("CLIENT_TRAFFIC_SECRET_0"));
    }
}

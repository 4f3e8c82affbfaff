//! Ends ECN in a handshake that takes so long that the path may drop what is ECN-capable (RFC 9000
//! 13.4.2).
//!
//! quinn-proto ends it on a path whose packets are acknowledged without counts, and never if none
//! arrive.

use std::time::{Duration, Instant};

/// Datagrams of a handshake are ECN-capable for this long: until the first probe timeout of a path
/// whose round trip is not known, 3 x 333 ms (RFC 9002 6.2.2).
const ECN_TRIAL: Duration = Duration::from_millis(900);

/// The trial of a path for ECN.
#[derive(Debug, Default)]
pub(super) enum EcnTrial {
    /// Nothing was sent yet.
    #[default]
    Ahead,
    /// Datagrams of the handshake have been sent since then.
    Since(Instant),
    /// The handshake is complete.
    Over,
}

impl EcnTrial {
    /// Whether a datagram that is to be sent now must not be ECN-capable.
    pub(super) fn is_in_doubt(&mut self, now: Instant, rtt: impl FnOnce() -> Duration) -> bool {
        match *self {
            Self::Over => false,
            Self::Ahead => {
                *self = Self::Since(now);
                false
            }
            Self::Since(began) => now.saturating_duration_since(began) >= ECN_TRIAL.max(2 * rtt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_loses_ecn_after_a_second_or_two_round_trips() {
        let (start, mut trial) = (Instant::now(), EcnTrial::default());
        let near = || Duration::from_millis(1);
        assert!(!trial.is_in_doubt(start, near));
        assert!(!trial.is_in_doubt(start + ECN_TRIAL / 2, near));
        assert!(trial.is_in_doubt(start + ECN_TRIAL, near));
        assert!(!trial.is_in_doubt(start + ECN_TRIAL, || ECN_TRIAL));
        assert!(trial.is_in_doubt(start + 2 * ECN_TRIAL, || ECN_TRIAL));
        trial = EcnTrial::Over;
        assert!(!trial.is_in_doubt(start + 9 * ECN_TRIAL, near));
    }
}

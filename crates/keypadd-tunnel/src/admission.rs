//! Who may take part in a handshake: a server's defence against floods of strangers.
//!
//! Counts, decides, and does nothing else. A spoofed source address costs at most one Retry packet
//! (RFC 9000 8.1.2) once a few handshakes are in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Handshakes in flight above which an address must first prove itself.
const RETRY_ABOVE: usize = 8;

/// Handshakes in flight above which nobody is answered.
const IGNORE_ABOVE: usize = 64;

/// What to do with an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Shake hands.
    Accept,
    /// Ask the address to prove itself.
    Retry,
    /// Say that there is no room.
    Refuse,
    /// Say nothing.
    Ignore,
}

/// Decides on one attempt.
pub(crate) fn decide(in_flight: usize, connections_full: bool, validated: bool) -> Verdict {
    if in_flight >= IGNORE_ABOVE {
        Verdict::Ignore
    } else if in_flight >= RETRY_ABOVE && !validated {
        Verdict::Retry
    } else if connections_full {
        Verdict::Refuse
    } else {
        Verdict::Accept
    }
}

/// A count of things that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

/// One thing that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Count);

impl Count {
    pub(crate) fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_meet_retry_then_silence() {
        for (in_flight, full, validated, verdict) in [
            (0, false, false, Verdict::Accept),
            (7, false, false, Verdict::Accept),
            (8, false, false, Verdict::Retry),
            (8, false, true, Verdict::Accept),
            (63, false, true, Verdict::Accept),
            (64, false, true, Verdict::Ignore),
            (64, false, false, Verdict::Ignore),
            (0, true, false, Verdict::Refuse),
            (8, true, false, Verdict::Retry),
        ] {
            assert_eq!(decide(in_flight, full, validated), verdict, "{in_flight} {validated}");
        }
    }

    #[test]
    fn what_is_dropped_is_not_counted() {
        let count = Count::default();
        let one = count.add();
        let two = count.add();
        drop(one);
        assert_eq!(count.now(), 1);
        drop(two);
        assert_eq!(count.now(), 0);
    }
}

//! Sends a packet behind the last one of a sparse burst, so that a loss there is seen a round trip later.
//!
//! A packet is lost when one that was sent after it has been acknowledged (RFC 9002 6.1). Behind a keystroke none
//! is, until the probe timeout, which the peer's delay of ACKs and four deviations of the round trip make two or
//! three round trips long (6.2.1). A PING is acknowledged at once where the packet before it is missing
//! (RFC 9000 13.2.1). Knows times only.

use std::time::{Duration, Instant};

use super::Driver;

/// After the last packet: little beside a round trip, and more than packets of one write are apart.
const DELAY: Duration = Duration::from_millis(1);

/// On shorter round trips the probe timeout is soon enough.
const RTT_MIN: Duration = Duration::from_millis(5);

/// When the packet behind the last one is due.
#[derive(Debug, Default)]
pub(super) struct Tail {
    due: Option<Instant>,
}

impl Tail {
    /// Sparse data leaves.
    pub(super) fn sent(&mut self, now: Instant, rtt: Duration) {
        self.due = (rtt >= RTT_MIN).then(|| now + DELAY);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    fn is_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

impl Driver {
    pub(super) fn send_tail(&mut self, now: Instant) {
        if self.tail.is_due(now) && !self.lost {
            self.connection.ping();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_follows_the_last_of_a_burst_once() {
        let (start, rtt) = (Instant::now(), Duration::from_millis(20));
        let mut tail = Tail::default();
        tail.sent(start, rtt);
        assert!(!tail.is_due(start));
        tail.sent(start + DELAY / 2, rtt);
        assert!(!tail.is_due(start + DELAY));
        assert!(tail.is_due(start + 2 * DELAY));
        assert!(!tail.is_due(start + 2 * DELAY));
    }

    #[test]
    fn nothing_follows_on_a_near_path() {
        let mut tail = Tail::default();
        tail.sent(Instant::now(), RTT_MIN / 2);
        assert_eq!(tail.deadline(), None);
    }
}

//! Protects the last packet of a sparse burst against loss: follows it with a packet that reveals a
//! loss early, and on a lossy path sends it twice.
//!
//! A packet counts as lost once a later one is acknowledged (RFC 9002 6.1). After a keystroke there
//! is none until the probe timeout, which the peer's ACK delay and four deviations of the round
//! trip extend to two or three round trips (6.2.1). A PING is acknowledged immediately if the
//! packet before it is missing (RFC 9000 13.2.1). A second copy of the datagram costs neither a
//! packet number nor a pad; the receiver drops one of the two (12.3). Knows no streams.

use std::time::{Duration, Instant};

use quinn_proto::Transmit;

/// Delay after the last packet: small compared with a round trip, and longer than the gaps between
/// packets of one write.
const DELAY: Duration = Duration::from_millis(1);

/// On shorter round trips the probe timeout comes soon enough.
const RTT_MIN: Duration = Duration::from_millis(5);

/// Longest datagram to send twice: a few keystrokes, or a line of output.
const COPIED_BYTES_MAX: usize = 400;

/// A path counts as lossy for this long after its last observed loss. (Copies hide losses.)
const LOSSY: Duration = Duration::from_secs(30);

/// What follows the last packet, and when.
#[derive(Debug, Default)]
pub(super) struct Tail {
    due: Option<Instant>,
    /// Whether the next datagram is the last of the burst.
    sealing: bool,
    copy: Option<(Transmit, Vec<u8>)>,
    lost_packets: u64,
    lossy_until: Option<Instant>,
}

impl Tail {
    /// Records sparse data given to a connection that has lost this many packets.
    pub(super) fn given(
        &mut self,
        now: Instant,
        rtt: Duration,
        lost_packets: impl FnOnce() -> u64,
    ) {
        if rtt < RTT_MIN {
            return;
        }
        let lost_packets = lost_packets();
        if lost_packets != self.lost_packets {
            (self.lost_packets, self.lossy_until) = (lost_packets, Some(now + LOSSY));
        }
        self.due = Some(now + DELAY);
        self.sealing = self.lossy_until.is_some_and(|until| until > now);
    }

    /// Records a sent datagram.
    pub(super) fn sealed(&mut self, transmit: &Transmit, bytes: &[u8]) {
        if !std::mem::take(&mut self.sealing) {
            return;
        }
        self.copy = (transmit.segment_size.is_none() && transmit.size <= COPIED_BYTES_MAX)
            .then(|| (copied(transmit), bytes[..transmit.size].to_vec()));
    }

    /// Takes the copy of the burst's last datagram.
    pub(super) fn take_copy(&mut self) -> Option<(Transmit, Vec<u8>)> {
        self.copy.take()
    }

    /// When the PING or the copy is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

/// `Transmit` is not `Clone`.
fn copied(of: &Transmit) -> Transmit {
    let Transmit { destination, ecn, size, segment_size, src_ip } = *of;
    Transmit { destination, ecn, size, segment_size, src_ip }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    fn seal(tail: &mut Tail, size: usize) {
        let destination = ([127, 0, 0, 1], 1).into();
        let transmit = Transmit { destination, ecn: None, size, segment_size: None, src_ip: None };
        tail.sealed(&transmit, &[7; 2_000]);
    }

    #[test]
    fn something_follows_the_last_packet_of_a_burst_once() {
        let (start, mut tail) = (Instant::now(), Tail::default());
        tail.given(start, RTT, || 0);
        assert!(!tail.is_due(start));
        tail.given(start + DELAY / 2, RTT, || 0);
        assert!(!tail.is_due(start + DELAY));
        assert!(tail.is_due(start + 2 * DELAY));
        assert!(!tail.is_due(start + 2 * DELAY));
    }

    #[test]
    fn nothing_follows_on_a_near_path() {
        let mut tail = Tail::default();
        tail.given(Instant::now(), RTT_MIN / 2, || 1);
        assert_eq!(tail.deadline(), None);
    }

    #[test]
    fn a_copy_is_kept_of_what_is_small_on_a_path_that_loses_packets() {
        let (start, mut tail) = (Instant::now(), Tail::default());
        tail.given(start, RTT, || 0);
        seal(&mut tail, 100);
        assert!(tail.copy.is_none(), "nothing was ever lost");
        tail.given(start, RTT, || 1);
        seal(&mut tail, COPIED_BYTES_MAX + 1);
        assert!(tail.copy.is_none(), "not small");
        tail.given(start, RTT, || 1);
        seal(&mut tail, 100);
        seal(&mut tail, 200);
        assert_eq!(tail.copy.take().map(|(_, bytes)| bytes.len()), Some(100), "the burst's first");
        tail.given(start + LOSSY, RTT, || 1);
        seal(&mut tail, 100);
        assert!(tail.copy.is_none(), "long ago");
    }
}

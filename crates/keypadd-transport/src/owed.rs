//! Counts the packets that a peer has yet to acknowledge, or a few more.
//!
//! `quinn-proto` keeps each packet that asks for an ACK until it is acknowledged or lost, and does
//! not say how many there are. An ACK settles everything before the largest packet number in it:
//! what it does not name is lost (RFC 9002 6.1). Knows totals and packet numbers, no packets.

/// Packets that a peer may owe acknowledgments for, besides those that the window allows: small
/// packets and answers that it asks for.
pub(crate) const OWED_PACKETS_MAX: u64 = 32_768;

/// What a connection has sent, and how much of it is settled.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// Total frames that ask for an ACK, and total packets: neither may be fewer than the packets
    /// that do.
    sent: [u64; 2],
    /// The totals when this packet number was the newest.
    mark: ([u64; 2], u64),
    /// The totals of what has been acknowledged or lost.
    settled: [u64; 2],
}

impl Owed {
    /// Records the total frames sent that ask for an ACK, and the total packets.
    pub(crate) fn sent(&mut self, frames: u64, packets: u64) {
        self.sent = [frames, packets];
    }

    /// The packets, given the newest packet number sent and the largest acknowledged.
    pub(crate) fn packets(&mut self, newest: u64, acked: u64) -> u64 {
        if acked >= self.mark.1 {
            self.settled = self.mark.0;
            self.mark = (self.sent, newest);
        }
        let [frames, packets] = [0, 1].map(|nth| self.sent[nth] - self.settled[nth]);
        frames.min(packets)
    }
}

//! Tells the loop what it meters a connection by.

use std::time::Duration;

use super::{Driver, ack_eliciting};

impl Driver {
    /// How many frames but padding have been received.
    #[inline(never)]
    pub(crate) fn frames_received(&self) -> u64 {
        let received = self.carrier.quic.stats().frame_rx;
        received.acks + ack_eliciting(&received)
    }

    /// The number of the newest packet that the peer has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.sender.acked()
    }

    /// CPU time that opening a KiB of datagrams takes.
    pub(crate) fn opening_cost(&self) -> Duration {
        self.carrier.lifecycle.opening_cost
    }
}

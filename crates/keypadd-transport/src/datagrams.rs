//! Abstracts the UDP socket of an event loop, so that tests can replace it.

use std::io;

use mio::{Registry, Token};

use crate::udp::{Received, Udp};

/// The largest batch of datagrams that the kernel takes or hands over at once (UDP's length field).
pub(crate) const BATCH_BYTES: usize = 64 << 10;

/// The system's UDP socket ([`Udp`]), or in proofs what stands in its place (`stepped`).
pub(crate) trait Datagrams {
    /// Has `token` reported when there is something to receive, or room to send.
    fn register(&self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Whether the system may split datagrams, so that they cannot find the path's MTU.
    fn may_fragment(&self) -> bool;

    /// Datagrams of this size that one send takes.
    fn batch(&self, datagram_bytes: u16) -> usize;

    /// Whether sends have to wait.
    fn is_full(&self) -> bool;

    /// Whether anything may leave now.
    fn may_send(&self) -> bool;

    /// Sends what was left over.
    fn flush(&mut self);

    /// Sends, or keeps the bytes until there is room: sealed packets are never sealed again.
    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]);

    /// The next batch, or `None` when there is none now.
    fn receive(&mut self) -> Option<Received>;
}

impl Datagrams for Udp {
    fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        Self::register(self, registry, token)
    }

    fn may_fragment(&self) -> bool {
        Self::may_fragment(self)
    }

    fn batch(&self, datagram_bytes: u16) -> usize {
        Self::batch(self, datagram_bytes)
    }

    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    fn may_send(&self) -> bool {
        Self::may_send(self)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]) {
        Self::send(self, transmit, bytes);
    }

    fn receive(&mut self) -> Option<Received> {
        Self::receive(self)
    }
}

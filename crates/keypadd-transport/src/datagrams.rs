//! Abstracts the UDP socket of an event loop, so that tests can replace it.

use std::{io, sync::Arc};

use mio::{Registry, Token};

use crate::udp::{ReceivedDatagrams, Udp};

/// The system's UDP socket ([`Udp`]), or its replacement in tests (`stepped`).
pub(crate) trait Datagrams {
    /// Registers `token` for received datagrams and, while the socket is full, for room to send.
    fn register(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()>;

    /// Whether the system may fragment datagrams, so that they cannot probe the path's MTU.
    fn may_fragment(&self) -> bool;

    /// Datagrams of this size that one send can carry.
    fn batch(&self, datagram_bytes: u16) -> usize;

    /// Whether the socket's buffer is full.
    fn is_full(&self) -> bool;

    /// The epoch of what it sends: the network gets nothing of it once that is over.
    fn epoch(&self) -> u64;

    /// Begins the current epoch, and drops what waits for room; returns false if it has begun before.
    fn begin_epoch(&mut self) -> bool;

    /// Retries what did not fit before.
    fn flush(&mut self);

    /// Sends, or keeps the bytes until there is room: a sealed packet is never sealed again.
    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]);

    /// Notes that the system reports datagrams that have arrived.
    fn on_readable(&mut self);

    /// Whether `receive` may return a batch. Saves the system call when it cannot.
    fn has_unread(&self) -> bool;

    /// The next batch; `None` if there is none now.
    fn receive(&mut self) -> Option<ReceivedDatagrams>;
}

impl Datagrams for Udp {
    fn register(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
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

    fn epoch(&self) -> u64 {
        Self::epoch(self)
    }

    fn begin_epoch(&mut self) -> bool {
        Self::begin_epoch(self)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]) {
        Self::send(self, transmit, bytes);
    }

    fn on_readable(&mut self) {
        Self::on_readable(self);
    }

    fn has_unread(&self) -> bool {
        Self::has_unread(self)
    }

    fn receive(&mut self) -> Option<ReceivedDatagrams> {
        Self::receive(self)
    }
}

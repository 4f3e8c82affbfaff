//! Abstracts the UDP socket of an event loop, so that tests can replace it.

use std::{io, sync::Arc, time::Instant};

use mio::{Registry, Token};
use quinn_udp::RecvMeta;

use crate::{not_sent::NotSent, receive_buffers::Batch};

/// Received datagrams of one source.
pub(crate) struct ReceivedDatagrams {
    /// When they were read: with an earlier time round trips would seem shorter than they are.
    /// `None` in virtual time.
    pub(crate) read_at: Option<Instant>,
    pub(crate) datagrams: Batch,
    pub(crate) meta: RecvMeta,
}

/// The system's UDP socket (`udp`), or its replacement in tests (`stepped`).
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

    /// Begins the current epoch, and drops what waits for room; returns false if it has begun
    /// before.
    fn begin_epoch(&mut self) -> bool;

    /// Retries what did not fit before.
    fn flush(&mut self);

    /// Sends, or keeps the bytes until there is room: a sealed packet is never sealed again. Other
    /// errors lose the datagrams, as the network may.
    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]);

    /// Why the last datagrams that this host did not let out were lost; asked once.
    fn take_not_sent(&mut self) -> Option<NotSent>;

    /// Notes that the system reports datagrams that have arrived.
    fn on_readable(&mut self);

    /// Whether `receive` may return a batch. Saves the system call when it cannot.
    fn has_unread(&self) -> bool;

    /// The next batch; `None` if there is none now.
    fn receive(&mut self) -> Option<ReceivedDatagrams>;
}

//! Holds what a loop waits for and sends with: the system's poll, the UDP socket, and who owns
//! which other socket.

use std::{io, sync::Arc, time::Duration};

use mio::{Events, Poll, Token};
use quinn_proto::Transmit;

use crate::{cid::LONG_HEADER, datagrams::Datagrams, splice::Sockets};

pub(super) const UDP: Token = Token(0);
pub(super) const WAKER: Token = Token(1);
/// The first token of a connection's sockets.
const FIRST_SOCKET: usize = 2;

/// Longer datagrams that begin with a packet of a handshake are ignored: handshakes have none, and
/// one full of small frames can take 30 ms of CPU time. Other packets, such as the first probe for
/// the path's MTU, cost nothing before the handshake is complete: `quinn-proto` drops them.
pub(super) const HANDSHAKE_BYTES_MAX: usize = 1_472;

pub(super) struct LoopIo<U> {
    poll: Poll,
    pub(super) sockets: Sockets,
    pub(super) udp: U,
    /// For packets that are sealed or answered.
    pub(super) buffer: Vec<u8>,
    /// The longest datagram that peers are told to send.
    datagram_bytes_max: usize,
    /// Whether another process reads incoming datagrams.
    pub(super) suspended: bool,
}

impl<U: Datagrams> LoopIo<U> {
    /// Returns what wakes the poll, too.
    pub(super) fn new(mut udp: U, datagram_bytes_max: u64) -> io::Result<(Self, mio::Waker)> {
        let poll = Poll::new()?;
        let registry = Arc::new(poll.registry().try_clone()?);
        let waker = mio::Waker::new(&registry, WAKER)?;
        udp.register(&registry, UDP)?;
        let this = Self {
            poll,
            sockets: Sockets::new(registry, FIRST_SOCKET),
            udp,
            buffer: Vec::new(),
            datagram_bytes_max: usize::try_from(datagram_bytes_max).unwrap_or(usize::MAX),
            suspended: false,
        };
        Ok((this, waker))
    }

    /// Waits for the system.
    pub(super) fn poll(&mut self, events: &mut Events, wait: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    /// Whether datagrams wait that this loop may read.
    pub(super) fn has_unread(&self) -> bool {
        !self.suspended && self.udp.has_unread()
    }

    /// Whether a datagram is longer than any that is handled.
    pub(super) fn is_too_long(&self, datagram: &[u8]) -> bool {
        let most = match datagram.first() {
            Some(first) if first & LONG_HEADER != 0 => HANDSHAKE_BYTES_MAX,
            _ => self.datagram_bytes_max,
        };
        datagram.len() > most
    }

    /// Sends what the endpoint has put into the buffer, if there is room.
    pub(super) fn respond(&mut self, transmit: Transmit) {
        if !self.udp.is_full() {
            self.udp.send(transmit, &self.buffer);
        }
    }
}

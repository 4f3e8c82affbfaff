//! Sends batches of datagrams by GSO and receives them by GRO, without copying received bytes.
//!
//! A received batch is split into its datagrams in the buffer it was received into, which then
//! belongs to them. Only those of handshakes are copied, so that a few bytes kept for long hold no
//! large buffer. Knows datagrams and of what is in them the first bit.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::UdpSocket,
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mio::{Interest, Registry, Token, unix::SourceFd};
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use rustix::io::Errno;

/// The largest batch that the kernel hands over or takes (UDP's length field).
const BATCH_BYTES: usize = 64 << 10;

/// A receive buffer is used until less than a batch fits into the rest.
const BUFFER_BYTES: usize = 4 * BATCH_BYTES;

/// The first bit of a packet of a handshake (RFC 9000 17.2).
const LONG_HEADER: u8 = 0x80;

/// One send in so many is timed.
const TIMED_ONE_IN: u64 = 64;

/// The gate that every send passes; the owner of the endpoint closes it.
pub trait Egress: fmt::Debug + Send + Sync {
    /// Whether anything may leave now. Asked once before each send; what may not leave is dropped,
    /// as a network may drop it.
    fn may_send(&self) -> bool;

    /// What one packet of a send has cost. Called for a sample of the sends.
    fn observe_send(&self, per_packet: Duration) {
        let _ = per_packet;
    }
}

/// Received datagrams of one source, one after the other.
pub(crate) struct Received {
    pub(crate) bytes: BytesMut,
    pub(crate) meta: RecvMeta,
}

impl Received {
    /// The next datagram.
    pub(crate) fn next(&mut self) -> Option<BytesMut> {
        if self.bytes.is_empty() {
            return None;
        }
        let length = self.bytes.len().min(self.meta.stride.max(1));
        let datagram = self.bytes.split_to(length);
        // Handshake data waits for what comes before it, and a stranger's must not hold a buffer of
        // many datagrams meanwhile. What opens a 1-RTT packet moves its plaintext by itself
        // (keypadd-provider's `OpenKey`).
        match datagram.first() {
            Some(first) if first & LONG_HEADER != 0 => Some(BytesMut::from(&datagram[..])),
            _ => Some(datagram),
        }
    }
}

/// What the kernel would not take yet.
struct Unsent {
    transmit: quinn_proto::Transmit,
    bytes: Vec<u8>,
}

/// A UDP socket of one loop.
pub(crate) struct Udp {
    socket: UdpSocket,
    state: UdpSocketState,
    egress: Arc<dyn Egress>,
    buffer: BytesMut,
    unsent: Option<Unsent>,
    sends: u64,
}

impl Udp {
    pub(crate) fn new(socket: UdpSocket, egress: Arc<dyn Egress>) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket, state, egress, buffer: BytesMut::new(), unsent: None, sends: 0 })
    }

    pub(crate) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut SourceFd(&self.socket.as_raw_fd()), token, interest)
    }

    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Datagrams of this size that one send takes.
    pub(crate) fn train(&self, datagram_bytes: u16) -> usize {
        // IP and UDP headers of a batch count against its 64 KiB as well.
        let fit = (BATCH_BYTES - 128) / usize::from(datagram_bytes.max(1));
        self.state.max_gso_segments().min(fit).max(1)
    }

    /// Whether sends have to wait until the socket is writable.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether anything may leave now.
    pub(crate) fn may_send(&self) -> bool {
        self.egress.may_send()
    }

    /// Sends what was left over.
    pub(crate) fn flush(&mut self) {
        if let Some(Unsent { transmit, bytes }) = self.unsent.take()
            && self.try_send(&transmit, &bytes)
        {
            self.unsent = Some(Unsent { transmit, bytes });
        }
    }

    /// Sends, or keeps the bytes until the socket has room: sealed packets are never sealed again.
    /// Other errors lose the datagrams, as the network may.
    pub(crate) fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]) {
        debug_assert!(!self.is_full(), "who sends asks first");
        if self.try_send(&transmit, bytes) {
            self.unsent = Some(Unsent { transmit, bytes: bytes.to_vec() });
        }
    }

    /// Whether the socket is full.
    fn try_send(&mut self, transmit: &quinn_proto::Transmit, bytes: &[u8]) -> bool {
        if !self.egress.may_send() {
            return false;
        }
        self.sends += 1;
        let started = self.sends.is_multiple_of(TIMED_ONE_IN).then(Instant::now);
        let train = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        let sent = self.state.try_send((&self.socket).into(), &train);
        if let (Err(error), Some(bytes)) = (&sent, transmit.segment_size)
            && Errno::from_io_error(error) == Some(Errno::MSGSIZE)
        {
            self.send_apart(&train, bytes);
        }
        if let Some(started) = started {
            let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
            let packets = transmit.size.div_ceil(segment).max(1);
            self.egress.observe_send(started.elapsed() / packets as u32);
        }
        matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends each datagram of a train that has become too long for the interface. The kernel refuses the
    /// whole train, and what is lost with short datagrams in it does not look like a lower MTU to
    /// `quinn-proto`. Alone, the short ones arrive, and it finds out.
    #[cold]
    fn send_apart(&self, train: &quinn_udp::Transmit<'_>, datagram_bytes: usize) {
        for contents in train.contents.chunks(datagram_bytes) {
            let alone = quinn_udp::Transmit { contents, segment_size: None, ..train.clone() };
            let _ = self.state.try_send((&self.socket).into(), &alone);
        }
    }

    /// The next batch, or `None` when there is none now.
    pub(crate) fn receive(&mut self) -> Option<Received> {
        if self.buffer.len() < BATCH_BYTES {
            self.buffer = BytesMut::zeroed(BUFFER_BYTES);
        }
        let mut meta = [RecvMeta::default()];
        let mut slices = [IoSliceMut::new(&mut self.buffer[..BATCH_BYTES])];
        loop {
            match self.state.recv((&self.socket).into(), &mut slices, &mut meta) {
                Ok(0) => return None,
                Ok(_) => break,
                // A port that is closed over there, for one: the next datagram may be another's.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    if error.kind() != io::ErrorKind::Interrupted
                        && error.kind() != io::ErrorKind::ConnectionRefused
                        && error.kind() != io::ErrorKind::ConnectionReset
                    {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
        let [meta] = meta;
        let bytes = self.buffer.split_to(meta.len);
        Some(Received { bytes, meta })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_of_a_handshake_holds_no_batch() {
        let mut batch = BytesMut::zeroed(BATCH_BYTES);
        batch[0] = LONG_HEADER;
        let memory = batch.as_ptr_range();
        let meta = RecvMeta { len: batch.len(), stride: 1_200, ..RecvMeta::default() };
        let mut received = Received { bytes: batch, meta };
        let (handshake, data) = (received.next().unwrap(), received.next().unwrap());
        assert_eq!((handshake.len(), data.len()), (1_200, 1_200));
        assert!(!memory.contains(&handshake.as_ptr()));
        assert!(memory.contains(&data.as_ptr()));
    }
}

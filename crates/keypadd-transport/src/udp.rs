//! Sends batches of datagrams by GSO and receives them by GRO.
//!
//! Knows datagrams, not their content.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use mio::{Interest, Registry, Token, unix::SourceFd};
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use rustix::io::Errno;
use tracing::debug;

use crate::{
    datagrams::{Datagrams, ReceivedDatagrams},
    not_sent::NotSent,
    receive_buffers::{BATCH_BYTES, ReceiveBuffers},
};

/// One send in this many is timed.
const TIMED_ONE_IN: u64 = 64;

/// A gate that every send passes. A connection may send only in the epoch in which it was made: its
/// keys may serve elsewhere once that is over.
pub trait Egress: fmt::Debug + Send + Sync {
    /// The current epoch. Only grows.
    fn epoch(&self) -> u64;

    /// Whether the current epoch is still this one. Asked once before each send; what is of an
    /// earlier epoch is dropped, as a network may drop it.
    fn may_send(&self, epoch: u64) -> bool;

    /// Reports the cost of one packet of a send. Called for a sample of the sends.
    fn observe_send(&self, per_packet: Duration) {
        let _ = per_packet;
    }
}

/// How many datagrams one system call of a UDP socket can carry; 1 without GSO and GRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// In a send (UDP_SEGMENT in udp(7)).
    pub send_segments: usize,
    /// In a receive (UDP_GRO).
    pub receive_segments: usize,
}

impl Offloads {
    /// The offloads of a socket on loopback.
    ///
    /// # Errors
    /// No UDP socket can be opened.
    pub fn of_this_host() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let state = UdpSocketState::new((&socket).into())?;
        let (send_segments, receive_segments) = (state.max_gso_segments(), state.gro_segments());
        Ok(Self { send_segments, receive_segments })
    }
}

/// Datagrams that the kernel had no room for.
struct Unsent {
    transmit: quinn_proto::Transmit,
    bytes: Vec<u8>,
}

/// The UDP socket of one loop.
pub(crate) struct Udp {
    socket: UdpSocket,
    state: UdpSocketState,
    egress: Arc<dyn Egress>,
    /// The epoch of all it is given to send.
    epoch: u64,
    buffers: ReceiveBuffers,
    events: Option<(Arc<Registry>, Token)>,
    unsent: Option<Unsent>,
    not_sent: Option<NotSent>,
    /// Set by events, cleared by a read that finds nothing: events are edge-triggered.
    unread: bool,
    sends: u64,
}

impl Udp {
    /// Received datagrams may keep this many buffers.
    pub(crate) fn new(
        socket: UdpSocket,
        egress: Arc<dyn Egress>,
        buffers: usize,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            socket,
            state,
            epoch: egress.epoch(),
            egress,
            buffers: ReceiveBuffers::new(buffers),
            events: None,
            unsent: None,
            not_sent: None,
            unread: true,
            sends: 0,
        })
    }

    /// Requests the event for room to send, or cancels it. Requested only while the socket is full:
    /// the kernel would report room after each datagram that leaves it, and wake the loop.
    fn watch_room(&mut self, full: bool) {
        let Some((registry, token)) = &self.events else { return };
        let interest =
            if full { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let mut source = SourceFd(&self.socket.as_raw_fd());
        if let Err(error) = registry.reregister(&mut source, *token, interest) {
            debug!(%error, "cannot change the events of the UDP socket");
            // Lost, as in the network: nothing would report room for it.
            self.unsent = None;
        }
    }

    /// Whether the socket is full.
    fn try_send(&mut self, transmit: &quinn_proto::Transmit, bytes: &[u8]) -> bool {
        if !self.egress.may_send(self.epoch) {
            return false;
        }
        self.sends += 1;
        let started = self.sends.is_multiple_of(TIMED_ONE_IN).then(Instant::now);
        let batch = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        let sent = self.state.try_send((&self.socket).into(), &batch);
        if let (Err(error), Some(bytes)) = (&sent, transmit.segment_size)
            && Errno::from_io_error(error) == Some(Errno::MSGSIZE)
        {
            self.send_apart(&batch, bytes);
        }
        if let Some(started) = started {
            let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
            let packets = transmit.size.div_ceil(segment).max(1);
            self.egress.observe_send(started.elapsed() / packets as u32);
        }
        match sent {
            Ok(()) => false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => {
                self.not_sent = NotSent::of(&error);
                false
            }
        }
    }

    /// Sends each datagram of a batch that is too long for the interface by itself. The kernel
    /// refuses the whole batch, and with short datagrams lost in it `quinn-proto` does not detect a
    /// lower MTU. Sent alone, the short ones arrive, and it does.
    #[cold]
    fn send_apart(&self, batch: &quinn_udp::Transmit<'_>, datagram_bytes: usize) {
        for contents in batch.contents.chunks(datagram_bytes) {
            let alone = quinn_udp::Transmit { contents, segment_size: None, ..batch.clone() };
            let _ = self.state.try_send((&self.socket).into(), &alone);
        }
    }

    fn try_receive(&mut self) -> Option<ReceivedDatagrams> {
        let mut meta = [RecvMeta::default()];
        let mut slices = [IoSliceMut::new(self.buffers.room())];
        loop {
            match self.state.recv((&self.socket).into(), &mut slices, &mut meta) {
                Ok(0) => return None,
                Ok(_) => break,
                // For example a closed port at the peer: the next datagram may be from another
                // peer.
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
        let datagrams = self.buffers.take(meta.len, meta.stride);
        Some(ReceivedDatagrams { datagrams, meta, read_at: Some(Instant::now()) })
    }
}

impl Datagrams for Udp {
    fn register(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.socket.as_raw_fd()), token, Interest::READABLE)?;
        self.events = Some((Arc::clone(registry), token));
        Ok(())
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn batch(&self, datagram_bytes: u16) -> usize {
        // The IP and UDP headers of a batch count against its 64 KiB, too.
        let fit = (BATCH_BYTES - 128) / usize::from(datagram_bytes.max(1));
        self.state.max_gso_segments().min(fit).max(1)
    }

    fn is_full(&self) -> bool {
        self.unsent.is_some()
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn begin_epoch(&mut self) -> bool {
        let ended = std::mem::replace(&mut self.epoch, self.egress.epoch());
        let begun = self.epoch != ended;
        if begun && self.unsent.take().is_some() {
            self.watch_room(false);
        }
        begun
    }

    fn flush(&mut self) {
        let Some(Unsent { transmit, bytes }) = self.unsent.take() else { return };
        if self.try_send(&transmit, &bytes) {
            self.unsent = Some(Unsent { transmit, bytes });
        } else {
            self.watch_room(false);
        }
    }

    fn send(&mut self, transmit: quinn_proto::Transmit, bytes: &[u8]) {
        debug_assert!(!self.is_full(), "who sends asks first");
        if self.try_send(&transmit, bytes) {
            self.unsent = Some(Unsent { transmit, bytes: bytes.to_vec() });
            self.watch_room(true);
        }
    }

    fn take_not_sent(&mut self) -> Option<NotSent> {
        self.not_sent.take()
    }

    fn on_readable(&mut self) {
        self.unread = true;
    }

    fn has_unread(&self) -> bool {
        self.unread
    }

    fn receive(&mut self) -> Option<ReceivedDatagrams> {
        if !self.unread {
            return None;
        }
        let received = self.try_receive();
        self.unread = received.is_some();
        received
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[derive(Debug, Default)]
    struct Epochs(AtomicU64);

    impl Egress for Epochs {
        fn epoch(&self) -> u64 {
            self.0.load(Relaxed)
        }

        fn may_send(&self, epoch: u64) -> bool {
            epoch == self.epoch()
        }
    }

    #[test]
    fn what_waits_for_room_is_of_its_own_epoch() {
        let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (epochs, peer) = (Arc::<Epochs>::default(), socket());
        peer.set_nonblocking(true).unwrap();
        let mut udp = Udp::new(socket(), Arc::<Epochs>::clone(&epochs), 1).unwrap();
        let transmit = |bytes: &[u8]| quinn_proto::Transmit {
            destination: peer.local_addr().unwrap(),
            ecn: None,
            size: bytes.len(),
            segment_size: None,
            src_ip: None,
        };
        let mut received = [0; 16];
        let mut next = || peer.recv(&mut received).ok().map(|bytes| received[..bytes].to_vec());

        for epoch_is_noticed in [false, true] {
            udp.unsent = Some(Unsent { transmit: transmit(b"older"), bytes: b"older".to_vec() });
            epochs.0.fetch_add(1, Relaxed);
            assert!(!epoch_is_noticed || udp.begin_epoch());
            udp.flush();
            assert!(!udp.is_full());
            assert_eq!(next(), None);
        }
        assert!(!udp.begin_epoch());
        udp.send(transmit(b"newer"), b"newer");
        assert_eq!(next().as_deref(), Some(&b"newer"[..]));
    }

    #[test]
    fn what_the_system_does_not_send_has_its_reason() {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let mut udp = Udp::new(socket, Arc::<Epochs>::default(), 1).unwrap();
        let mut send = |address: [u8; 4], size| {
            udp.send(
                quinn_proto::Transmit {
                    destination: (address, 9).into(),
                    ecn: None,
                    size,
                    segment_size: None,
                    src_ip: None,
                },
                &vec![0; size],
            );
            (udp.take_not_sent(), udp.take_not_sent())
        };
        // Nobody has asked for broadcasts.
        assert_eq!(send([127, 255, 255, 255], 1), (Some(NotSent::Prohibited), None));
        assert_eq!(send([127, 0, 0, 1], 65_508), (Some(NotSent::TooLong), None));
        assert_eq!(send([127, 0, 0, 1], 1), (None, None));
    }
}

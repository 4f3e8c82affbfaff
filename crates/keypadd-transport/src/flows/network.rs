//! A flow whose end is a device for IP packets (TUN), behind a filter.
//!
//! The device outlives connections. One of those that carry its packets reads it (`readers`); the
//! others still write what arrives for them, so a session loses nothing when another takes its
//! place. What was read waits with the device until it is sent, by whichever connection reads it
//! then. Where a session has a bulk connection, that sends the packets of bulk flows: those of
//! sparse ones wait for none of them at either end. Knows no addresses and no rules: the filter
//! decides about each packet.

use std::{
    borrow::Cow,
    fmt,
    fs::File,
    hash::RandomState,
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use keypadd_network::{
    Classes, Coalescer, DEVICE_HEADER_BYTES, Joined, PacketQueue, Signals, SuperPacket,
};
use mio::{Interest, Registry, Token, unix::SourceFd};
use rustix::io::Errno;

use super::readers::{PacketRole, Paused, Reader, Readers, lock};
use crate::{handed_controller::HandedController, transfer_stats::TransferStats};

/// What a device gives at once, at most.
pub(super) const READ_BYTES_MAX: usize = DEVICE_HEADER_BYTES + u16::MAX as usize;

/// Decides about the packets of a network. Event loops call it for each.
pub trait PacketFilter: fmt::Debug + Send + Sync {
    /// Decides about what the device has given at once, which it may change: its header, and a
    /// packet or several that are to be cut out of one.
    fn outbound(&self, frame: &mut [u8], path: PacketPath) -> Outbound;

    /// Decides about a packet from the peer, which it may change.
    fn inbound(&self, packet: &mut Cow<'_, [u8]>, path: PacketPath) -> Ruling;

    /// The device has taken a packet of the peer, of so many bytes.
    fn delivered(&self, bytes: usize);

    /// The device has refused a packet, or will take none any more.
    fn refused_by_device(&self);

    /// Packets from the device have waited for too long.
    fn signaled(&self, signals: Signals);
}

/// What carries a network's packets now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPath {
    /// The largest packet that needs no fragments. 0 if that is unknown.
    pub room: usize,
    /// Where the peer is, if that is known: an IPv4 address is never in its IPv6 form.
    pub remote: Option<SocketAddr>,
    /// The time.
    pub now: Instant,
}

/// What happens to a packet from the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruling {
    /// Whether it goes on.
    pub passes: bool,
    /// A packet for its sender, which goes back to the peer.
    pub answer: Option<Bytes>,
}

impl Ruling {
    /// The packet goes on.
    pub const PASS: Self = Self { passes: true, answer: None };

    /// The packet is dropped.
    pub const DROP: Self = Self { passes: false, answer: None };
}

/// What happens to packets from the device.
#[derive(Debug, Default)]
pub struct Outbound {
    /// What is to be sent of them.
    pub packets: Option<SuperPacket>,
    /// A packet for their sender, which goes back to the device.
    pub answer: Option<Bytes>,
}

/// A device for IP packets, with its filter. Clones share it.
#[derive(Clone, Debug)]
pub struct PacketDevice {
    device: Arc<File>,
    filter: Arc<dyn PacketFilter>,
    readers: Arc<Readers>,
    /// What was read and not sent.
    queue: Arc<Mutex<PacketQueue>>,
    /// Whether it takes packets together, as far as is known.
    takes_joined: Arc<AtomicBool>,
    /// Counts what its connections drop of it, all together.
    carried: Arc<TransferStats>,
}

impl PacketDevice {
    /// Uses a device with offloads (`IFF_VNET_HDR`) that does not block.
    pub fn new(device: OwnedFd, filter: Arc<dyn PacketFilter>) -> Self {
        Self {
            device: Arc::new(device.into()),
            filter,
            readers: Arc::default(),
            queue: Arc::new(Mutex::new(PacketQueue::new(RandomState::new()))),
            takes_joined: Arc::new(AtomicBool::new(true)),
            carried: Arc::new(TransferStats::for_flow()),
        }
    }

    /// What its connections have carried of it.
    pub fn carried(&self) -> Arc<TransferStats> {
        Arc::clone(&self.carried)
    }

    /// Lets no connection read the device or send what was read, so that its packets wait for the
    /// next one that is to read it. Ends when the returned value is dropped, unless it is
    /// [kept](Paused::keep).
    pub fn pause(&self) -> Paused {
        self.readers.pause()
    }

    /// Lets no connection send the packets of bulk flows, as [`pause`](Self::pause) does for all.
    pub fn pause_bulk(&self) -> Paused {
        self.readers.pause_bulk()
    }

    /// The device, for the process that follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn try_clone_device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone().map(OwnedFd::from)
    }
}

/// A device as one connection of a session carries its packets.
#[derive(Debug)]
pub(crate) struct NetworkSide {
    pub(crate) device: PacketDevice,
    pub(crate) session: u64,
    pub(crate) role: PacketRole,
}

/// What waits to be sent by a connection.
pub(super) struct Waiting {
    /// Whether any packets wait.
    pub(super) any: bool,
    /// Whether packets of bulk flows wait, which another connection should send.
    pub(super) is_bulk: bool,
}

/// The packets of a device that wait to be sent, for a connection that sends some of them.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    queue: Arc<Mutex<PacketQueue>>,
    filter: Arc<dyn PacketFilter>,
    readers: Arc<Readers>,
    /// Of the connection, among the readers.
    number: u64,
}

impl Outgoing {
    /// What waits, if it is this connection's turn.
    pub(super) fn waiting(&self) -> Waiting {
        let classes = self.classes();
        let queue = lock(&self.queue);
        let is_bulk = classes == Classes::ALL && queue.has(Classes { sparse: false, bulk: true });
        Waiting { any: queue.has(classes), is_bulk }
    }

    /// Appends the next packet to a frame that has this room for it; a longer one is to be
    /// fragmented. A round trip to the peer takes `rtt`. Returns whether more wait, or `None` if
    /// there is none.
    pub(super) fn next(
        &self,
        room: usize,
        rtt: Duration,
        now: Instant,
        frame: &mut BytesMut,
    ) -> Option<bool> {
        let classes = self.classes();
        let mut queue = lock(&self.queue);
        queue.set_round_trip(rtt);
        let is_there = queue.next(classes, room, now, frame);
        report(&mut queue, &*self.filter);
        is_there.then(|| queue.has(classes))
    }

    fn push(&self, packets: SuperPacket, now: Instant) {
        let mut queue = lock(&self.queue);
        let first = queue.push(packets, now);
        report(&mut queue, &*self.filter);
        drop(queue);
        // Another connection may send them, also since the device was read.
        if let Some(class) = first {
            self.readers.tell(class, self.number);
        }
    }

    fn classes(&self) -> Classes {
        self.readers.classes_of(self.number)
    }

    fn is_reading(&self) -> bool {
        self.readers.is_reading(self.number)
    }
}

fn report(queue: &mut PacketQueue, filter: &dyn PacketFilter) {
    let signals = queue.take_signals();
    if signals != Signals::default() {
        filter.signaled(signals);
    }
}

/// The device as one connection uses it; dropping this deregisters it.
#[derive(Debug)]
pub(crate) struct NetworkEnd {
    /// Its own descriptor: a loop can register one of each connection.
    device: File,
    pub(crate) token: Token,
    registry: Arc<Registry>,
    shared: PacketDevice,
    session: u64,
    role: PacketRole,
    /// Packets of the peer that the device gets together.
    arrived: Coalescer,
    /// Once it has asked to send.
    outgoing: Option<Outgoing>,
    /// Whether it sent the packets of bulk flows when it was last told whose turn it is.
    sends_bulk: bool,
}

impl NetworkEnd {
    /// Attaches the device to a connection, which writes it.
    pub(super) fn new(
        side: NetworkSide,
        token: Token,
        registry: &Arc<Registry>,
    ) -> io::Result<Self> {
        let NetworkSide { device: shared, session, role } = side;
        let device = shared.device.try_clone()?;
        if role == PacketRole::Reads {
            registry.register(&mut SourceFd(&device.as_raw_fd()), token, Interest::READABLE)?;
        }
        let (registry, arrived) = (Arc::clone(registry), Coalescer::default());
        let (outgoing, sends_bulk) = (None, false);
        Ok(Self { device, token, registry, shared, session, role, arrived, outgoing, sends_bulk })
    }

    /// Lets the connection have its role from now on, in place of others. It is told as this reader
    /// when it is its turn. Returns what it then has to send, if it had not asked before.
    pub(super) fn ask_to_send(&mut self, reader: Arc<dyn Reader>) -> Option<Outgoing> {
        if self.outgoing.is_some() {
            return None;
        }
        let number = self.shared.readers.ask(self.session, self.role, reader);
        let PacketDevice { queue, filter, readers, .. } = self.shared.clone();
        let outgoing = Outgoing { queue, filter, readers, number };
        self.outgoing = Some(outgoing.clone());
        Some(outgoing)
    }

    /// The turns have changed, or the connection `ends` what it carries. If it sends the packets of
    /// bulk flows from now on, returns the controller that the one before has left for it; if it
    /// does not any more, leaves its `own`.
    pub(super) fn follow_turn(
        &mut self,
        ends: bool,
        now: Instant,
        own: impl FnOnce() -> Option<HandedController>,
    ) -> Option<HandedController> {
        let outgoing = self.outgoing.as_ref()?;
        let sends_bulk = !ends && outgoing.classes().bulk;
        let has_sent = std::mem::replace(&mut self.sends_bulk, sends_bulk);
        match (has_sent, sends_bulk) {
            (_, true) => outgoing.readers.take_controller(outgoing.number, now),
            (true, false) => {
                outgoing.readers.leave_controller(outgoing.number, own());
                None
            }
            (false, false) => None,
        }
    }

    /// Reads what the device gives at once, and queues what of it may go to the peer; returns the
    /// bytes that were queued, if any. Leaves packets in the device unless it is its turn to read.
    pub(super) fn receive(&self, buffer: &mut [u8], path: PacketPath) -> io::Result<Option<usize>> {
        let Some(outgoing) = self.outgoing.as_ref().filter(|it| it.is_reading()) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let bytes = retry(|| (&self.device).read(buffer))?;
        // A device that is gone: a packet is never empty.
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Outbound { packets, answer } = self.shared.filter.outbound(&mut buffer[..bytes], path);
        if let Some(answer) = answer
            && self.shared.write(&Joined::one(answer)).is_err()
        {
            self.shared.filter.refused_by_device();
        }
        let Some(packets) = packets else { return Ok(None) };
        outgoing.push(packets, path.now);
        Ok(Some(bytes - DEVICE_HEADER_BYTES))
    }

    /// Takes a packet from the peer if the filter passes it: the device has it once it is
    /// [flushed](Self::flush). Returns a packet for the peer.
    pub(super) fn deliver(&mut self, packet: Bytes, path: PacketPath) -> Option<Bytes> {
        let mut view = Cow::Borrowed(&packet[..]);
        let Ruling { passes, answer } = self.shared.filter.inbound(&mut view, path);
        if passes {
            let changed = match view {
                Cow::Owned(changed) => Some(changed.into()),
                Cow::Borrowed(_) => None,
            };
            let packet = changed.unwrap_or(packet);
            if self.shared.takes_joined.load(Relaxed) {
                self.arrived.push(packet, |joined| self.shared.deliver(&joined));
            } else {
                self.flush();
                self.shared.deliver(&Joined::one(packet));
            }
        }
        answer
    }

    /// Gives the device what is left of the packets of the peer.
    pub(super) fn flush(&mut self) {
        self.arrived.flush(|joined| self.shared.deliver(&joined));
    }
}

impl PacketDevice {
    /// Writes packets of the peer. One that the device refuses is lost, as on a network.
    fn deliver(&self, joined: &Joined) {
        let packets = joined.packets();
        let all = self.write(joined);
        if packets.len() > 1 && all.as_ref().is_err_and(is_about_offloads) {
            self.takes_joined.store(false, Relaxed);
        }
        for packet in packets {
            // It may take each of those that it does not take together.
            let again = || packets.len() > 1 && self.write(&Joined::one(packet.clone())).is_ok();
            if all.is_ok() || again() {
                self.carried.add_datagram_to_socket(packet.len());
                self.filter.delivered(packet.len());
            } else {
                self.filter.refused_by_device();
            }
        }
    }

    fn write(&self, joined: &Joined) -> io::Result<usize> {
        retry(|| (&*self.device).write_vectored(&joined.parts()))
    }
}

impl Drop for NetworkEnd {
    fn drop(&mut self) {
        // Another descriptor of the same device would stay registered.
        if self.role == PacketRole::Reads {
            let _ = self.registry.deregister(&mut SourceFd(&self.device.as_raw_fd()));
        }
        if let Some(outgoing) = &self.outgoing {
            outgoing.readers.leave(outgoing.number);
        }
    }
}

/// Whether a device refuses packets for how they are joined, and not for how it does itself.
fn is_about_offloads(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::MSGSIZE))
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

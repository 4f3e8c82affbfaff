//! A flow whose end is a device for IP packets (TUN), behind a filter.
//!
//! The device outlives connections. One of those that carry its packets reads it (`readers`); the
//! others still write what arrives for them, so a session loses nothing when another takes its
//! place. Knows no addresses and no rules: the filter decides about each packet.

use std::{
    borrow::Cow,
    collections::VecDeque,
    fmt,
    fs::File,
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use mio::{Interest, Registry, Token, unix::SourceFd};

use super::readers::{Paused, Reader, Readers};
use crate::transfer_stats::TransferStats;

/// Decides about the packets of a network. Event loops call it for each packet.
pub trait PacketFilter: fmt::Debug + Send + Sync {
    /// Decides about a packet from the device, which it may change.
    fn outbound(&self, packet: &mut [u8], path: PacketPath) -> Ruling;

    /// Decides about a packet from the peer, which it may change.
    fn inbound(&self, packet: &mut Cow<'_, [u8]>, path: PacketPath) -> Ruling;

    /// The device has taken a packet of the peer, of so many bytes.
    fn delivered(&self, bytes: usize);

    /// The device has refused a packet, or will take none any more.
    fn refused_by_device(&self);
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

/// What happens to a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruling {
    /// Whether it goes on.
    pub passes: bool,
    /// A packet for its sender, which goes back to where it came from.
    pub answer: Option<Bytes>,
}

impl Ruling {
    /// The packet goes on.
    pub const PASS: Self = Self { passes: true, answer: None };

    /// The packet is dropped.
    pub const DROP: Self = Self { passes: false, answer: None };
}

/// A device for IP packets, with its filter. Clones share it.
#[derive(Clone, Debug)]
pub struct PacketDevice {
    device: Arc<File>,
    filter: Arc<dyn PacketFilter>,
    readers: Arc<Readers>,
    /// Counts what its connections drop of it, all together.
    carried: Arc<TransferStats>,
}

impl PacketDevice {
    /// Uses a device that reads and writes one packet at a time and does not block.
    pub fn new(device: OwnedFd, filter: Arc<dyn PacketFilter>) -> Self {
        Self {
            device: Arc::new(device.into()),
            filter,
            readers: Arc::default(),
            carried: Arc::new(TransferStats::for_flow()),
        }
    }

    /// What its connections have carried of it.
    pub fn carried(&self) -> Arc<TransferStats> {
        Arc::clone(&self.carried)
    }

    /// Lets no connection read the device, so that its packets wait for the next one that is to
    /// read it. What the last one has read and not sent waits, too. Ends when the returned value is
    /// dropped, unless it is [kept](Paused::keep).
    pub fn pause(&self) -> Paused {
        self.readers.pause()
    }

    /// The device, for the process that follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn try_clone_device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone().map(OwnedFd::from)
    }
}

/// The device as one connection uses it; dropping this deregisters it.
#[derive(Debug)]
pub(crate) struct NetworkEnd {
    /// Its own descriptor: a loop can register one of each connection.
    device: File,
    pub(crate) token: Token,
    registry: Arc<Registry>,
    filter: Arc<dyn PacketFilter>,
    readers: Arc<Readers>,
    /// Its number among the readers, once it has asked to be one.
    number: Option<u64>,
}

/// What became of a packet from the peer.
#[derive(Debug)]
pub(super) struct Delivered {
    /// Whether the device has it.
    pub(super) written: bool,
    /// A packet for the peer.
    pub(super) answer: Option<Bytes>,
}

impl NetworkEnd {
    /// Attaches the device to a connection, which writes it.
    pub(super) fn new(
        shared: &PacketDevice,
        token: Token,
        registry: &Arc<Registry>,
    ) -> io::Result<Self> {
        let device = shared.device.try_clone()?;
        registry.register(&mut SourceFd(&device.as_raw_fd()), token, Interest::READABLE)?;
        let (registry, readers) = (Arc::clone(registry), Arc::clone(&shared.readers));
        let filter = Arc::clone(&shared.filter);
        Ok(Self { device, token, registry, filter, readers, number: None })
    }

    /// Lets the connection read the device from now on, in place of others. It is told as this
    /// reader when it is its turn.
    pub(super) fn ask_to_read(&mut self, reader: Arc<dyn Reader>) {
        if self.number.is_none() {
            self.number = Some(self.readers.ask(reader));
        }
    }

    /// Whether it is its turn to read the device.
    fn reads(&self) -> bool {
        self.number.is_some_and(|number| self.readers.is_current(number))
    }

    /// Takes what other connections have read and not sent, if it is its turn to read.
    pub(super) fn take_unsent(&self) -> VecDeque<Bytes> {
        if self.reads() { self.readers.take_unsent() } else { VecDeque::new() }
    }

    /// Keeps what the connection has read and not sent for the one that reads next; returns how
    /// many packets are dropped.
    pub(super) fn give_back(&self, unsent: Vec<Bytes>) -> usize {
        self.readers.give_back(unsent)
    }

    /// Reads one packet that may go to the peer; `None` if it may not. The packets are left in the
    /// device unless it is its turn to read.
    pub(super) fn receive(&self, buffer: &mut [u8], path: PacketPath) -> io::Result<Option<usize>> {
        if !self.reads() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = retry(|| (&self.device).read(buffer))?;
        // A device that is gone: a packet is never empty.
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Ruling { passes, answer } = self.filter.outbound(&mut buffer[..bytes], path);
        if let Some(answer) = answer {
            self.write(&answer);
        }
        Ok(passes.then_some(bytes))
    }

    /// Writes a packet from the peer to the device if the filter passes it.
    pub(super) fn deliver(&self, packet: &[u8], path: PacketPath) -> Delivered {
        let mut packet = Cow::Borrowed(packet);
        let Ruling { passes, answer } = self.filter.inbound(&mut packet, path);
        let written = passes && self.write(&packet);
        if written {
            self.filter.delivered(packet.len());
        }
        Delivered { written, answer }
    }

    fn write(&self, packet: &[u8]) -> bool {
        let written = retry(|| (&self.device).write(packet)).is_ok();
        if !written {
            self.filter.refused_by_device();
        }
        written
    }
}

impl Drop for NetworkEnd {
    fn drop(&mut self) {
        // Another descriptor of the same device would stay registered.
        let _ = self.registry.deregister(&mut SourceFd(&self.device.as_raw_fd()));
        if let Some(number) = self.number {
            self.readers.leave(number);
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

//! A flow whose end is a device for IP packets (TUN), behind a filter.
//!
//! The device outlives connections. The newest connection that carries its packets reads it; the
//! ones before still write what arrives for them, so a session loses nothing when another takes its
//! place. Knows no addresses and no rules: the filter decides about each packet.

use std::{
    borrow::Cow,
    fmt,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use mio::{Interest, Registry, Token, unix::SourceFd};

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

/// How often a device is read that has not said that it has packets: it says so once, and not again
/// to a connection that became the one to read it, or may read it again, with packets in its queue.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(1);

/// A device for IP packets, with its filter. Clones share it.
#[derive(Clone, Debug)]
pub struct PacketDevice {
    device: Arc<File>,
    filter: Arc<dyn PacketFilter>,
    /// How many connections have attached it. The last one reads it.
    attached: Arc<AtomicU64>,
    /// Counts what its connections drop of it, all together.
    carried: Arc<TransferStats>,
}

impl PacketDevice {
    /// Uses a device that reads and writes one packet at a time and does not block.
    pub fn new(device: OwnedFd, filter: Arc<dyn PacketFilter>) -> Self {
        Self {
            device: Arc::new(device.into()),
            filter,
            attached: Arc::default(),
            carried: Arc::new(TransferStats::for_flow()),
        }
    }

    /// What its connections have carried of it.
    pub fn carried(&self) -> Arc<TransferStats> {
        Arc::clone(&self.carried)
    }

    /// Lets no connection read the device, so that its packets wait for the next one that attaches
    /// it. Ends when the returned value is dropped, unless it is [kept](Paused::keep).
    pub fn pause(&self) -> Paused {
        let before = self.attached.load(Relaxed);
        let paused = before + 1;
        let attached = Arc::clone(&self.attached);
        // Fails if a connection attaches it at the same time: that one is to read it.
        let _ = attached.compare_exchange(before, paused, Relaxed, Relaxed);
        Paused { attached, before, paused }
    }

    /// The device, for the process that follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn try_clone_device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone().map(OwnedFd::from)
    }
}

/// Keeps connections from reading a device.
#[derive(Debug)]
pub struct Paused {
    attached: Arc<AtomicU64>,
    before: u64,
    paused: u64,
}

impl Paused {
    /// Leaves the device paused until a connection attaches it.
    pub fn keep(mut self) {
        self.before = self.paused;
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // Fails if a connection has attached it meanwhile.
        let (paused, before) = (self.paused, self.before);
        let _ = self.attached.compare_exchange(paused, before, Relaxed, Relaxed);
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
    attached: Arc<AtomicU64>,
    /// The value of `attached` while this is the newest connection.
    number: u64,
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
    /// Attaches the device to a connection, which reads it from now on.
    pub(super) fn new(
        shared: &PacketDevice,
        token: Token,
        registry: &Arc<Registry>,
    ) -> io::Result<Self> {
        let device = shared.device.try_clone()?;
        registry.register(&mut SourceFd(&device.as_raw_fd()), token, Interest::READABLE)?;
        let number = shared.attached.fetch_add(1, Relaxed) + 1;
        let (registry, attached) = (Arc::clone(registry), Arc::clone(&shared.attached));
        Ok(Self { device, token, registry, filter: Arc::clone(&shared.filter), attached, number })
    }

    /// Reads one packet that may go to the peer; `None` if it may not. The packets of a device that
    /// a newer connection has attached are left to that one.
    pub(super) fn receive(&self, buffer: &mut [u8], path: PacketPath) -> io::Result<Option<usize>> {
        if self.attached.load(Relaxed) != self.number {
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

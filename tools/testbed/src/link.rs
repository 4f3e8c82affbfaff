//! Relays between two ends in userspace, over lines with a delay each way, a rate and a bounded
//! queue, which several pairs of ends may share.
//!
//! A relay stands for the line: what is sent to it reaches the other end, later. Each direction has
//! its own threads, because tokio's timer rounds to milliseconds. Only a full queue loses packets,
//! as on a wire. Understands nothing of the payload.

mod tcp;
mod udp;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::line::{Line, LineSettings, QueueBound};

pub(crate) use udp::bind;

/// Minimum length of the queue before a line, in sending time. As is usual, it holds at least a
/// round trip's worth.
const QUEUE_MIN: Duration = Duration::from_millis(50);

/// Pieces in transit per direction of a relay; more are lost, or wait with TCP.
const UNDERWAY: usize = 1 << 14;

/// How soon a waiting thread notices that its relay is gone.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Properties of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// One way.
    pub delay: Duration,
    /// Bits of IP packets per second, each way; `None` for no limit.
    pub bits_per_second: Option<NonZeroU64>,
    /// Whether the ends speak IPv6.
    pub ipv6: bool,
}

impl LinkSettings {
    /// The loopback address of its family.
    pub fn loopback(self) -> IpAddr {
        if self.ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
    }

    /// Whether this link adds nothing to loopback.
    fn is_loopback(self) -> bool {
        self.delay.is_zero() && self.bits_per_second.is_none()
    }
}

/// A link. Clones are the same line: pairs of ends with a clone each share its rate. The default is
/// plain loopback.
#[derive(Clone, Debug, Default)]
pub struct Link {
    settings: LinkSettings,
    ways: [Arc<Way>; 2],
}

impl Link {
    /// Creates a line of its own.
    pub fn new(settings: LinkSettings) -> Self {
        Self { settings, ways: [(); 2].map(|()| Arc::new(Way::new(settings))) }
    }

    /// Its properties.
    pub fn settings(&self) -> LinkSettings {
        self.settings
    }

    /// Where to send UDP meant for `to`: a relay, for as long as it is kept, or `to` itself.
    ///
    /// # Errors
    /// The system has no port or no thread for a relay.
    pub fn udp(&self, to: SocketAddr) -> io::Result<(SocketAddr, Option<Forwarder>)> {
        self.relay(to, udp::start)
    }

    /// Like [`Self::udp`], for TCP connections. A relay terminates TCP's congestion control: it
    /// delays data and limits the rate, but shows no slow start and no loss.
    ///
    /// # Errors
    /// As above.
    pub fn tcp(&self, to: SocketAddr) -> io::Result<(SocketAddr, Option<Forwarder>)> {
        self.relay(to, tcp::start)
    }

    fn relay(
        &self,
        to: SocketAddr,
        start: fn(&[Arc<Way>; 2], SocketAddr) -> io::Result<Forwarder>,
    ) -> io::Result<(SocketAddr, Option<Forwarder>)> {
        if self.settings.is_loopback() {
            return Ok((to, None));
        }
        let relay = start(&self.ways, to)?;
        Ok((relay.address, Some(relay)))
    }
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Payload received.
    pub bytes: u64,
    /// Datagrams received; pieces of a TCP stream.
    pub datagrams: u64,
    /// Datagrams dropped by a full queue.
    pub lost: u64,
}

/// A running relay. Dropping it ends it soon and loses what is in transit.
#[derive(Debug)]
pub struct Forwarder {
    address: SocketAddr,
    shared: Arc<ForwarderState>,
}

/// What a relay's threads share.
#[derive(Debug, Default)]
struct ForwarderState {
    is_over: AtomicBool,
    ways: [Counters; 2],
}

#[derive(Debug, Default)]
struct Counters {
    bytes: AtomicU64,
    datagrams: AtomicU64,
    lost: AtomicU64,
}

impl Forwarder {
    /// Received traffic: from clients, and from the other end.
    pub fn counts(&self) -> [LinkCounts; 2] {
        [0, 1].map(|way| {
            let counters: &Counters = &self.shared.ways[way];
            LinkCounts {
                bytes: counters.bytes.load(Relaxed),
                datagrams: counters.datagrams.load(Relaxed),
                lost: counters.lost.load(Relaxed),
            }
        })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
    }
}

impl ForwarderState {
    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    fn count(&self, way: usize, bytes: usize) {
        self.ways[way].bytes.fetch_add(bytes as u64, Relaxed);
        self.ways[way].datagrams.fetch_add(1, Relaxed);
    }

    fn count_lost(&self, way: usize) {
        self.ways[way].lost.fetch_add(1, Relaxed);
    }
}

/// One direction of a link, shared by its relays.
#[derive(Debug)]
struct Way(Mutex<Line>);

impl Default for Way {
    fn default() -> Self {
        Self::new(LinkSettings::default())
    }
}

impl Way {
    fn new(settings: LinkSettings) -> Self {
        let LinkSettings { delay, bits_per_second, .. } = settings;
        let queue = QueueBound { wait: QUEUE_MIN.max(2 * delay), ..QueueBound::UNBOUNDED };
        let settings = LineSettings { delay, bits_per_second, queue, ..LineSettings::default() };
        // Nothing on it is random.
        Self(Mutex::new(Line::new(settings, 0)))
    }

    /// Enqueues this many bytes: returns when the last arrives at the other end, or, if the queue
    /// is full, how long until it has room.
    fn take(&self, now: Instant, bytes: usize) -> Result<Instant, Duration> {
        // The guarded line is consistent at any moment.
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match line.offer(now, bytes) {
            Ok(arrivals) => Ok(arrivals.packet.at),
            Err(_) => Err(line.room_in(now, bytes)),
        }
    }
}

/// Bytes of an IP packet that are not payload, with a TCP or UDP header of this length.
fn headers(to: SocketAddr, transport: usize) -> usize {
    transport + if to.is_ipv6() { 40 } else { 20 }
}

/// Starts a thread of a relay.
fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("kpd-link".into()).spawn(work).map(drop)
}

/// Waits until something is due.
fn wait_for(due: Instant) {
    thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Makes this thread wake up on time, not up to 50 us late.
fn wake_on_time() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

#[cfg(test)]
mod tests;

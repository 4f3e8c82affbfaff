//! Relays between two ends in userspace: a delay each way, and a line with a rate and a bounded queue, which
//! several pairs may share.
//!
//! A relay stands for the line: whoever sends to it reaches the other end, later. Each way has threads of
//! its own, because tokio's timer rounds to milliseconds. Loss comes from a full queue alone, as on a
//! wire. Understands nothing of what it carries.

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

/// The queue before a line holds what the line carries in a round trip, as is usual, and at least in
/// this time.
const QUEUE_MIN: Duration = Duration::from_millis(50);

/// What was read and has not arrived yet, pieces each way of a relay; more is lost, or waits with TCP.
const UNDERWAY: usize = 1 << 14;

/// How soon a thread that waits for its peer sees that its relay is gone.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What a link is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Of each way.
    pub delay: Duration,
    /// Bits of IP packets a second, each way; `None`: as fast as it goes.
    pub bits_per_second: Option<NonZeroU64>,
    /// Whether the ends speak IPv6.
    pub ipv6: bool,
}

impl LinkSettings {
    /// The loopback address of its family.
    pub fn loopback(self) -> IpAddr {
        match self.ipv6 {
            true => Ipv6Addr::LOCALHOST.into(),
            false => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Whether two ends on one machine are no different.
    fn is_loopback(self) -> bool {
        self.delay.is_zero() && self.bits_per_second.is_none()
    }
}

/// A link. Clones are the same line, so that pairs of ends with a clone each have its rate together. The
/// default is loopback itself, with nothing in between.
#[derive(Clone, Debug, Default)]
pub struct Link {
    settings: LinkSettings,
    ways: [Arc<Way>; 2],
}

impl Link {
    /// A line of its own.
    pub fn new(settings: LinkSettings) -> Self {
        Self { settings, ways: [(); 2].map(|()| Arc::new(Way::new(settings))) }
    }

    /// What it is like.
    pub fn settings(&self) -> LinkSettings {
        self.settings
    }

    /// Where to send UDP that is for `to`: a relay, while it is held, or `to` itself.
    ///
    /// # Errors
    /// The system has no port or no thread for a relay.
    pub fn udp(&self, to: SocketAddr) -> io::Result<(SocketAddr, Option<Forwarder>)> {
        self.relay(to, udp::start)
    }

    /// The same for TCP connections. A relay ends TCP's own control of congestion: what comes through is
    /// delayed and held to the rate, but knows no slow start and no loss.
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

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Payload that came.
    pub bytes: u64,
    /// Datagrams that came; pieces of a TCP stream.
    pub datagrams: u64,
    /// Datagrams that a full queue did not take.
    pub lost: u64,
}

/// A relay at work. Dropped, it ends soon, and what is under way is lost.
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
    /// What has come: from whoever connects, and from the other end.
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

/// One way of a link, which its relays share.
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
        // Nothing of it is left to chance.
        Self(Mutex::new(Line::new(settings, 0)))
    }

    /// Hands it so many bytes: when their last has arrived at the other end, or, if the queue is full,
    /// how long until it takes some again.
    fn take(&self, now: Instant, bytes: usize) -> Result<Instant, Duration> {
        // The guarded line is whole at any moment.
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match line.offer(now, bytes) {
            Ok(arrivals) => Ok(arrivals.packet.at),
            Err(_) => Err(line.room_in(now, bytes)),
        }
    }
}

/// Bytes of an IP packet that are not payload, with a header of TCP or UDP of so many.
fn headers(to: SocketAddr, transport: usize) -> usize {
    transport + if to.is_ipv6() { 40 } else { 20 }
}

/// A thread of a relay. What a system without threads does not carry is lost.
fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("kpd-link".into()).spawn(work).map(drop)
}

/// Waits until something is due.
fn wait_for(due: Instant) {
    thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Has this thread wake when asked, not up to 50 us later.
fn wake_on_time() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

#[cfg(test)]
mod tests;

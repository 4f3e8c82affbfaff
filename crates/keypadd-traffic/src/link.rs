//! Relays between two ends in userspace, over lines with a delay each way, a rate and a bounded
//! queue, which several pairs of ends may share.
//!
//! A relay stands for the line: what is sent to it reaches the other end, later. Each direction has
//! its own threads, because tokio's timer rounds to milliseconds. Only a full queue loses packets,
//! as on a wire, and a line that is cut. Understands nothing of the payload.

mod tcp;
mod udp;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
    line: Arc<Line>,
}

/// What the relays of a link share.
#[derive(Debug, Default)]
struct Line {
    ways: [Way; 2],
    /// The address at which the other end sees the clients; `None`: any of loopback.
    clients_at: Mutex<Option<IpAddr>>,
}

impl Link {
    /// Creates a line of its own.
    pub fn new(settings: LinkSettings) -> Self {
        let ways = [(); 2].map(|()| Way::new(settings));
        Self { settings, line: Arc::new(Line { ways, clients_at: Mutex::default() }) }
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
        start: fn(Arc<Line>, SocketAddr) -> io::Result<Forwarder>,
    ) -> io::Result<(SocketAddr, Option<Forwarder>)> {
        if self.settings.is_loopback() {
            return Ok((to, None));
        }
        let relay = start(Arc::clone(&self.line), to)?;
        Ok((relay.address, Some(relay)))
    }

    /// Cuts the line, or mends it. Datagrams that are sent over a line that is cut are lost; what
    /// is sent over TCP waits.
    pub fn cut(&self, is_cut: bool) {
        for way in &self.line.ways {
            lock(&way.0).is_cut = is_cut;
        }
    }

    /// Gives the clients another address, as the other end sees it, which has to be of this host
    /// and of the link's family. What goes to the one before is lost, and a TCP connection is
    /// reset: it has one address for life.
    pub fn move_clients(&self, to: IpAddr) {
        *lock(&self.line.clients_at) = Some(to);
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

impl Line {
    fn clients_at(&self) -> Option<IpAddr> {
        *lock(&self.clients_at)
    }
}

/// One direction of a link.
#[derive(Debug, Default)]
struct Way(Mutex<Queue>);

/// The queue before a line.
#[derive(Debug, Default)]
struct Queue {
    is_cut: bool,
    delay: Duration,
    bits_per_second: Option<NonZeroU64>,
    /// Longest wait of a packet's first bit.
    wait_max: Duration,
    /// When all that is queued has left.
    free_at: Option<Instant>,
}

impl Way {
    fn new(settings: LinkSettings) -> Self {
        let LinkSettings { delay, bits_per_second, .. } = settings;
        let wait_max = QUEUE_MIN.max(2 * delay);
        Self(Mutex::new(Queue { delay, bits_per_second, wait_max, ..Queue::default() }))
    }

    /// Enqueues a datagram of this many bytes: returns when the last arrives at the other end;
    /// `None` if the queue is full or the line cut.
    fn take(&self, now: Instant, bytes: usize) -> Option<Instant> {
        let mut queue = lock(&self.0);
        let has_room = queue.excess(now).is_zero() && !queue.is_cut;
        has_room.then(|| queue.enter(now, bytes))
    }

    /// Enqueues this many bytes of a stream, behind what others have enqueued: returns when the
    /// last arrives at the other end, and how long the sender has to wait with its next ones;
    /// `None` while the line is cut.
    fn take_of_stream(&self, now: Instant, bytes: usize) -> Option<(Instant, Duration)> {
        let mut queue = lock(&self.0);
        (!queue.is_cut).then(|| (queue.enter(now, bytes), queue.excess(now)))
    }
}

impl Queue {
    /// How long until it has room.
    fn excess(&self, now: Instant) -> Duration {
        let wait = self.free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        wait.saturating_sub(self.wait_max)
    }

    fn enter(&mut self, now: Instant, bytes: usize) -> Instant {
        let Some(rate) = self.bits_per_second else { return now + self.delay };
        let begins = self.free_at.map_or(now, |free_at| free_at.max(now));
        let left = begins + Duration::from_secs_f64(bytes as f64 * 8.0 / rate.get() as f64);
        self.free_at = Some(left);
        left + self.delay
    }
}

/// What the mutexes here guard is consistent at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

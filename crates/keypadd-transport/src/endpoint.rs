//! A UDP address with the loops behind it: connecting, accepting, closing.

use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn_proto::{
    ClientConfig, ConnectionError, EndpointConfig, ServerConfig, TransportConfig, VarInt,
    congestion::ControllerFactory, crypto,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tracing::info;

use crate::{
    Lane, Refusal, Refusals,
    connection::{Connecting, Connection, Proof},
    datagrams::Datagrams,
    event_loop::{EventLoop, Parts},
    mailbox::{Command, Mailbox},
    spin::SpinShare,
    steering::steer,
    udp::{Egress, Udp},
    windows::Budget,
};

/// Takes out of a session, once its handshake is complete, what handles show as
/// [`Connection::proof`].
pub type Inspect = Arc<dyn Fn(&dyn crypto::Session) -> Option<Proof> + Send + Sync>;

/// Makes `quinn-proto`'s configuration of one connection, whose route carries UDP payloads of so many
/// bytes as far as this host knows: what path MTU discovery may go up to. What
/// [`EndpointSettings`] has is set there.
pub type MakeTransport = Arc<dyn Fn(u16) -> TransportConfig + Send + Sync>;

/// What an endpoint is made of.
pub struct EndpointSettings {
    /// A bound UDP socket for each loop; those of a server share an address (SO_REUSEPORT).
    pub sockets: Vec<UdpSocket>,
    /// Protocol versions and reset keys.
    pub config: EndpointConfig,
    /// Handshakes of clients; without it nobody is let in.
    pub server: Option<ServerConfig>,
    /// Makes the timers and limits of a connection. Its receive windows, its numbers of streams and its
    /// congestion controller are not used.
    pub transport: MakeTransport,
    /// Streams that a peer may have open at once on each connection.
    pub streams: Streams,
    /// Receive windows of connections for what is sparse.
    pub sparse_windows: Windows,
    /// Receive windows of connections for bulk.
    pub bulk_windows: Windows,
    /// Bytes by which the windows of all connections may grow together, each to its `connection_max`.
    pub growth: u64,
    /// The controller of each connection.
    pub congestion: Arc<dyn ControllerFactory + Send + Sync>,
    /// Bytes of a connection that may be sent and not acknowledged.
    pub flight_max: u64,
    /// Connections of clients that have proved a key, at once and of each lane; more are refused.
    /// Handshakes are bounded apart (`admission`).
    pub connections_max: usize,
    /// Asked before each send.
    pub egress: Arc<dyn Egress>,
    /// What is kept of a handshake.
    pub inspect: Inspect,
    /// The code that resets what is cut short.
    pub cut_code: VarInt,
    /// The code that resets a stream whose handles were dropped.
    pub drop_code: VarInt,
    /// A peer that closes its connection with this code has all it wanted of finished streams, as
    /// if it had acknowledged them.
    pub goodbye_code: Option<VarInt>,
    /// Polling before sleep.
    pub spin: SpinShare,
}

/// Streams that a peer may have open at once. It is allowed few at first and more as it opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// That go both ways.
    pub bidirectional: u32,
    /// That go one way: streams that have moved from the sibling connection.
    pub unidirectional: u32,
}

/// Receive windows of a connection, in bytes: what a peer may have us hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Of each stream.
    pub stream: u32,
    /// Of all streams together.
    pub connection: u32,
    /// The most that the connection's window grows to while sockets are slow: by a stream's window for
    /// each, so that those streams leave the others theirs.
    pub connection_max: u32,
}

impl fmt::Debug for EndpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointSettings").finish_non_exhaustive()
    }
}

/// What the drivers of an endpoint's connections go by.
pub(crate) struct Rules {
    pub(crate) inspect: Inspect,
    pub(crate) cut_code: VarInt,
    pub(crate) drop_code: VarInt,
    goodbye_code: Option<VarInt>,
}

impl Rules {
    /// Whether a connection's end stands for the acknowledgement of finished streams.
    pub(crate) fn is_goodbye(&self, reason: &ConnectionError) -> bool {
        match (reason, self.goodbye_code) {
            (ConnectionError::ApplicationClosed(close), Some(code)) => close.error_code == code,
            _ => false,
        }
    }
}

/// Figures that the loops of an endpoint share with its handles.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Connections that are not over, handshakes among them.
    connections: AtomicUsize,
    /// Clients' connections that have proved a key, by lane.
    proved: [AtomicUsize; 2],
    idle: Notify,
    full: AtomicU64,
    displaced: AtomicU64,
    timed_out: AtomicU64,
    crowded: AtomicU64,
    spun_nanos: AtomicU64,
}

impl Counters {
    pub(crate) fn opened(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(crate) fn closed(&self) {
        if self.connections.fetch_sub(1, Relaxed) == 1 {
            self.idle.notify_waiters();
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// A client has proved its key.
    pub(crate) fn proved(&self, lane: Lane) {
        self.proved[lane as usize].fetch_add(1, Relaxed);
    }

    /// A client that had proved its key is gone.
    pub(crate) fn left(&self, lane: Lane) {
        self.proved[lane as usize].fetch_sub(1, Relaxed);
    }

    /// Clients that have proved their keys.
    pub(crate) fn clients(&self, lane: Lane) -> usize {
        self.proved[lane as usize].load(Relaxed)
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Full => &self.full,
            Refusal::Displaced => &self.displaced,
            Refusal::TimedOut => &self.timed_out,
            Refusal::Crowded => &self.crowded,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// A loop has polled this long.
    pub(crate) fn spun(&self, time: Duration) {
        if !time.is_zero() {
            // 2^64 ns are 584 years of one core.
            self.spun_nanos.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }
}

/// What the loops of an endpoint cost. It outlasts the endpoint and does not keep it.
#[derive(Clone, Debug)]
pub struct LoopMeter {
    loops: usize,
    counters: Arc<Counters>,
}

impl LoopMeter {
    /// How many there are.
    pub fn loops(&self) -> usize {
        self.loops
    }

    /// CPU time that all of them have spent on polling, answered or not.
    pub fn spun(&self) -> Duration {
        Duration::from_nanos(self.counters.spun_nanos.load(Relaxed))
    }

    /// Whether the other one is of the same endpoint.
    pub fn is_of_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.counters, &other.counters)
    }
}

/// What a listening endpoint has to tell.
#[derive(Debug)]
pub enum Accepted {
    /// A client has shaken hands.
    Connection(Connection),
    /// A client that was answered has not.
    Failed(HandshakeFailed),
    /// One was not let in, or had to make way.
    Refused(SocketAddr, Refusal),
}

/// A handshake that failed.
#[derive(Clone, Debug)]
pub struct HandshakeFailed {
    /// Where it came from.
    pub remote: SocketAddr,
    /// Why it failed.
    pub error: ConnectionError,
}

/// An endpoint; clones are one. When the last is dropped its loops end, and with them what
/// connections are left.
#[derive(Clone, Debug)]
pub struct Endpoint(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    loops: Vec<Mailbox>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    local_addr: SocketAddr,
    counters: Arc<Counters>,
    accepted: tokio::sync::Mutex<mpsc::UnboundedReceiver<Accepted>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for mailbox in &self.loops {
            mailbox.send(Command::Stop);
        }
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A loop that has panicked has ended all the same.
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// Starts the loops.
    ///
    /// # Errors
    /// What the system says of the sockets or of starting threads.
    pub fn start(mut settings: EndpointSettings) -> io::Result<Self> {
        let sockets = std::mem::take(&mut settings.sockets);
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let local_addr = first.local_addr()?;
        // A client's sockets have ports of their own.
        if settings.server.is_some()
            && sockets.len() > 1
            && let Err(error) = steer(first, sockets.len())
        {
            info!(%error, "no steering of datagrams: loops hand them over");
        }
        let udp = |socket| Udp::new(socket, Arc::clone(&settings.egress));
        let udp = sockets.into_iter().map(udp).collect::<io::Result<Vec<_>>>()?;
        let (this, loops) = Self::with_loops(settings, local_addr, udp, Instant::now())?;
        for one in loops {
            let thread =
                thread::Builder::new().name("transport".into()).spawn(move || one.run())?;
            this.0.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(this)
    }

    /// An endpoint, and its loops for whoever runs them.
    pub(crate) fn with_loops<U: Datagrams>(
        settings: EndpointSettings,
        local_addr: SocketAddr,
        udp: Vec<U>,
        now: Instant,
    ) -> io::Result<(Self, Vec<EventLoop<U>>)> {
        let (accept, accepted) = mpsc::unbounded_channel();
        let counters = Arc::<Counters>::default();
        let budget = Arc::new(Budget::new(settings.growth));
        let rules = Arc::new(Rules {
            inspect: settings.inspect,
            cut_code: settings.cut_code,
            drop_code: settings.drop_code,
            goodbye_code: settings.goodbye_code,
        });
        let mut loops = Vec::with_capacity(udp.len());
        for (number, udp) in udp.into_iter().enumerate() {
            let parts = Parts {
                number: number as u8,
                config: settings.config.clone(),
                server: settings.server.clone(),
                transport: Arc::clone(&settings.transport),
                streams: settings.streams,
                windows: [settings.sparse_windows, settings.bulk_windows],
                budget: Arc::clone(&budget),
                congestion: Arc::clone(&settings.congestion),
                flight_max: settings.flight_max,
                connections_max: settings.connections_max,
                rules: Arc::clone(&rules),
                counters: Arc::clone(&counters),
                accepted: accept.clone(),
                spin: settings.spin,
            };
            loops.push(EventLoop::new(parts, udp, now)?);
        }
        let mailboxes: Vec<_> = loops.iter().map(EventLoop::mailbox).collect();
        for one in &mut loops {
            one.set_peers(mailboxes.clone());
        }
        let inner = Inner {
            loops: mailboxes,
            threads: Mutex::default(),
            local_addr,
            counters,
            accepted: tokio::sync::Mutex::new(accepted),
        };
        Ok((Self(Arc::new(inner)), loops))
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// Begins to shake hands.
    pub fn connect(
        &self,
        mut config: ClientConfig,
        address: SocketAddr,
        server_name: &str,
        lane: Lane,
    ) -> Connecting {
        config.initial_dst_cid_provider(Arc::new(move || lane.first_cid()));
        let (reply, opened) = oneshot::channel();
        // What comes in on a socket of both families bears mapped addresses (RFC 4291 2.5.5.2), by
        // which the connection knows its peer.
        let address = match address {
            SocketAddr::V4(v4) if self.0.local_addr.is_ipv6() => {
                (v4.ip().to_ipv6_mapped(), v4.port()).into()
            }
            address => address,
        };
        let (config, server_name) = (Box::new(config), server_name.to_owned());
        self.0.loops[lane.first_loop(self.0.loops.len())].send(Command::Connect {
            config,
            address,
            server_name,
            lane,
            reply,
        });
        Connecting::new(opened)
    }

    /// What happens next to clients that want to come in; `None` when the loops have ended.
    pub async fn accept(&self) -> Option<Accepted> {
        self.0.accepted.lock().await.recv().await
    }

    /// Handshakes that begin from now on go by this.
    pub fn set_server_config(&self, config: ServerConfig) {
        let config = Arc::new(config);
        self.send_all(|| Command::SetServerConfig(Arc::clone(&config)));
    }

    /// Refuses whoever comes from now on.
    pub fn refuse(&self) {
        self.send_all(|| Command::Refuse);
    }

    /// Closes all connections and refuses new ones.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let reason = Bytes::copy_from_slice(reason);
        self.send_all(|| Command::CloseAll { code, reason: reason.clone() });
    }

    /// Connections that are not over, those included that wait for their peers' last packets.
    pub fn open_connections(&self) -> usize {
        self.0.counters.connections()
    }

    /// Completes when there are none.
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.0.counters.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.open_connections() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Handshakes that came to nothing here.
    pub fn refusals(&self) -> Refusals {
        let counters = &self.0.counters;
        Refusals {
            full: counters.full.load(Relaxed),
            displaced: counters.displaced.load(Relaxed),
            timed_out: counters.timed_out.load(Relaxed),
            crowded: counters.crowded.load(Relaxed),
        }
    }

    /// How many loops there are.
    pub fn loops(&self) -> usize {
        self.0.loops.len()
    }

    /// CPU time that they have spent on polling for nothing.
    pub fn spun(&self) -> Duration {
        self.meter().spun()
    }

    /// The same for whoever must not keep the endpoint.
    pub fn meter(&self) -> LoopMeter {
        LoopMeter { loops: self.loops(), counters: Arc::clone(&self.0.counters) }
    }

    fn send_all(&self, command: impl Fn() -> Command) {
        for mailbox in &self.0.loops {
            mailbox.send(command());
        }
    }
}

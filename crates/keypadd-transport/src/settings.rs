//! Defines the settings of an endpoint: sockets, handshakes, windows, congestion control and codes.

use std::{any::Any, fmt, net::UdpSocket, sync::Arc, time::Duration};

use keypadd_congestion::{Congestion, Control};
use keypadd_share::Budget;
use quinn_proto::{ConnectionError, EndpointConfig, ServerConfig, TransportConfig, VarInt, crypto};

use crate::{
    cid::{Purpose, ServerId},
    receive_buffers::LENT_MAX,
    spin::SpinShare,
    udp::Egress,
    windows::Windows,
};

/// The windows of [`Plan::plain`].
const PLAIN_WINDOWS: Windows =
    Windows { stream: 1 << 20, first: 16 << 20, connection: 16 << 20, connection_max: 16 << 20 };
/// The least time that a NAT keeps a UDP mapping (RFC 4787 REQ-5).
pub const FLOW_IDLE: Duration = Duration::from_secs(120);

/// Code 0 (RFC 9000 section 20.1 leaves its meaning to the application).
const NO_ERROR: VarInt = VarInt::from_u32(0);

/// What a handshake has proved, as the endpoint's `Inspect` returned it.
pub(crate) type Proof = Arc<dyn Any + Send + Sync>;

/// Extracts from a session, once its handshake is complete, what handles show as
/// [`Connection::proof`](crate::Connection::proof).
pub type Inspect = Arc<dyn Fn(&dyn crypto::Session) -> Option<Proof> + Send + Sync>;

/// Tells the CPU time that opening a KiB of a session's datagrams takes on this machine, with its
/// suite and their implementation. Asked once its handshake is complete. This much and more is
/// usual for its datagrams, so that a slow suite is not taken for a peer that makes costly ones.
pub type OpeningCost = Arc<dyn Fn(&dyn crypto::Session) -> Duration + Send + Sync>;

/// Learns of a stateless reset (RFC 9000 10.3), with the session of the connection that it ended.
/// Its bytes came as a packet that does not open.
pub type OnReset = Arc<dyn Fn(&dyn crypto::Session) + Send + Sync>;

/// Makes `quinn-proto`'s configuration of one connection, given the UDP payload that its route
/// carries as far as this host knows: the limit of path MTU discovery. [`Plan`] overrides some of
/// it.
pub type MakeTransport = Arc<dyn Fn(u16) -> TransportConfig + Send + Sync>;

/// What an endpoint is started with.
pub struct EndpointSettings {
    /// A bound UDP socket for each loop; a server's share an address (SO_REUSEPORT).
    pub sockets: Vec<UdpSocket>,
    /// Whether another process reads the same sockets (see
    /// [`Endpoint::suspend`](crate::Endpoint::suspend)).
    pub suspended: bool,
    /// Protocol versions and reset keys.
    pub config: EndpointConfig,
    /// The server's handshake; without it all clients are refused.
    pub server: Option<ServerConfig>,
    /// The server's ID, if it is behind a balancer that routes by connection IDs.
    pub server_id: Option<ServerId>,
    /// What its connections may take of the process's memory.
    pub memory: MemoryBudgets,
    /// Asked before each send, and which epoch it is in each round.
    pub egress: Arc<dyn Egress>,
    /// How much to poll before sleeping.
    pub spin: SpinShare,
    /// How its connections are made.
    pub plan: Plan,
}

/// Parts of a process's memory, in bytes, that the connections of all its endpoints share. Without
/// a limit, unless somebody sets one.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudgets {
    /// For receive windows, beyond the first bytes of each.
    pub received: Arc<Budget>,
    /// For what was sent and may have to be sent again, beyond the first bytes of each connection.
    pub sent: Arc<Budget>,
}

/// What a loop may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopLimits {
    /// Handshakes in progress.
    pub handshakes: usize,
    /// Buffers of 256 KiB that received datagrams keep.
    pub buffers: usize,
    /// Bytes of datagrams that wait for the loop's time, of peers and of strangers each.
    pub waiting_bytes: u64,
}

impl LoopLimits {
    /// As much as is useful.
    pub const MOST: Self = Self { handshakes: 2048, buffers: LENT_MAX, waiting_bytes: 4 << 20 };
}

impl Default for LoopLimits {
    fn default() -> Self {
        Self::MOST
    }
}

/// What all connections of an endpoint are made by. Its loops and connections share it.
pub struct Plan {
    /// Makes a connection's timers and limits. Its receive windows, stream limits and congestion
    /// controller are ignored.
    pub transport: MakeTransport,
    /// Streams that a peer may have open at once on each connection.
    pub streams: Streams,
    /// Receive windows of sparse connections.
    pub sparse_windows: Windows,
    /// Receive windows of bulk connections.
    pub bulk_windows: Windows,
    /// Receive windows of bulk connections over a path with a long round trip.
    pub long_path_bulk_windows: Windows,
    /// The congestion control of each connection.
    pub congestion: Control,
    /// Most bytes of a connection sent and not acknowledged.
    pub flight_max: u64,
    /// As many of these as a connection has whatever others take.
    pub flight_first: u64,
    /// What each loop may keep.
    pub of_loop: LoopLimits,
    /// Most connections of clients that have proved a key, sparse and bulk each; more are refused.
    /// Handshakes have a limit of their own (`admission`).
    pub connections_max: usize,
    /// What to keep from a handshake.
    pub inspect: Inspect,
    /// What opening datagrams costs.
    pub opening_cost: OpeningCost,
    /// Learns that a connection has ended because its peer does not know it any more.
    pub on_reset: OnReset,
    /// The error code for streams that are cut short, or whose handles were dropped.
    pub cut_code: VarInt,
    /// A close with this code, by either end, lets another connection continue the streams.
    pub hold_code: Option<VarInt>,
    /// A peer that closes its connection with this code has received all it wanted of finished
    /// streams, as if it had acknowledged them.
    pub goodbye_code: Option<VarInt>,
    /// A flow ends after this long without a datagram.
    pub flow_idle: Duration,
}

impl EndpointSettings {
    /// Settings for tests and measurements to change: [`Plan::plain`], no polling.
    pub fn plain(sockets: Vec<UdpSocket>, server: Option<ServerConfig>) -> Self {
        Self {
            sockets,
            suspended: false,
            config: EndpointConfig::default(),
            server,
            server_id: None,
            memory: MemoryBudgets::default(),
            egress: Arc::new(Unrestricted),
            spin: SpinShare::percent(0),
            plan: Plan::plain(),
        }
    }
}

impl Plan {
    /// A plan without limits that keeps nothing of handshakes, for tests and measurements to
    /// change: CUBIC, quinn's timers and limits, code 0 everywhere.
    pub fn plain() -> Self {
        Self {
            transport: Arc::new(|_| TransportConfig::default()),
            streams: Streams { bidirectional: 256, unidirectional: 256 },
            sparse_windows: PLAIN_WINDOWS,
            bulk_windows: PLAIN_WINDOWS,
            long_path_bulk_windows: PLAIN_WINDOWS,
            congestion: Congestion::Cubic.control(),
            flight_max: PLAIN_WINDOWS.connection.into(),
            flight_first: PLAIN_WINDOWS.connection.into(),
            of_loop: LoopLimits::default(),
            connections_max: 16,
            inspect: Arc::new(|_| None),
            opening_cost: Arc::new(|_| Duration::ZERO),
            on_reset: Arc::new(|_| ()),
            cut_code: NO_ERROR,
            hold_code: None,
            goodbye_code: None,
            flow_idle: FLOW_IDLE,
        }
    }

    pub(crate) fn windows(&self, purpose: Purpose) -> Windows {
        match purpose {
            Purpose::Sparse => self.sparse_windows,
            Purpose::Bulk => self.bulk_windows,
            Purpose::LongPathBulk => self.long_path_bulk_windows,
        }
    }

    pub(crate) fn holds(&self, reason: &ConnectionError) -> bool {
        holds(reason, self.hold_code)
    }

    /// Whether a connection's end counts as the acknowledgment of finished streams.
    pub(crate) fn is_goodbye(&self, reason: &ConnectionError) -> bool {
        match (reason, self.goodbye_code) {
            (ConnectionError::ApplicationClosed(close), Some(code)) => close.error_code == code,
            _ => false,
        }
    }
}

/// Allows every datagram.
#[derive(Debug)]
struct Unrestricted;

impl Egress for Unrestricted {
    fn epoch(&self) -> u64 {
        0
    }

    fn may_send(&self, _: u64) -> bool {
        true
    }
}

/// Streams that a peer may have open at once. The limit starts low and rises as the peer opens
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Bidirectional streams.
    pub bidirectional: u32,
    /// Unidirectional streams, which carry directions moved from the sibling connection.
    pub unidirectional: u32,
}

impl fmt::Debug for EndpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointSettings").finish_non_exhaustive()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}

/// Whether streams are held when their connection ends for this reason. `hold_code` is
/// [`Plan::hold_code`].
pub fn holds(reason: &ConnectionError, hold_code: Option<VarInt>) -> bool {
    match reason {
        // The path is gone, or the peer has given up the connection.
        ConnectionError::TimedOut | ConnectionError::Reset => true,
        ConnectionError::ApplicationClosed(close) => Some(close.error_code) == hold_code,
        _ => false,
    }
}

//! Defines the settings of an endpoint: sockets, handshakes, windows, congestion control and codes.

use std::{any::Any, fmt, net::UdpSocket, sync::Arc};

use quinn_proto::{
    ConnectionError, EndpointConfig, ServerConfig, TransportConfig, VarInt,
    congestion::{ControllerFactory, CubicConfig},
    crypto,
};

use crate::{spin::SpinShare, udp::Egress, windows::Windows};

/// The windows of [`EndpointSettings::plain`].
const PLAIN_WINDOWS: Windows =
    Windows { stream: 1 << 20, connection: 16 << 20, connection_max: 16 << 20 };
/// Code 0 (RFC 9000 section 20.1 leaves its meaning to the application).
const NO_ERROR: VarInt = VarInt::from_u32(0);

/// What a handshake has proved, as the endpoint's `Inspect` took it out.
pub(crate) type Proof = Arc<dyn Any + Send + Sync>;

/// Takes out of a session, once its handshake is complete, what handles show as
/// [`Connection::proof`](crate::Connection::proof).
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
    /// Receive windows of connections for bulk over a path with a long round trip.
    pub far_bulk_windows: Windows,
    /// Bytes by which the windows of all connections may grow together, each to its `connection_max`.
    pub growth: u64,
    /// The controller of each connection.
    pub congestion: Arc<dyn ControllerFactory + Send + Sync>,
    /// Bytes of a connection that may be sent and not acknowledged.
    pub flight_max: u64,
    /// Connections of clients that have proved a key, at once and of each of sparse and bulk; more are refused.
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
    /// A close with this code, by either end, lets another connection go on with the streams.
    pub hold_code: Option<VarInt>,
    /// A peer that closes its connection with this code has all it wanted of finished streams, as
    /// if it had acknowledged them.
    pub goodbye_code: Option<VarInt>,
    /// Polling before sleep.
    pub spin: SpinShare,
}

impl EndpointSettings {
    /// Settings that restrict nothing and keep nothing of handshakes, for tests and measurements to change
    /// as needed: CUBIC, quinn's timers and limits, code 0 in all cases, no polling.
    pub fn plain(sockets: Vec<UdpSocket>, server: Option<ServerConfig>) -> Self {
        Self {
            sockets,
            config: EndpointConfig::default(),
            server,
            transport: Arc::new(|_| TransportConfig::default()),
            streams: Streams { bidirectional: 256, unidirectional: 256 },
            sparse_windows: PLAIN_WINDOWS,
            bulk_windows: PLAIN_WINDOWS,
            far_bulk_windows: PLAIN_WINDOWS,
            growth: 0,
            congestion: Arc::new(CubicConfig::default()),
            flight_max: PLAIN_WINDOWS.connection.into(),
            connections_max: 16,
            egress: Arc::new(Unrestricted),
            inspect: Arc::new(|_| None),
            cut_code: NO_ERROR,
            drop_code: NO_ERROR,
            hold_code: None,
            goodbye_code: None,
            spin: SpinShare::percent(0),
        }
    }
}

/// Lets every datagram out.
#[derive(Debug)]
struct Unrestricted;

impl Egress for Unrestricted {
    fn may_send(&self) -> bool {
        true
    }
}

/// Streams that a peer may have open at once. It is allowed few at first and more as it opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// That go both ways.
    pub bidirectional: u32,
    /// That go one way: streams that have moved from the sibling connection.
    pub unidirectional: u32,
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
    pub(crate) hold_code: Option<VarInt>,
    pub(crate) goodbye_code: Option<VarInt>,
}

/// Whether streams are held when their connection ends for this reason. `hold_code` is
/// [`EndpointSettings::hold_code`].
pub fn holds(reason: &ConnectionError, hold_code: Option<VarInt>) -> bool {
    match reason {
        // The path is gone, or the peer has given the connection up.
        ConnectionError::TimedOut | ConnectionError::Reset => true,
        ConnectionError::ApplicationClosed(close) => Some(close.error_code) == hold_code,
        _ => false,
    }
}

impl Rules {
    pub(crate) fn holds(&self, reason: &ConnectionError) -> bool {
        holds(reason, self.hold_code)
    }

    /// Whether a connection's end stands for the acknowledgement of finished streams.
    pub(crate) fn is_goodbye(&self, reason: &ConnectionError) -> bool {
        match (reason, self.goodbye_code) {
            (ConnectionError::ApplicationClosed(close), Some(code)) => close.error_code == code,
            _ => false,
        }
    }
}

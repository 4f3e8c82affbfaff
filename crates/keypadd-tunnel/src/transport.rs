//! Configures the transport: flow-control windows, timers, congestion control and memory limits.
//!
//! Memory of one session, whatever its peer does:
//!
//! ```text
//! 64 KiB x (forwards_max + 17) + receive_window + 2 x 4 x send_window + about 2 MiB in quinn-proto
//! ```
//!
//! The first term is the receive window of the sparse connection, which holds a full window of
//! every stream. The second is that of the bulk connection; what waits behind gaps is part of it.
//! Receive windows grow by a stream's window for each stream whose socket is slower than the
//! sender, out of a budget that all connections of the process share. Where a cgroup limits the
//! memory, all but the first bytes of receive windows, and of what is sent, come out of such
//! budgets (`limits::memory`). A stream whose reader has stopped holds at most its window here and
//! nothing at the sender, which reads from TCP only what it can send at once. Nothing else is
//! queued: datagrams wait in the socket buffer until their connection can take them. UDP flows add
//! at most 5 MiB: 3 MiB of frames that wait for their loop, 1 MiB to send, 512 KiB of incomplete
//! datagrams, 256 KiB for flows that are not open yet; and 64 KiB for each source whose flow is
//! being opened.

use std::{
    any::Any,
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    thread,
    time::Duration,
};

use keypadd_provider::{HandshakeData, Histogram, ProvedPeer};
use keypadd_transport::{
    Endpoint, EndpointConfig, EndpointSettings, FLOW_IDLE, IdleTimeout, Inspect, KEPT_PER_FLIGHT,
    Plan, RateCap, ServerConfig, ServerId, SpinShare, Streams, TransportConfig, Windows,
    congestion::Congestion, crypto, mtu_discovery,
};

use crate::{
    clock::{
        egress_gate::{EgressGate, MeteredEgress},
        jump::{Clocks, SystemClocks},
    },
    handover::Handover,
    limits::{SharedLimits, memory::MemoryShares},
    sessions::{
        hold::{HoldSettings, held_list::HeldList},
        lifetime::KeyLifetimes,
        proof::Proof,
    },
    wire::{CloseCode, StreamCode},
};

/// QUIC version 1 (RFC 9000 15).
pub(crate) const QUIC_VERSION: u32 = 1;

/// Server name for the handshake. Never sent: raw public keys need no name.
pub(crate) const SERVER_NAME: &str = "keypadd";

/// Timeout for closing all connections when an end shuts down.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Keep-alive interval on an idle path; also keeps NAT bindings open.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// How long a silent peer is waited for: a blackout of 20 s ends no session. The timeout restarts
/// with the first keep-alive sent after the last received packet (RFC 9000 10.1), so a dead peer is
/// detected up to `KEEP_ALIVE` later. quinn uses three probe timeouts if that is longer. Of both
/// ends' settings the shorter one holds.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Shorter timeouts end sessions that lose a keep-alive and its first repairs.
pub const PEER_TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// Longer ones say nothing.
pub const PEER_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// How often a client tries the addresses before its own: as rarely as it retries at most, so that
/// a server that is back is not flooded.
const RETURN_INTERVAL: Duration = Duration::from_secs(30);

/// Largest UDP payload to receive, and to probe for if the route carries it: that of Ethernet with
/// an MTU of 9,216. Loopback carries more, but packets of 16 to 64 KiB cost the same CPU time per
/// byte and more to retransmit.
const DATAGRAM_BYTES_MAX: u16 = 9_188;

/// Reordering threshold in packets for loss detection. The 3 of RFC 9002 6.1.1 halves throughput on
/// paths that reorder. More than this gains nothing: quinn drops packets 130 numbers late.
const PACKET_THRESHOLD: u32 = 128;

/// Between two stateless resets of a loop: after a restart a thousand clients are told within a
/// second or two. A reset is shorter than what it answers (RFC 9000 10.3.3), so nothing is
/// amplified or loops.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// Receive window of a stream on the sparse connection; a stream with more data moves to bulk.
const SPARSE_STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// A path with a longer round trip takes larger windows of streams: one that stops being read there
/// holds more.
pub(crate) const WINDOWS_LONG_PATH: Duration = Duration::from_millis(15);

/// Transport settings of either end.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// Congestion control for sending.
    pub congestion: Congestion,
    /// Receive window of the bulk connection, before it grows for slow readers.
    pub receive_window_bytes: u32,
    /// Receive window of one stream on the bulk connection.
    pub stream_receive_window_bytes: u32,
    /// Receive window of one stream on the bulk connection where the round trip was longer than 15
    /// ms when that connection was made.
    pub long_path_stream_receive_window_bytes: u32,
    /// What the connections of all endpoints share.
    pub memory: MemoryShares,
    /// Bytes in flight of one connection.
    pub send_window_bytes: u32,
    /// Open forwarded connections of one session.
    pub forwards_max: u32,
    /// Limits that all servers and clients of a daemon share.
    pub limits: Arc<SharedLimits>,
    /// The peers whose streams are held, of all servers and clients of a daemon.
    pub held: HeldList,
    /// Requested size of the UDP send and receive buffers; the kernel may grant less.
    pub udp_buffer_bytes: usize,
    /// Limit on what a client sends to its server, if any. A server's peers have their own.
    pub rate_cap: Option<RateCap>,
    /// The clocks to watch: a jump ends all connections.
    pub clocks: Arc<dyn Clocks>,
    /// Time to hand a packet to the kernel, sampled.
    pub send_seconds: Arc<Histogram>,
    /// How long a silent peer is waited for, from 1 s to an hour.
    pub peer_timeout: Duration,
    /// How streams are held whose connection is lost.
    pub hold: HoldSettings,
    /// What is passed from process to process.
    pub handover: Handover,
    /// How long the keys of a session serve, where its streams are held; all sessions share it.
    pub key_lifetimes: KeyLifetimes,
    /// After so long without a datagram a UDP flow ends, at either end.
    pub flow_idle: Duration,
    /// How often a client that is not at the server's preferred address tries those before it.
    pub return_interval: Duration,
    /// DNS servers that a client asks for SRV records; if empty, those of `/etc/resolv.conf`.
    pub nameservers: Vec<SocketAddr>,
    /// Share of a core that each loop may spend busy-polling instead of sleeping.
    pub spin: SpinShare,
    /// Event loops of a server, one thread each. A client has at most two, one of them for bulk.
    pub loops: usize,
    /// The ID of servers, behind a balancer that routes by connection IDs.
    pub server_id: Option<ServerId>,
    /// Largest UDP payload to receive, and upper bound for path MTU discovery.
    pub datagram_bytes_max: u16,
}

impl Default for TransportSettings {
    fn default() -> Self {
        const MIB: u32 = 1 << 20;
        Self {
            congestion: Congestion::default(),
            receive_window_bytes: 64 * MIB,
            // 1 Gbit/s at 15 ms for one TCP connection; the same as OpenSSH.
            stream_receive_window_bytes: 2 * MIB,
            // 300 Mbit/s at 150 ms take half of it. The rest bridges lost announcements of credit,
            // one for each eighth; data behind gaps takes none.
            long_path_stream_receive_window_bytes: 16 * MIB,
            memory: MemoryShares::default(),
            send_window_bytes: 16 * MIB,
            forwards_max: 1024,
            limits: Arc::default(),
            held: HeldList::default(),
            udp_buffer_bytes: 4 << 20,
            rate_cap: None,
            clocks: Arc::new(SystemClocks),
            send_seconds: Arc::default(),
            peer_timeout: PEER_TIMEOUT,
            hold: HoldSettings::OFF,
            handover: Handover::default(),
            key_lifetimes: KeyLifetimes::default(),
            flow_idle: FLOW_IDLE,
            return_interval: RETURN_INTERVAL,
            nameservers: Vec::new(),
            spin: SpinShare::default(),
            loops: default_loops(),
            server_id: None,
            datagram_bytes_max: DATAGRAM_BYTES_MAX,
        }
    }
}

/// One loop per core, rounded down to even, from 2 to 8. With two, sparse streams never wait for a
/// thread that carries bulk data, even on a single core.
fn default_loops() -> usize {
    // An even number: half of them carry sparse streams, half bulk.
    thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8) & !1)
}

/// The end of the connection to configure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl TransportSettings {
    /// The defaults in this memory: what one connection keeps is a part of it.
    pub fn within(memory: MemoryShares) -> Self {
        let most = Self::default();
        let stream = |one_in, most| memory.part(one_in, 64 << 10, most);
        let udp_one_in = 64 * most.loops as u64;
        Self {
            stream_receive_window_bytes: stream(256, most.stream_receive_window_bytes),
            long_path_stream_receive_window_bytes: stream(
                64,
                most.long_path_stream_receive_window_bytes,
            ),
            udp_buffer_bytes: memory.part(udp_one_in, 256 << 10, most.udp_buffer_bytes as u32)
                as usize,
            memory,
            ..most
        }
    }

    /// Starts an endpoint with one event loop per socket. Without a `reset_key` it draws one, and
    /// resets only connections that it had itself.
    pub(crate) fn endpoint(
        &self,
        end: End,
        sockets: Vec<UdpSocket>,
        server: Option<ServerConfig>,
        reset_key: Option<Arc<dyn crypto::HmacKey>>,
        connections_max: usize,
        gate: EgressGate,
    ) -> io::Result<Endpoint> {
        let mut config = reset_key.map_or_else(EndpointConfig::default, EndpointConfig::new);
        // QUIC version 1 only.
        config.supported_versions(vec![QUIC_VERSION]);
        config.min_reset_interval(RESET_INTERVAL);
        config
            .max_udp_payload_size(self.datagram_bytes_max)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Endpoint::start(EndpointSettings {
            sockets,
            // A client's sockets are its own.
            suspended: end == End::Server && self.handover.is_suspended(),
            config,
            server_id: self.server_id.filter(|_| end == End::Server),
            server,
            memory: self.memory.budgets.clone(),
            egress: Arc::new(MeteredEgress { gate, send_seconds: Arc::clone(&self.send_seconds) }),
            spin: self.spin,
            plan: self.plan(end, connections_max),
        })
    }

    /// How the connections of this end are made.
    fn plan(&self, end: End, connections_max: usize) -> Plan {
        let memory = &self.memory;
        let bulk_windows = |stream: u32| Windows {
            stream,
            first: memory.window_first(self.receive_window_bytes),
            connection: self.receive_window_bytes,
            connection_max: stream
                .saturating_mul(self.forwards_max)
                .saturating_add(self.receive_window_bytes),
        };
        let settings = self.clone();
        Plan {
            transport: Arc::new(move |route_bytes| settings.of_connection(route_bytes)),
            streams: self.streams(end),
            sparse_windows: self.sparse_windows(),
            bulk_windows: bulk_windows(self.stream_receive_window_bytes),
            long_path_bulk_windows: bulk_windows(self.long_path_stream_receive_window_bytes),
            congestion: self.congestion.control(),
            flight_max: self.send_window_bytes.into(),
            flight_first: memory.flight_first(self.send_window_bytes).into(),
            connections_max,
            of_loop: memory.loop_limits(self.loops),
            inspect: inspect(),
            opening_cost: Arc::new(opening_cost),
            on_reset: Arc::new(on_reset),
            cut_code: StreamCode::Reset.into(),
            hold_code: Some(CloseCode::Hold.value().into()),
            // A client that closes in order has received all it wanted of a finished stream. A
            // server's close says nothing about what its targets have received (invariant I11).
            goodbye_code: (end == End::Server).then(|| CloseCode::Shutdown.value().into()),
            flow_idle: self.flow_idle,
        }
    }

    /// Windows of the connection that streams begin on. Its window grows by what unread ones hold,
    /// which may be those of all connections that both ends forward.
    fn sparse_windows(&self) -> Windows {
        let stream = self.memory.part(8192, 8 << 10, SPARSE_STREAM_WINDOW_BYTES);
        let stream = stream.min(self.stream_receive_window_bytes);
        let connection = stream.saturating_mul(self.forwards_max.saturating_add(17));
        let growth = stream.saturating_mul(self.forwards_max).saturating_mul(2);
        let first = self.memory.window_first(connection);
        Windows { stream, first, connection, connection_max: connection.saturating_add(growth) }
    }

    /// Streams that the other end may open.
    fn streams(&self, end: End) -> Streams {
        // Each end forwards up to `forwards_max` connections. A server opens streams for its own; a
        // client does for its own, for those of the server that it resumes, and for control.
        let both = self.forwards_max.saturating_mul(2);
        let bidirectional = match end {
            End::Client => self.forwards_max,
            End::Server => both.saturating_add(1),
        };
        // Their directions to one end may all be bulk; one more carries receipts.
        let unidirectional = both.saturating_add(1);
        Streams { bidirectional, unidirectional }
    }

    /// Timers and limits of one connection; its route carries UDP payloads of `route_bytes`.
    fn of_connection(&self, route_bytes: u16) -> TransportConfig {
        let mtu = mtu_discovery(route_bytes.min(self.datagram_bytes_max));
        let idle = self.peer_timeout.clamp(Duration::from_secs(1), PEER_TIMEOUT_MAX);
        let keep_alive = KEEP_ALIVE.min(idle / 3);
        let idle = IdleTimeout::try_from(idle).expect("an hour is below 2^62 ms");

        let mut config = TransportConfig::default();
        config
            // The event loop limits the bytes in flight over all streams. With only quinn-proto's
            // send window one stream could block the others.
            .send_window(KEPT_PER_FLIGHT * u64::from(self.send_window_bytes))
            .keep_alive_interval(Some(keep_alive))
            .max_idle_timeout(Some(idle))
            .packet_threshold(PACKET_THRESHOLD)
            .mtu_discovery_config(Some(mtu))
            .enable_segmentation_offload(true);
        config
    }
}

/// Extracts what a TLS session of our provider has proved and agreed on.
fn inspect() -> Inspect {
    Arc::new(|session: &dyn crypto::Session| {
        let peer = session.peer_identity()?.downcast::<ProvedPeer>().ok()?;
        let ProvedPeer { key, channel } = *peer;
        let handshake = *session.handshake_data()?.downcast().ok()?;
        Some(Arc::new(Proof { key, channel, handshake }) as Arc<dyn Any + Send + Sync>)
    })
}

/// CPU time that opening a KiB takes with the suite of a session of our provider.
fn opening_cost(session: &dyn crypto::Session) -> Duration {
    let handshake = session.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    handshake.map_or(Duration::ZERO, |handshake| handshake.opening_cost)
}

/// Counts a stateless reset as that, for a session of our provider.
fn on_reset(session: &dyn crypto::Session) {
    let handshake = session.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    if let Some(handshake) = handshake {
        handshake.keys.count_reset();
    }
}

//! The transport's settings: windows, timers, congestion control, and the memory they bound.
//!
//! What one connection may hold, whatever its peer does:
//!
//! ```text
//! 64 KiB x (forwards_max + 17) + receive_window + 2 x 2 x send_window + about 2 MiB in quinn-proto
//! ```
//!
//! The first is the window of the connection for what is sparse, where every stream may be unread to
//! the end of its own. The second is that of the connection for bulk. While sockets take less than
//! arrives it grows by `stream_receive_window` for each of them, out of `stalled_bytes`, which all
//! connections of an endpoint share. A stream whose reader has stopped holds no more than its window
//! here, and nothing at the sender: bytes are taken from TCP only when they may leave at once. Nothing else is queued: datagrams wait in the socket's buffer until their
//! connection has room. Crypto and loss recovery are not known here, only numbers.

use std::{any::Any, fmt, io, net::UdpSocket, str::FromStr, sync::Arc, thread, time::Duration};

use keypadd_provider::Histogram;
use keypadd_transport::{
    Endpoint, EndpointConfig, EndpointSettings, IdleTimeout, Inspect, MtuDiscoveryConfig,
    ServerConfig, SpinShare, Streams, TransportConfig, Windows,
    congestion::{BbrConfig, ControllerFactory, CubicConfig},
    crypto,
};
use thiserror::Error;

use crate::{
    clock::{Clocks, SystemClocks},
    egress::{EgressGate, MeteredEgress},
    session::Proved,
    wire::{CloseCode, StreamCode},
};

/// QUIC version 1 (RFC 9000 15).
pub(crate) const QUIC_VERSION: u32 = 1;

/// Server name of the handshake. It is never sent: raw keys need no names.
pub(crate) const SERVER_NAME: &str = "keypadd";

/// A silent path is probed this often, which also keeps NAT bindings open.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// A path that has been silent this long is dead: three probes, the first of them sent again three
/// times or so. The count starts anew with the first probe that is sent after the last packet came
/// (RFC 9000 10.1), so a peer that dies is noticed after `KEEP_ALIVE` more at the latest: 13 s,
/// within the 15 s that are promised. It is three probe timeouts where those are more (quinn), so
/// on paths whose round trip takes a second or more it may be later.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest UDP payload that is taken in, and probed for where the route carries it: that of Ethernet
/// with an MTU of 9,216. Loopback carries more, but packets of 16 to 64 KiB took as much CPU time per
/// byte, and one that is lost is more to send again.
const DATAGRAM_BYTES_MAX: u16 = 9_188;

/// Packets that may overtake another before it is called lost. Three, as RFC 9002 6.1.1 has it,
/// halves throughput on paths that reorder. quinn drops what comes more than 129 numbers late, so
/// a larger figure than this would call nothing lost that could still arrive.
const PACKET_THRESHOLD: u32 = 128;

/// Bytes that a stream may hold unread here before it moves to the bulk connection.
const SPARSE_STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// How fast to send. Measured, 300 Mbit/s, 20 ms, random loss of 0 / 0.5 / 2 %: CUBIC 281 / 11 / 4.3
/// Mbit/s, BBR 269 / 261 / 263. On a fast clean link CUBIC won, 3.0 against 2.2 Gbit/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438: fair to others, collapses where loss is not congestion.
    #[default]
    Cubic,
    /// Follows the measured bandwidth, so that random loss costs little.
    Bbr,
}

/// A congestion controller that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("congestion control `{0}` is not one of cubic, bbr")]
pub struct CongestionError(String);

impl FromStr for Congestion {
    type Err = CongestionError;

    fn from_str(text: &str) -> Result<Self, CongestionError> {
        match text {
            "cubic" => Ok(Self::Cubic),
            "bbr" => Ok(Self::Bbr),
            text => Err(CongestionError(text.into())),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        })
    }
}

/// What both ends may set about the transport.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// Congestion control of what this end sends.
    pub congestion: Congestion,
    /// Bytes that all streams of the bulk connection may hold unread here, where all are read.
    pub receive_window_bytes: u32,
    /// Bytes that one stream of the bulk connection may hold unread here.
    pub stream_receive_window_bytes: u32,
    /// Bytes that streams whose readers are slow or have stopped may hold here beyond `receive_window`,
    /// over all connections of an endpoint. One connection gets three quarters of what is left at most.
    pub stalled_bytes: u64,
    /// Bytes of a connection that may be sent and not yet acknowledged.
    pub send_window_bytes: u32,
    /// TCP connections that one QUIC connection carries at once.
    pub forwards_max: u32,
    /// Bytes asked for as UDP send and receive buffer; the kernel may grant less.
    pub udp_buffer_bytes: usize,
    /// The clocks whose jumps end all connections.
    pub clocks: Arc<dyn Clocks>,
    /// How long handing a packet to the kernel took, sampled.
    pub send_seconds: Arc<Histogram>,
    /// Share of a core that each loop may spend on polling for nothing instead of sleeping.
    pub spin: SpinShare,
    /// Event loops of a server, one thread each. A client has two at most: one for what is sparse,
    /// one for bulk.
    pub loops: usize,
    /// The largest UDP payload that is taken in, and that path MTU discovery goes up to where the
    /// route carries it.
    pub datagram_bytes_max: u16,
}

impl Default for TransportSettings {
    fn default() -> Self {
        const MIB: u32 = 1 << 20;
        Self {
            congestion: Congestion::default(),
            receive_window_bytes: 64 * MIB,
            // 800 Mbit/s at 20 ms for one TCP connection, as in OpenSSH.
            stream_receive_window_bytes: 2 * MIB,
            // 1,500 stopped readers of one session before other bulk has less than its window.
            stalled_bytes: 4 << 30,
            send_window_bytes: 16 * MIB,
            forwards_max: 1024,
            udp_buffer_bytes: 4 << 20,
            clocks: Arc::new(SystemClocks),
            send_seconds: Arc::default(),
            spin: SpinShare::default(),
            loops: default_loops(),
            datagram_bytes_max: DATAGRAM_BYTES_MAX,
        }
    }
}

/// As many loops as cores, within bounds: with two, a keystroke waits for no thread that carries bulk
/// data, also on a single core.
fn default_loops() -> usize {
    // An even number: half of them carry what is sparse, half bulk.
    thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8) & !1)
}

/// Which end of the connection a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl TransportSettings {
    /// Starts an endpoint on these sockets, one loop each.
    pub(crate) fn endpoint(
        &self,
        end: End,
        sockets: Vec<UdpSocket>,
        server: Option<ServerConfig>,
        connections_max: usize,
        gate: EgressGate,
    ) -> io::Result<Endpoint> {
        let congestion: Arc<dyn ControllerFactory + Send + Sync> = match self.congestion {
            Congestion::Cubic => Arc::new(CubicConfig::default()),
            Congestion::Bbr => Arc::new(BbrConfig::default()),
        };
        let mut config = EndpointConfig::default();
        // One QUIC version and no other.
        config.supported_versions(vec![QUIC_VERSION]);
        config
            .max_udp_payload_size(self.datagram_bytes_max)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let settings = self.clone();
        Endpoint::start(EndpointSettings {
            sockets,
            config,
            server,
            transport: Arc::new(move |route_bytes| settings.of_connection(route_bytes)),
            streams: self.streams(end),
            sparse_windows: self.sparse_windows(),
            bulk_windows: Windows {
                stream: self.stream_receive_window_bytes,
                connection: self.receive_window_bytes,
                connection_max: self
                    .stream_receive_window_bytes
                    .saturating_mul(self.forwards_max)
                    .saturating_add(self.receive_window_bytes),
            },
            growth: self.stalled_bytes,
            congestion,
            flight_max: self.send_window_bytes.into(),
            connections_max,
            egress: Arc::new(MeteredEgress { gate, send_seconds: Arc::clone(&self.send_seconds) }),
            inspect: inspect(),
            cut_code: StreamCode::Reset.into(),
            drop_code: StreamCode::ShuttingDown.into(),
            // A client that says goodbye in order has taken what it wanted of a finished stream.
            // A server's goodbye says nothing of what its targets have got (invariant I11).
            goodbye_code: (end == End::Server).then(|| CloseCode::Shutdown.value().into()),
            spin: self.spin,
        })
    }

    /// Every stream may be unread to the end of its window, and the others go on.
    fn sparse_windows(&self) -> Windows {
        let stream = SPARSE_STREAM_WINDOW_BYTES.min(self.stream_receive_window_bytes);
        let connection = stream.saturating_mul(self.forwards_max.saturating_add(17));
        Windows { stream, connection, connection_max: connection }
    }

    /// Streams that the other end may have open.
    fn streams(&self, end: End) -> Streams {
        // The control stream is one more than the forwards. A server opens streams for remote
        // forwards alone.
        let bidirectional = match end {
            End::Client => self.forwards_max,
            End::Server => self.forwards_max.saturating_add(1),
        };
        Streams { bidirectional, unidirectional: self.forwards_max }
    }

    /// Timers and limits of one connection whose route carries UDP payloads of so many bytes.
    fn of_connection(&self, route_bytes: u16) -> TransportConfig {
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(route_bytes.min(self.datagram_bytes_max));
        let idle = IdleTimeout::try_from(IDLE_TIMEOUT).expect("10 s is below 2^62 ms");

        let mut config = TransportConfig::default();
        config
            // What may be in flight is bounded by the loop, for all streams together; a window in
            // quinn-proto would let one stream shut out the others.
            .send_window(2 * u64::from(self.send_window_bytes))
            .datagram_receive_buffer_size(None)
            .keep_alive_interval(Some(KEEP_ALIVE))
            .max_idle_timeout(Some(idle))
            .packet_threshold(PACKET_THRESHOLD)
            .mtu_discovery_config(Some(mtu))
            .enable_segmentation_offload(true);
        config
    }
}

/// Takes the peer's key and what was agreed on out of a session whose protection is ours.
fn inspect() -> Inspect {
    Arc::new(|session: &dyn crypto::Session| {
        let key = *session.peer_identity()?.downcast().ok()?;
        let handshake = *session.handshake_data()?.downcast().ok()?;
        Some(Arc::new(Proved { key, handshake }) as Arc<dyn Any + Send + Sync>)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_is_read_as_shown() {
        for congestion in [Congestion::Cubic, Congestion::Bbr] {
            assert_eq!(congestion.to_string().parse(), Ok(congestion));
        }
        let error = "reno".parse::<Congestion>().unwrap_err();
        assert_eq!(error.to_string(), "congestion control `reno` is not one of cubic, bbr");
    }
}

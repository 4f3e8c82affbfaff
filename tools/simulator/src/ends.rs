//! Runs one end: a quinn-proto endpoint with its connections, its pool and its applications.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use fastrand::Rng;
use keypadd_keystream::Suite;
use keypadd_pool::Pool;
use keypadd_provider::{
    CryptoSettings, Meters, PoolSwitch, PrivateKey, TestHooks, client_config_with,
    server_config_with,
};
use quinn_proto::congestion::{Controller, ControllerFactory};
use quinn_proto::crypto;
use quinn_proto::{
    Connection, ConnectionHandle, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig,
    IdleTimeout, MtuDiscoveryConfig, ServerConfig, Side, TransportConfig, VarInt,
};

use crate::auditor::Sender;
use crate::bugs::{Bug, Spoiler};
use crate::pools::SteppedPool;
use crate::schedule::Schedule;
use crate::secrets::SecretLog;
use crate::tape::Tape;
use crate::traffic::Traffic;
use crate::wire::CID_BYTES;

/// One end of the run.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    pub(crate) links: BTreeMap<ConnectionHandle, Link>,
    pub(crate) pool: SteppedPool,
    pub(crate) meters: Arc<Meters>,
}

/// One end of a connection.
pub(crate) struct Link {
    pub(crate) index: usize,
    pub(crate) connection: Connection,
    pub(crate) traffic: Traffic,
    pub(crate) sender: Sender,
    pub(crate) up: bool,
    /// The pool its pads come from: its end's, unless it has left that.
    pub(crate) pool: PoolSwitch,
}

/// Shared by both ends of one connection, created before it starts.
pub(crate) struct Wiring {
    pub(crate) client: Arc<dyn crypto::ClientConfig>,
    pub(crate) server: Arc<dyn crypto::ServerConfig>,
    pub(crate) first_cid: ConnectionId,
    /// Seed of the bytes in its streams.
    seed: u64,
    log: Arc<SecretLog>,
    tapes: [Arc<Tape>; 2],
    switches: [PoolSwitch; 2],
}

/// Both ends' identities. No decision depends on their bytes, so they may differ between runs.
static IDENTITIES: LazyLock<[Arc<PrivateKey>; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Arc::new(PrivateKey::generate().expect("randomness"))));

impl Link {
    /// Whether this end may consider the handshake confirmed: a server once it is complete, a
    /// client once the server has said so. One that has closed need not know.
    pub(crate) fn is_confirmed(&self) -> bool {
        let told = || self.connection.stats().frame_rx.handshake_done > 0;
        let confirmed = self.up && (self.connection.side() == Side::Server || told());
        confirmed || self.connection.is_closed()
    }
}

impl End {
    pub(crate) fn new(side: Side, schedule: &Schedule, rng: &mut Rng) -> Self {
        let mut config = EndpointConfig::default();
        let cid_seed = rng.u64(..);
        config.cid_generator(move || Box::new(SeededCids(Rng::with_seed(cid_seed))));
        let mut seed = [0; 32];
        rng.fill(&mut seed);
        config.rng_seed(Some(seed));
        // Never used: each connection is accepted with a configuration of its own.
        let placeholder = (side == Side::Server).then(|| {
            let settings = settings(Suite::default(), side, PoolSwitch::default(), &Arc::default());
            let allowed = Arc::new(IDENTITIES[0].public());
            let crypto = server_config_with(&settings, allowed, &TestHooks::default());
            Arc::new(ServerConfig::with_crypto(crypto.expect("settings")))
        });
        let pool = SteppedPool::new(schedule, side as usize, rng.fork());
        Self {
            endpoint: Endpoint::new(Arc::new(config), placeholder, true, None),
            links: BTreeMap::new(),
            pool,
            meters: Arc::default(),
        }
    }

    /// Hands a datagram to the endpoint.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        from: SocketAddr,
        bytes: &[u8],
        answer: &mut Vec<u8>,
    ) -> Option<quinn_proto::DatagramEvent> {
        self.endpoint.handle(now, from, None, None, BytesMut::from(bytes), answer)
    }
}

fn settings(suite: Suite, side: Side, pool: PoolSwitch, meters: &Arc<Meters>) -> CryptoSettings {
    CryptoSettings {
        pool,
        meters: Arc::clone(meters),
        ..CryptoSettings::plain(Arc::clone(&IDENTITIES[side as usize]), suite)
    }
}

impl Wiring {
    pub(crate) fn new(
        suite: Suite,
        schedule: &Schedule,
        sources: [(Pool, Arc<Meters>); 2],
        bug: Option<Bug>,
        rng: &mut Rng,
    ) -> Self {
        let log = Arc::new(SecretLog::default());
        let hooks =
            TestHooks { key_log: Arc::clone(&log) as _, phase_packets_max: schedule.phase_packets };
        let switches = sources.each_ref().map(|(pool, _)| PoolSwitch::new(Some(pool.clone())));
        let settings_of = |side: Side| {
            let (_, meters) = &sources[side as usize];
            settings(suite, side, switches[side as usize].clone(), meters)
        };
        let (client, server) = (settings_of(Side::Client), settings_of(Side::Server));
        let client = client_config_with(&client, IDENTITIES[1].public(), &hooks);
        let allowed = Arc::new(IDENTITIES[0].public());
        let server = server_config_with(&server, allowed, &hooks);
        let spoiler = |side| bug.map(|bug| Spoiler { bug, suite, side, log: Arc::clone(&log) });
        let tapes = [Side::Client, Side::Server].map(|side| Arc::new(Tape::new(spoiler(side))));
        let by = |end: usize| Arc::clone(&tapes[end]) as _;
        Self {
            client: interposer::client_config(client.expect("settings"), by(0)),
            server: interposer::server_config(server.expect("settings"), by(1)),
            first_cid: SeededCids(rng.fork()).generate_cid(),
            seed: rng.u64(..) & !1,
            log,
            tapes,
            switches,
        }
    }

    pub(crate) fn link(
        &self,
        index: usize,
        suite: Suite,
        connection: Connection,
        schedule: &Schedule,
        rng: &mut Rng,
    ) -> Link {
        let side = connection.side();
        Link {
            index,
            connection,
            traffic: Traffic::new(self.seed, side, schedule.styles[side as usize], rng.fork()),
            sender: self.sender(index, suite, side),
            up: false,
            pool: self.switch(side),
        }
    }

    /// The auditor's state for one end.
    pub(crate) fn sender(&self, index: usize, suite: Suite, side: Side) -> Sender {
        let (log, tape) = (Arc::clone(&self.log), Arc::clone(&self.tapes[side as usize]));
        Sender::new(index, side, suite, log, tape)
    }

    /// The pool switch of one end.
    pub(crate) fn switch(&self, side: Side) -> PoolSwitch {
        self.switches[side as usize].clone()
    }
}

/// Connection IDs derived from the seed.
struct SeededCids(Rng);

impl ConnectionIdGenerator for SeededCids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.u64(..).to_be_bytes())
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Longer than the tunnel's: a handshake may lose three in ten datagrams, and seven probes in a
/// row.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// With quinn's own guess of 333 ms a bad handshake lasts many seconds and leaves an estimate that
/// delays key updates as long: the next one waits for three probe timeouts.
const INITIAL_RTT: Duration = Duration::from_millis(20);

/// The transport of both ends.
pub(crate) fn transport(schedule: &Schedule) -> TransportConfig {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(1452);
    let idle = IdleTimeout::try_from(IDLE_TIMEOUT).expect("below 2^62 ms");
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(congestion(schedule))
        .send_window(schedule.window_bytes)
        .receive_window(VarInt::from_u32(8 << 20))
        .max_idle_timeout(Some(idle))
        .initial_rtt(INITIAL_RTT)
        .keep_alive_interval(Some(Duration::from_secs(5)))
        .packet_threshold(schedule.packet_threshold)
        .mtu_discovery_config(Some(mtu))
        .enable_segmentation_offload(schedule.batch > 1);
    config
}

/// The congestion control of both ends.
pub(crate) fn congestion(schedule: &Schedule) -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(Fixed(schedule.window_bytes))
}

/// Congestion control with a constant window, so that losses do not end the pressure.
#[derive(Clone, Copy)]
struct Fixed(u64);

impl ControllerFactory for Fixed {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(*self)
    }
}

impl Controller for Fixed {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.0
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        self.0
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

//! Both ends of a tunnel in this process: two daemons with keys of the moment, joined by UDP on
//! loopback, and the two forwards that the demo's traffic goes through. Nothing of it touches a file
//! or a port that somebody chose.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::CipherEngine;
use keypadd_pool::Direction;
use keypadd_provider::{ConnectionKeys, KeyExchange, PrivateKey, client_config, server_config};
use keypadd_tunnel::{
    AllowedPeer, Bound, Client, ClientSettings, Congestion, Forward, ListenPermits, LiveSession,
    Peers, Permit, Permits, Server, ServerSettings, Sessions,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::failed;
use super::measured::{Arm, Gauges};
use crate::connect::draw_instance;
use crate::daemon::{Daemon, DaemonSettings};
use crate::error::Error;
use crate::shutdown::{self, Trigger};

/// Memory for keystream at each end, filled by conventional 3DES in about two seconds of CPU. Each direction gets
/// pads for 3,584 packets, and a filler sleeps above three quarters of them: more than a burst takes.
const POOL_BUDGET_BYTES: usize = 16 << 20;

/// Payload that a packet of full size carries at least.
const PACKET_PAYLOAD_BYTES: u64 = 1_350;

/// Longest wait for the handshake.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Longest wait for both ends to say goodbye.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// A tunnel that is up. Dropped, it is gone at once; [`close`](Self::close) lets the ends say goodbye.
#[derive(Debug)]
pub(super) struct Ends {
    /// Counters of both ends.
    pub(super) gauges: Gauges,
    /// Where each forward listens, in the order of the targets.
    pub(super) forwards: [SocketAddr; 2],
    near: Arc<LiveSession>,
    far: Arc<LiveSession>,
    trigger: Trigger,
    tasks: JoinSet<()>,
}

impl Ends {
    /// Brings a tunnel up with a forward to each target.
    ///
    /// # Errors
    /// No memory, no free port, no handshake.
    pub(super) async fn open(
        arm: Arm,
        engine: CipherEngine,
        targets: [SocketAddr; 2],
    ) -> Result<Self, Error> {
        let far = prepare(arm, engine).await?;
        let near = prepare(arm, engine).await?;
        let (trigger, shutdown) = shutdown::switch();
        let mut tasks = JoinSet::new();

        let permits = targets.map(|target| target.to_string().parse::<Permit>());
        let permits: Result<Vec<Permit>, _> = permits.into_iter().collect();
        let allowed = AllowedPeer {
            name: Some("demo".into()),
            key: near.public_key(),
            permits: Permits::new(permits.map_err(fault)?),
            listen_permits: ListenPermits::default(),
        };
        let peers = Arc::new(Peers::new([allowed]).map_err(fault)?);
        let server = Server::bind(ServerSettings {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            crypto: server_config(&far.crypto, peers.clone()).map_err(fault)?,
            peers,
            transport: far.transport.clone(),
            connections_max: 1,
            bench: None,
        });
        let server = server.map_err(fault)?;
        let address = server.local_addr();
        let far_sessions = server.sessions();
        let stop = shutdown.clone();
        tasks.spawn(async move { server.run(stop.at_once()).await });

        let forwards = targets.map(|target| format!("127.0.0.1:0:{target}").parse());
        let forwards: Result<Vec<_>, _> =
            forwards.into_iter().map(|forward| forward.map(Forward::Local)).collect();
        let client = Client::bind(ClientSettings {
            server: address.to_string().parse().map_err(fault)?,
            crypto: client_config(&near.crypto, far.public_key()).map_err(fault)?,
            name: None,
            forwards: forwards.map_err(fault)?,
            transport: near.transport.clone(),
            connect_timeout: CONNECT_TIME,
            instance: draw_instance()?,
        });
        let client = client.await.map_err(fault)?;
        let listening: Vec<SocketAddr> = client
            .forwards()
            .iter()
            .filter_map(|(_, bound)| match bound.first() {
                Some(&Bound::Tcp(address)) => Some(address),
                _ => None,
            })
            .collect();
        let forwards = listening.try_into().map_err(|_| failed("a forward does not listen"))?;
        let session = client.connect().await.map_err(fault)?;
        let near_sessions = client.sessions();
        tasks.spawn(async move {
            // A session that is lost shows in the traffic.
            client.run(Some(session), shutdown.at_once()).await;
            client.close().await;
        });
        Ok(Self {
            gauges: Gauges {
                meters: [near.crypto.meters, far.crypto.meters],
                pools: near.crypto.pool.into_iter().chain(far.crypto.pool).collect(),
            },
            forwards,
            near: only(near_sessions)?,
            far: only(far_sessions)?,
            trigger,
            tasks,
        })
    }

    /// Whether both ends have left the short first key phase, for which little is filled.
    pub(super) fn past_first_phase(&self) -> bool {
        self.keys().iter().all(|keys| keys.status(Direction::Send).key_phase > 0)
    }

    /// Whether `bytes` in a burst from the near end to the far one would find all their pads.
    pub(super) fn has_pads_for(&self, bytes: u64) -> bool {
        let packets = bytes.div_ceil(PACKET_PAYLOAD_BYTES);
        let [near, far] = self.keys();
        [near.status(Direction::Send), far.status(Direction::Receive)]
            .iter()
            .all(|status| status.head.packets.min(status.body.packets) >= packets)
    }

    fn keys(&self) -> [&ConnectionKeys; 2] {
        [&self.near.handshake().keys, &self.far.handshake().keys]
    }

    /// Ends both daemons.
    pub(super) async fn close(mut self) {
        self.trigger.throw();
        let _ =
            timeout(CLOSE_TIME, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

async fn prepare(arm: Arm, cipher_engine: CipherEngine) -> Result<Daemon, Error> {
    Daemon::prepare(DaemonSettings {
        key: Arc::new(PrivateKey::generate().map_err(fault)?),
        suites: vec![arm.suite],
        permit_bench: false,
        kex: vec![KeyExchange::default()],
        pool_budget_bytes: arm.pool.then_some(POOL_BUDGET_BYTES),
        cipher_engine,
        congestion: Congestion::default(),
        metrics: None,
        control_socket: false,
        drain: Duration::ZERO,
    })
    .await
}

fn only(sessions: Sessions) -> Result<Arc<LiveSession>, Error> {
    sessions.live().pop().ok_or_else(|| failed("the tunnel closed as soon as it was up"))
}

fn fault(error: impl std::fmt::Display) -> Error {
    failed(format!("the two ends do not come up: {error}"))
}

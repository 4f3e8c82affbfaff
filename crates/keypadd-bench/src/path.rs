//! An arm that is up: something to connect to, and the counters of what is behind it.
//!
//! Both ends of a tunnel in this process over UDP on loopback, or the near end of one to a server that
//! permits measurements; each end, and the service behind it, on a host of its own. Keys of the moment
//! for the former; nothing here touches a file or a port that somebody chose.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::CipherEngine;
use keypadd_pool::{Direction, Pool, PoolSettings};
use keypadd_provider::{
    ConnectionKeys, CryptoSettings, Group, Meters, PrivateKey, PublicKey, client_config,
    server_config,
};
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    AllowedPeer, BenchForward, Bind, Bound, Client, ClientError, ClientSettings, Forward,
    ListenPermits, LiveSession, Peers, Permits, Server, ServerAddress, ServerSettings, Sessions,
    TransportSettings,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::arm::{Arm, TunnelArm};
use crate::counts::Gauges;
use crate::exchange::Exchange;
use crate::host::Host;
use crate::requester::{Broken, Requester, Requests};
use crate::service::Service;

/// Longest wait for a handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Longest wait for both ends to say goodbye.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// What goes through before anything counts, a step at a time: it ends quinn's first key phase, which
/// is short at random, and lets congestion control and path MTU settle.
const WARM_UP: Exchange = Exchange::new(256 << 10, 256 << 10);
/// Longest time for it.
const WARM_UP_TIME: Duration = Duration::from_secs(5);

/// A filler that made nothing for this long sleeps.
const FILLER_AT_REST: Duration = Duration::from_millis(50);

/// Where the far end is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In this process.
    Here,
    /// A server that permits measurements.
    There {
        /// Where it is.
        server: ServerAddress,
        /// Its key.
        peer: PublicKey,
        /// Ours.
        key: Arc<PrivateKey>,
    },
}

/// What all arms of a run have in common.
#[derive(Clone, Debug)]
pub struct PathSettings {
    /// Where the far end is.
    pub place: Place,
    /// Memory for keystream at each end of an arm that has a pool.
    pub pool_budget_bytes: usize,
    /// The key exchange.
    pub kex: Group,
    /// Windows and congestion control.
    pub transport: TransportSettings,
    /// What computes keystream at the far end, if it runs here and that is not what the arm says.
    pub far_engine: Option<CipherEngine>,
}

/// Why a path does not come up.
#[derive(Debug, thiserror::Error)]
#[error("{arm}: {cause}")]
pub struct PathError {
    /// The arm.
    pub arm: Arm,
    /// Why.
    pub cause: PathFault,
}

/// What keeps a path from coming up.
#[derive(Debug, thiserror::Error)]
pub enum PathFault {
    /// The server cannot be reached, or the two ends do not accept each other.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No service answers behind the tunnel.
    #[error(transparent)]
    Service(#[from] Broken),
    /// This machine lacks something, in words.
    #[error("{0}")]
    Here(String),
}

/// An arm that is up. Dropped, it is gone at once; [`close`](Self::close) lets the ends say goodbye.
#[derive(Debug)]
pub struct Path {
    arm: Arm,
    address: SocketAddr,
    gauges: Gauges,
    sessions: Vec<Arc<LiveSession>>,
    stop: watch::Sender<()>,
    /// The near one first.
    ends: Vec<Host>,
    /// Answers until it is dropped.
    _service: Option<Host>,
}

impl Path {
    /// Brings an arm up and warms it.
    ///
    /// # Errors
    /// No memory, no free port, no handshake, or the far end does not let us measure.
    pub async fn open(arm: Arm, settings: &PathSettings) -> Result<Self, PathError> {
        let opened = match arm {
            Arm::Tcp => open_tcp().await,
            Arm::Tunnel(tunnel) => open_tunnel(tunnel, settings).await,
        };
        opened.map_err(|cause| PathError { arm, cause })
    }

    /// What it carries traffic by.
    pub fn arm(&self) -> Arm {
        self.arm
    }

    /// Where to connect to; a service answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counters of the ends that run here.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// The keys of the ends that run here, the near one first; none without a tunnel.
    pub fn keys(&self) -> Vec<&ConnectionKeys> {
        self.sessions.iter().map(|session| &session.handshake().keys).collect()
    }

    /// Packets whose whole pad is at hand, where that is least: the near end sends and the far one, if
    /// it runs here, receives (`up`), or the reverse. `None` without a pool.
    pub fn packets_at_hand(&self, up: bool) -> Option<u64> {
        let ways = match up {
            true => [Direction::Send, Direction::Receive],
            false => [Direction::Receive, Direction::Send],
        };
        let at_hand = |(keys, way): (&ConnectionKeys, Direction)| {
            let status = keys.status(way);
            status.head.packets.min(status.body.packets)
        };
        let least = self.keys().into_iter().zip(ways).map(at_hand).min();
        least.filter(|_| self.arm.has_pool())
    }

    /// Waits until the fillers have made nothing for a while, which is when all pools are full. False
    /// if `patience` was too short, as it is without idle CPU; and while a first phase lasts, which ends
    /// at any moment and takes its pads along.
    pub async fn rest(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let filled = self.gauges.filled_bytes();
            sleep(FILLER_AT_REST).await;
            let at_rest = self.gauges.filled_bytes() == filled && self.gauges.fillers_sleep();
            if at_rest && self.has_heads() {
                return self.is_past_first_phase();
            }
            if Instant::now() > deadline {
                return false;
            }
        }
    }

    /// Whether every direction has pads for keystrokes; which of them has how many long ones is for the
    /// pool to say.
    fn has_heads(&self) -> bool {
        let ways = [Direction::Send, Direction::Receive];
        let has_some =
            |keys: &ConnectionKeys| ways.iter().all(|&way| keys.status(way).head.packets > 0);
        !self.arm.has_pool() || self.keys().into_iter().all(has_some)
    }

    /// Whether a packet's tag did not verify or a pad was to be used twice: a bug, or a network that
    /// damages packets.
    pub fn has_faults(&self) -> bool {
        self.gauges.faults() > 0
    }

    /// Ends what runs here.
    pub async fn close(mut self) {
        let _ = self.stop.send(());
        let gone = async {
            for end in &mut self.ends {
                end.rest().await;
            }
        };
        let _ = timeout(CLOSE_TIME, gone).await;
    }

    async fn warm_up(&self) -> Result<(), Broken> {
        let deadline = Instant::now() + WARM_UP_TIME;
        let mut requester = Requester::open(self.address).await?;
        while !self.is_past_first_phase() && Instant::now() < deadline {
            let requests = Requests::WithoutPause(WARM_UP, Duration::from_millis(1));
            (requester, ()) = requester.run(requests, Instant::now(), (), |(), _| ()).await?;
        }
        Ok(())
    }

    fn is_past_first_phase(&self) -> bool {
        self.keys().iter().all(|keys| keys.status(Direction::Send).key_phase > 0)
    }
}

async fn open_tcp() -> Result<Path, PathFault> {
    let (service, address) = serve().await?;
    Ok(Path {
        arm: Arm::Tcp,
        address,
        gauges: Gauges { meters: Vec::new(), pools: Vec::new() },
        sessions: Vec::new(),
        stop: watch::channel(()).0,
        ends: Vec::new(),
        _service: Some(service),
    })
}

async fn open_tunnel(arm: TunnelArm, settings: &PathSettings) -> Result<Path, PathFault> {
    let (stop, stopped) = watch::channel(());
    let mut gauges = Gauges { meters: Vec::new(), pools: Vec::new() };
    let (mut ends, mut service, mut far_sessions) = (Vec::new(), None, None);
    let (server, peer, key) = match &settings.place {
        Place::There { server, peer, key } => (server.clone(), *peer, Arc::clone(key)),
        Place::Here => {
            let [near_key, far_key] = [new_key()?, new_key()?];
            let far_arm = TunnelArm { engine: settings.far_engine.unwrap_or(arm.engine), ..arm };
            let crypto = crypto(far_arm, settings, Arc::clone(&far_key), &mut gauges)?;
            let (answering, service_at) = serve().await?;
            let far =
                listen(crypto, near_key.public(), service_at, settings, stopped.clone()).await?;
            far_sessions = Some(far.sessions);
            ends.push(far.host);
            service = Some(answering);
            (far.address, far_key.public(), near_key)
        }
    };
    let near = crypto(arm, settings, key, &mut gauges)?;
    // The near end's counters first, as its session.
    gauges.meters.rotate_right(1);
    gauges.pools.rotate_right(usize::from(arm.pool));
    let near = connect(server, near, peer, settings, stopped).await?;
    let mut sessions = vec![only(&near.sessions)?];
    if let Some(far_sessions) = far_sessions {
        sessions.push(only(&far_sessions)?);
    }
    ends.insert(0, near.host);
    let path = Path {
        arm: Arm::Tunnel(arm),
        address: near.address,
        gauges,
        sessions,
        stop,
        ends,
        _service: service,
    };
    path.warm_up().await?;
    Ok(path)
}

fn crypto(
    arm: TunnelArm,
    settings: &PathSettings,
    key: Arc<PrivateKey>,
    gauges: &mut Gauges,
) -> Result<CryptoSettings, PathFault> {
    let budget_bytes = settings.pool_budget_bytes;
    let pool = arm.pool.then(|| Pool::new(PoolSettings { budget_bytes }));
    let pool = pool
        .transpose()
        .map_err(|error| PathFault::Here(format!("no memory for a pool: {error}")))?;
    let meters = Arc::new(Meters::default());
    gauges.meters.push(Arc::clone(&meters));
    gauges.pools.extend(pool.clone());
    Ok(CryptoSettings {
        key,
        suites: vec![arm.suite],
        kex: vec![settings.kex],
        pool,
        cipher_engine: arm.engine,
        meters,
    })
}

/// An end of a tunnel that is up, on its host. Where one can connect to it: UDP of the far one, TCP of the
/// near one.
struct End<A> {
    host: Host,
    address: A,
    sessions: Sessions,
}

/// Starts a service.
async fn serve() -> Result<(Host, SocketAddr), PathFault> {
    let mut host = Host::start().map_err(text)?;
    let service = host.run(Service::bind()).await.flatten().map_err(text)?;
    let address = service.address();
    host.spawn(service.run());
    Ok((host, address))
}

/// Starts the far end.
async fn listen(
    crypto: CryptoSettings,
    near: PublicKey,
    service: SocketAddr,
    settings: &PathSettings,
    stopped: watch::Receiver<()>,
) -> Result<End<ServerAddress>, PathFault> {
    let mut host = Host::start().map_err(text)?;
    let peer = AllowedPeer {
        name: Some("bench".into()),
        key: near,
        permits: Permits::default(),
        listen_permits: ListenPermits::default(),
        allowance: None,
    };
    let peers = Arc::new(Peers::new([peer]).map_err(text)?);
    let settings = ServerSettings {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        crypto: server_config(&crypto, peers.clone()).map_err(text)?,
        peers,
        transport: settings.transport.clone(),
        connections_max: 1,
        bench: Some(service),
    };
    let server = host.run(async { Server::bind(settings) }).await.map_err(text)?.map_err(text)?;
    let address = server.local_addr().to_string().parse().map_err(text)?;
    let sessions = server.sessions();
    host.spawn(async move { server.run(at_once(stopped)).await });
    Ok(End { host, address, sessions })
}

/// Starts the near end, with a listener that leads to the far end's service.
async fn connect(
    server: ServerAddress,
    crypto: CryptoSettings,
    peer: PublicKey,
    settings: &PathSettings,
    stopped: watch::Receiver<()>,
) -> Result<End<SocketAddr>, PathFault> {
    let mut host = Host::start().map_err(text)?;
    let settings = ClientSettings {
        server,
        crypto: client_config(&crypto, peer).map_err(text)?,
        name: None,
        forwards: vec![Forward::Bench(BenchForward { bind: Bind::Loopback, port: 0 })],
        transport: settings.transport.clone(),
        connect_timeout: CONNECT_TIME,
        instance: Instance::draw().map_err(text)?,
    };
    let connected = host.run(async {
        let client = Client::bind(settings).await?;
        let session = client.connect().await?;
        Ok::<_, ClientError>((client, session))
    });
    let (client, session) = connected.await.map_err(text)??;
    let bound = client.forwards();
    let listening = bound.iter().flat_map(|(_, bound)| bound).find_map(|bound| match bound {
        Bound::Tcp(address) => Some(*address),
        Bound::Unix(_) => None,
    });
    let address = listening.ok_or_else(|| PathFault::Here("no port to listen on".into()))?;
    let sessions = client.sessions();
    host.spawn(async move {
        // A session that is lost shows in the traffic.
        client.run(Some(session), at_once(stopped)).await;
        client.close().await;
    });
    Ok(End { host, address, sessions })
}

async fn at_once(mut stopped: watch::Receiver<()>) -> Duration {
    let _ = stopped.changed().await;
    Duration::ZERO
}

fn only(sessions: &Sessions) -> Result<Arc<LiveSession>, PathFault> {
    let gone = || PathFault::Here("the tunnel closed as soon as it was up".into());
    sessions.live().pop().ok_or_else(gone)
}

fn new_key() -> Result<Arc<PrivateKey>, PathFault> {
    PrivateKey::generate().map(Arc::new).map_err(text)
}

fn text(error: impl std::fmt::Display) -> PathFault {
    PathFault::Here(error.to_string())
}

//! Bringing an arm up: a service, the two ends of a tunnel to it, and what lies in between, each where it
//! has to be.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use keypadd_pool::{Pool, PoolSettings};
use keypadd_provider::{
    CryptoSettings, Meters, PrivateKey, PublicKey, client_config, server_config,
};
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    AllowedPeer, BenchForward, Bind, Bound, Client, ClientError, ClientSettings, Forward,
    ListenPermits, LiveSession, Peers, Permits, Server, ServerAddress, ServerSettings, Sessions,
    TransportSettings,
};
use tokio::sync::watch;

use super::{Path, PathFault, PathSettings, Place, RunningEnd};
use crate::arm::{Arm, TunnelArm};
use crate::counts::Gauges;
use crate::host::{Host, Seat};
use crate::namespace::{FourHosts, Namespace};
use crate::quota::Quota;
use crate::service::Service;

/// Longest wait for a handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Largest UDP payload that Ethernet carries over IPv4 and IPv6.
const ETHERNET_DATAGRAM_BYTES: u16 = 1_452;

/// A service, and a plain connection to it.
pub(super) async fn tcp(settings: &PathSettings) -> Result<Path, PathFault> {
    let sites = Sites::of(settings)?;
    let (service, address) = serve(&sites.service).await?;
    let (address, relay) = settings.link.tcp(address).map_err(text)?;
    Ok(Path {
        arm: Arm::Tcp,
        address,
        gauges: Gauges { meters: Vec::new(), pools: Vec::new() },
        sessions: Vec::new(),
        ends: Vec::new(),
        _service: Some(service),
        _relay: relay,
        _quotas: Vec::new(),
    })
}

/// A service, and a tunnel to it.
pub(super) async fn tunnel(arm: TunnelArm, settings: &PathSettings) -> Result<Path, PathFault> {
    let sites = Sites::of(settings)?;
    let mut gauges = Gauges { meters: Vec::new(), pools: Vec::new() };
    let (mut ends, mut service, mut far_sessions, mut relay) = (Vec::new(), None, None, None);
    let (server, peer, key) = match &settings.place {
        Place::There { server, peer, key } => (server.clone(), *peer, Arc::clone(key)),
        Place::Here | Place::Hosts { .. } => {
            let [near_key, far_key] = [new_key()?, new_key()?];
            let far_arm = TunnelArm { engine: settings.far_engine.unwrap_or(arm.engine), ..arm };
            let crypto = crypto(far_arm, settings, Arc::clone(&far_key), &mut gauges)?;
            let (answering, service_at) = serve(&sites.service).await?;
            let (far, address) =
                listen(&sites.far, crypto, near_key.public(), service_at, settings).await?;
            let (address, between) = settings.link.udp(address).map_err(text)?;
            relay = between;
            far_sessions = Some(far.sessions);
            ends.push(far.running);
            service = Some(answering);
            (address.to_string().parse().map_err(text)?, far_key.public(), near_key)
        }
    };
    let near = crypto(arm, settings, key, &mut gauges)?;
    // The near end's counters first, as its session.
    gauges.meters.rotate_right(1);
    gauges.pools.rotate_right(usize::from(arm.pool));
    let (near, address) = connect(&sites.near, server, near, peer, settings).await?;
    let mut sessions = vec![only(&near.sessions)?];
    if let Some(far_sessions) = far_sessions {
        sessions.push(only(&far_sessions)?);
    }
    ends.insert(0, near.running);
    Ok(Path {
        arm: Arm::Tunnel(arm),
        address,
        gauges,
        sessions,
        ends,
        _service: service,
        _relay: relay,
        _quotas: sites.quotas,
    })
}

/// Of ends that run here, packets are those of an Ethernet path, whatever loopback carries: what is measured
/// is to hold for a network.
fn transport(settings: &PathSettings) -> TransportSettings {
    let transport = settings.transport.clone();
    match settings.place {
        Place::There { .. } => transport,
        Place::Here | Place::Hosts { .. } => {
            TransportSettings { datagram_bytes_max: ETHERNET_DATAGRAM_BYTES, ..transport }
        }
    }
}

/// Where something runs, and under which address it listens there.
struct Site {
    seat: Seat,
    address: IpAddr,
}

/// Where everything runs.
struct Sites {
    near: Site,
    far: Site,
    service: Site,
    quotas: Vec<Arc<Quota>>,
}

impl Sites {
    fn of(settings: &PathSettings) -> Result<Self, PathFault> {
        let Place::Hosts { hosts, processor } = &settings.place else {
            let here =
                || Site { seat: Seat::default(), address: settings.link.settings().loopback() };
            let (near, far, service) = (here(), here(), here());
            return Ok(Self { near, far, service, quotas: Vec::new() });
        };
        let mut quotas = Vec::new();
        let mut gateway = |namespace: &Namespace, address| {
            let quota = processor.map(Quota::of_a_core).transpose().map_err(PathFault::Here)?;
            let quota = quota.map(Arc::new);
            quotas.extend(quota.clone());
            let seat = Seat { namespace: Some(namespace.clone()), quota };
            Ok::<_, PathFault>(Site { seat, address })
        };
        let near = gateway(&hosts.near, FourHosts::NEAR)?;
        let far = gateway(&hosts.far, FourHosts::FAR)?;
        let seat = Seat { namespace: Some(hosts.server.clone()), quota: None };
        let service = Site { seat, address: FourHosts::SERVER };
        Ok(Self { near, far, service, quotas })
    }
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
        pool: pool.into(),
        cipher_engine: arm.engine,
        meters,
    })
}

/// An end of a tunnel that is up, on its host.
struct End {
    running: RunningEnd,
    sessions: Sessions,
}

/// Starts a service.
async fn serve(site: &Site) -> Result<(Host, SocketAddr), PathFault> {
    let mut host = Host::start(&site.seat).map_err(text)?;
    let service = host.run(Service::bind_at(site.address)).await.flatten().map_err(text)?;
    let address = service.address();
    host.spawn(service.run());
    Ok((host, address))
}

/// Starts the far end; where it listens.
async fn listen(
    site: &Site,
    crypto: CryptoSettings,
    near: PublicKey,
    service: SocketAddr,
    settings: &PathSettings,
) -> Result<(End, SocketAddr), PathFault> {
    let mut host = Host::start(&site.seat).map_err(text)?;
    let peer = AllowedPeer {
        name: Some("bench".into()),
        key: near,
        permits: Permits::default(),
        listen_permits: ListenPermits::default(),
        allowance: None,
    };
    let peers = Arc::new(Peers::new([peer]).map_err(text)?);
    let settings = ServerSettings {
        listen: (site.address, 0).into(),
        crypto: server_config(&crypto, peers.clone()).map_err(text)?,
        peers,
        transport: transport(settings),
        connections_max: 1,
        bench: Some(service),
    };
    let server = host.run(async { Server::bind(settings) }).await.map_err(text)?.map_err(text)?;
    let (address, sessions) = (server.local_addr(), server.sessions());
    let (stop, stopped) = watch::channel(());
    host.spawn(async move { server.run(at_once(stopped)).await });
    Ok((End { running: RunningEnd { host, stop }, sessions }, address))
}

/// Starts the near end, with a listener that leads to the far end's service; where that is.
async fn connect(
    site: &Site,
    server: ServerAddress,
    crypto: CryptoSettings,
    peer: PublicKey,
    settings: &PathSettings,
) -> Result<(End, SocketAddr), PathFault> {
    let mut host = Host::start(&site.seat).map_err(text)?;
    let bind = match site.address.is_loopback() {
        true => Bind::Loopback,
        false => Bind::Host(site.address.to_string().parse().map_err(text)?),
    };
    let settings = ClientSettings {
        server,
        crypto: client_config(&crypto, peer).map_err(text)?,
        name: None,
        forwards: vec![Forward::Bench(BenchForward { bind, port: 0 })],
        transport: transport(settings),
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
        Bound::Tcp(address) if address.ip() == site.address => Some(*address),
        Bound::Tcp(_) | Bound::Unix(_) => None,
    });
    let address = listening.ok_or_else(|| PathFault::Here("no port to listen on".into()))?;
    let sessions = client.sessions();
    let (stop, stopped) = watch::channel(());
    host.spawn(async move {
        // A session that is lost shows in the traffic.
        client.run(Some(session), at_once(stopped)).await;
        client.close().await;
    });
    Ok((End { running: RunningEnd { host, stop }, sessions }, address))
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

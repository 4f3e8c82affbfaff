//! Starts the parts of a test path, each on its own worker thread: the bench service, the tunnel's
//! server and its client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{CipherEngine, Protection};
use keypadd_pool::{Pool, PoolSettings};
use keypadd_provider::{
    CryptoSettings, Group, KeyExchange, Meters, PrivateKey, PublicKey, client_config, server_config,
};
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    AllowedPeer, BenchForward, Bind, Bound, Client, ClientError, ClientSettings, Forward, Listen,
    ListenPermits, Network, Peers, Permits, Server, ServerAddress, ServerSettings,
    TransportSettings,
};
use tokio::sync::watch;

use crate::host::Host;
use crate::link::Link;
use crate::path::{Addresses, End, Path, PathFault};
use crate::service::Service;

/// Longest wait for a handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Largest UDP payload that Ethernet carries over IPv4 and IPv6.
const ETHERNET_DATAGRAM_BYTES: u16 = 1_452;

/// How a tunnel protects its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelArm {
    /// The suite.
    pub suite: Protection,
    /// Whether both ends have a pool.
    pub pool: bool,
    /// What computes keystream.
    pub engine: CipherEngine,
}

/// Settings of a tunnel's end.
#[derive(Debug)]
pub struct EndSettings {
    /// How it protects its packets.
    pub arm: TunnelArm,
    /// Memory for keystream, if it has a pool.
    pub pool_budget_bytes: usize,
    /// The key exchange.
    pub kex: Group,
    /// Its key.
    pub key: Arc<PrivateKey>,
    /// The other end's key.
    pub peer: PublicKey,
    /// Windows and congestion control.
    pub transport: TransportSettings,
    /// The networks behind the other end, if it carries their packets.
    pub network: Option<Arc<Network>>,
}

/// Starts something, which has an address then. Boxed, so that no crate that awaits it compiles it
/// again.
type Starting<T, At = SocketAddr> =
    Pin<Box<dyn Future<Output = Result<(T, At), PathFault>> + Send>>;

/// Starts a service; returns its address.
///
/// # Errors
/// The system has no port or no descriptor, or the address does not belong to this host.
pub fn serve(mut host: Host, at: IpAddr) -> Starting<Host> {
    Box::pin(async move {
        let service = host.run(Service::bind_at(at)).await.flatten().map_err(text)?;
        let address = service.address();
        host.spawn(service.run());
        Ok((host, address))
    })
}

/// Starts the listening end of a tunnel to a service; returns its address.
///
/// # Errors
/// There is no memory for a pool or no port.
pub fn listen(
    mut host: Host,
    at: IpAddr,
    service: SocketAddr,
    settings: EndSettings,
) -> Starting<End> {
    Box::pin(async move {
        let (crypto, pool) = settings.crypto()?;
        let peer = AllowedPeer {
            name: Some("bench".into()),
            keys: vec![settings.peer],
            permits: Permits::default(),
            listen_permits: ListenPermits::default(),
            allowance: None,
            rate_cap: None,
            hold: None,
            valid_until: None,
            network: settings.network,
        };
        let peers = Arc::new(Peers::new([peer]).map_err(text)?);
        let server = ServerSettings {
            listen: (at, 0).into(),
            crypto: server_config(&crypto, peers.clone()).map_err(text)?,
            // Nobody else has its port.
            reset_keys: crypto.key.reset_keys(b""),
            peers,
            transport: settings.transport,
            // A renewal connects before the old connection ends.
            connections_max: 2,
            sessions_per_key: 16,
            bench: Some(service),
        };
        let server = host.run(async { Server::bind(server) }).await.map_err(text)?.map_err(text)?;
        let (address, sessions) = (server.local_addr(), server.sessions());
        let loops = server.loop_meter();
        let (stop, stopped) = watch::channel(());
        host.spawn(async move { server.run(at_once(stopped)).await });
        Ok((End { host, stop, meters: crypto.meters, pool, sessions, loops }, address))
    })
}

/// Starts the connecting end, with listeners that lead to the service behind the other end; returns
/// their addresses.
///
/// # Errors
/// There is no memory for a pool or no port, or the server cannot be reached or does not let us
/// measure.
pub fn connect(
    mut host: Host,
    at: IpAddr,
    server: ServerAddress,
    settings: EndSettings,
) -> Starting<End, Addresses> {
    Box::pin(async move {
        let (crypto, pool) = settings.crypto()?;
        let bind = match at.is_loopback() {
            true => Bind::Loopback,
            false => Bind::Host(at.to_string().parse().map_err(text)?),
        };
        let listens = [Listen::Tcp { bind: bind.clone(), port: 0 }, Listen::Udp { bind, port: 0 }];
        let client = ClientSettings {
            server: server.into(),
            crypto: client_config(&crypto, settings.peer).map_err(text)?,
            name: None,
            forwards: listens.map(|listen| Forward::Bench(BenchForward { listen })).into(),
            proxy_headers: <_>::default(),
            transport: settings.transport,
            connect_timeout: CONNECT_TIME,
            instance: Instance::generate().map_err(text)?,
        };
        let connected = host.run(async {
            let client = Client::bind(client).await?;
            if let Some(network) = settings.network {
                client.carry_network(network);
            }
            let session = client.connect().await?;
            Ok::<_, ClientError>((client, session))
        });
        let (client, session) = connected.await.map_err(text)??;
        let (mut tcp, mut udp) = (None, None);
        for bound in client.forwards().into_iter().flat_map(|(_, bound)| bound) {
            match bound {
                Bound::Tcp(address) if address.ip() == at => tcp = Some(address),
                Bound::Udp(address) if address.ip() == at => udp = Some(address),
                Bound::Tcp(_) | Bound::Udp(_) | Bound::Unix(_) => {}
            }
        }
        let (Some(tcp), Some(udp)) = (tcp, udp) else {
            return Err(PathFault::Here("no port to listen on".into()));
        };
        let (sessions, loops) = (client.sessions(), client.loop_meter());
        let (stop, stopped) = watch::channel(());
        host.spawn(async move {
            // A lost session shows in the traffic.
            client.run(Some(session), at_once(stopped)).await;
            client.close().await;
        });
        let end = End { host, stop, meters: crypto.meters, pool, sessions, loops };
        Ok((end, Addresses { tcp, udp }))
    })
}

impl Path {
    /// Both ends of a tunnel in this process over UDP on loopback, with ephemeral keys, warm.
    ///
    /// # Errors
    /// There is no memory for a pool, no port or no handshake.
    pub async fn here(arm: TunnelArm, pool_budget_bytes: usize) -> Result<Self, PathFault> {
        let path = Self::over(&Link::default(), arm, pool_budget_bytes).await?;
        path.warm_up().await?;
        Ok(path)
    }

    /// A way to a service of its own over a link, without a tunnel.
    ///
    /// # Errors
    /// The system has no port, no thread or no descriptor.
    pub async fn plain(link: &Link, host: Host, at: IpAddr) -> Result<Self, PathFault> {
        let (service, address) = serve(host, at).await?;
        let (tcp, of_tcp) = link.tcp(address).map_err(text)?;
        let (udp, of_udp) = link.udp(address).map_err(text)?;
        Self::new(Addresses { tcp, udp }, Vec::new(), Some(service), (of_tcp, of_udp))
    }

    /// Both ends of a tunnel in this process over an IPv4 link, with ephemeral keys: first key
    /// phases and slow start are still to come.
    ///
    /// # Errors
    /// As for [`here`](Self::here).
    pub async fn over(
        link: &Link,
        arm: TunnelArm,
        pool_budget_bytes: usize,
    ) -> Result<Self, PathFault> {
        let at = Ipv4Addr::LOCALHOST.into();
        let [near_key, far_key] = [new_key()?, new_key()?];
        let settings = |key: &Arc<PrivateKey>, peer: &PrivateKey| EndSettings {
            arm,
            pool_budget_bytes,
            kex: KeyExchange::default().into(),
            key: Arc::clone(key),
            peer: peer.public(),
            transport: ethernet(TransportSettings::default()),
            network: None,
        };
        let host = || Host::start().map_err(text);
        let (service, service_at) = serve(host()?, at).await?;
        let (far, far_at) = listen(host()?, at, service_at, settings(&far_key, &near_key)).await?;
        let (far_at, relay) = link.udp(far_at).map_err(text)?;
        let far_at = far_at.to_string().parse().map_err(text)?;
        let (near, addresses) = connect(host()?, at, far_at, settings(&near_key, &far_key)).await?;
        Self::new(addresses, vec![near, far], Some(service), relay)
    }
}

impl EndSettings {
    fn crypto(&self) -> Result<(CryptoSettings, Option<Pool>), PathFault> {
        let budget_bytes = self.pool_budget_bytes;
        let pool = self.arm.pool.then(|| Pool::new(PoolSettings { budget_bytes }));
        let pool = pool
            .transpose()
            .map_err(|error| PathFault::Here(format!("no memory for a pool: {error}")))?;
        let crypto = CryptoSettings {
            key: Arc::clone(&self.key),
            suites: vec![self.arm.suite],
            kex: vec![self.kex],
            pool: pool.clone().into(),
            cipher_engine: self.arm.engine,
            meters: Arc::new(Meters::default()),
        };
        Ok((crypto, pool))
    }
}

/// Makes packets as long as on an Ethernet path, whatever loopback carries, so that measurements on
/// one machine apply to a network.
pub fn ethernet(transport: TransportSettings) -> TransportSettings {
    TransportSettings { datagram_bytes_max: ETHERNET_DATAGRAM_BYTES, ..transport }
}

/// An ephemeral key.
///
/// # Errors
/// The system has no randomness.
pub fn new_key() -> Result<Arc<PrivateKey>, PathFault> {
    PrivateKey::generate().map(Arc::new).map_err(text)
}

async fn at_once(mut stopped: watch::Receiver<()>) -> Duration {
    let _ = stopped.changed().await;
    Duration::ZERO
}

fn text(error: impl std::fmt::Display) -> PathFault {
    PathFault::Here(error.to_string())
}

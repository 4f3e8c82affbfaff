//! Starts an arm: a service, both ends of a tunnel to it, and the emulated network between them.
//!
//! A tunnel is one of three: both ends in this process over UDP on loopback, with an emulated link
//! in between; both ends in this process as the gateways of two networks (network namespaces), whose
//! packets it carries; or only the near end, to a server that permits measurements. Each end, and the
//! service behind it, has its own host. The first two use ephemeral keys. Uses no file and no port
//! that a user chose.

mod gateways;

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use keypadd_keystream::CipherEngine;
use keypadd_provider::{Group, KeyExchange, PrivateKey, PublicKey};
use keypadd_traffic::{
    Addresses, EndSettings, Host, Link, Path, PathFault, TunnelArm, connect, ethernet, listen,
    new_key, serve,
};
use keypadd_tunnel::{HoldSettings, KeyLifetime, KeyLifetimes, ServerAddress, TransportSettings};
use testbed::{FourHosts, Namespace, Quota};

use crate::arm::Arm;

/// How long the ends of a tunnel that renews its keys wait for each other.
const HOLD_TIME: Duration = Duration::from_secs(60);

/// Where the far end is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In this process.
    Here,
    /// In this process, on the gateways of two networks. Measurements are taken at the client, and go
    /// to the server's own address: by the gateways' routes, or, if there is a tunnel, by that.
    Hosts {
        /// The hosts.
        hosts: Arc<FourHosts>,
        /// How much of a core each of the two gateways has; `None` for no limit.
        processor: Option<f64>,
        /// Whether all addresses are in IPv6.
        ipv6: bool,
    },
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
    /// After so long another handshake replaces the keys of a tunnel; `None` for never. Sessions
    /// whose suite or key exchange is for measurements alone keep theirs.
    pub key_lifetime: Option<Duration>,
    /// What computes keystream at the far end, if it runs here and differs from the arm's.
    pub far_engine: Option<CipherEngine>,
    /// What lies between ends that are [`Here`](Place::Here).
    pub link: Link,
}

/// Both ends in this process with nothing in between, no memory for pools, and the daemons'
/// defaults.
impl Default for PathSettings {
    fn default() -> Self {
        Self {
            place: Place::Here,
            pool_budget_bytes: 0,
            kex: KeyExchange::default().into(),
            transport: TransportSettings::default(),
            key_lifetime: None,
            far_engine: None,
            link: Link::default(),
        }
    }
}

impl PathSettings {
    fn transport(&self) -> TransportSettings {
        let transport = self.transport.clone();
        let Some(lifetime) = self.key_lifetime else { return transport };
        TransportSettings {
            // Only sessions that may be continued renew their keys.
            hold: HoldSettings { time: HOLD_TIME, ..HoldSettings::OFF },
            key_lifetimes: KeyLifetimes::new(KeyLifetime::new(lifetime, 0)),
            ..transport
        }
    }
}

/// Why a path does not come up.
#[derive(Debug, thiserror::Error)]
#[error("{arm}: {cause}")]
pub struct PathError {
    /// The arm.
    pub arm: Box<Arm>,
    /// Why.
    pub cause: PathFault,
}

/// An arm that comes up. Boxed, so that what awaits it is small and does not compile it again.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Path, PathError>> + Send + 'a>>;

/// Brings an arm up and warms it.
///
/// # Errors
/// No memory, no free port, no handshake, or the far end does not let us measure.
pub fn open(arm: Arm, settings: &PathSettings) -> Opening<'_> {
    Box::pin(async move {
        let path = open_cold(arm, settings).await?;
        path.warm_up().await.map_err(|cause| PathError { arm: arm.into(), cause: cause.into() })?;
        Ok(path)
    })
}

/// Brings an arm up, and nothing more: its first key phase and slow start are still to come.
///
/// # Errors
/// The errors of [`open`].
pub fn open_cold(arm: Arm, settings: &PathSettings) -> Opening<'_> {
    Box::pin(async move {
        let opened = match arm {
            Arm::Tcp => tcp(settings).await,
            Arm::Tunnel(arm) => tunnel(arm, settings).await,
        };
        opened.map_err(|cause| PathError { arm: arm.into(), cause })
    })
}

/// A service, and a plain connection to it.
async fn tcp(settings: &PathSettings) -> Result<Path, PathFault> {
    let sites = Sites::of(settings)?;
    if let Place::Hosts { hosts, .. } = &settings.place {
        gateways::wait_for_none(hosts).map_err(PathFault::Here)?;
    }
    Path::plain(&settings.link, sites.service.host()?, sites.service.address).await
}

/// A service, and a tunnel to it.
async fn tunnel(arm: TunnelArm, settings: &PathSettings) -> Result<Path, PathFault> {
    let sites = Sites::of(settings)?;
    let transport = settings.transport();
    let end = |arm, key, peer, network| EndSettings {
        arm,
        pool_budget_bytes: settings.pool_budget_bytes,
        kex: settings.kex,
        key,
        peer,
        transport: match settings.place {
            Place::There { .. } => transport.clone(),
            Place::Here | Place::Hosts { .. } => ethernet(transport.clone()),
        },
        network,
    };
    let near = &sites.near;
    if let Place::There { server, peer, key } = &settings.place {
        let end = end(arm, Arc::clone(key), *peer, None);
        let (near, addresses) = connect(near.host()?, near.address, server.clone(), end).await?;
        return Path::new(addresses, vec![near], None, sites.quotas);
    }
    let [near_key, far_key] = [new_key()?, new_key()?];
    let [near_public, far_public] = [near_key.public(), far_key.public()];
    let far_arm = TunnelArm { engine: settings.far_engine.unwrap_or(arm.engine), ..arm };
    let (service, service_at) = serve(sites.service.host()?, sites.service.address).await?;
    let networks = match &settings.place {
        Place::Hosts { hosts, ipv6, .. } => {
            gateways::networks(hosts, *ipv6).map_err(PathFault::Here)?.map(Some)
        }
        Place::Here | Place::There { .. } => [None, None],
    };
    let [near_network, far_network] = networks.clone();
    let far_end = end(far_arm, far_key, near_public, far_network);
    let (far, far_at) = listen(sites.far.host()?, sites.far.address, service_at, far_end).await?;
    let (far_at, relay) = settings.link.udp(far_at).map_err(text)?;
    let far_at = far_at.to_string().parse().map_err(text)?;
    let near_end = end(arm, near_key, far_public, near_network);
    let (near, forward) = connect(near.host()?, near.address, far_at, near_end).await?;
    let networks: Vec<_> = networks.into_iter().flatten().collect();
    let addresses = match networks.is_empty() {
        true => forward,
        false => Addresses { tcp: service_at, udp: service_at },
    };
    gateways::carried(&networks).await.map_err(PathFault::Here)?;
    Path::new(addresses, vec![near, far], Some(service), (relay, sites.quotas))
}

/// A separate host in a network, to measure from.
///
/// # Errors
/// The system has no thread for it.
pub fn host_in(namespace: &Namespace) -> io::Result<Host> {
    let namespace = namespace.clone();
    Host::start_in(move || namespace.enter())
}

/// Where something runs, and its listening address there.
struct Site {
    /// Its network namespace; `None` for that of this process.
    namespace: Option<Namespace>,
    /// Its CPU quota; `None` for no limit.
    quota: Option<Arc<Quota>>,
    address: IpAddr,
}

impl Site {
    fn host(&self) -> Result<Host, PathFault> {
        let namespace = self.namespace.clone();
        // Not held by threads: it must go away with its owner, and they may end later.
        let quota = self.quota.as_ref().map(Arc::downgrade);
        let enter = move || {
            namespace.as_ref().map_or(Ok(()), Namespace::enter)?;
            let quota = quota.as_ref().and_then(Weak::upgrade);
            quota.map_or(Ok(()), |quota| quota.enter())
        };
        Host::start_in(enter).map_err(text)
    }
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
        let Place::Hosts { hosts, processor, ipv6 } = &settings.place else {
            let address = settings.link.settings().loopback();
            let here = || Site { namespace: None, quota: None, address };
            let (near, far, service) = (here(), here(), here());
            return Ok(Self { near, far, service, quotas: Vec::new() });
        };
        let of_family = |address| FourHosts::in_family(address, *ipv6);
        let mut quotas = Vec::new();
        let mut gateway = |namespace: &Namespace, address| {
            let address = of_family(address);
            let quota = processor.map(Quota::of_a_core).transpose().map_err(PathFault::Here)?;
            let quota = quota.map(Arc::new);
            quotas.extend(quota.clone());
            Ok::<_, PathFault>(Site { namespace: Some(namespace.clone()), quota, address })
        };
        let near = gateway(&hosts.near, FourHosts::NEAR)?;
        let far = gateway(&hosts.far, FourHosts::FAR)?;
        let namespace = Some(hosts.server.clone());
        let service = Site { namespace, quota: None, address: of_family(FourHosts::SERVER) };
        Ok(Self { near, far, service, quotas })
    }
}

fn text(error: impl std::fmt::Display) -> PathFault {
    PathFault::Here(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use keypadd_keystream::{MeasureSuite, Suite};
    use keypadd_pool::Direction;
    use keypadd_provider::ConnectionKeys;
    use keypadd_traffic::{Due, Exchange, Requester, Requests};

    use super::*;

    /// As root: `cargo test -p keypadd-measure path -- --ignored`.
    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs root"]
    async fn a_client_reaches_a_server_by_routes_and_by_a_tunnel_and_by_nothing_else() {
        let hosts = Arc::new(FourHosts::build().unwrap());
        let suite = Suite::AES_256_GCM.protection();
        let engine = CipherEngine::default();
        let tunnel = Arm::Tunnel(TunnelArm { suite, pool: true, engine });
        let null = MeasureSuite::NULL.protection();
        let null = Arm::Tunnel(TunnelArm { suite: null, pool: false, engine });
        for (arm, processor, ipv6) in [
            (Arm::Tcp, None, false),
            (tunnel, None, false),
            (tunnel, Some(0.4), false),
            (null, None, false),
            (Arm::Tcp, None, false),
            (tunnel, None, true),
            (Arm::Tcp, None, true),
        ] {
            let place = Place::Hosts { hosts: Arc::clone(&hosts), processor, ipv6 };
            let settings = PathSettings {
                place,
                pool_budget_bytes: 1 << 20,
                kex: KeyExchange::X25519.into(),
                ..PathSettings::default()
            };
            let path = open_cold(arm, &settings).await.unwrap();
            let address = path.address();
            // In IPv6 that takes seconds to fail.
            assert!(ipv6 || Requester::open(address).await.is_err(), "{address} from outside");
            let client = host_in(&hosts.client).unwrap();
            let answers = client.run(async move {
                let requester = Requester::open(address).await?;
                let exchange = Exchange::new(100_000, 100_000);
                let requests = Requests::At(vec![Due { at: Duration::ZERO, exchange }]);
                requester.run(requests, Instant::now(), Vec::new(), Vec::push).await
            });
            let (_, answers) = answers.await.unwrap().unwrap();
            assert_eq!(answers.len(), 1);
            let sealed = path.gauges().counts();
            let by_tunnel = sealed.hit + sealed.partial + sealed.miss > 2 * 200_000 / 1_400;
            assert_eq!(by_tunnel, arm != Arm::Tcp, "{sealed:?}");
            let quotas = || {
                let groups =
                    std::fs::read_dir("/sys/fs/cgroup/cpu").into_iter().flatten().flatten();
                let ours = format!("kp-{}-", std::process::id());
                groups.filter(|it| it.file_name().to_string_lossy().starts_with(&ours)).count()
            };
            assert_eq!(quotas() > 0, processor.is_some());
            drop(path);
            assert_eq!(quotas(), 0);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn keys_that_reach_their_lifetime_are_replaced_by_another_handshake() {
        let suite = Suite::AES_256_GCM.protection();
        let arm = Arm::Tunnel(TunnelArm { suite, pool: false, engine: CipherEngine::default() });
        for (key_lifetime, renews) in [(Some(Duration::from_secs(1)), true), (None, false)] {
            let settings = PathSettings { key_lifetime, ..PathSettings::default() };
            let path = open_cold(arm, &settings).await.unwrap();
            assert_eq!(path.handshakes(), 1);
            let deadline = Instant::now() + Duration::from_secs(if renews { 30 } else { 2 });
            while path.handshakes() == 1 && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(path.handshakes() > 1, renews);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn packets_at_hand_are_those_of_the_connection_that_carries_bulk() {
        let suite = Suite::AES_256_GCM.protection();
        let arm = Arm::Tunnel(TunnelArm { suite, pool: true, engine: CipherEngine::default() });
        let kex = KeyExchange::X25519.into();
        let settings = PathSettings { pool_budget_bytes: 4 << 20, kex, ..PathSettings::default() };
        let path = open(arm, &settings).await.unwrap();
        while !path.rest(Duration::from_secs(60)).await {}
        let packets = |keys: &ConnectionKeys, way| {
            let status = keys.status(way);
            status.head.packets.min(status.body.packets)
        };
        let keys = path.keys();
        let [near, far] = &keys[..] else { panic!("two ends") };
        assert_eq!(near.len(), 2, "one connection of its own for bulk");
        let of_bulk = packets(near[1], Direction::Send).min(packets(far[1], Direction::Receive));
        assert_eq!(path.packets_at_hand(true), Some(of_bulk));
        path.close().await.unwrap();
    }
}

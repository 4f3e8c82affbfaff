//! Resolves host names, with a limit on concurrent lookups.
//!
//! The system's resolver blocks a thread and cannot be canceled: an abandoned lookup counts until
//! the resolver returns.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Instant,
};

use keypadd_provider::PublicKey;
use keypadd_share::{Bucket, Rate};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::{
    addresses::{
        service::ServiceName,
        target::{Host, LOOPBACK},
    },
    own_thread::on_own_thread,
};

use super::dns::{Nameservers, SrvError, targets::SrvTarget};

/// Concurrent lookups of one client, over all its connections, of those that all clients share.
const SHARED_OF_CLIENT: usize = 7;

/// Concurrent lookups of one client.
#[cfg(test)]
pub(crate) const OF_CLIENT: usize = 1 + SHARED_OF_CLIENT;

/// Concurrent lookups that all clients of the process share. Each has one more that is its own, so
/// that names for which DNS is silent keep no other client waiting.
pub(crate) const SHARED_MAX: usize = 64;

static SHARED: Semaphore = Semaphore::const_new(SHARED_MAX);

/// The log lines about threads that cannot be started.
static NO_THREAD_LINES: Mutex<Bucket> = Mutex::new(Bucket::FULL);

/// Addresses of a name that are used, in the resolver's order: DNS can give it thousands, and each
/// may cost an attempt to connect or a socket.
const ADDRESSES_MAX: usize = 64;

/// Resolves a name and port; blocks.
pub(crate) type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Lookups of one client; clones share its limits.
#[derive(Clone, Debug)]
pub(crate) struct Lookups {
    limits: Arc<ClientLimits>,
    resolver: Resolver,
    /// DNS servers for SRV records; if empty, the system's.
    nameservers: Vec<SocketAddr>,
}

#[derive(Debug)]
struct ClientLimits {
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

impl Default for Lookups {
    fn default() -> Self {
        let [own, shared] = [1, SHARED_OF_CLIENT].map(|max| Arc::new(Semaphore::new(max)));
        Self::within(Arc::new(ClientLimits { own, shared }))
    }
}

impl Lookups {
    /// Lookups by the system's resolver.
    fn within(limits: Arc<ClientLimits>) -> Self {
        let resolver: Resolver = |name, port| Ok((name, port).to_socket_addrs()?.collect());
        Self { limits, resolver, nameservers: Vec::new() }
    }

    /// Asks these DNS servers for SRV records, if there is one.
    pub(crate) fn with_nameservers(nameservers: Vec<SocketAddr>) -> Self {
        Self { nameservers, ..Self::default() }
    }
}

#[cfg(test)]
impl Lookups {
    /// Takes the client's limits, as lookups without an answer would.
    pub(crate) fn exhaust(&self) -> [tokio::sync::OwnedSemaphorePermit; 2] {
        let take = |of: &Arc<Semaphore>, all| Arc::clone(of).try_acquire_many_owned(all).unwrap();
        [take(&self.limits.own, 1), take(&self.limits.shared, SHARED_OF_CLIENT as u32)]
    }

    /// Lookups by another resolver.
    pub(crate) fn with_resolver(resolver: Resolver) -> Self {
        Self { resolver, ..Self::default() }
    }
}

/// The lookup limits of all connected clients.
#[derive(Debug, Default)]
pub(crate) struct ClientLookups(Mutex<HashMap<PublicKey, Weak<ClientLimits>>>);

impl ClientLookups {
    /// The lookups of this client, shared by its connections.
    pub(crate) fn of(&self, key: PublicKey) -> Lookups {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limits) = clients.get(&key).and_then(Weak::upgrade) {
            return Lookups::within(limits);
        }
        // Not at each newcomer: there may be thousands.
        if clients.len() == clients.capacity() {
            clients.retain(|_, limits| limits.strong_count() > 0);
        }
        let lookups = Lookups::default();
        clients.insert(key, Arc::downgrade(&lookups.limits));
        lookups
    }
}

/// Resolves a host to its addresses, [`ADDRESSES_MAX`] at most; never asks DNS for `localhost`.
/// Waits while too many lookups are running.
pub(crate) async fn resolve(
    host: &Host,
    port: u16,
    lookups: &Lookups,
) -> io::Result<Vec<SocketAddr>> {
    let name = match host {
        Host::Address(address) => return Ok(vec![SocketAddr::new(*address, port)]),
        host if host.is_localhost() => {
            return Ok(LOOPBACK.map(|address| SocketAddr::new(address, port)).to_vec());
        }
        Host::Name(name) => name.clone(),
    };
    let resolver = lookups.resolver;
    let found = bounded(lookups, move || resolver(&name, port)).await??;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        // An IPv6 address keeps its scope: a link-local one needs it.
        let plain = match address.ip().to_canonical() {
            IpAddr::V4(v4) => SocketAddr::from((v4, port)),
            IpAddr::V6(_) => address,
        };
        if !addresses.contains(&plain) {
            addresses.push(plain);
        }
        if addresses.len() == ADDRESSES_MAX {
            break;
        }
    }
    if addresses.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addresses) }
}

/// The targets of a service, in the order in which to try them. Takes no part in the limits: it
/// asks for a client's own servers only, and can be canceled.
pub(crate) async fn resolve_service(
    name: &ServiceName,
    lookups: &Lookups,
) -> Result<Vec<SrvTarget>, SrvError> {
    let nameservers = match lookups.nameservers.is_empty() {
        true => Nameservers::of_system(),
        false => Nameservers::new(lookups.nameservers.clone()),
    };
    nameservers.targets(name).await
}

/// Whether a name other than `localhost` resolves to loopback only: two hosts have the same name,
/// or the name is for another network.
pub(crate) fn names_this_host(host: &Host, addresses: &[SocketAddr]) -> bool {
    host.is_dns_name() && addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

/// Runs `lookup` on a thread of its own, within the limits. It counts until it returns, even if the
/// caller has given up.
async fn bounded<T: Send + 'static>(
    lookups: &Lookups,
    lookup: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let limits = Arc::clone(&lookups.limits);
    let own = Arc::clone(&limits.own).acquire_owned();
    let shared = async {
        // Waiting for the client's limit must not hold a permit that all share.
        let of_client = Arc::clone(&limits.shared).acquire_owned().await?;
        Ok((of_client, Some(SHARED.acquire().await?)))
    };
    let permit = tokio::select! {
        biased;
        own = own => own.map(|own| (own, None)),
        shared = shared => shared,
    };
    let permit = permit.map_err(io::Error::other)?;
    let looking = on_own_thread(move || {
        // Together with the limits, which the client finds as they are when it comes back.
        let _counted = (permit, limits);
        lookup()
    });
    looking.await.inspect_err(|error| {
        let mut lines = NO_THREAD_LINES.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.take(Rate::ONE_A_MINUTE, Instant::now()).is_ok() {
            warn!(
                %error,
                "cannot start a thread to look a name up: \
                 raise `ulimit -u`, or TasksMax= in the systemd unit"
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn abandoned_lookups_still_count() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let lookups = Lookups::default();
        let mut releases = Vec::new();
        for _ in 0..1 + SHARED_OF_CLIENT + 3 {
            let (release, released) = mpsc::channel::<()>();
            releases.push(release);
            let dead = bounded(&lookups, move || {
                RUNNING.fetch_add(1, Ordering::Relaxed);
                let _ = released.recv();
            });
            assert!(timeout(Duration::from_millis(50), dead).await.is_err());
        }
        assert!(RUNNING.load(Ordering::Relaxed) <= 1 + SHARED_OF_CLIENT);
        // Another client has its own limit; this one can resolve again when the resolver returns.
        bounded(&Lookups::default(), || ()).await.unwrap();
        drop(releases);
        timeout(Duration::from_secs(30), bounded(&lookups, || ())).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_looks_names_up_though_all_that_clients_share_is_taken() {
        let _taken = SHARED.acquire_many(SHARED_MAX as u32).await.unwrap();
        let lookups = Lookups::default();
        for _ in 0..2 {
            timeout(Duration::from_secs(30), bounded(&lookups, || ())).await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn of_thousands_of_addresses_the_first_are_used() {
        let many = |_: &str, port| {
            let addresses = (0..5_000_u32).map(|nth| SocketAddr::from((Ipv4Addr::from(nth), port)));
            Ok(addresses.collect())
        };
        let (name, lookups) = ("many.example".parse().unwrap(), Lookups::with_resolver(many));
        let found = resolve(&name, 80, &lookups).await.unwrap();
        let first = (0..ADDRESSES_MAX as u32).map(|nth| (Ipv4Addr::from(nth), 80).into());
        assert_eq!(found, first.collect::<Vec<SocketAddr>>());
    }

    #[test]
    fn a_name_that_resolves_to_loopback_only_names_this_host() {
        let is_here = |host: &str, addresses: &[&str]| {
            let at = |address: &&str| SocketAddr::new(address.parse().unwrap(), 4433);
            let addresses: Vec<_> = addresses.iter().map(at).collect();
            names_this_host(&host.parse().unwrap(), &addresses)
        };
        assert!(is_here("debian", &["127.0.1.1"]) && is_here("debian", &["::1", "127.0.0.1"]));
        assert!(!is_here("debian", &["127.0.1.1", "192.0.2.7"]));
        assert!(!is_here("localhost", &["127.0.0.1"]) && !is_here("127.0.0.1", &["127.0.0.1"]));
    }

    #[test]
    fn all_connections_of_a_key_share_one_limit() {
        let lookups = ClientLookups::default();
        let new_key = || keypadd_provider::PrivateKey::generate().unwrap().public();
        let key = new_key();
        let (one, two) = (lookups.of(key), lookups.of(key));
        assert!(Arc::ptr_eq(&one.limits, &two.limits));
        drop((one, two));
        // Those of clients that are gone do not add up.
        (0..100).for_each(|_| drop(lookups.of(new_key())));
        assert!(lookups.0.lock().unwrap().len() < 10);
    }
}

//! Names to addresses, with a bound on how many lookups run at once.
//!
//! The system's resolver blocks a thread and cannot be called off: a lookup that nobody waits for
//! any more still counts until the resolver returns. Knows nothing of permits.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use keypadd_provider::PublicKey;
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::spec::target::{Host, LOOPBACK};

/// Lookups at once of one client, over all its connections.
const CLIENT_LOOKUPS_MAX: usize = 8;

/// Lookups at once of the whole process; tokio has more blocking threads than that.
static ALL_LOOKUPS: Semaphore = Semaphore::const_new(64);

/// What a name means now; blocks.
type Ask = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The share of one client; clones are one share.
#[derive(Clone, Debug)]
pub(crate) struct Lookups {
    share: Arc<Semaphore>,
    ask: Ask,
}

impl Default for Lookups {
    fn default() -> Self {
        Self::within(Arc::new(Semaphore::new(CLIENT_LOOKUPS_MAX)))
    }
}

impl Lookups {
    /// Of the system, within this share.
    fn within(share: Arc<Semaphore>) -> Self {
        Self { share, ask: |name, port| Ok((name, port).to_socket_addrs()?.collect()) }
    }
}

#[cfg(test)]
impl Lookups {
    /// All of the share, as lookups without an answer take it.
    pub(crate) fn exhausted(&self) -> tokio::sync::OwnedSemaphorePermit {
        let all = u32::try_from(CLIENT_LOOKUPS_MAX).unwrap();
        Arc::clone(&self.share).try_acquire_many_owned(all).unwrap()
    }

    /// Of somebody else than the system.
    pub(crate) fn asking(ask: Ask) -> Self {
        Self { ask, ..Self::default() }
    }
}

/// The shares of all clients that have a connection.
#[derive(Debug, Default)]
pub(crate) struct LookupShares(Mutex<HashMap<PublicKey, Weak<Semaphore>>>);

impl LookupShares {
    /// The share of this client, whichever of its connections asks.
    pub(crate) fn of(&self, key: PublicKey) -> Lookups {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&key).and_then(Weak::upgrade) {
            return Lookups::within(share);
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Lookups::default();
        shares.insert(key, Arc::downgrade(&share.share));
        share
    }
}

/// All addresses of a host; `localhost` is never asked of DNS. Waits while too many lookups run.
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
    let ask = lookups.ask;
    let found = bounded(lookups, move || ask(&name, port)).await??;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        // An IPv6 scope stays: link-local addresses mean nothing without it.
        let plain = match address.ip().to_canonical() {
            IpAddr::V4(v4) => SocketAddr::from((v4, port)),
            IpAddr::V6(_) => address,
        };
        if !addresses.contains(&plain) {
            addresses.push(plain);
        }
    }
    if addresses.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addresses) }
}

/// Whether a name, other than `localhost`, has come to mean loopback alone. It happens where two
/// machines have one name, or with a name that is for another network: the other host is not here.
pub(crate) fn is_another_name_of_this_host(host: &Host, addresses: &[SocketAddr]) -> bool {
    let is_name = matches!(host, Host::Name(_)) && !host.is_localhost();
    is_name && addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

/// Blocks a thread with `lookup` when there is room; the room is taken until `lookup` returns,
/// whoever still waits for it.
async fn bounded<T: Send + 'static>(
    lookups: &Lookups,
    lookup: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    // The client's share first: who waits for that must not hold a place of everybody's.
    let share = Arc::clone(&lookups.share).acquire_owned().await.map_err(io::Error::other)?;
    let place = ALL_LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let looking = spawn_blocking(move || {
        let _room = (share, place);
        lookup()
    });
    looking.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn lookups_that_nobody_waits_for_still_count() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let lookups = Lookups::default();
        let mut releases = Vec::new();
        for _ in 0..CLIENT_LOOKUPS_MAX + 3 {
            let (release, released) = mpsc::channel::<()>();
            releases.push(release);
            let dead = bounded(&lookups, move || {
                RUNNING.fetch_add(1, Ordering::Relaxed);
                let _ = released.recv();
            });
            assert!(timeout(Duration::from_millis(50), dead).await.is_err());
        }
        assert!(RUNNING.load(Ordering::Relaxed) <= CLIENT_LOOKUPS_MAX);
        // Another client has its own share, and this one gets its back when the resolver returns.
        bounded(&Lookups::default(), || ()).await.unwrap();
        drop(releases);
        timeout(Duration::from_secs(30), bounded(&lookups, || ())).await.unwrap().unwrap();
    }

    #[test]
    fn a_name_that_means_loopback_alone_is_another_name_of_this_host() {
        let is_here = |host: &str, addresses: &[&str]| {
            let at = |address: &&str| SocketAddr::new(address.parse().unwrap(), 4433);
            let addresses: Vec<_> = addresses.iter().map(at).collect();
            is_another_name_of_this_host(&host.parse().unwrap(), &addresses)
        };
        assert!(is_here("debian", &["127.0.1.1"]) && is_here("debian", &["::1", "127.0.0.1"]));
        assert!(!is_here("debian", &["127.0.1.1", "192.0.2.7"]));
        assert!(!is_here("localhost", &["127.0.0.1"]) && !is_here("127.0.0.1", &["127.0.0.1"]));
    }

    #[test]
    fn all_connections_of_a_key_have_one_share() {
        let shares = LookupShares::default();
        let key = keypadd_provider::PrivateKey::generate().unwrap().public();
        let other = keypadd_provider::PrivateKey::generate().unwrap().public();
        let (one, two) = (shares.of(key), shares.of(key));
        assert!(Arc::ptr_eq(&one.share, &two.share));
        drop((one, two));
        let _other = shares.of(other);
        assert_eq!(shares.0.lock().unwrap().len(), 1);
    }
}

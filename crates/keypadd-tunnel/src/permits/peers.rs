//! Lists the clients that a server accepts, with the permits of each.
//!
//! The handshake looks a key up here to accept or refuse it; the server looks it up again for its
//! permits.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::{Duration, SystemTime},
};

use keypadd_provider::{AllowList, PoolAllowance, PublicKey};
use keypadd_transport::RateCap;
use thiserror::Error;

use crate::{
    networks::Network,
    permits::{listen::ListenPermits, open::Permits},
};

/// A client that may connect.
#[derive(Clone, Debug)]
pub struct AllowedPeer {
    /// Its name in logs and status; if absent, the first characters of the key.
    pub name: Option<String>,
    /// Its public keys: one, or two while it replaces its own. At least one.
    pub keys: Vec<PublicKey>,
    /// What it may reach.
    pub permits: Permits,
    /// Where it may listen.
    pub listen_permits: ListenPermits,
    /// Limit on the pool memory of its connections together, if any.
    pub allowance: Option<PoolAllowance>,
    /// Limit on what is sent to it, if any.
    pub rate_cap: Option<RateCap>,
    /// How long its connections are held, if not as long as everybody's.
    pub hold: Option<Duration>,
    /// When it may no longer connect, by this host's clock.
    pub valid_until: Option<SystemTime>,
    /// The networks behind it, if it has any.
    pub network: Option<Arc<Network>>,
}

/// All clients that may connect. The server's crypto configuration uses the same list, as an
/// [`AllowList`]. It can change while in use.
#[derive(Debug, Default)]
pub struct Peers(RwLock<HashMap<PublicKey, ListedKey>>);

/// What a key leads to.
#[derive(Clone, Debug)]
struct ListedKey {
    peer: Arc<AllowedPeer>,
    /// The key by which the peer is counted. It stays the same while each new list names the peer
    /// by a key that it had in the list before. So what the peer holds and has used up passes from
    /// a key to the one that replaces it.
    identity: PublicKey,
}

/// A key is listed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the key {0} is listed twice")]
pub struct DuplicateKey(pub PublicKey);

impl AllowedPeer {
    /// The peer's name, or the first characters of its key.
    pub fn label(&self) -> String {
        let short = || self.keys.first().map(PublicKey::short);
        self.name.clone().or_else(short).unwrap_or_default()
    }

    /// Whether its time is over.
    pub(crate) fn has_expired(&self, now: SystemTime) -> bool {
        self.valid_until.is_some_and(|until| until <= now)
    }
}

impl Peers {
    /// Makes a list of these clients.
    pub fn new(peers: impl IntoIterator<Item = AllowedPeer>) -> Result<Self, DuplicateKey> {
        let mut listed = HashMap::new();
        for peer in peers {
            let peer = Arc::new(peer);
            let Some(&identity) = peer.keys.first() else { continue };
            for key in &peer.keys {
                let one = ListedKey { peer: Arc::clone(&peer), identity };
                if listed.insert(*key, one).is_some() {
                    return Err(DuplicateKey(*key));
                }
            }
        }
        Ok(Self(RwLock::new(listed)))
    }

    /// Finds the client with this key, whose time may be over.
    pub fn find(&self, key: &PublicKey) -> Option<Arc<AllowedPeer>> {
        self.listed().get(key).map(|listed| Arc::clone(&listed.peer))
    }

    /// Finds the client with this key if it may connect now, and what it is counted by.
    pub(crate) fn admitted(&self, key: &PublicKey) -> Option<(Arc<AllowedPeer>, PublicKey)> {
        let ListedKey { peer, identity } = self.listed().get(key)?.clone();
        (!peer.has_expired(SystemTime::now())).then_some((peer, identity))
    }

    /// What the clients are counted by that may connect now.
    pub(crate) fn admitted_identities(&self) -> HashSet<PublicKey> {
        let now = SystemTime::now();
        let listed = self.listed();
        let admitted = listed.values().filter(|one| !one.peer.has_expired(now));
        admitted.map(|one| one.identity).collect()
    }

    /// The first key of the client that is counted by `identity`: a process that reads the same
    /// list anew counts it by that one.
    pub(crate) fn first_key(&self, identity: &PublicKey) -> Option<PublicKey> {
        let listed = self.listed();
        let found = listed.values().find(|one| one.identity == *identity)?;
        found.peer.keys.first().copied()
    }

    /// When the time of the next client is over; `None` if none has a limit that is ahead.
    pub(crate) fn next_expiry(&self, now: SystemTime) -> Option<SystemTime> {
        let listed = self.listed();
        let limits = listed.values().filter_map(|one| one.peer.valid_until);
        limits.filter(|until| *until > now).min()
    }

    /// Replaces the list; the next lookup sees the new one.
    pub(crate) fn replace(&self, peers: Self) {
        let mut new = peers.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut listed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inherit_identities(&listed, &mut new);
        *listed = new;
    }

    /// A panic cannot leave the list half changed: it is replaced as a whole.
    fn listed(&self) -> RwLockReadGuard<'_, HashMap<PublicKey, ListedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets each new peer that has a key of an old one be counted as before, unless that identity is
/// now the key of another peer.
fn inherit_identities(
    old: &HashMap<PublicKey, ListedKey>,
    new: &mut HashMap<PublicKey, ListedKey>,
) {
    let mut inherited: HashMap<PublicKey, PublicKey> = HashMap::new();
    for one in new.values() {
        let before = one.peer.keys.iter().find_map(|key| old.get(key));
        let Some(before) = before else { continue };
        let is_own = one.peer.keys.contains(&before.identity);
        let is_free = !new.contains_key(&before.identity);
        let is_first = || !inherited.values().any(|identity| *identity == before.identity);
        if is_own || (is_free && is_first()) {
            inherited.entry(one.identity).or_insert(before.identity);
        }
    }
    for one in new.values_mut() {
        if let Some(identity) = inherited.get(&one.identity) {
            one.identity = *identity;
        }
    }
}

impl AllowList for Peers {
    fn allows(&self, key: &PublicKey) -> bool {
        self.find(key).is_some()
    }

    fn has_expired(&self, key: &PublicKey) -> bool {
        self.find(key).is_some_and(|peer| peer.has_expired(SystemTime::now()))
    }

    fn allowance(&self, key: &PublicKey) -> Option<PoolAllowance> {
        self.find(key)?.allowance.clone()
    }
}

#[cfg(test)]
mod tests {
    use keypadd_provider::PrivateKey;

    use super::*;
    use crate::permits::{listen::ListenPermits, open::Permits};

    fn key() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    fn peer(name: &str, keys: &[PublicKey]) -> AllowedPeer {
        AllowedPeer {
            name: Some(name.into()),
            keys: keys.to_vec(),
            permits: Permits::default(),
            listen_permits: ListenPermits::default(),
            allowance: None,
            rate_cap: None,
            hold: None,
            valid_until: None,
            network: None,
        }
    }

    fn identity(peers: &Peers, key: &PublicKey) -> PublicKey {
        peers.admitted(key).unwrap().1
    }

    #[test]
    fn both_keys_of_a_peer_are_one_peer_while_one_replaces_the_other() {
        let (old, new, other) = (key(), key(), key());
        let list = |keys: &[PublicKey]| Peers::new([peer("a", keys), peer("b", &[other])]).unwrap();
        let peers = list(&[old]);
        for keys in [&[old, new][..], &[new, old], &[new]] {
            peers.replace(list(keys));
            assert!(keys.iter().all(|key| identity(&peers, key) == old));
            assert_eq!(peers.find(&new).unwrap().label(), "a");
            assert_eq!(peers.first_key(&old), Some(keys[0]));
            assert_eq!(identity(&peers, &other), other);
        }
        assert!(peers.find(&old).is_none() && peers.admitted_identities().contains(&old));
        // The key of another peer is what that one is counted by.
        peers.replace(Peers::new([peer("a", &[new]), peer("c", &[old])]).unwrap());
        assert_eq!((identity(&peers, &new), identity(&peers, &old)), (new, old));
    }

    #[test]
    fn a_key_belongs_to_one_peer() {
        let (one, two) = (key(), key());
        let twice = Peers::new([peer("a", &[one, two]), peer("b", &[two])]);
        assert_eq!(twice.unwrap_err(), DuplicateKey(two));
        assert_eq!(Peers::new([peer("a", &[one, one])]).unwrap_err(), DuplicateKey(one));
    }

    #[test]
    fn a_peer_is_admitted_until_its_time_is_over() {
        let (one, now, hour) = (key(), SystemTime::now(), Duration::from_secs(3600));
        for (valid_until, admitted) in [(None, true), (Some(now + hour), true), (Some(now), false)]
        {
            let peers = Peers::new([AllowedPeer { valid_until, ..peer("a", &[one]) }]).unwrap();
            assert_eq!(peers.admitted(&one).is_some(), admitted);
            assert_eq!(peers.admitted_identities().contains(&one), admitted);
            assert_eq!((peers.allows(&one), peers.has_expired(&one)), (true, !admitted));
            assert_eq!(peers.next_expiry(now), valid_until.filter(|until| *until > now));
        }
    }
}

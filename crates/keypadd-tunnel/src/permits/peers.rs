//! Lists the clients that a server accepts, with the permits of each.
//!
//! The handshake looks a key up here to accept or refuse it; the server looks it up again for its
//! permits.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use keypadd_provider::{AllowList, Allowance, PublicKey};
use thiserror::Error;

use crate::permits::{listen::ListenPermits, open::Permits};

/// A client that may connect.
#[derive(Clone, Debug)]
pub struct AllowedPeer {
    /// Its name in logs and status; if absent, the first characters of the key.
    pub name: Option<String>,
    /// Its public key.
    pub key: PublicKey,
    /// What it may reach.
    pub permits: Permits,
    /// Where it may listen.
    pub listen_permits: ListenPermits,
    /// Limit on the pool memory of its connections together, if any.
    pub allowance: Option<Allowance>,
    /// How long its connections are held, if not as long as everybody's.
    pub hold: Option<Duration>,
}

/// All clients that may connect. The server's crypto configuration uses the same list, as an
/// [`AllowList`]. It can change while in use.
#[derive(Debug, Default)]
pub struct Peers(RwLock<HashMap<PublicKey, Arc<AllowedPeer>>>);

/// A key is listed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the key {0} is listed twice")]
pub struct DuplicateKey(pub PublicKey);

impl AllowedPeer {
    /// The peer's name, or the first characters of its key.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.key.short())
    }
}

impl Peers {
    /// Makes a list of these clients.
    pub fn new(peers: impl IntoIterator<Item = AllowedPeer>) -> Result<Self, DuplicateKey> {
        let mut listed = HashMap::new();
        for peer in peers {
            if let Some(twice) = listed.insert(peer.key, Arc::new(peer)) {
                return Err(DuplicateKey(twice.key));
            }
        }
        Ok(Self(RwLock::new(listed)))
    }

    /// Finds the client with this key.
    pub fn find(&self, key: &PublicKey) -> Option<Arc<AllowedPeer>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Replaces the list; the next lookup sees the new one.
    pub(crate) fn replace(&self, peers: Self) {
        let peers = peers.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = peers;
    }
}

impl AllowList for Peers {
    fn allows(&self, key: &PublicKey) -> bool {
        self.find(key).is_some()
    }

    fn allowance(&self, key: &PublicKey) -> Option<Allowance> {
        self.find(key)?.allowance.clone()
    }
}

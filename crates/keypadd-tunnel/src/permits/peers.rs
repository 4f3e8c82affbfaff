//! The clients that a server lets in, and what each may reach.
//!
//! The list is asked twice: by the handshake, which refuses strangers, and again for the permits of
//! the key that was proved. Knows public keys and no handshake.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use keypadd_provider::{AllowList, Allowance, PublicKey};
use thiserror::Error;

use crate::permits::{listen::ListenPermits, open::Permits};

/// A client that may come in.
#[derive(Clone, Debug)]
pub struct AllowedPeer {
    /// The name it is called by in logs and figures; without one, the key's first characters.
    pub name: Option<String>,
    /// Its public key.
    pub key: PublicKey,
    /// What it may reach.
    pub permits: Permits,
    /// Where it may listen.
    pub listen_permits: ListenPermits,
    /// How much of the pool its connections may hold together, if that is limited.
    pub allowance: Option<Allowance>,
}

/// All clients that may come in. As an [`AllowList`] it goes into the server's crypto
/// configuration too, so that both speak of the same list; it can change while it is in use.
#[derive(Debug, Default)]
pub struct Peers(RwLock<HashMap<PublicKey, Arc<AllowedPeer>>>);

/// One key listed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the key {0} is listed twice")]
pub struct DuplicateKey(pub PublicKey);

impl AllowedPeer {
    /// What the peer is called: its name, else its key's first characters.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| short(&self.key))
    }
}

/// A key's first eight characters: what a peer without a name is called.
pub(crate) fn short(key: &PublicKey) -> String {
    key.to_string().chars().take(8).collect()
}

impl Peers {
    /// Lists these clients.
    pub fn new(peers: impl IntoIterator<Item = AllowedPeer>) -> Result<Self, DuplicateKey> {
        let mut listed = HashMap::new();
        for peer in peers {
            if let Some(twice) = listed.insert(peer.key, Arc::new(peer)) {
                return Err(DuplicateKey(twice.key));
            }
        }
        Ok(Self(RwLock::new(listed)))
    }

    /// The client that has this key.
    pub fn find(&self, key: &PublicKey) -> Option<Arc<AllowedPeer>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Lists these clients and no others, from the next question on.
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

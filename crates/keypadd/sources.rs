//! Where a daemon's figures of sessions and links come from. A reload changes the list while others read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keypadd_provider::PublicKey;
use keypadd_tunnel::{Link, LiveSession, Sessions};

/// One endpoint's sessions.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Those that live.
    pub(crate) sessions: Sessions,
    /// Of a client: what it tries to reach.
    pub(crate) dialling: Option<Dialling>,
}

/// A peer that is dialled.
#[derive(Clone, Debug)]
pub(crate) struct Dialling {
    /// What it is called.
    pub(crate) peer: String,
    /// Where it is.
    pub(crate) endpoint: String,
    /// Whether there is a session.
    pub(crate) link: Link,
}

/// All of them, and this host's key; clones share one list.
#[derive(Clone, Debug)]
pub(crate) struct Sources(Arc<Mutex<(PublicKey, Vec<Source>)>>);

impl Sources {
    /// These, until they are replaced.
    pub(crate) fn new(public_key: PublicKey, sources: Vec<Source>) -> Self {
        Self(Arc::new(Mutex::new((public_key, sources))))
    }

    /// From now on, these.
    pub(crate) fn replace(&self, public_key: PublicKey, sources: Vec<Source>) {
        *self.locked() = (public_key, sources);
    }

    /// This host's key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.locked().0
    }

    /// The sessions that live.
    pub(crate) fn live(&self) -> Vec<Arc<LiveSession>> {
        self.locked().1.iter().flat_map(|source| source.sessions.live()).collect()
    }

    /// The peers that are dialled.
    pub(crate) fn dialled(&self) -> Vec<Dialling> {
        self.locked().1.iter().filter_map(|source| source.dialling.clone()).collect()
    }

    /// A list that is replaced as a whole is whole after a panic too.
    fn locked(&self) -> MutexGuard<'_, (PublicKey, Vec<Source>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

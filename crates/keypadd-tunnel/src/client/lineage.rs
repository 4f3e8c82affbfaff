//! What the sessions of a client at one server have in common, by which the server tells them from
//! the client's others. A client has one, and one more for each drained server that it has left.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use keypadd_provider::PublicKey;
use keypadd_share::Budget;
use tokio::time::Instant;

use super::{Client, reach::ListPlace};
use crate::{
    sessions::hold::{ClientHold, HoldSettings, held_list::HeldListing},
    wire::Instance,
};

/// A session whose connections are held.
#[derive(Clone)]
pub(super) struct HeldSession {
    /// The server's.
    pub(super) name: String,
    pub(super) key: PublicKey,
    pub(super) count: usize,
    pub(super) time: Duration,
    pub(super) until: Instant,
    /// Where the server was.
    pub(super) at: (ListPlace, SocketAddr),
    /// The path's round trip, as it was.
    pub(super) rtt: Duration,
    /// In the status.
    pub(super) _listed: Arc<HeldListing>,
}

/// A client's end of a lineage.
pub(super) struct Lineage {
    pub(super) instance: Instance,
    pub(super) hold: ClientHold,
    /// The server that is away, while something is held.
    away: Mutex<Option<HeldSession>>,
    /// When to leave a server that asks for it. New keys do not put that off.
    pub(super) leave_at: Mutex<Option<Instant>>,
    /// Whether the client has left the server: no session of this lineage gets anything new.
    is_left: AtomicBool,
}

impl Lineage {
    /// Begins with no session.
    pub(super) fn new(instance: Instance, settings: HoldSettings, sent: &Arc<Budget>) -> Arc<Self> {
        let hold = ClientHold::new(settings, sent);
        Self::with(instance, hold)
    }

    /// The next one, at another server. Its streams share their memory with this one's.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn next(&self) -> Result<Arc<Self>, getrandom::Error> {
        Ok(self.beside(Instance::generate()?))
    }

    /// One with this instance number.
    pub(super) fn beside(&self, instance: Instance) -> Arc<Self> {
        Self::with(instance, self.hold.beside())
    }

    fn with(instance: Instance, hold: ClientHold) -> Arc<Self> {
        let (away, leave_at, is_left) = Default::default();
        Arc::new(Self { instance, hold, away, leave_at, is_left })
    }

    /// The client makes no more connections at its server.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Relaxed);
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Relaxed)
    }

    /// No panic leaves it half changed.
    pub(super) fn away(&self) -> MutexGuard<'_, Option<HeldSession>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no connection carries any of its streams.
    pub(super) fn is_held(&self) -> bool {
        let streams = self.hold.streams();
        let names = streams.names().len();
        streams.held() == names && (names == 0 || self.away().is_some())
    }
}

/// The lineages of a client, the newest one last.
pub(super) struct Lineages(Mutex<Vec<Arc<Lineage>>>);

impl Lineages {
    pub(super) fn new(only: Arc<Lineage>) -> Self {
        Self(Mutex::new(vec![only]))
    }

    pub(super) fn all(&self) -> Vec<Arc<Lineage>> {
        self.list().clone()
    }

    /// Adds one that takes the place of the newest.
    pub(super) fn push(&self, newest: Arc<Lineage>) {
        self.list().push(newest);
    }

    /// Adds one that another process has left.
    pub(super) fn insert(&self, left: Arc<Lineage>) {
        self.list().insert(0, left);
    }

    /// Removes one that is over.
    pub(super) fn remove(&self, over: &Arc<Lineage>) {
        self.list().retain(|one| !Arc::ptr_eq(one, over));
    }

    /// No panic leaves it half changed.
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Lineage>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// The one of new connections.
    pub(super) fn lineage(&self) -> Arc<Lineage> {
        let all = self.lineages.list();
        Arc::clone(all.last().expect("the newest one is never removed"))
    }
}

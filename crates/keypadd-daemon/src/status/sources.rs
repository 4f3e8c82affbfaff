//! Lists a daemon's endpoints as sources of its status. A reload replaces the list while others
//! read it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use keypadd_provider::PublicKey;
use keypadd_tunnel::{Carrier, Draining, LiveSession, LoopMeter, Server, ServerLink, Sessions};

use crate::status::peers::PeerReport;

/// One endpoint's sessions.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The open sessions.
    pub(crate) sessions: Sessions,
    /// CPU use of its event loops.
    pub(crate) loops: LoopMeter,
    /// Of a client: the peer it connects to.
    pub(crate) dialing: Option<Dialing>,
    /// Of a server: whether it is drained.
    pub(crate) draining: Option<Draining>,
}

impl Source {
    /// Of a server.
    pub(crate) fn of(server: &Server) -> Self {
        let (sessions, draining) = (server.sessions(), Some(server.handle().draining()));
        Self { sessions, loops: server.loop_meter(), dialing: None, draining }
    }
}

/// A peer that this daemon connects to.
#[derive(Clone, Debug)]
pub(crate) struct Dialing {
    /// Its name.
    pub(crate) peer: String,
    /// Its address.
    pub(crate) endpoint: String,
    /// The state of the link.
    pub(crate) link: ServerLink,
    /// Carries connections of other processes.
    pub(crate) carrier: Carrier,
    /// When this daemon stops connecting to it.
    pub(crate) valid_until: Option<SystemTime>,
}

/// What the file says about a peer that its sessions do not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerTerms {
    /// Whether it is also listed with another key.
    pub(crate) has_other_key: bool,
    /// When it is no longer accepted.
    pub(crate) valid_until: Option<SystemTime>,
}

/// All sources, and this host's key; clones share one list.
#[derive(Clone, Debug)]
pub(crate) struct Sources(Arc<Mutex<SourceList>>);

#[derive(Debug)]
struct SourceList {
    public_key: PublicKey,
    sources: Vec<Source>,
    peer_terms: HashMap<PublicKey, PeerTerms>,
    /// The peers in force, as though none were connected.
    peers: Vec<PeerReport>,
    /// Whether some endpoint prefers what this CPU does fastest.
    ranks_suites: bool,
    /// Polling time of endpoints since closed, and datagrams that they dropped, so that the totals
    /// never decrease.
    before: (Duration, u64),
}

impl Sources {
    /// A list of these sources.
    pub(crate) fn new(public_key: PublicKey, sources: Vec<Source>) -> Self {
        let before = (Duration::ZERO, 0);
        let peer_terms = HashMap::new();
        Self(Arc::new(Mutex::new(SourceList {
            public_key,
            sources,
            peer_terms,
            peers: Vec::new(),
            ranks_suites: false,
            before,
        })))
    }

    /// Replaces the list.
    pub(crate) fn replace(&self, public_key: PublicKey, sources: Vec<Source>) {
        let mut listed = self.locked();
        let stays =
            |one: &&Source| sources.iter().any(|new| new.loops.is_same_endpoint(&one.loops));
        let gone = listed.sources.iter().filter(|one| !stays(one));
        listed.before = counts(listed.before, gone);
        listed.public_key = public_key;
        listed.sources = sources;
    }

    /// Sets what the file says about each key.
    pub(crate) fn set_peer_terms(&self, peer_terms: HashMap<PublicKey, PeerTerms>) {
        self.locked().peer_terms = peer_terms;
    }

    /// What the file says about a key.
    pub(crate) fn peer_terms(&self, key: &PublicKey) -> PeerTerms {
        self.locked().peer_terms.get(key).copied().unwrap_or_default()
    }

    /// Sets which peers are in force; each counts as not connected.
    pub(crate) fn set_peers(&self, peers: Vec<PeerReport>) {
        self.locked().peers = peers;
    }

    /// The peers in force.
    pub(crate) fn peers(&self) -> Vec<PeerReport> {
        let live = self.live();
        let keys: HashSet<_> = live.iter().map(|session| session.key().to_string()).collect();
        let mut peers = self.locked().peers.clone();
        for peer in &mut peers {
            peer.connected = peer.public_keys.iter().any(|key| keys.contains(key));
        }
        peers
    }

    /// Sets whether some endpoint prefers the suite that this CPU does fastest, as its `suite` is
    /// not set.
    pub(crate) fn set_ranks_suites(&self, ranks_suites: bool) {
        self.locked().ranks_suites = ranks_suites;
    }

    /// Whether some endpoint prefers the suite that this CPU does fastest.
    pub(crate) fn ranks_suites(&self) -> bool {
        self.locked().ranks_suites
    }

    /// This host's key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.locked().public_key
    }

    /// The open sessions.
    pub(crate) fn live(&self) -> Vec<Arc<LiveSession>> {
        self.locked().sources.iter().flat_map(|source| source.sessions.live()).collect()
    }

    /// The peers that this daemon connects to.
    pub(crate) fn dialed(&self) -> Vec<Dialing> {
        self.locked().sources.iter().filter_map(|source| source.dialing.clone()).collect()
    }

    /// The server, if the daemon has one: its sessions, and whether it is drained.
    pub(crate) fn server(&self) -> Option<(Sessions, Draining)> {
        let listed = self.locked();
        let mut sources = listed.sources.iter();
        sources.find_map(|source| Some((source.sessions.clone(), source.draining.clone()?)))
    }

    /// Number of running event loops of all endpoints.
    pub(crate) fn loops(&self) -> usize {
        self.locked().sources.iter().map(|source| source.loops.loops()).sum()
    }

    /// CPU time spent on busy polling since the daemon started, and the datagrams that were dropped
    /// because their connections took more than their shares of a loop.
    pub(crate) fn loop_counts(&self) -> (Duration, u64) {
        let listed = self.locked();
        counts(listed.before, &listed.sources)
    }

    /// The list is always replaced as a whole, so it is consistent after a panic.
    fn locked(&self) -> MutexGuard<'_, SourceList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the polling time and the dropped datagrams of these endpoints.
fn counts<'s>(
    before: (Duration, u64),
    sources: impl IntoIterator<Item = &'s Source>,
) -> (Duration, u64) {
    sources.into_iter().fold(before, |(polled, dropped), Source { loops, .. }| {
        (polled + loops.polling_time(), dropped + loops.datagrams_dropped())
    })
}

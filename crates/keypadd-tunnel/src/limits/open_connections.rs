//! Lists the forwarded connections and UDP flows of a daemon, for whoever asks.
//!
//! A connection is entered when it is accepted, and taken out when it ends: what it carries is
//! counted by the transport whether or not anybody asks.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use keypadd_transport::TransferStats;
use serde::{Deserialize, Serialize};

use crate::clock::unix_seconds;

/// How far a forwarded connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionState {
    /// It waits for a place among those that both ends allow (max-forwards).
    Waiting,
    /// It waits for a session, for what it is to say first, or for its target.
    Connecting,
    /// It is carried.
    Open,
    /// It is held while the peer is away.
    Held,
}

/// A forwarded connection or UDP flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Identifies it within the process; never reused.
    pub id: u64,
    /// The peer, once there is a session to carry it.
    pub peer: Option<String>,
    /// The forward that accepted it at this end.
    pub forward: Option<String>,
    /// Where it leads, if this end knows.
    pub target: Option<String>,
    /// Where it comes from, if this end accepted it.
    pub from: Option<SocketAddr>,
    /// When this end accepted it, or took it over from another process, as seconds since 1970.
    pub since_unix_seconds: u64,
    /// How far it has come.
    pub state: ConnectionState,
    /// Bytes to the peer.
    pub sent_bytes: u64,
    /// Bytes from the peer that the program at this end has accepted.
    pub received_bytes: u64,
    /// Whether it is a UDP flow.
    pub is_flow: bool,
}

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Details {
    since: SystemTime,
    waits: bool,
    /// The peer that was to carry it when it was accepted.
    expected: Option<String>,
    /// The peer whose session carries it.
    pub(crate) peer: Option<String>,
    pub(crate) forward: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) carried: Option<Arc<TransferStats>>,
}

/// The connections of a daemon, by number; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenConnections(Arc<Listed>);

#[derive(Debug, Default)]
struct Listed {
    last: AtomicU64,
    all: Mutex<BTreeMap<u64, Arc<Mutex<Details>>>>,
}

/// A listed connection; taken out of the list when this is dropped.
#[derive(Debug)]
pub(crate) struct ListedConnection {
    of: OpenConnections,
    id: u64,
    details: Arc<Mutex<Details>>,
}

impl OpenConnections {
    /// Lists a connection that has its place.
    pub(crate) fn add(&self) -> ListedConnection {
        self.enter(false)
    }

    /// Lists a connection of a forward that waits for a place; `peer` is the one that would carry
    /// it now, if there is a session.
    pub(crate) fn add_waiting(
        &self,
        peer: Option<&str>,
        forward: &str,
        from: Option<SocketAddr>,
    ) -> ListedConnection {
        let listed = self.enter(true);
        let mut details = listed.details();
        details.expected = peer.map(Into::into);
        (details.forward, details.from) = (Some(forward.into()), from);
        drop(details);
        listed
    }

    fn enter(&self, waits: bool) -> ListedConnection {
        let since = SystemTime::now();
        let (expected, peer, forward, target, from, carried) = <_>::default();
        let details = Details { since, waits, expected, peer, forward, target, from, carried };
        let details = Arc::new(Mutex::new(details));
        let id = self.0.last.fetch_add(1, Relaxed) + 1;
        self.all().insert(id, Arc::clone(&details));
        ListedConnection { of: self.clone(), id, details }
    }

    /// All of them now, the oldest first.
    pub(crate) fn list(&self) -> Vec<ConnectionStatus> {
        let all: Vec<_> = self.all().iter().map(|(id, one)| (*id, Arc::clone(one))).collect();
        all.into_iter().map(|(id, details)| locked(&details).status(id)).collect()
    }

    /// The states of all of them.
    pub(crate) fn states(&self) -> Vec<ConnectionState> {
        let all: Vec<_> = self.all().values().cloned().collect();
        all.iter().map(|details| locked(details).state()).collect()
    }

    /// Entered and taken out as a whole, so it is consistent after a panic.
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Mutex<Details>>>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListedConnection {
    /// What is known of it.
    pub(crate) fn details(&self) -> MutexGuard<'_, Details> {
        locked(&self.details)
    }

    /// It has got its place.
    pub(crate) fn got_place(&self) {
        self.details().waits = false;
    }
}

impl Drop for ListedConnection {
    fn drop(&mut self) {
        self.of.all().remove(&self.id);
    }
}

/// Plain values, each of which is set as a whole.
fn locked(details: &Mutex<Details>) -> MutexGuard<'_, Details> {
    details.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Details {
    /// The peer and the forward, or a server's target; `None` until a session carries it.
    pub(crate) fn counted_as(&self) -> Option<(&str, &str)> {
        Some((self.peer.as_deref()?, self.forward.as_deref().or(self.target.as_deref())?))
    }

    fn state(&self) -> ConnectionState {
        match &self.carried {
            None if self.waits => ConnectionState::Waiting,
            None => ConnectionState::Connecting,
            Some(carried) if carried.is_held() => ConnectionState::Held,
            Some(_) => ConnectionState::Open,
        }
    }

    fn status(&self, id: u64) -> ConnectionStatus {
        let bytes = |count: fn(&TransferStats) -> u64| self.carried.as_deref().map_or(0, count);
        ConnectionStatus {
            id,
            peer: self.peer.clone().or_else(|| self.expected.clone()),
            forward: self.forward.clone(),
            target: self.target.clone(),
            from: self.from,
            since_unix_seconds: unix_seconds(self.since),
            state: self.state(),
            sent_bytes: bytes(TransferStats::from_socket),
            received_bytes: bytes(TransferStats::to_socket),
            is_flow: self.carried.as_ref().is_some_and(|carried| carried.is_flow()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_listed_from_its_acceptance_to_its_end_with_what_it_carries() {
        let open = OpenConnections::default();
        let from = "127.0.0.1:9".parse().ok();
        let (first, second) = (open.add_waiting(Some("lab"), "-L 1:a:1", from), open.add());
        let states = || open.states();
        assert_eq!(open.list()[0].peer.as_deref(), Some("lab"), "while it waits, too");
        assert_eq!(states(), [ConnectionState::Waiting, ConnectionState::Connecting]);
        first.got_place();
        let carried = Arc::<TransferStats>::default();
        first.details().carried = Some(Arc::clone(&carried));
        first.details().peer = Some("lab".into());
        assert_eq!(states(), [ConnectionState::Open, ConnectionState::Connecting]);
        drop(second);
        let [one] = &open.list()[..] else { panic!("{:?}", open.list()) };
        assert_eq!((one.id, one.from, one.peer.as_deref()), (1, from, Some("lab")));
        assert_eq!(one.forward.as_deref(), Some("-L 1:a:1"));
        drop(first);
        assert_eq!(states(), []);
    }
}

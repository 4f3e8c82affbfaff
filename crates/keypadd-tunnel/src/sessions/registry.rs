//! Lists the live sessions of one client or server.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use keypadd_provider::{PublicKey, SessionToken};
use tokio::time::{sleep, timeout};

use crate::{
    sessions::{
        hold::lineages::ClientKey,
        session::{LiveSession, NewSession},
        session_end::SessionEnd,
        status::SessionStatus,
    },
    wire::Instance,
};

/// How long sessions may take to end and event loops to park their streams, and how often to check.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const END_POLL: Duration = Duration::from_millis(2);

/// The ids of all sessions of the process: a daemon that is client and server has several lists,
/// and its status tells their sessions apart by id.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// The live sessions; clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    by_id: BTreeMap<u64, Arc<LiveSession>>,
    /// Those of each run of a client, oldest first: a hello concerns no others, however many there
    /// are.
    of_client: HashMap<ClientKey, Vec<u64>>,
}

/// Keeps a session in the list until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    sessions: Sessions,
    pub(crate) session: Arc<LiveSession>,
}

impl Sessions {
    /// The live sessions, oldest first.
    pub fn live(&self) -> Vec<Arc<LiveSession>> {
        self.list().by_id.values().cloned().collect()
    }

    /// Those of one run of a client, oldest first.
    fn of_client(&self, client: &ClientKey) -> Vec<Arc<LiveSession>> {
        let list = self.list();
        let ids = list.of_client.get(client).into_iter().flatten();
        ids.filter_map(|id| list.by_id.get(id)).cloned().collect()
    }

    /// The status of each live session.
    pub fn status(&self) -> Vec<SessionStatus> {
        self.live().iter().map(|session| session.status()).collect()
    }

    /// The newest session of this client instance; `peer` is the key that it is counted under.
    pub(crate) fn newest(&self, peer: &PublicKey, instance: Instance) -> Option<Arc<LiveSession>> {
        self.newest_with(peer, instance, |_| true)
    }

    /// The newest one whose token is right.
    pub(crate) fn newest_with(
        &self,
        peer: &PublicKey,
        instance: Instance,
        is_right: impl Fn(&SessionToken) -> bool,
    ) -> Option<Arc<LiveSession>> {
        let mut newest = self.of_client(&(*peer, instance)).into_iter().rev();
        newest.find(|session| is_right(session.token()))
    }

    /// Ends the older sessions of the same client instance. Their streams are held if the newest
    /// resumes them.
    pub(crate) fn replace_by(&self, newest: &LiveSession, resumed: bool) {
        for old in self.of_client(&newest.client()) {
            if old.id < newest.id {
                old.end(if resumed { SessionEnd::Resumed } else { SessionEnd::Replaced });
            }
        }
    }

    /// Ends all sessions, even those about to begin, until there are none and `is_done`; returns
    /// false after two seconds.
    pub(crate) async fn end_all(&self, cause: &SessionEnd, is_done: impl Fn() -> bool) -> bool {
        let ended = async {
            loop {
                let live = self.live();
                if live.is_empty() && is_done() {
                    return;
                }
                live.iter().for_each(|session| session.end(cause.clone()));
                drop(live);
                sleep(END_POLL).await;
            }
        };
        timeout(END_TIMEOUT, ended).await.is_ok()
    }

    /// Adds a session to the list.
    pub(crate) fn add(&self, new: NewSession<'_>) -> Registration {
        let mut list = self.list();
        // Assigned under the lock, so that a list is ordered by ID.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(LiveSession::new(id, new));
        list.by_id.insert(id, Arc::clone(&session));
        list.of_client.entry(session.client()).or_default().push(id);
        drop(list);
        Registration { sessions: self.clone(), session }
    }

    /// A panic cannot leave the list half changed.
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut list = self.sessions.list();
        list.by_id.remove(&self.session.id);
        if let Entry::Occupied(mut of_client) = list.of_client.entry(self.session.client()) {
            of_client.get_mut().retain(|id| *id != self.session.id);
            if of_client.get().is_empty() {
                of_client.remove();
            }
        }
    }
}

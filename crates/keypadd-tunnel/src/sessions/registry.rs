//! Lists the live sessions of one client or server.

use std::{
    collections::BTreeMap,
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

/// The live sessions by id; clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Mutex<BTreeMap<u64, Arc<LiveSession>>>>);

/// Keeps a session in the list until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    sessions: Sessions,
    pub(crate) session: Arc<LiveSession>,
}

impl Sessions {
    /// The live sessions, oldest first.
    pub fn live(&self) -> Vec<Arc<LiveSession>> {
        self.list().values().cloned().collect()
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
        let of_run =
            |session: &LiveSession| session.identity() == *peer && session.instance() == instance;
        let mut newest = self.live().into_iter().rev();
        newest.find(|session| of_run(session) && is_right(session.token()))
    }

    /// Ends the older sessions of the same client instance. Their streams are held if the newest
    /// resumes them.
    pub(crate) fn replace_by(&self, newest: &LiveSession, resumed: bool) {
        for old in self.live() {
            if old.client() == newest.client() && old.id < newest.id {
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
        list.insert(id, Arc::clone(&session));
        drop(list);
        Registration { sessions: self.clone(), session }
    }

    /// A panic cannot leave the list half changed.
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<LiveSession>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.sessions.list().remove(&self.session.id);
    }
}

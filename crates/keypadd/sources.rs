//! Where a daemon's figures of sessions and links come from. A reload changes the list while others read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keypadd_provider::PublicKey;
use keypadd_tunnel::{LiveSession, LoopMeter, ServerLink, Sessions};

/// One endpoint's sessions.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Those that live.
    pub(crate) sessions: Sessions,
    /// What its event loops cost.
    pub(crate) loops: LoopMeter,
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
    pub(crate) link: ServerLink,
}

/// All of them, and this host's key; clones share one list.
#[derive(Clone, Debug)]
pub(crate) struct Sources(Arc<Mutex<Listed>>);

#[derive(Debug)]
struct Listed {
    public_key: PublicKey,
    sources: Vec<Source>,
    /// What the loops of endpoints that are gone have spent on polling: a total never shrinks.
    spun_before: Duration,
}

impl Sources {
    /// These, until they are replaced.
    pub(crate) fn new(public_key: PublicKey, sources: Vec<Source>) -> Self {
        let spun_before = Duration::ZERO;
        Self(Arc::new(Mutex::new(Listed { public_key, sources, spun_before })))
    }

    /// From now on, these.
    pub(crate) fn replace(&self, public_key: PublicKey, sources: Vec<Source>) {
        let mut listed = self.locked();
        let stays = |one: &&Source| sources.iter().any(|new| new.loops.is_of_same(&one.loops));
        let gone = listed.sources.iter().filter(|one| !stays(one));
        let spun: Duration = gone.map(|one| one.loops.spun()).sum();
        listed.spun_before += spun;
        listed.public_key = public_key;
        listed.sources = sources;
    }

    /// This host's key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.locked().public_key
    }

    /// The sessions that live.
    pub(crate) fn live(&self) -> Vec<Arc<LiveSession>> {
        self.locked().sources.iter().flat_map(|source| source.sessions.live()).collect()
    }

    /// The peers that are dialled.
    pub(crate) fn dialled(&self) -> Vec<Dialling> {
        self.locked().sources.iter().filter_map(|source| source.dialling.clone()).collect()
    }

    /// Event loops that run, of all endpoints.
    pub(crate) fn loops(&self) -> usize {
        self.locked().sources.iter().map(|source| source.loops.loops()).sum()
    }

    /// CPU time that event loops have spent on polling for nothing since the daemon started.
    pub(crate) fn spun(&self) -> Duration {
        let listed = self.locked();
        let running = listed.sources.iter().map(|source| source.loops.spun());
        listed.spun_before + running.sum::<Duration>()
    }

    /// A list that is replaced as a whole is whole after a panic too.
    fn locked(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Switches live connections from one pool to another, or to none.
//!
//! A connection attaches once its peer has proved its key, and follows every change until it
//! closes, so none keeps a pool that was chosen when its handshake began. Which suites a pool
//! serves is decided here: the pool itself knows none.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keypadd_keystream::Protection;
use keypadd_pool::{Pool, PoolAllowance};

use crate::connection::ConnectionKeys;

/// The pool of a daemon's connections, which can be replaced while they live. Without a pool, all
/// keystream is generated inline. Clones share the pool.
#[derive(Clone, Debug, Default)]
pub struct PoolSwitch {
    shared: Arc<SwitchState>,
    /// The limit of the peer whose connections attach through this handle.
    allowance: Option<PoolAllowance>,
}

/// Locked while connections switch, so that one that attaches at that time does so entirely before
/// or after. The holder may lock a connection's pads, never the other way round.
#[derive(Default)]
struct SwitchState(Mutex<Switched>);

#[derive(Default)]
struct Switched {
    pool: Option<Pool>,
    /// Suites that generate all keystream inline.
    excluded: Vec<Protection>,
    next_id: u64,
    attached: BTreeMap<u64, ConnectionKeys>,
}

impl Switched {
    fn pool_for(&self, suite: Protection) -> Option<&Pool> {
        self.pool.as_ref().filter(|_| !self.excluded.contains(&suite))
    }
}

impl PoolSwitch {
    /// Uses this pool, or none, for all suites.
    pub fn new(pool: Option<Pool>) -> Self {
        let switch = Self::default();
        switch.set(pool);
        switch
    }

    /// The pool in use.
    pub fn pool(&self) -> Option<Pool> {
        self.shared.lock().pool.clone()
    }

    /// Whether connections with this suite use a pool.
    pub fn serves(&self, suite: Protection) -> bool {
        self.shared.lock().pool_for(suite).is_some()
    }

    /// Whether a live connection has this suite.
    pub fn has_connection(&self, suite: Protection) -> bool {
        self.shared.lock().attached.values().any(|keys| keys.suite() == suite)
    }

    /// Switches all connections to this pool, including those still in their handshake. Connections
    /// that use it already are not affected; the pads of the former pool are wiped.
    pub fn set(&self, pool: Option<Pool>) {
        self.set_excluding(pool, &[]);
    }

    /// Like [`Self::set`], but connections with an excluded suite use no pool.
    pub fn set_excluding(&self, pool: Option<Pool>, excluded: &[Protection]) {
        let mut switched = self.shared.lock();
        switched.pool = pool;
        switched.excluded = excluded.to_vec();
        for keys in switched.attached.values() {
            keys.use_pool(switched.pool_for(keys.suite()));
        }
    }

    /// A handle for connections of the peer that has this allowance.
    pub fn for_peer(&self, allowance: PoolAllowance) -> Self {
        Self { allowance: Some(allowance), ..self.clone() }
    }

    /// Lets a connection, whose peer has proved its key, use the pool until the returned guard is
    /// dropped. It may hold as much as this allowance permits, or else the handle's.
    pub(crate) fn attach(
        &self,
        keys: ConnectionKeys,
        allowance: Option<PoolAllowance>,
    ) -> AttachedConnection {
        if let Some(allowance) = allowance.or_else(|| self.allowance.clone()) {
            keys.limit(allowance);
        }
        let mut switched = self.shared.lock();
        keys.use_pool(switched.pool_for(keys.suite()));
        let id = switched.next_id;
        switched.next_id += 1;
        switched.attached.insert(id, keys);
        AttachedConnection { shared: Arc::clone(&self.shared), id }
    }
}

impl From<Option<Pool>> for PoolSwitch {
    fn from(pool: Option<Pool>) -> Self {
        Self::new(pool)
    }
}

/// A connection that follows the switch; detaches it when dropped.
pub(crate) struct AttachedConnection {
    shared: Arc<SwitchState>,
    id: u64,
}

impl Drop for AttachedConnection {
    fn drop(&mut self) {
        let keys = self.shared.lock().attached.remove(&self.id);
        // Dropped after the lock is released: wiping takes time.
        drop(keys);
    }
}

impl SwitchState {
    /// Ignores poisoning: a panic leaves at worst a connection with the former pool.
    fn lock(&self) -> MutexGuard<'_, Switched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows nothing of keys.
impl fmt::Debug for SwitchState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchState").finish_non_exhaustive()
    }
}

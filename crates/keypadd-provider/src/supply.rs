//! Where a daemon's connections have their pads from for now: a pool, or none. A connection joins when its
//! peer has proved its key and follows every change until it is over; there is no moment in between, so none
//! keeps what was chosen when its handshake began. Knows nothing of why it changes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keypadd_pool::{Allowance, Pool};

use crate::connection::ConnectionKeys;

/// A pool, or none, that can be exchanged under connections that live; without one every byte is made
/// inline. Clones see the same.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    shared: Arc<Shared>,
    /// Whose connections join through this handle, where what they may hold is limited.
    allowance: Option<Allowance>,
}

/// Held while connections change over, so that those that join meanwhile come before or after. Whoever
/// holds it may take the locks of a connection's pads, never the other way round.
#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    pool: Option<Pool>,
    next_id: u64,
    joined: BTreeMap<u64, ConnectionKeys>,
}

impl Supply {
    /// This pool, or none, until it is exchanged.
    pub fn new(pool: Option<Pool>) -> Self {
        let supply = Self::default();
        supply.set(pool);
        supply
    }

    /// The pool that is drawn on now.
    pub fn pool(&self) -> Option<Pool> {
        self.shared.locked().pool.clone()
    }

    /// From now on all connections draw on this, those included whose handshake is under way. Where it is
    /// what they have, nothing happens to them; pads of a pool that is left are wiped.
    pub fn set(&self, pool: Option<Pool>) {
        let mut state = self.shared.locked();
        for keys in state.joined.values() {
            keys.use_pool(pool.as_ref());
        }
        state.pool = pool;
    }

    /// A handle for connections of the peer that has this allowance.
    pub fn for_peer(&self, allowance: Allowance) -> Self {
        Self { allowance: Some(allowance), ..self.clone() }
    }

    /// Lets a connection draw on it, for as long as what is returned lives. Its peer has proved its key, and
    /// may hold as much as this allowance says, or else the handle's.
    pub(crate) fn join(&self, keys: ConnectionKeys, allowance: Option<Allowance>) -> Drawing {
        if let Some(allowance) = allowance.or_else(|| self.allowance.clone()) {
            keys.limit(allowance);
        }
        let mut state = self.shared.locked();
        keys.use_pool(state.pool.as_ref());
        let id = state.next_id;
        state.next_id += 1;
        state.joined.insert(id, keys);
        Drawing { shared: Arc::clone(&self.shared), id }
    }
}

impl From<Option<Pool>> for Supply {
    fn from(pool: Option<Pool>) -> Self {
        Self::new(pool)
    }
}

/// A connection that draws on a supply.
pub(crate) struct Drawing {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Drawing {
    fn drop(&mut self) {
        let keys = self.shared.locked().joined.remove(&self.id);
        // Wiped, if nobody else has them, when nobody has to wait for it.
        drop(keys);
    }
}

impl Shared {
    /// A panic leaves at worst a connection with the pool of before.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing of keys is shown.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

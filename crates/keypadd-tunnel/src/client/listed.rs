//! Lists the keys of the server. A handshake checks those that were listed when it began; here a
//! session is checked when the list changes, and when it becomes a session.

use std::sync::{Arc, Mutex, PoisonError};

use keypadd_provider::PublicKey;

use crate::sessions::{session::LiveSession, session_end::SessionEnd};

/// The server's keys; `None` while they have not changed. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedKeys(Arc<Mutex<Option<Vec<PublicKey>>>>);

impl ListedKeys {
    /// Replaces them. The sessions that live are to be checked afterwards.
    pub(super) fn set(&self, keys: &[PublicKey]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys.to_vec());
    }

    pub(super) fn contains(&self, key: &PublicKey) -> bool {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.as_ref().is_none_or(|keys| keys.contains(key))
    }

    /// Ends a session whose server has proved a key that is not listed.
    pub(super) fn check(&self, session: &LiveSession) {
        if !session.proved_keys().all(|key| self.contains(&key)) {
            session.end(SessionEnd::Unlisted);
        }
    }
}

//! What a client has of a session with its server.

use std::{fmt, sync::Arc};

use super::{lineage::Lineage, reach::ListPlace};
use crate::{
    addresses::forward::RemoteForward,
    error::ClientError,
    sessions::{registry::Registration, session::LiveSession, session_end::SessionEnd},
    wire::{CloseCode, ListenCode},
};

/// A session with the server; closed on drop.
pub struct ClientSession {
    pub(super) registration: Registration,
    /// Where in the server's list it was reached.
    pub(super) place: ListPlace,
    pub(super) lineage: Arc<Lineage>,
}

impl fmt::Debug for ClientSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.live().fmt(f)
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.registration.session.close(CloseCode::Shutdown, "the client is done");
    }
}

impl ClientSession {
    /// The session's status and what the handshake agreed on.
    pub fn live(&self) -> &LiveSession {
        &self.registration.session
    }

    /// Each remote forward with the TCP port that the server listens on (0 for a unix socket), or
    /// with the code why it failed.
    pub fn remote_forwards(&self) -> Vec<(RemoteForward, Result<u16, ListenCode>)> {
        self.registration.session.remote_forwards.outcomes()
    }

    /// Checks that the server listens for all remote forwards.
    ///
    /// # Errors
    /// [`ClientError::NotListening`] for the first that failed.
    pub fn all_listening(&self) -> Result<(), ClientError> {
        self.remote_forwards().into_iter().try_for_each(|(forward, outcome)| match outcome {
            Ok(_) => Ok(()),
            Err(code) => Err(ClientError::NotListening { forward, code }),
        })
    }

    /// Waits for the end of the session; returns the reason.
    pub async fn ended(&self) -> SessionEnd {
        self.registration.session.ended().await
    }
}

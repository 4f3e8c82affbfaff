//! Attaches and supervises the second connection of a session, which carries its bulk streams.
//! Updates the keys of both.

use std::sync::Arc;

use keypadd_transport::Connection;

use super::{LiveSession, watch_keys};
use crate::{
    sessions::{proof::Proof, session_end::SessionEnd},
    wire::CloseCode,
};

/// The connection that carries a session's bulk streams.
pub(super) struct BulkConnection {
    pub(super) connection: Connection,
    pub(super) proof: Arc<Proof>,
}

impl LiveSession {
    /// Lets one of its connections send no more than the peer's limit, which both share.
    pub(super) fn cap(&self, connection: &Connection) {
        if let Some(cap) = &self.rate_cap {
            connection.cap(cap.clone());
        }
    }

    /// Attaches the connection that carries the session's bulk streams, which the same peer has
    /// proved to be its own, maybe by another of its keys. Returns false if there is one already,
    /// or if its packet protection differs.
    pub(crate) fn attach_bulk(&self, connection: &Connection, proof: &Arc<Proof>) -> bool {
        let (ours, theirs) = (&self.proof, proof);
        let same = ours.handshake.suite == theirs.handshake.suite
            && ours.handshake.kex == theirs.handshake.kex;
        let bulk = BulkConnection { connection: connection.clone(), proof: Arc::clone(proof) };
        let attached = same && self.bulk.set(bulk).is_ok();
        if attached {
            self.cap(connection);
            self.connection.attach_bulk(connection);
            if self.has_ended() {
                self.close(CloseCode::Shutdown, "the session has ended");
            }
        }
        attached
    }

    /// The connection that carries its bulk streams, if there is one.
    pub(crate) fn bulk(&self) -> Option<&Connection> {
        self.bulk.get().map(|bulk| &bulk.connection)
    }

    /// Updates the keys of both directions of its connections, each with its next packet, whatever
    /// they have served so far. Does nothing where the update before is not complete.
    pub fn update_keys(&self) {
        self.connections().for_each(Connection::force_key_update);
    }

    /// Supervises the bulk connection until it or the session ends; either one ends the other.
    pub(crate) async fn supervise_bulk(&self) {
        let Some(BulkConnection { connection, proof }) = self.bulk.get() else { return };
        tokio::select! {
            biased;
            fault = watch_keys(connection, proof) => self.end(SessionEnd::Key(fault)),
            _ = self.connection.closed() => {}
            error = connection.closed() => self.end(SessionEnd::Connection(error)),
        }
        self.close(CloseCode::Shutdown, "");
    }
}

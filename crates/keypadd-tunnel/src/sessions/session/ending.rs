//! Ends sessions: tells the peer why, and whether the streams are held. The first cause counts.

use std::time::Duration;

use keypadd_transport::{Connection, VarInt};
use tokio::time::timeout;

use super::LiveSession;
use crate::{
    sessions::{
        draining::Leaving,
        session_end::{SessionEnd, holds},
    },
    wire::CloseCode,
};

/// A local program that has an answer and does not use it in time loses its connection.
const SPLICE_TIMEOUT: Duration = Duration::from_millis(500);

/// What the peer is told when its connections are closed.
pub(super) struct Farewell {
    code: CloseCode,
    reason: String,
}

impl LiveSession {
    /// Whether another session of the same run goes on with its streams.
    pub(crate) fn is_resumed(&self) -> bool {
        matches!(self.ended_by.get(), Some(SessionEnd::Resumed))
    }

    /// Whether its listeners stay open for the session that goes on with its streams.
    pub(crate) fn leaves_listeners(&self) -> bool {
        // Its bulk connection may have been closed first, which then closed this one.
        let closed = self.connection.close_reason().map(SessionEnd::Connection);
        let mut ends = self.ended_by.get().into_iter().chain(&closed);
        self.hold.is_some() && ends.any(SessionEnd::leaves_listeners)
    }

    /// Whether its streams are held: it has ended, and another connection may resume them.
    pub(crate) fn is_held(&self) -> bool {
        let said = self.farewell.get().map(|farewell| farewell.code);
        let lost = || self.connection.close_reason().is_some_and(|error| holds(&error));
        self.hold.is_some() && (said == Some(CloseCode::Hold) || lost())
    }

    /// Waits for the end of the session; returns the reason.
    pub(crate) async fn ended(&self) -> SessionEnd {
        let error = self.connection.closed().await;
        self.ended_by.get().cloned().unwrap_or(SessionEnd::Connection(error))
    }

    /// All claims of the client are answered: ends what this end holds and the client does not.
    pub(crate) fn release_unclaimed(&self) {
        let Some(hold) = &self.hold else { return };
        let reset = hold.streams.release_before(hold.epoch, |name| self.claims.has(name));
        self.held.add_reset(reset);
    }

    /// The server asks its client to leave, or to stay. A client that has left does not come back.
    pub(crate) fn asked_to_leave(&self, leave: bool) {
        self.leaving.send_if_modified(|leaving| {
            let asked = if leave { Leaving::Asked } else { Leaving::No };
            let changes = *leaving != Leaving::Done && *leaving != asked;
            if changes {
                *leaving = asked;
            }
            changes
        });
    }

    /// Completes when its client has come so far in leaving.
    pub(crate) async fn until(&self, wanted: Leaving) {
        // Fails only without a sender, and this has it.
        let _ = self.leaving.subscribe().wait_for(|leaving| *leaving == wanted).await;
    }

    /// Waits, after its end, until what the peer has answered is held as well.
    pub(crate) async fn settled(&self) {
        self.connection.closed().await;
        // Whoever waits for an answer gives up now, and whoever has one is about to use it.
        let _ = timeout(SPLICE_TIMEOUT, self.opening.none()).await;
        self.connection.settled().await;
    }

    /// Ends the session and tells the peer why. Does nothing if it has ended already.
    pub(crate) fn end(&self, cause: SessionEnd) {
        let cause = self.ended_by.get_or_init(|| cause);
        let code = match cause.holds() && self.hold.is_some() {
            true => CloseCode::Hold,
            false => cause.code(),
        };
        self.close(code, &cause.to_string());
    }

    /// Closes the connections with a code and a reason that are sent to the peer.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        let Farewell { code, reason } = self.farewell.get_or_init(|| {
            // One connection may be lost, while the other can still tell the peer.
            let code = if self.is_held() { CloseCode::Hold } else { code };
            Farewell { code, reason: reason.to_owned() }
        });
        let code = VarInt::from_u32(code.value());
        self.connections().for_each(|connection| connection.close(code, reason.as_bytes()));
    }

    /// Closes a connection that only the peer may have attached: with the session's code, or so
    /// that its streams are held.
    pub(crate) fn close_unattached(&self, bulk: &Connection) {
        let said = self.farewell.get().map(|farewell| farewell.code);
        let other = if self.hold.is_some() { CloseCode::Hold } else { CloseCode::Shutdown };
        bulk.close(VarInt::from_u32(said.unwrap_or(other).value()), b"");
    }
}

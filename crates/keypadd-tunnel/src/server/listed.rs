//! Ends the sessions and held connections of clients that may no longer connect, because their keys
//! were removed from the list or their valid-until has passed.

use std::{
    convert::Infallible,
    time::{Duration, Instant, SystemTime},
};

use tokio::time::sleep;
use tracing::warn;

use super::serving::ServerContext;
use crate::{
    handover::{HandedLineage, HandedSocket, SocketRecord},
    sessions::{session::LiveSession, session_end::SessionEnd},
};

/// How often to check for expired peers: clocks may be set.
const EXPIRY_CHECK: Duration = Duration::from_secs(10);

impl ServerContext {
    /// Names clients by the keys that the new process lists; it knows no others.
    pub(super) fn name_by_listed_keys(
        &self,
        lineages: &mut [HandedLineage],
        listeners: &mut [HandedSocket],
    ) {
        let lineages = lineages.iter_mut().map(|lineage| &mut lineage.record.key);
        let listeners = listeners.iter_mut().filter_map(|listener| match &mut listener.record {
            SocketRecord::Remote(record) => Some(&mut record.key),
            _ => None,
        });
        for name in lineages.chain(listeners) {
            let identity = name.parse().ok();
            if let Some(key) = identity.and_then(|identity| self.peers.first_key(&identity)) {
                *name = key.to_string();
            }
        }
    }

    /// Ends a session of which a key is no longer listed, or whose peer has expired. Called when
    /// the list has changed, and when a handshake made before that may have become part of a
    /// session.
    pub(super) fn end_inadmissible(&self, session: &LiveSession) {
        for key in session.proved_keys() {
            match self.peers.find(&key) {
                None => session.end(SessionEnd::Unlisted),
                Some(peer) if peer.has_expired(SystemTime::now()) => {
                    session.end(SessionEnd::Expired);
                }
                Some(_) => {}
            }
        }
    }

    /// Ends the sessions and resets the held connections of peers that may no longer connect.
    pub(super) fn end_all_inadmissible(&self) {
        let admitted = self.peers.admitted_identities();
        let ended = self.lineages.retain(|identity| admitted.contains(identity), Instant::now());
        self.held.add_reset(ended);
        if ended > 0 {
            warn!(
                ended,
                "reset connections of peers removed from the list or past their valid-until"
            );
        }
        for session in self.sessions.live() {
            self.end_inadmissible(&session);
        }
    }

    /// Ends the sessions of peers soon after they expire. Never returns.
    pub(super) async fn watch_expiry(&self) -> Infallible {
        loop {
            let now = SystemTime::now();
            let left = self.peers.next_expiry(now).and_then(|until| until.duration_since(now).ok());
            sleep(left.map_or(EXPIRY_CHECK, |left| left.min(EXPIRY_CHECK))).await;
            self.end_all_inadmissible();
        }
    }
}

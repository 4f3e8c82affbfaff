//! Ends what a client has with a server whose valid-until has passed.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;

use super::Client;
use crate::sessions::{session::LiveSession, session_end::SessionEnd};

/// How often to look whether the server's valid-until has passed.
const EXPIRY_CHECK: Duration = Duration::from_secs(10);

impl Client {
    /// Sets when the server is not to be connected to any more: its session ends then.
    pub fn set_valid_until(&self, until: Option<SystemTime>) {
        self.valid_until.send_replace(until);
    }

    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        self.valid_until.borrow().is_some_and(|until| until <= now)
    }

    /// Ends the session when the server's valid-until has passed. Never returns.
    pub(super) async fn end_in_time(&self, session: &LiveSession) -> Infallible {
        self.expired().await;
        session.end(SessionEnd::Expired);
        std::future::pending().await
    }

    /// Completes when the server's valid-until has passed.
    pub(super) async fn expired(&self) {
        let mut changed = self.valid_until.subscribe();
        loop {
            let (now, until) = (SystemTime::now(), *changed.borrow_and_update());
            if until.is_some_and(|until| until <= now) {
                return;
            }
            // Clocks may be set.
            let left = until.and_then(|until| until.duration_since(now).ok());
            let next = left.map_or(EXPIRY_CHECK, |left| left.min(EXPIRY_CHECK));
            tokio::select! {
                () = sleep(next), if until.is_some() => {}
                _ = changed.changed() => {}
            }
        }
    }
}

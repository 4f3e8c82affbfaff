//! Replaces a live session with one that has new keys, over another connection, when its keys have
//! reached their lifetime or the server asks.
//!
//! Make before break: the old connection carries data until the server has answered the new one's
//! hello. Then both ends hold its streams and resume them, as after a loss (`resume`). If the
//! attempt fails, the old session continues.

use std::time::Duration;

use keypadd_share::Underway;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Client, ClientSession,
    reconnect::{HANDSHAKE_TRIPS, QUICK, RETRY_MAX, backoff},
};
use crate::sessions::{lifetime::jitter, session_end::SessionEnd};

/// The shortest life of a session's keys, unless it is lost.
const RENEWAL_MIN: Duration = Duration::from_secs(1);

/// Attempts to replace a live session.
#[derive(Debug, Default)]
pub(super) struct RenewalAttempts {
    /// Held by attempts that must not overlap: each hello ends the session before.
    pub(super) exclusive: Mutex<()>,
    /// Attempts that the server may have answered.
    pub(super) underway: Underway,
}

impl Client {
    /// Waits for the session with new keys that continues this one, or for the end of this one.
    /// Makes no attempt while the server is `silent`.
    ///
    /// # Errors
    /// Why it ended.
    pub(super) async fn renewed(
        &self,
        session: &ClientSession,
        silent: &watch::Sender<bool>,
    ) -> Result<ClientSession, SessionEnd> {
        let live = &*session.registration.session;
        if live.hold.is_none() {
            return Err(live.ended().await);
        }
        let is_silent = async |wanted: bool| {
            // Fails only if the sender is gone, and this is the sender.
            let _ = silent.subscribe().wait_for(|silent| *silent == wanted).await;
        };
        // Limits the rate, however few bytes keys may carry and however often the server asks.
        tokio::select! {
            lost = live.ended() => return Err(lost),
            () = sleep(RENEWAL_MIN) => {}
        }
        let permille = 1_000 - jitter();
        let (mut delays, mut is_asked, mut failed) = (backoff(), false, false);
        loop {
            tokio::select! {
                biased;
                lost = live.ended() => return Err(lost),
                () = live.keys_served(permille) => {}
                () = live.renewal_wanted.notified(), if !is_asked => is_asked = true,
                () = std::future::ready(()), if is_asked => {}
            }
            let began = Instant::now();
            let turn = tokio::select! {
                lost = live.ended() => return Err(lost),
                turn = async {
                    is_silent(false).await;
                    self.renewing.exclusive.lock().await
                } => turn,
            };
            let underway = self.renewing.underway.begin();
            let renewed = tokio::select! {
                biased;
                renewed = self.renew(session) => renewed,
                () = is_silent(true) => Err("the server does not answer".into()),
            };
            drop((underway, turn));
            match renewed {
                Ok(next) => {
                    let taken = began.elapsed();
                    match failed && live.may_log() {
                        true => info!(server = %self.server, "keys renewed"),
                        false => debug!(server = %self.server, ?taken, "keys renewed"),
                    }
                    return Ok(next);
                }
                Err(_) if live.has_ended() => return Err(live.ended().await),
                Err(cause) if failed || !live.may_log() => debug!("keys not renewed: {cause}"),
                Err(cause) => {
                    failed = true;
                    warn!(
                        server = %self.server,
                        "keys not renewed ({cause}); still using the old ones; retrying"
                    );
                }
            }
            tokio::select! {
                lost = live.ended() => return Err(lost),
                () = sleep(delays.next().unwrap_or(RETRY_MAX)) => {}
            }
        }
    }

    /// Makes one attempt, at the server's current address. Not cut short when the old session ends:
    /// the server ends that on receiving the new one's hello, and its answer may come later.
    async fn renew(&self, session: &ClientSession) -> Result<ClientSession, String> {
        let live = &*session.registration.session;
        let rtt = live.connection.stats().path.rtt;
        let at = (session.place.clone(), live.connection.remote_address());
        let attempt = self.attempt(at, Some(rtt), None, (&session.lineage, Some(live)));
        let lost = async {
            live.ended().await;
            sleep(QUICK + rtt * HANDSHAKE_TRIPS).await;
        };
        tokio::select! {
            biased;
            made = timeout(self.connect_timeout, attempt) => match made {
                Ok(Ok(session)) => Ok(session),
                Ok(Err(failure)) => Err(failure.to_string()),
                Err(_) => Err(format!("no answer in {:?}", self.connect_timeout)),
            },
            () = lost => Err("the path is lost".into()),
        }
    }
}

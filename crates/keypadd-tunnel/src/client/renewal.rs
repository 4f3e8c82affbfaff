//! Replaces a live session by one with new keys, over another connection, when its keys have served long
//! enough or the server asks.
//!
//! Make before break: the old connection carries until the server has answered the new one's hello. Then both
//! ends hold its streams and resume them, as after a loss (`resume`). Where the attempt fails the old session
//! goes on.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Client, ClientSession,
    reconnect::{HANDSHAKE_TRIPS, QUICK, RETRY_MAX, backoff},
};
use crate::{
    error::ConnectFailure,
    sessions::{lifetime::jitter, lost::Lost, session::LiveSession},
};

/// The shortest life of a session's keys, unless it is lost.
const RENEWAL_MIN: Duration = Duration::from_secs(1);

/// Whether a renewal is under way.
#[derive(Debug, Default)]
pub(super) struct Renewing(watch::Sender<bool>);

/// A renewal under way, until it is dropped.
struct Underway<'a>(&'a Renewing);

impl Renewing {
    fn begin(&self) -> Underway<'_> {
        self.0.send_replace(true);
        Underway(self)
    }

    /// Waits until none is under way.
    pub(super) async fn over(&self) {
        // Fails only without a sender, and this one has it.
        let _ = self.0.subscribe().wait_for(|underway| !underway).await;
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.0.0.send_replace(false);
    }
}

impl Client {
    /// Waits for the session that goes on with this one, or for the end of this one.
    ///
    /// # Errors
    /// Why it ended.
    pub(super) async fn renewed(&self, session: &ClientSession) -> Result<ClientSession, Lost> {
        let live = &*session.registration.session;
        if live.hold.is_none() {
            return Err(live.lost().await);
        }
        // However few bytes keys may carry, and however often the server asks.
        tokio::select! {
            lost = live.lost() => return Err(lost),
            () = sleep(RENEWAL_MIN) => {}
        }
        let permille = 1_000 - jitter();
        let (mut delays, mut is_asked, mut failed) = (backoff(), false, false);
        loop {
            tokio::select! {
                biased;
                lost = live.lost() => return Err(lost),
                () = live.keys_served(permille) => {}
                () = live.renewal_wanted.notified(), if !is_asked => is_asked = true,
                () = std::future::ready(()), if is_asked => {}
            }
            let began = Instant::now();
            let underway = self.renewing.begin();
            let renewed = self.renew(live).await;
            drop(underway);
            match renewed {
                Ok(next) => {
                    let taken = began.elapsed();
                    match failed {
                        true => info!(server = %self.server, "keys renewed"),
                        false => debug!(server = %self.server, ?taken, "keys renewed"),
                    }
                    return Ok(next);
                }
                Err(_) if live.has_ended() => return Err(live.lost().await),
                Err(cause) if failed => debug!("keys not renewed: {cause}"),
                Err(cause) => {
                    failed = true;
                    warn!(server = %self.server, "keys not renewed ({cause}); the old ones serve; retrying");
                }
            }
            tokio::select! {
                lost = live.lost() => return Err(lost),
                () = sleep(delays.next().unwrap_or(RETRY_MAX)) => {}
            }
        }
    }

    /// Makes one attempt, at the address where the server is now. Not cut short when the old session ends: the
    /// server ends it when it has the new one's hello, and its answer may come later.
    async fn renew(&self, live: &LiveSession) -> Result<ClientSession, String> {
        let rtt = live.connection.stats().path.rtt;
        let attempt = self.attempt(live.connection.remote_address(), Some(rtt));
        let lost = async {
            live.lost().await;
            sleep(QUICK + rtt * HANDSHAKE_TRIPS).await;
        };
        tokio::select! {
            biased;
            made = timeout(self.connect_timeout, attempt) => match made {
                Ok(Ok(session)) => Ok(session),
                Ok(Err(failure)) => Err(cause_of(failure)),
                Err(_) => Err(format!("no answer in {:?}", self.connect_timeout)),
            },
            () = lost => Err("the path is lost".into()),
        }
    }
}

fn cause_of(failure: ConnectFailure) -> String {
    match failure {
        ConnectFailure::Auth(error) => error.to_string(),
        ConnectFailure::TooMany(cause)
        | ConnectFailure::NotPaired(cause)
        | ConnectFailure::Unreachable(cause) => cause,
    }
}

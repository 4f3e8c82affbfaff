//! Keeps a client connected: reconnects with exponential backoff and jitter when a session is lost.

use std::{convert::Infallible, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Client, ClientSession, request_forwards};
use crate::{
    error::ClientError,
    sessions::server_link::{CLOCK, reason},
};

/// The shortest delay before a retry, and half of the longest: jitter adds up to as much again, so
/// that the clients of a restarted server do not all reconnect at once.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// After a session of this length the backoff starts again.
const BACKOFF_RESET: Duration = Duration::from_secs(30);

/// Different refusals logged in one outage.
const LOGGED_MAX: usize = 16;

impl Client {
    /// Keeps a live session in `current`. Never returns.
    pub(super) async fn stay_connected(&self, current: &mut Option<ClientSession>) -> Infallible {
        let mut delays = backoff();
        let mut outage: Option<(Instant, &'static str)> = None;
        loop {
            let session = match current {
                Some(session) => session,
                None => {
                    let at_once = outage.is_none_or(|(_, reason)| reason == CLOCK);
                    let session = self.reconnect(&mut delays, at_once).await;
                    if let Some((began, _)) = outage {
                        let seconds = began.elapsed().as_secs_f64();
                        info!(server = %self.server, "reconnected after {seconds:.1} s");
                    }
                    current.insert(session)
                }
            };
            let began = Instant::now();
            self.link
                .up(Arc::clone(&session.registration.session), outage.map(|(_, reason)| reason));
            // The forwards may have changed while there was no session.
            request_forwards(&session.registration.session, &self.remote_forwards()).await;
            session.registration.session.remote_forwards.start_logging();
            let lost = session.lost().await;
            warn!(server = %self.server, "connection lost ({lost}); reconnecting");
            self.link.lost(lost.to_string());
            outage = Some((Instant::now(), reason(&lost)));
            // Removes it from the list, and tells the server if it is alive.
            *current = None;
            if began.elapsed() >= BACKOFF_RESET {
                delays = backoff();
            }
        }
    }

    /// Retries until there is a session; the first attempt has no delay if `at_once`.
    async fn reconnect(&self, delays: &mut ExponentialBackoff, at_once: bool) -> ClientSession {
        let mut jumps = self.clock_monitor.jumps();
        let mut logged = Vec::new();
        let mut cause = None;
        let mut pause = !at_once;
        loop {
            if pause {
                let time = delays.next().unwrap_or(RETRY_MAX);
                self.link.waiting(time, cause.take());
                tokio::select! {
                    () = sleep(time) => {}
                    // After a wake-up, retry at once.
                    _ = jumps.next() => *delays = backoff(),
                }
                self.link.connecting();
            }
            pause = true;
            match self.connect().await {
                Ok(session) => return session,
                Err(error) => {
                    let text = error.to_string();
                    // A refusal lasts until somebody fixes it: logged once, not at each attempt.
                    let refused = matches!(error, ClientError::Auth { .. });
                    if refused && logged.len() < LOGGED_MAX && !logged.contains(&text) {
                        warn!("reconnect failed: {text}");
                        logged.push(text.clone());
                    } else {
                        debug!("reconnect failed: {text}");
                    }
                    cause = Some(text);
                }
            }
        }
    }
}

/// Delays of 1 to 2 s, 2 to 4 s, and so on up to 15 to 30 s, without end.
fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(RETRY_MIN)
        .with_max_delay(RETRY_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests;

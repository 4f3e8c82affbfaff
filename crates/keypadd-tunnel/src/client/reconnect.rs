//! A session after the other: when one is lost, another is made, however many attempts that takes.
//!
//! Waits grow and are drawn at random, so that the clients of a server that was away do not all
//! come at once. Carries nothing itself: whoever does waits at the link.

use std::{convert::Infallible, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Client, ClientSession, publish};
use crate::{
    error::ClientError,
    sessions::server_link::{CLOCK, reason},
};

/// The shortest wait before another attempt, and half of the longest: to each wait up to as much
/// again is added at random, so that the clients of a server that was away do not all come at once.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// A session that lived this long was a good one: after it, waits are short again.
const LIVED: Duration = Duration::from_secs(30);

/// Refusals of one outage that are remembered as logged.
const LOGGED_MAX: usize = 16;

impl Client {
    /// Keeps a session in `current`.
    pub(super) async fn stay_connected(&self, current: &mut Option<ClientSession>) -> Infallible {
        let mut waits = retries();
        let mut outage: Option<(Instant, &'static str)> = None;
        loop {
            let session = match current {
                Some(session) => session,
                None => {
                    let at_once = outage.is_none_or(|(_, reason)| reason == CLOCK);
                    let session = self.reach(&mut waits, at_once).await;
                    if let Some((began, _)) = outage {
                        let seconds = began.elapsed().as_secs_f64();
                        info!(server = %self.server, "connected again after {seconds:.1} s");
                    }
                    current.insert(session)
                }
            };
            let began = Instant::now();
            self.link.up(Arc::clone(&session.listed.session), outage.map(|(_, reason)| reason));
            // The forwards may have changed while there was no session.
            publish(&session.listed.session, &self.remote_forwards()).await;
            session.listed.session.remotes.announce();
            let lost = session.lost().await;
            warn!(server = %self.server, "lost: {lost}; trying again");
            self.link.lost(lost.to_string());
            outage = Some((Instant::now(), reason(&lost)));
            // Leaves the list, and a server that lives is told.
            *current = None;
            if began.elapsed() >= LIVED {
                waits = retries();
            }
        }
    }

    /// Tries until there is a session; waits first, unless it is to try `at_once`.
    async fn reach(&self, waits: &mut ExponentialBackoff, at_once: bool) -> ClientSession {
        let mut jumps = self.watchman.jumps();
        let mut logged = Vec::new();
        let mut cause = None;
        let mut pause = !at_once;
        loop {
            if pause {
                let time = waits.next().unwrap_or(RETRY_MAX);
                self.link.waits(time, cause.take());
                tokio::select! {
                    () = sleep(time) => {}
                    // Who wakes up wants to be there.
                    _ = jumps.next() => *waits = retries(),
                }
                self.link.tries();
            }
            pause = true;
            match self.connect().await {
                Ok(session) => return session,
                Err(error) => {
                    let text = error.to_string();
                    // A refusal is for somebody to mend, who may take days: one line for each.
                    let refused = matches!(error, ClientError::Auth { .. });
                    if refused && logged.len() < LOGGED_MAX && !logged.contains(&text) {
                        warn!("still not connected: {text}");
                        logged.push(text.clone());
                    } else {
                        debug!("still not connected: {text}");
                    }
                    cause = Some(text);
                }
            }
        }
    }
}

/// 1 to 2 s, 2 to 4 s, and so on up to 15 to 30 s, for ever.
fn retries() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(RETRY_MIN)
        .with_max_delay(RETRY_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests;

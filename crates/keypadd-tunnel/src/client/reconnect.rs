//! Keeps a client connected: reconnects with exponential backoff and jitter when a session is lost.

use std::{convert::Infallible, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::{Client, ClientSession, request_forwards};
use crate::{
    error::ClientError,
    sessions::{
        hold::held_list::Listed,
        server_link::{CLOCK, ServerLink, reason},
        session::LiveSession,
    },
};

/// The shortest delay before a retry, and half of the longest: jitter adds up to as much again, so
/// that the clients of a restarted server do not all reconnect at once.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// After a session of this length the backoff starts again.
const BACKOFF_RESET: Duration = Duration::from_secs(30);

/// Different refusals logged in one outage.
const LOGGED_MAX: usize = 16;

/// Timeouts of attempts while connections are held, in turn, without the round trips of a handshake:
/// short ones find a path soon that has come back, the long one finds a slow path.
const PATIENCE: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_millis(500),
    Duration::from_millis(500),
    Duration::from_secs(2),
];

/// Round trips until a server's hello, with a Retry and a loss.
const HANDSHAKE_TRIPS: u32 = 4;

/// A session whose connections are held.
struct HeldSession {
    /// The server's.
    name: String,
    count: usize,
    time: Duration,
    until: Instant,
    /// The path's round trip, as it was.
    rtt: Duration,
    /// In the status.
    _listed: Listed,
}

impl Client {
    /// Keeps a live session in `current`. Never returns.
    pub(super) async fn stay_connected(&self, current: &mut Option<ClientSession>) -> Infallible {
        let mut delays = backoff();
        let mut outage: Option<(Instant, &'static str)> = None;
        let mut held = None;
        loop {
            let session = match current {
                Some(session) => session,
                None => {
                    let at_once = outage.is_none_or(|(_, reason)| reason == CLOCK);
                    let returned = match &held {
                        Some(away) => self.reconnect_held(away).await,
                        None => None,
                    };
                    drop(held.take());
                    let session = match returned {
                        Some(session) => session,
                        None => self.reconnect(&mut delays, at_once).await,
                    };
                    match outage {
                        Some((began, _)) => {
                            let seconds = began.elapsed().as_secs_f64();
                            info!(server = %self.server, "reconnected after {seconds:.1} s");
                        }
                        None => info!(server = %self.server, "connected"),
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
            let now = Instant::now();
            held = self.held_after(&session.registration.session, now);
            match &held {
                Some(held) => {
                    let HeldSession { name, count, time, .. } = held;
                    let noun = if *count == 1 { "connection" } else { "connections" };
                    warn!(
                        server = %self.server,
                        "{name} is away ({lost}); {count} {noun} held for up to {time:?}; reconnecting"
                    );
                }
                None => warn!(server = %self.server, "connection lost ({lost}); reconnecting"),
            }
            self.link.lost(lost.to_string());
            outage = Some((now, reason(&lost)));
            // Removes it from the list, and tells the server if it is alive.
            *current = None;
            if began.elapsed() >= BACKOFF_RESET {
                delays = backoff();
            }
        }
    }

    /// What is held of a session that has ended; `None` if nothing is, and then nothing will be.
    fn held_after(&self, session: &LiveSession, since: Instant) -> Option<HeldSession> {
        let count = self.hold.streams.names().len();
        let hold = session.hold.as_ref().filter(|_| session.is_held() && count > 0);
        let Some(hold) = hold else {
            self.limits.hold.add_reset(self.hold.end());
            return None;
        };
        let rtt = session.connection.stats().path.rtt;
        let name = session.peer().to_owned();
        let _listed = self.limits.hold.add(&name, &hold.streams, hold.time);
        Some(HeldSession { name, count, time: hold.time, until: since + hold.time, rtt, _listed })
    }

    /// Tries all the time while connections are held; `None` if that took too long: then they are
    /// reset.
    async fn reconnect_held(&self, held: &HeldSession) -> Option<ClientSession> {
        let trying = async {
            for nth in 0_u64.. {
                let timeout = PATIENCE[nth as usize % PATIENCE.len()] + held.rtt * HANDSHAKE_TRIPS;
                let next = Instant::now() + PATIENCE[0];
                self.link.connecting();
                match self.say_hello(timeout.min(self.connect_timeout)).await {
                    Ok(session) => return session,
                    Err(error) => debug!("reconnect failed: {error}"),
                }
                sleep_until(next).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            session = trying => Some(session),
            () = sleep_until(held.until) => {
                let ended = self.hold.end();
                self.limits.hold.add_reset(ended);
                let name = &held.name;
                warn!(server = %self.server, "{name} did not return: {ended} connections reset");
                None
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
                    () = retry_wait(&self.link, time) => {}
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
                    // The first failure, and every new refusal, which lasts until somebody fixes it.
                    let refused = matches!(error, ClientError::Auth { .. });
                    let is_new = refused && logged.len() < LOGGED_MAX && !logged.contains(&text);
                    if logged.is_empty() || is_new {
                        warn!("{text}; retrying");
                        logged.push(text.clone());
                    } else {
                        debug!("{text}; retrying");
                    }
                    cause = Some(text);
                }
            }
        }
    }
}

/// Waits before a retry: `time`, or `RETRY_MIN` if a local connection waits for a session.
async fn retry_wait(link: &ServerLink, time: Duration) {
    let wanted = async {
        sleep(RETRY_MIN).await;
        link.wanted().await;
    };
    tokio::select! {
        () = sleep(time) => {}
        () = wanted => {}
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

//! Keeps a client connected: reconnects with exponential backoff and jitter when a session is lost,
//! and lets a session with new keys take the place of a live one.

use std::{convert::Infallible, mem, pin::pin, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Client, ClientSession,
    lineage::{HeldSession, Lineage},
};
use crate::{
    error::ClientError,
    sessions::{
        reconnect_reason::ReconnectReason, server_link::ServerLink, session_end::SessionEnd,
    },
};

/// The shortest delay before a retry, and half of the longest: jitter adds up to as much again, so
/// that the clients of a restarted server do not all reconnect at once.
const RETRY_MIN: Duration = Duration::from_secs(1);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(15);

/// After a session of this length the backoff starts again.
const BACKOFF_RESET: Duration = Duration::from_secs(30);

/// Different refusals logged in one outage.
const LOGGED_MAX: usize = 16;

/// Timeout of an attempt while connections are held, without the round trips of a handshake: many
/// short ones find a path soon that has come back.
pub(super) const QUICK: Duration = Duration::from_millis(250);

/// Timeout of one that the server has answered: it is there, and busy. When a server is back, the
/// attempts of a thousand clients reach it at once; were they given up before it comes to them, it
/// would spend its time on handshakes that nobody ends.
const BUSY: Duration = Duration::from_secs(5);

/// Quick attempts in a row, at the address that the server had.
const QUICK_ATTEMPTS: usize = 28;

/// Timeout of the attempt that follows them: it resolves the server's name, and finds a path that
/// has become slow.
pub(super) const THOROUGH: Duration = Duration::from_secs(2);

/// Assumed of the path, so that the first packet is repeated after 100, 300 and 700 ms.
pub(super) const ASSUMED_RTT: Duration = Duration::from_millis(33);

/// Round trips until a server's hello, with a Retry and a loss.
pub(super) const HANDSHAKE_TRIPS: u32 = 4;

/// In what a session differs from the one before, whose place it takes.
enum Change {
    /// In its keys.
    Keys,
    /// In where its server is.
    Address,
    /// In its server: the one before is left to its connections.
    Server,
}

/// What was to be logged in one outage, or in several with short sessions between them.
#[derive(Debug, Default)]
pub(super) struct Failures {
    logged: Vec<String>,
}

impl Failures {
    /// Logs the first failure, and every new refusal, if it may.
    pub(super) fn log(&mut self, error: &ClientError, may_log: impl FnOnce() -> bool) {
        let text = error.to_string();
        let is_new =
            error.is_refusal() && self.logged.len() < LOGGED_MAX && !self.logged.contains(&text);
        let is_new = is_new || self.logged.is_empty();
        if is_new && may_log() {
            warn!("{text}; retrying");
        } else {
            debug!("{text}; retrying");
        }
        if is_new {
            self.logged.push(text);
        }
    }
}

impl Client {
    /// Keeps a live session in `current`. Never returns.
    pub(super) fn stay_connected<'a>(
        &'a self,
        current: &'a mut Option<ClientSession>,
    ) -> BoxFuture<'a, Infallible> {
        Box::pin(self.reconnect_always(current))
    }

    async fn reconnect_always(&self, current: &mut Option<ClientSession>) -> Infallible {
        let mut delays = backoff();
        let mut failures = Failures::default();
        let mut outage: Option<(Instant, ReconnectReason)> = None;
        // Two clients that replace each other must not do so all the time, nor may a server end
        // each session and say that it goes on.
        let mut lasted = true;
        loop {
            let session = match current {
                Some(session) => session,
                None => {
                    self.handover.resumed().await;
                    let at_once = outage.is_none_or(|(_, reason)| match reason {
                        ReconnectReason::Clock => true,
                        ReconnectReason::Resumed => lasted,
                        _ => lasted && self.server.may_be_several(),
                    });
                    let lineage = self.lineage();
                    let away = lineage.away().clone();
                    let returned = match away {
                        Some(away) => {
                            if !lasted {
                                self.link.waiting(RETRY_MIN, None);
                                sleep(RETRY_MIN).await;
                            }
                            self.reconnect_held(&away).await
                        }
                        None => None,
                    };
                    *lineage.away() = None;
                    let session = match returned {
                        Some(session) => session,
                        None => self.reconnect((&mut delays, &mut failures), at_once).await,
                    };
                    match outage {
                        Some((began, _)) => {
                            if session.registration.session.may_log() {
                                let seconds = began.elapsed().as_secs_f64();
                                info!(server = %self.server, "reconnected after {seconds:.1} s");
                            }
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
            let live = &session.registration.session;
            self.request_forwards(live);
            live.remote_forwards.start_logging(|| live.may_log());
            let lost = loop {
                match self.next_session(session).await {
                    Ok((next, change)) => {
                        let before = mem::replace(session, next);
                        let live = &session.registration.session;
                        match change {
                            Change::Keys => self.link.renewed(Arc::clone(live)),
                            Change::Address | Change::Server => {
                                self.link.up(Arc::clone(live), Some(ReconnectReason::Moved))
                            }
                        }
                        match change {
                            Change::Keys | Change::Address => drop(before),
                            Change::Server => self.leave(before, session),
                        }
                        // A reload may have changed the forwards of the old session meanwhile.
                        self.request_forwards(live);
                    }
                    Err(lost) => break lost,
                }
            };
            let now = Instant::now();
            // Streams that were just opened are then spliced, and held as well.
            session.registration.session.settled().await;
            let held = self.held_after(session, now);
            match &held {
                _ if matches!(lost, SessionEnd::HandedOver)
                    || !session.registration.session.may_log() => {}
                Some(held) => {
                    let HeldSession { name, count, time, .. } = held;
                    let noun = if *count == 1 { "connection" } else { "connections" };
                    warn!(
                        server = %self.server,
                        "{name} is away ({lost}); {count} {noun} held for up to {time:?}; \
                         reconnecting"
                    );
                }
                None => warn!(server = %self.server, "connection lost ({lost}); reconnecting"),
            }
            self.link.record_loss(lost.to_string());
            outage = Some((now, ReconnectReason::from(&lost)));
            lasted = began.elapsed() >= RETRY_MIN;
            *session.lineage.away() = held;
            // Removes it from the list, and tells the server if it is alive.
            *current = None;
            if began.elapsed() >= BACKOFF_RESET {
                (delays, failures) = (backoff(), Failures::default());
            }
        }
    }

    /// The session that takes the place of this one, and what changed, or why this one ended.
    async fn next_session(
        &self,
        session: &ClientSession,
    ) -> Result<(ClientSession, Change), SessionEnd> {
        let live = &*session.registration.session;
        let silent = watch::Sender::new(false);
        let mut moved = pin!(self.moved(session, &silent));
        let mut elsewhere = pin!(self.elsewhere(session));
        let lost = tokio::select! {
            biased;
            next = &mut moved => return Ok((next, Change::Address)),
            next = &mut elsewhere => return Ok((next, Change::Server)),
            next = self.renewed(session, &silent) => match next {
                Ok(next) => return Ok((next, Change::Keys)),
                Err(lost) => lost,
            },
            never = self.end_in_time(live) => match never {},
        };
        // A server at another address may have answered already, and ended this session because of
        // that.
        tokio::select! {
            biased;
            next = moved => Ok((next, Change::Address)),
            next = elsewhere => Ok((next, Change::Server)),
            () = self.renewing.underway.none() => Err(lost),
        }
    }

    /// What is held of a session that has ended; `None` if nothing is, and then nothing will be.
    pub(super) fn held_after(
        &self,
        session: &ClientSession,
        since: Instant,
    ) -> Option<HeldSession> {
        let (of_lineage, place) = (&session.lineage.hold, session.place.clone());
        let session = &session.registration.session;
        let count = of_lineage.streams().names().len();
        let hold = session.hold.as_ref().filter(|_| session.is_held() && count > 0);
        let Some(hold) = hold else {
            self.held.add_reset(of_lineage.end());
            return None;
        };
        let (address, rtt) =
            (session.connection.remote_address(), session.connection.stats().path.rtt);
        let name = session.peer().to_owned();
        let _listed = Arc::new(self.held.add(&name, &hold.streams, hold.time));
        Some(HeldSession {
            name,
            key: session.key(),
            count,
            time: hold.time,
            until: since + hold.time,
            at: (place, address),
            rtt,
            _listed,
        })
    }

    /// Tries all the time while connections are held; `None` if that took too long: then they are
    /// reset.
    async fn reconnect_held(&self, held: &HeldSession) -> Option<ClientSession> {
        let lineage = self.lineage();
        let trying = async {
            self.link.connecting();
            let mut failures = Failures::default();
            if self.may_be_elsewhere(&held.at.0) {
                return self.reconnect_anywhere(held, &mut failures).await;
            }
            loop {
                for _ in 0..QUICK_ATTEMPTS {
                    match self.attempt_there(held, &lineage).await {
                        Ok(session) => return session,
                        Err(Some(refusal)) => self.failing(&mut failures, &refusal),
                        Err(None) => {}
                    }
                }
                let thorough = (THOROUGH + held.rtt * HANDSHAKE_TRIPS).min(self.connect_timeout);
                match self.say_hello(self.everywhere(thorough), Some(ASSUMED_RTT)).await {
                    Ok(session) => return session,
                    Err(error) => self.failing(&mut failures, &error),
                }
            }
        };
        let cause = tokio::select! {
            session = trying => return Some(session),
            () = sleep_until(held.until) => "did not return",
            () = self.expired() => "is away, and its valid-until has passed",
        };
        let (which, ended) = (lineage.hold.counts.shown(), lineage.hold.end());
        self.held.add_reset(ended);
        let name = &held.name;
        if self.may_log() {
            warn!(server = %self.server, "{name} {cause}: {ended} connections reset ({which})");
        }
        None
    }

    /// Makes one of many quick attempts at the address that the server had. If it fails, waits for
    /// the time of the next one, and returns the refusal, if it was one.
    pub(super) async fn attempt_there(
        &self,
        held: &HeldSession,
        lineage: &Arc<Lineage>,
    ) -> Result<ClientSession, Option<ClientError>> {
        let began = Instant::now();
        let handshake = held.rtt * HANDSHAKE_TRIPS;
        let quick = Some(began + QUICK + handshake);
        let attempt = self.attempt(held.at.clone(), Some(ASSUMED_RTT), quick, (lineage, None));
        let refusal = match timeout(BUSY + handshake, attempt).await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(failure)) => failure.refusal(held.at.1.into()).ok(),
            Err(_) => None,
        };
        // A failure may come at once; a server that refuses is asked less often.
        sleep_until(began + if refusal.is_some() { THOROUGH } else { QUICK }).await;
        Err(refusal)
    }

    /// Whether the server may cause a log line now; without a limit until it has had a session.
    fn may_log(&self) -> bool {
        self.identity.get().is_none_or(|&key| {
            let now = std::time::Instant::now();
            self.limits.log.allow(key, &self.label(key), now)
        })
    }

    /// Logs a failed attempt while connections are held, and shows it in the status if the server
    /// has refused this client since it is away: else the status says why it is away.
    pub(super) fn failing(&self, failures: &mut Failures, error: &ClientError) {
        if error.is_refusal() {
            failures.log(error, || self.may_log());
        } else {
            debug!("{error}; retrying");
        }
        if !failures.logged.is_empty() {
            self.link.failing(error.to_string());
        }
    }

    /// Retries until there is a session; the first attempt has no delay if `at_once`.
    async fn reconnect(
        &self,
        (delays, failures): (&mut ExponentialBackoff, &mut Failures),
        at_once: bool,
    ) -> ClientSession {
        let mut jumps = self.clock_monitor.jumps();
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
            match self.say_hello(self.everywhere(self.connect_timeout), None).await {
                Ok(session) => return session,
                Err(error) => {
                    failures.log(&error, || self.may_log());
                    cause = Some(error.to_string());
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
pub(super) fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(RETRY_MIN)
        .with_max_delay(RETRY_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests;

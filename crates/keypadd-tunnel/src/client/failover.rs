//! Moves a live session to another address of the server: when the server is silent, and back to a
//! preferred address that answers again. Runs only if the server has several addresses, or is one
//! of several behind a balancer.
//!
//! Make before break, as for new keys (`renewal`): if the same server answers, its streams
//! continue. Another server does not know them: it takes over from a silent session by resetting
//! them, and from a working one only while there are none.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use keypadd_provider::PublicKey;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Client, ClientSession,
    lineage::HeldSession,
    reach::{ListPlace, Reached, Search},
    reconnect::{ASSUMED_RTT, Failures, HANDSHAKE_TRIPS, QUICK, THOROUGH},
};
use crate::{
    error::{AuthError, ClientError, ConnectFailure, unreachable::Cause},
    sessions::{proof::proof_of, session::LiveSession},
    wire::Frame,
};

/// How often to check whether something has arrived.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Silence after which the server is pinged: an idle path is not probed as often.
const PING_AFTER: Duration = Duration::from_secs(1);

/// Silence after which other addresses are tried: a second after the ping, so that one is up within
/// three.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Silence after which other addresses are tried while open connections are not held: no other
/// session could continue them, and the path may come back.
const SILENT_AFTER_UNHELD: Duration = Duration::from_secs(8);

/// From one round of attempts at other addresses to the next, and how long a balancer's choice may
/// take to answer: it may still choose the silent server.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long nothing new was acknowledged. Other packets come over a path that carries nothing to
/// the server, too.
#[derive(Debug)]
struct AckWatch {
    acks: u64,
    checked_at: Instant,
    silence: Duration,
}

/// Whether the server still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Liveness {
    Alive,
    /// Not lately: a ping asks for an answer.
    Ping,
    /// Not even an answer to pings.
    Silent,
}

impl AckWatch {
    fn new(now: Instant, acks: u64) -> Self {
        Self { acks, checked_at: now, silence: Duration::ZERO }
    }

    /// Records how often something new was acknowledged so far; `silent_after` is how long a
    /// silence is tolerated.
    fn check(&mut self, now: Instant, acks: u64, silent_after: Duration) -> Liveness {
        // A process that was stopped could not hear anything.
        let passed = (now - self.checked_at).min(2 * CHECK_INTERVAL);
        self.checked_at = now;
        self.silence = if acks == self.acks { self.silence + passed } else { Duration::ZERO };
        self.acks = acks;
        match self.silence {
            silence if silence < PING_AFTER => Liveness::Alive,
            silence if silence < silent_after => Liveness::Ping,
            _ => Liveness::Silent,
        }
    }
}

/// Completes when the server of a session is silent.
async fn until_silent(live: &LiveSession) {
    let mut watch = AckWatch::new(Instant::now(), live.received_acks());
    loop {
        sleep(CHECK_INTERVAL).await;
        let silent_after = match live.hold.is_none() && live.open_connections() > 0 {
            true => SILENT_AFTER_UNHELD,
            false => SILENT_AFTER,
        };
        match watch.check(Instant::now(), live.received_acks(), silent_after) {
            Liveness::Alive => {}
            // If the queue is full, its frames serve as the ping.
            Liveness::Ping => live.try_send(Frame::Ping),
            Liveness::Silent => return,
        }
    }
}

/// Completes when more than these acknowledgments have arrived.
async fn until_acked(live: &LiveSession, before: u64) {
    while live.received_acks() == before {
        sleep(CHECK_INTERVAL / 10).await;
    }
}

/// Whether this is another server than that of the key.
fn is_other(reached: &Reached, key: PublicKey) -> bool {
    proof_of(&reached.connection).is_none_or(|proof| proof.key != key)
}

/// Logs an attempt that has failed beside a live session: once, if a server does not prove what it
/// resumes.
fn note(failures: &mut Failures, live: &LiveSession, what: &str, error: &ClientError) {
    match error {
        ClientError::Auth { cause: AuthError::NotResumed, .. } => {
            failures.log(error, || live.may_log());
        }
        _ => debug!("{what}: {error}"),
    }
}

impl Client {
    /// Whether a server other than the one at this place may answer.
    pub(super) fn may_be_elsewhere(&self, place: &ListPlace) -> bool {
        self.server.may_be_several() || place.home.is_some()
    }

    /// Waits for a session at another address that replaces this one; sets `silent` while the
    /// server is. Continues for a moment after the session has ended.
    pub(super) async fn moved(
        &self,
        session: &ClientSession,
        silent: &watch::Sender<bool>,
    ) -> ClientSession {
        if !self.may_be_elsewhere(&session.place) {
            return std::future::pending().await;
        }
        let live = &*session.registration.session;
        let mut failures = Failures::default();
        loop {
            tokio::select! {
                () = until_silent(live) => {}
                next = self.returned(session, &mut failures) => return next,
            }
            debug!(server = %self.server, "the server is silent; trying its other addresses");
            silent.send_replace(true);
            let before = live.received_acks();
            while live.received_acks() == before {
                let began = Instant::now();
                if let Some(next) = self.fail_over(session, &mut failures).await {
                    return next;
                }
                tokio::select! {
                    () = until_acked(live, before) => {}
                    () = sleep_until(began + RETRY_INTERVAL) => {}
                }
            }
            silent.send_replace(false);
        }
    }

    /// Waits for a session at a preferred address, which is tried at intervals.
    async fn returned(&self, session: &ClientSession, failures: &mut Failures) -> ClientSession {
        let live = &*session.registration.session;
        if session.place.is_first() {
            return std::future::pending().await;
        }
        // A preferred server has this one's key and does not know its streams.
        let mut is_stranger = false;
        loop {
            sleep(self.return_interval).await;
            if is_stranger && live.open_connections() > 0 {
                continue;
            }
            match self.go_back(session, &mut is_stranger).await {
                Ok(next) => return next,
                Err(error) => note(failures, live, "not moved to a preferred address", &error),
            }
        }
    }

    /// Tries the other addresses while a session's server is silent. `None` if it is heard again
    /// first, if the session ends, or if no other answers.
    async fn fail_over(
        &self,
        session: &ClientSession,
        failures: &mut Failures,
    ) -> Option<ClientSession> {
        let live = &*session.registration.session;
        let handshake = QUICK + live.connection.stats().path.rtt * HANDSHAKE_TRIPS;
        let search = match session.place.home {
            // The balancer may choose another one.
            Some(_) => Search {
                begin_at: Some((session.place.clone(), live.connection.remote_address())),
                ..self.everywhere(RETRY_INTERVAL + handshake * 2)
            },
            None => Search {
                avoid: Some(live.connection.remote_address()),
                ..self.everywhere(self.connect_timeout)
            },
        };
        let (jumps, lineage) = (&self.clock_monitor.jumps(), &session.lineage);
        let (open, which) = (live.open_connections(), live.open_by_forward());
        let before = live.received_acks();
        let take_over = |reached: Reached| async move {
            if is_other(&reached, live.key()) && live.open_connections() > 0 {
                // The path to both may have just come back.
                sleep(handshake).await;
            }
            let _underway = self.renewing.underway.begin();
            let greeting = self.greet(reached, lineage).await?;
            let resumed = greeting.is_resumed();
            Ok((self.establish(greeting, jumps.clone()), resumed))
        };
        // An attempt in progress may already have ended the session at the old address.
        let heard = async {
            until_acked(live, before).await;
            self.renewing.underway.none().await;
        };
        let ended = async {
            live.ended().await;
            sleep(handshake).await;
        };
        let (next, resumed) = tokio::select! {
            biased;
            made = self.search(search, Some(ASSUMED_RTT), take_over) => match made {
                Ok(made) => made,
                Err(error) => {
                    note(failures, live, "no other address answers", &error);
                    return None;
                }
            },
            () = heard => return None,
            () = ended => return None,
        };
        let (peer, remote) = (live.peer(), next.live().remote());
        if live.may_log() {
            let fate = match (resumed, open) {
                (_, 0) => String::new(),
                (true, open) => format!("; open connections continue: {open}"),
                (false, open) => format!("; open connections reset: {open} ({which})"),
            };
            let silent = live.remote();
            let what = match (next.live().key() == live.key(), silent == remote) {
                (true, true) => "connection",
                (false, true) => "server",
                (_, false) => "address",
            };
            warn!(peer, %silent, %remote, "server is silent; moved to another {what}{fate}");
        }
        Some(next)
    }

    /// Moves a session to a preferred address that answers. Sets `is_stranger` if another server
    /// answers with the same key.
    async fn go_back(
        &self,
        session: &ClientSession,
        is_stranger: &mut bool,
    ) -> Result<ClientSession, ClientError> {
        let live = &*session.registration.session;
        let everywhere = self.everywhere(THOROUGH.min(self.connect_timeout));
        let search = Search { before: Some(session.place.clone()), ..everywhere };
        let (jumps, lineage) = (&self.clock_monitor.jumps(), &session.lineage);
        let is_idle = || live.open_connections() == 0;
        let busy = || ConnectFailure::Unreachable(Cause::OtherServer);
        let stranger = &AtomicBool::new(false);
        let move_there = |reached: Reached| async move {
            // The hello resets what is not held.
            if (is_other(&reached, live.key()) || live.hold.is_none()) && !is_idle() {
                return Err(busy());
            }
            let _underway = self.renewing.underway.begin();
            let greeting = self.greet(reached, lineage).await?;
            if greeting.resets(live) {
                stranger.store(true, Ordering::Relaxed);
                return Err(busy());
            }
            Ok(self.establish(greeting, jumps.clone()))
        };
        let _exclusive = self.renewing.exclusive.lock().await;
        let moved = self.search(search, Some(ASSUMED_RTT), move_there).await;
        *is_stranger = stranger.load(Ordering::Relaxed);
        let next = moved?;
        if live.may_log() {
            let remote = next.live().remote();
            info!(peer = live.peer(), %remote, "moved to a preferred address");
        }
        Ok(next)
    }

    /// Keeps trying all addresses while connections are held, beginning with the server's last one.
    /// Another server takes over only if that address does not answer even then.
    pub(super) async fn reconnect_anywhere(
        &self,
        held: &HeldSession,
        failures: &mut Failures,
    ) -> ClientSession {
        let time = (THOROUGH + QUICK + held.rtt * HANDSHAKE_TRIPS).min(self.connect_timeout);
        let (jumps, lineage) = (&self.clock_monitor.jumps(), &self.lineage());
        let continue_there = |reached: Reached| async move {
            // Servers behind a balancer may share a key.
            if held.at.0.home.is_some() || is_other(&reached, held.key) {
                // The path may be longer than the one that was lost.
                let rtt = held.rtt.max(reached.connection.stats().path.rtt);
                let last = self.attempt(held.at.clone(), Some(ASSUMED_RTT), None, (lineage, None));
                if let Ok(Ok(back)) = timeout(QUICK + rtt * HANDSHAKE_TRIPS, last).await {
                    return Ok(back);
                }
            }
            let greeting = self.greet(reached, lineage).await?;
            Ok(self.establish(greeting, jumps.clone()))
        };
        loop {
            let began = Instant::now();
            let search = Search { begin_at: Some(held.at.clone()), ..self.everywhere(time) };
            match self.search(search, Some(ASSUMED_RTT), continue_there).await {
                Ok(session) => return session,
                Err(error) => self.failing(failures, &error),
            }
            sleep_until(began + QUICK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `count` looks while nothing arrives, the first at `from`.
    fn checks(watch: &mut AckWatch, from: Instant, count: u32) -> Vec<Liveness> {
        let acks = watch.acks;
        (1..=count)
            .map(|nth| watch.check(from + CHECK_INTERVAL * nth, acks, SILENT_AFTER))
            .collect()
    }

    #[test]
    fn a_server_is_pinged_after_a_second_and_silent_after_two() {
        let began = Instant::now();
        let mut watch = AckWatch::new(began, 5);
        let alive = [Liveness::Alive; 3].into_iter();
        let expected: Vec<_> = alive.chain([Liveness::Ping; 4]).chain([Liveness::Silent]).collect();
        assert_eq!(checks(&mut watch, began, 8), expected);
        assert_eq!(watch.check(began + CHECK_INTERVAL * 9, 6, SILENT_AFTER), Liveness::Alive);
        assert_eq!(checks(&mut watch, began + CHECK_INTERVAL * 9, 8), expected);
    }

    #[test]
    fn connections_that_are_not_held_outlast_a_longer_silence() {
        let began = Instant::now();
        let mut watch = AckWatch::new(began, 5);
        let mut check = |nth| watch.check(began + CHECK_INTERVAL * nth, 5, SILENT_AFTER_UNHELD);
        let seen: Vec<_> = (1..=32).map(&mut check).collect();
        assert_eq!(seen[3..31], [Liveness::Ping; 28]);
        assert_eq!(seen[31], Liveness::Silent);
        // They have finished.
        let mut watch = AckWatch::new(began, 5);
        checks(&mut watch, began, 12);
        assert_eq!(watch.check(began + CHECK_INTERVAL * 13, 5, SILENT_AFTER), Liveness::Silent);
    }

    #[test]
    fn a_client_that_was_stopped_listens_before_it_calls_the_server_silent() {
        let began = Instant::now();
        let mut watch = AckWatch::new(began, 5);
        let later = began + Duration::from_secs(60);
        assert_eq!(watch.check(later, 5, SILENT_AFTER), Liveness::Alive);
        assert_eq!(checks(&mut watch, later, 3), [Liveness::Alive, Liveness::Ping, Liveness::Ping]);
    }
}

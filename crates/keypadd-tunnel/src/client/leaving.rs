//! Leaves a server that drains and asks for it: new connections go to another server, open ones
//! stay with their session until they end.
//!
//! Make before break, as in `failover`. For its next server the client is another one, with an
//! instance number of its own: else it would replace its own session if it came back to a server
//! that still has one.

use std::{
    convert::Infallible,
    future::pending,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    sync::{Mutex, mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    Client, ClientSession,
    lineage::{HeldSession, Lineage},
    reach::{Reached, Search},
    reconnect::{ASSUMED_RTT, RETRY_MAX, THOROUGH, backoff},
};
use crate::{
    addresses::forward::ProxyHeaders,
    error::ConnectFailure,
    sessions::{
        draining::Leaving,
        lifetime::{JITTER_MAX, jitter},
        session::LiveSession,
    },
};

/// How soon to leave, and up to as much more at random: else all clients of a server would come to
/// the others at once. Meanwhile a balancer learns to stop choosing this server, and a server that
/// asks again and again makes its clients move no faster.
const LEAVE_AFTER: Duration = Duration::from_secs(1);

/// How often to look whether a session that was left has connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A lineage that the client has left, with its session unless its server is away.
struct Left {
    lineage: Arc<Lineage>,
    session: Option<ClientSession>,
}

/// What the client has left and not yet looked after.
pub(super) struct LeftQueue {
    sender: mpsc::UnboundedSender<Left>,
    receiver: Mutex<mpsc::UnboundedReceiver<Left>>,
}

impl Default for LeftQueue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Mutex::new(receiver) }
    }
}

impl LeftQueue {
    /// Adds a lineage of another process, whose server is away.
    pub(super) fn add(&self, lineage: Arc<Lineage>) {
        lineage.leave();
        // Fails only without a receiver, and this is the receiver, too.
        let _ = self.sender.send(Left { lineage, session: None });
    }
}

impl Client {
    /// Waits for a session at another server, once this one's server asks to be left.
    pub(super) async fn elsewhere(&self, session: &ClientSession) -> ClientSession {
        if !self.may_be_elsewhere(&session.place) {
            return pending().await;
        }
        let live = &*session.registration.session;
        loop {
            live.until(Leaving::Asked).await;
            let leave_at =
                || session.lineage.leave_at.lock().unwrap_or_else(PoisonError::into_inner);
            let at = *leave_at().get_or_insert_with(|| {
                Instant::now() + LEAVE_AFTER + LEAVE_AFTER * jitter() / JITTER_MAX
            });
            tokio::select! {
                next = self.until_elsewhere(session, at) => return next,
                () = live.until(Leaving::No) => *leave_at() = None,
            }
        }
    }

    /// Tries from then on until another server has answered.
    async fn until_elsewhere(&self, session: &ClientSession, at: Instant) -> ClientSession {
        let mut delays = backoff();
        sleep_until(at).await;
        loop {
            match self.try_elsewhere(session).await {
                Ok(next) => return next,
                Err(error) => debug!("the server is draining, no other one answers: {error}"),
            }
            sleep(delays.next().unwrap_or(RETRY_MAX)).await;
        }
    }

    async fn try_elsewhere(&self, session: &ClientSession) -> Result<ClientSession, String> {
        let lineage = session.lineage.next().map_err(|error| error.to_string())?;
        let here = session.registration.session.connection.remote_address();
        // A balancer may choose any server, this one among them, which refuses.
        let avoid = session.place.home.is_none().then_some(here);
        let time = THOROUGH.min(self.connect_timeout);
        let search = Search { avoid, ..self.everywhere(time) };
        let (jumps, lineage) = (&self.clock_monitor.jumps(), &lineage);
        let begin = |reached: Reached| async move {
            let _underway = self.renewing.underway.begin();
            let greeting = self.greet(reached, lineage).await?;
            Ok::<_, ConnectFailure>(self.establish(greeting, jumps.clone()))
        };
        let _exclusive = self.renewing.exclusive.lock().await;
        let made = self.search(search, Some(ASSUMED_RTT), begin).await;
        made.map_err(|error| error.to_string())
    }

    /// Leaves a session for the next one, which carries new connections from now on.
    pub(super) fn leave(&self, session: ClientSession, next: &ClientSession) {
        let live = &session.registration.session;
        session.lineage.leave();
        live.leaving.send_replace(Leaving::Done);
        live.remote_forwards.set(&[], ProxyHeaders::default());
        self.lineages.push(Arc::clone(&next.lineage));
        if live.may_log() {
            let (peer, server, next) = (live.peer(), live.remote(), next.live().remote());
            let open = live.open_connections();
            info!(
                peer,
                %server,
                %next,
                open,
                "server is draining: new connections go to another server; open ones stay"
            );
        }
        let lineage = Arc::clone(&session.lineage);
        let _ = self.left.sender.send(Left { lineage, session: Some(session) });
    }

    /// Keeps what was left until its connections have ended. Never returns.
    pub(super) async fn keep_left(&self) -> Infallible {
        let mut queue = self.left.receiver.lock().await;
        let mut kept = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(Left { lineage, session }) = queue.recv() => kept.push(async move {
                    self.keep(&lineage, session).await;
                    self.lineages.remove(&lineage);
                }),
                Some(()) = kept.next(), if !kept.is_empty() => {}
            }
        }
    }

    async fn keep(&self, lineage: &Arc<Lineage>, mut session: Option<ClientSession>) {
        // That the server is silent shows when its session ends.
        let answers = watch::Sender::new(false);
        loop {
            if let Some(current) = session.take() {
                let live = &current.registration.session;
                let lost = tokio::select! {
                    renewed = self.renewed(&current, &answers) => match renewed {
                        Ok(next) => {
                            session = Some(next);
                            continue;
                        }
                        Err(lost) => lost,
                    },
                    () = until_idle(live) => return,
                    never = self.end_in_time(live) => match never {},
                };
                let now = Instant::now();
                live.settled().await;
                let held = self.held_after(&current, now);
                if live.may_log() {
                    let (peer, server) = (live.peer(), live.remote());
                    let held = held.as_ref().map_or(0, |held| held.count);
                    warn!(peer, %server, held, "lost the server that was left ({lost})");
                }
                *lineage.away() = held;
            }
            let Some(held) = lineage.away().clone() else { return };
            session = self.found_again(&held, lineage).await;
            *lineage.away() = None;
            if session.is_none() {
                self.held.add_reset(lineage.hold.end());
                return;
            }
        }
    }

    /// Tries all the time at the address of a server that was left; `None` if that took too long.
    async fn found_again(
        &self,
        held: &HeldSession,
        lineage: &Arc<Lineage>,
    ) -> Option<ClientSession> {
        let trying = async {
            self.handover.resumed().await;
            loop {
                match self.attempt_there(held, lineage).await {
                    Ok(session) => return session,
                    Err(failure) => debug!(?failure, "not reconnected to the server that was left"),
                }
            }
        };
        tokio::select! {
            session = trying => Some(session),
            () = sleep_until(held.until) => None,
            () = self.expired() => None,
        }
    }
}

/// Completes when a session that takes no more connections has none. Those that its server has
/// accepted meanwhile for a remote forward come first.
async fn until_idle(live: &LiveSession) {
    sleep(CHECK_INTERVAL + live.connection.stats().path.rtt).await;
    while live.open_connections() > 0 || live.opening.count() > 0 {
        sleep(CHECK_INTERVAL).await;
    }
}

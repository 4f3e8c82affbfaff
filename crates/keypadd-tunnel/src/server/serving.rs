//! Serves one client after its handshake: `hello` finds out what it wants, then its streams are
//! answered.
//!
//! The handshake has authenticated the client; here each stream is checked against its permits. All
//! that a client can cause is bounded: its connections, its streams, and its time to send a
//! request.

use std::{
    convert::Infallible, future::pending, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use futures_util::future::BoxFuture;
use keypadd_provider::PublicKey;
use keypadd_share::{Rates, Share, Shares};
use keypadd_transport::{Connection, ServerId};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use self::hello::{HelloError, NewClient, Purpose};
use crate::{
    addresses::forward::Listen,
    clock::monitor::{ClockMonitor, Jumps},
    forwards::{
        answer::{Unpermitted, answer_client, answer_on_bulk},
        remote_listen::RemoteListeners,
        reservations::Reservations,
    },
    handover::Handover,
    limits::SharedLimits,
    net::{lookup::ClientLookups, source::plain},
    permits::peers::Peers,
    server::{client_log::ClientLog, streams::SessionStreams},
    sessions::{
        draining::{Draining, Phase},
        hold::{
            HoldSettings, held_list::HeldList, lineage::Event, lineages::Lineages,
            resume_rate::resumptions,
        },
        lifetime::{KeyLifetimes, jitter},
        registry::Sessions,
        session::{FRAMES_MAX, LiveSession},
        session_end::SessionEnd,
    },
    transport::TransportSettings,
    wire::{Frame, StreamCode},
};

pub(super) mod away;
mod hello;

/// Timeout from the end of the handshake to the client's hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the listeners of a session wait for the one that goes on with it.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the clients of a server share.
#[derive(Debug)]
pub(super) struct ServerContext {
    pub(super) peers: Arc<Peers>,
    pub(super) sessions: Sessions,
    /// Sessions by key, so that no client can use up the server's.
    of_key: Shares<PublicKey>,
    /// Sessions by key whose client is gone, while what it has sent is delivered.
    gone: Shares<PublicKey>,
    /// Connections by key that have not said hello.
    without_hello: Shares<PublicKey>,
    /// Maximum number of sessions of one key.
    sessions_per_key: usize,
    pub(super) limits: Arc<SharedLimits>,
    /// The peers whose streams are held.
    pub(super) held: HeldList,
    lookups: ClientLookups,
    pub(super) log: ClientLog,
    pub(super) draining: Draining,
    pub(super) clock_monitor: ClockMonitor,
    pub(super) reservations: Reservations,
    /// Maximum number of open forwarded connections of one session, for each direction.
    forwards_max: usize,
    /// Target of bench streams.
    bench: Option<SocketAddr>,
    hold: HoldSettings,
    pub(super) handover: Handover,
    /// By which a balancer finds this server.
    server_id: Option<ServerId>,
    key_lifetimes: KeyLifetimes,
    /// What outlives the sessions of its clients.
    pub(super) lineages: Arc<Lineages>,
    resumptions: Rates<PublicKey>,
}

impl ServerContext {
    pub(super) fn new(
        peers: Arc<Peers>,
        transport: &TransportSettings,
        sessions_per_key: usize,
        bench: Option<SocketAddr>,
    ) -> Self {
        Self {
            peers,
            sessions: Sessions::default(),
            of_key: Shares::of_each(sessions_per_key),
            gone: Shares::of_each(sessions_per_key),
            // A session may have two connections, and all sessions of a key may come back at once.
            without_hello: Shares::of_each(sessions_per_key.saturating_mul(2)),
            sessions_per_key,
            limits: Arc::clone(&transport.limits),
            held: transport.held.clone(),
            lookups: ClientLookups::default(),
            log: ClientLog::new(Arc::clone(&transport.limits)),
            draining: Draining::default(),
            clock_monitor: ClockMonitor::new(Arc::clone(&transport.clocks)),
            reservations: Reservations::default(),
            forwards_max: transport.forwards_max as usize,
            bench,
            hold: transport.hold,
            handover: transport.handover.clone(),
            server_id: transport.server_id,
            key_lifetimes: transport.key_lifetimes.clone(),
            lineages: Arc::new(Lineages::new(Arc::clone(&transport.memory.budgets.sent))),
            resumptions: resumptions(sessions_per_key),
        }
    }

    /// Serves a connection from its handshake to its end.
    pub(super) fn serve(self: Arc<Self>, connection: Connection) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let source = plain(connection.remote_address());
            let (mut jumps, for_session) = (self.clock_monitor.jumps(), self.clock_monitor.jumps());
            let purpose = tokio::select! {
                // Drops the keys agreed on so far with the connection.
                _ = jumps.next() => return,
                purpose = timeout(HELLO_TIMEOUT, self.exchange_hellos(connection)) => purpose,
            };
            match purpose {
                Ok(Ok(Purpose::Session(client))) => self.serve_session(client, for_session).await,
                Ok(Ok(Purpose::Bulk(session, _control))) => {
                    tokio::select! {
                        () = session.supervise_bulk() => {}
                        never = answer_on_bulk(&session, &self.peers) => match never {},
                    }
                }
                Ok(Err(HelloError::Connection(error))) => {
                    self.log.handshake_failure(&self.peers, source, &error);
                }
                Ok(Err(HelloError::Control(error))) => debug!(%source, %error, "hello failed"),
                Err(_) => debug!(%source, "hello failed: timeout"),
            }
        })
    }

    /// Serves streams until the session ends.
    async fn serve_session(&self, client: NewClient, jumps: Jumps) {
        let NewClient { registration, control, outgoing, renewed } = client;
        let session = &Arc::clone(&registration.session);
        if renewed {
            debug!(peer = session.peer(), remote = %session.remote(), "session has new keys");
        } else if session.may_log() {
            info!(peer = session.peer(), remote = %session.remote(), "session established");
        }
        let lookups = self.lookups.of(session.identity());
        let mut streams = SessionStreams::new();
        let (incoming, frames) = mpsc::channel(FRAMES_MAX);
        let supervisor = session.supervise(control, outgoing, incoming, jumps);
        let (accepted, mut remote_connections) = mpsc::channel(1);
        let remote_listeners = RemoteListeners {
            session: Arc::clone(session),
            peers: Arc::clone(&self.peers),
            lookups: lookups.clone(),
            reservations: self.reservations.clone(),
            accepted,
            incomplete: <_>::default(),
            log_limit: Arc::default(),
            handover: self.handover.clone(),
        };
        let unpermitted = |listen: &Listen| self.log.unpermitted_listen(session, listen);
        let claims = |count| self.expect_claims(session, count);
        let mut listening = Some(Box::pin(remote_listeners.run(frames, unpermitted, claims)));
        tokio::pin!(supervisor);
        let hold_time = session.hold.as_ref().map(|hold| hold.time);
        let mut claimed = pin!(sleep(hold_time.unwrap_or_default()));
        let mut renewal = pin!(require_new_keys(session));
        let mut leaving = pin!(ask_to_leave(session, self.draining.subscribe()));
        let mut draining = self.draining.subscribe();
        let lost = loop {
            let is_stopping = *draining.borrow_and_update() == Phase::Stopping;
            if is_stopping {
                listening = None;
            }
            if is_stopping && streams.is_empty() {
                session.end(SessionEnd::Shutdown);
            }
            tokio::select! {
                lost = &mut supervisor => break lost,
                Ok(_) = draining.changed(), if !is_stopping => {}
                Ok(stream) = session.connection.accept_bi() => {
                    if is_stopping {
                        stream.reset(StreamCode::Shutdown.into());
                        continue;
                    }
                    let (session, peers) = (Arc::clone(session), Arc::clone(&self.peers));
                    let lookups = lookups.clone();
                    let (bench, draining) = (self.bench, self.draining.clone());
                    streams.push(answer_client(session, peers, lookups, bench, draining, stream));
                }
                () = run(&mut listening) => {}
                () = &mut claimed, if hold_time.is_some() && !claimed.is_elapsed() => {
                    session.release_unclaimed();
                }
                never = &mut renewal => match never {},
                never = &mut leaving => match never {},
                () = session.connection.bulk_wanted() => session.try_send(Frame::BulkWanted),
                Some(connection) = remote_connections.recv() => {
                    let forwarding = connection.forward(Arc::clone(session));
                    streams.push(async move {
                        forwarding.await;
                        None
                    });
                }
                Some(done) = streams.next(), if !streams.is_empty() => {
                    if let Some(unpermitted) = done {
                        self.log.unpermitted(session, &unpermitted);
                    }
                }
            }
        };
        if !session.is_resumed() && session.may_log() {
            info!(peer = session.peer(), cause = %lost, "session ended");
        }
        drop(listening);
        // Leaves the list, and its place among those of its key, while the streams finish.
        drop(registration);
        let is_gone = !session.is_resumed() && !session.is_held();
        let _finishing =
            (is_gone && !streams.is_empty()).then(|| self.finish(session, &mut streams));
        let left = async {
            // What was accepted and is not forwarded goes back to its listener. This ends when all
            // listeners are closed or left.
            while remote_connections.recv().await.is_some() {}
            let mut is_left = self.reservations.left_by(session, self.sessions_per_key);
            tokio::select! {
                _ = is_left.recv() => {}
                () = sleep(TAKE_OVER_TIMEOUT) => {}
                () = self.draining.stopped() => {}
            }
            self.reservations.close_left_by(session);
        };
        let held = async {
            if !session.is_resumed() {
                self.hold(session).await;
            }
        };
        // The connection is closed, so the streams end by themselves, except where acknowledged
        // data waits for a slow target: that is delivered as long as the target reads (`splice`),
        // and where another session has resumed them. A server that shuts down drops this task,
        // which resets them.
        let finished = async { while streams.next().await.is_some() {} };
        tokio::join!(left, held, finished);
    }

    /// Counts a session whose client is gone until its streams have finished; resets them if its
    /// key has as many of those as it may have sessions.
    fn finish(
        &self,
        session: &LiveSession,
        streams: &mut SessionStreams<Option<Unpermitted>>,
    ) -> Option<Share<PublicKey>> {
        let max = self.sessions_per_key;
        let slot = self.gone.try_take(session.identity(), 1);
        if slot.is_none() {
            let reset = streams.len();
            streams.clear();
            if let Some(hold) = &session.hold {
                hold.streams.reset_all(StreamCode::Reset.into());
            }
            if session.may_log() {
                let peer = session.peer();
                warn!(
                    peer,
                    reset,
                    max,
                    "reset what a client that is gone had sent: {max} others of its key still \
                        wait for their targets (max-sessions-per-key)"
                );
            }
        }
        slot
    }

    /// The client has said how many streams it resumes: it has the session's token.
    fn expect_claims(&self, session: &LiveSession, count: u32) {
        let Some(hold) = &session.hold else { return };
        let claims = Event::Claims { epoch: hold.epoch };
        self.lineages.step(&session.client(), claims, None, Instant::now().into_std());
        if session.claims.expect(count) {
            session.release_unclaimed();
        }
    }
}

/// Asks the client for new keys when its session's have served long enough, and ends the session
/// when it has had its time; not where streams would be reset. Never returns.
async fn require_new_keys(session: &LiveSession) -> Infallible {
    if session.hold.is_none() {
        return pending().await;
    }
    // Most clients go first, by their own lifetime.
    session.keys_served(1_000 + jitter()).await;
    session.send(Frame::Renew).await;
    sleep(session.lifetimes.get().grace).await;
    session.end(SessionEnd::KeysTooOld);
    pending().await
}

/// Asks the client to make its connections elsewhere while the server is drained, and ends the
/// session when the time for that is over. Never returns.
async fn ask_to_leave(session: &LiveSession, mut draining: watch::Receiver<Phase>) -> Infallible {
    let mut asked = false;
    loop {
        let phase = *draining.borrow_and_update();
        let leave = phase != Phase::Serving;
        let over = async {
            match phase {
                Phase::Draining { until: Some(until) } => sleep_until(until).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = session.send(Frame::Leave { leave }), if leave != asked => asked = leave,
            // Fails only if the server is gone, and this is a part of it.
            Ok(()) = draining.changed() => {}
            () = over => {
                session.end(SessionEnd::Drained);
                return pending().await;
            }
        }
    }
}

/// Polls a task that may have been dropped.
async fn run(task: &mut Option<impl Future<Output = ()> + Unpin>) {
    match task {
        Some(task) => task.await,
        None => pending().await,
    }
}

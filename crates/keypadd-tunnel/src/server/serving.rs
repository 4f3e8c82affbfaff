//! Serves one client after its handshake: `hello` finds out what it wants, then its streams are answered.
//!
//! The handshake has authenticated the client; here each stream is checked against its permits. All
//! that a client can cause is bounded: its connections, its streams, and its time to send a
//! request.

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use keypadd_provider::PublicKey;
use keypadd_share::{Rates, Share, Shares};
use keypadd_transport::{Connection, HeldStreams};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use self::hello::{HelloError, NewClient, Purpose};
use crate::{
    addresses::forward::Listen,
    clock::monitor::{ClockMonitor, Jumps},
    forwards::{
        adopt::adopt,
        answer::{Unpermitted, answer_client},
        remote_listen::RemoteListeners,
        reservations::Reservations,
    },
    handover::{HandedChain, Handover},
    limits::{Limits, descriptors::Holder, places::Places},
    net::{lookup::ClientLookups, source::plain},
    permits::peers::Peers,
    server::{client_log::ClientLog, streams::SessionStreams},
    sessions::{
        hold::{
            HoldSettings,
            chains::{AdoptedChain, AwayState, ChainKey, Chains},
            held_list::HeldList,
            resume_rate::resumptions,
        },
        lifetime::{KeyLifetimes, jitter},
        registry::Sessions,
        session::{FRAMES_MAX, LiveSession},
        session_end::SessionEnd,
    },
    transport::TransportSettings,
    wire::{Frame, Instance, StreamCode},
};

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
    pub(super) limits: Arc<Limits>,
    /// The peers whose streams are held.
    pub(super) held: HeldList,
    lookups: ClientLookups,
    pub(super) log: ClientLog,
    /// Set at shutdown: sessions accept no more streams, and end when they have none.
    draining: watch::Sender<bool>,
    pub(super) clock_monitor: ClockMonitor,
    pub(super) reservations: Reservations,
    /// Maximum number of open forwarded connections of one session, for each direction.
    forwards_max: usize,
    /// Target of bench streams.
    bench: Option<SocketAddr>,
    hold: HoldSettings,
    pub(super) handover: Handover,
    key_lifetimes: KeyLifetimes,
    /// Sessions whose streams another connection may resume.
    pub(super) chains: Arc<Chains>,
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
            draining: watch::Sender::new(false),
            clock_monitor: ClockMonitor::new(Arc::clone(&transport.clocks)),
            reservations: Reservations::default(),
            forwards_max: transport.forwards_max as usize,
            bench,
            hold: transport.hold,
            handover: transport.handover.clone(),
            key_lifetimes: transport.key_lifetimes.clone(),
            chains: Arc::default(),
            resumptions: resumptions(sessions_per_key),
        }
    }

    /// Makes sessions accept no more streams, and end when they have none.
    pub(super) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Serves a connection from its handshake to its end.
    pub(super) async fn serve(self: Arc<Self>, connection: Connection) {
        let source = plain(connection.remote_address());
        let (mut jumps, for_session) = (self.clock_monitor.jumps(), self.clock_monitor.jumps());
        let purpose = tokio::select! {
            // Drops the keys agreed on so far with the connection.
            _ = jumps.next() => return,
            purpose = timeout(HELLO_TIMEOUT, self.exchange_hellos(connection)) => purpose,
        };
        match purpose {
            Ok(Ok(Purpose::Session(client))) => self.serve_session(client, for_session).await,
            Ok(Ok(Purpose::Bulk(session, _control))) => session.supervise_bulk().await,
            Ok(Err(HelloError::Connection(error))) => {
                self.log.handshake_failure(&self.peers, source, &error);
            }
            Ok(Err(HelloError::Control(error))) => debug!(%source, %error, "hello failed"),
            Err(_) => debug!(%source, "hello failed: timeout"),
        }
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
        let mut draining = self.draining.subscribe();
        let lost = loop {
            let is_draining = *draining.borrow_and_update();
            if is_draining {
                listening = None;
            }
            if is_draining && streams.is_empty() {
                session.end(SessionEnd::Shutdown);
            }
            tokio::select! {
                lost = &mut supervisor => break lost,
                Ok(_) = draining.changed(), if !is_draining => {}
                Ok(stream) = session.connection.accept_bi() => {
                    if is_draining {
                        stream.reset(StreamCode::Shutdown.into());
                        continue;
                    }
                    let (session, peers) = (Arc::clone(session), Arc::clone(&self.peers));
                    streams.push(answer_client(session, peers, lookups.clone(), self.bench, stream));
                }
                () = run(&mut listening) => {}
                () = &mut claimed, if hold_time.is_some() && !claimed.is_elapsed() => {
                    session.release_unclaimed();
                }
                never = &mut renewal => match never {},
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
        let mut draining_too = draining.clone();
        let left = async {
            // What was accepted and is not forwarded goes back to its listener. This ends when all listeners
            // are closed or left.
            while remote_connections.recv().await.is_some() {}
            let mut is_left = self.reservations.left_by(session, self.sessions_per_key);
            tokio::select! {
                _ = is_left.recv() => {}
                () = sleep(TAKE_OVER_TIMEOUT) => {}
                _ = draining_too.wait_for(|draining| *draining) => {}
            }
            self.reservations.close_left_by(session);
        };
        let held = async {
            if !session.is_resumed() {
                self.hold(session, &mut draining).await;
            }
        };
        // The connection is closed, so the streams end by themselves, except where acknowledged
        // data waits for a slow target: that is delivered as long as the target reads (`splice`), and
        // where another session has resumed them. A server that shuts down drops this task, which
        // resets them.
        let finished = async { while streams.next().await.is_some() {} };
        tokio::join!(left, held, finished);
    }

    /// Counts a session whose client is gone until its streams have finished; resets them if its key
    /// has as many of those as it may have sessions.
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
                    "reset what a client that is gone had sent: {max} others of its key still wait for \
                     their targets (max-sessions-per-key)"
                );
            }
        }
        slot
    }

    /// The client has said how many streams it resumes: it has the session's token.
    fn expect_claims(&self, session: &LiveSession, count: u32) {
        let Some(hold) = &session.hold else { return };
        self.chains.confirm(&(session.identity(), session.instance()), hold.epoch);
        if session.claims.expect(count) {
            session.release_unclaimed();
        }
    }

    /// Holds the streams of a session that has lost its connection, in its place among those of its key,
    /// until another one resumes them or the time is over.
    async fn hold(&self, session: &LiveSession, draining: &mut watch::Receiver<bool>) {
        let place = session.take_place();
        let Some(hold) = &session.hold else { return };
        // Streams that were just opened are then spliced, and held as well.
        session.settled().await;
        let client = (session.identity(), session.instance());
        let (over, is_over) = oneshot::channel();
        let listed = self.held.add(session.peer(), &hold.streams, hold.time);
        let away = AwayState { slot: place, _listed: listed, _over: over };
        let (now, held) = (Instant::now().into_std(), hold.streams.names().len());
        let lost = || self.chains.lost(&client, hold, session.is_held(), away, now);
        if let Some(until) = (held > 0).then(lost).flatten() {
            if session.may_log() {
                let seconds = until.saturating_duration_since(now).as_secs();
                info!(
                    peer = session.peer(),
                    held, seconds, "holding the connections of a lost session"
                );
            }
            await_return(until, is_over, draining).await;
        }
        self.end_held(&client, session.peer(), hold.epoch);
    }

    /// Ends a chain whose client did not return.
    fn end_held(&self, client: &ChainKey, peer: &str, epoch: u32) {
        let ended = self.chains.end(client, epoch);
        self.held.add_reset(ended);
        if ended > 0 && self.limits.log.allow(client.0, peer, Instant::now().into_std()) {
            warn!(peer, ended, "reset held connections: the client did not return");
        }
    }

    /// Goes on with a client of another process; the returned task holds its streams. `None`, which resets
    /// them, if its key is not listed any more.
    pub(super) fn adopt(self: &Arc<Self>, handed: HandedChain) -> Option<Adopted> {
        let HandedChain { record, streams: handed } = handed;
        let key = record.key.parse().ok()?;
        let (peer, identity) = self.peers.admitted(&key)?;
        let client = (identity, Instance(record.instance));
        let settings = HoldSettings { time: peer.hold.unwrap_or(self.hold.time), ..self.hold };
        let (over, is_over) = oneshot::channel();
        let now = Instant::now().into_std();
        let label = peer.label();
        let remaining = Duration::from_millis(record.remaining_millis);
        let of_chain = |streams: &HeldStreams| {
            let listed = self.held.add(&label, streams, remaining);
            AwayState { slot: self.of_key.try_take(identity, 1), _listed: listed, _over: over }
        };
        let places = &Places::new(self.forwards_max);
        let AdoptedChain { streams, counts, expires } =
            self.chains.adopt(client, &record, &settings, places, of_chain, now);
        let mut splices = JoinSet::new();
        for stream in handed {
            let holder = (&*label, Holder::Peer(identity));
            let slot = stream.name().is_of_server().then(|| places.occupy());
            splices.spawn(adopt(stream, &streams, &counts, &self.limits, holder, slot));
        }
        let this = Arc::clone(self);
        Some(Box::pin(async move {
            let mut draining = this.draining.subscribe();
            await_return(expires, is_over, &mut draining).await;
            this.end_held(&client, &label, record.epoch);
            while splices.join_next().await.is_some() {}
        }))
    }
}

/// What holds the streams of another process's client.
pub(super) type Adopted = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits until a client has returned, or nobody will resume its streams.
async fn await_return(
    until: std::time::Instant,
    is_over: oneshot::Receiver<()>,
    draining: &mut watch::Receiver<bool>,
) {
    tokio::select! {
        () = sleep_until(until.into()) => {}
        _ = is_over => {}
        _ = draining.wait_for(|draining| *draining) => {}
    }
}

/// Asks the client for new keys when its session's have served long enough, and ends the session when it has
/// had its time; not where streams would be reset. Never returns.
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

/// Polls a task that may have been dropped.
async fn run(task: &mut Option<impl Future<Output = ()> + Unpin>) {
    match task {
        Some(task) => task.await,
        None => pending().await,
    }
}

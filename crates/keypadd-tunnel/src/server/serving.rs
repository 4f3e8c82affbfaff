//! Serves one client after its handshake: exchanges hellos, then answers its streams.
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
use keypadd_transport::{Connection, ConnectionError, HeldStreams};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    addresses::forward::Listen,
    clock::monitor::{ClockMonitor, Jumps},
    forwards::{
        adopt::adopt,
        answer::{Unpermitted, answer_client},
        places::Places,
        remote_listen::RemoteListeners,
        reservations::Reservations,
    },
    handover::{HandedChain, Handover},
    limits::{
        Limits,
        descriptors::Holder,
        per_key_limit::{KeySlot, PerKeyLimit},
    },
    net::{lookup::ClientLookups, source::plain},
    permits::peers::Peers,
    server::{
        client_log::{ClientLog, LogLine},
        streams::SessionStreams,
    },
    sessions::{
        control::{Control, ControlError},
        hold::{
            HoldSettings,
            chains::{Admitted, AdoptedChain, AwayState, ChainKey, Chains},
            resume_rate::ResumeRate,
            room::Newcomer,
        },
        lifetime::{KeyLifetimes, jitter},
        proof::proof_of,
        registry::{Registration, Sessions},
        session::{FRAMES_MAX, LiveSession, NewSession},
        session_end::SessionEnd,
        status::Role,
    },
    transport::TransportSettings,
    wire::{
        CloseCode, Features, Frame, HoldRequest, HoldToken, Instance, SessionToken, StreamCode,
        VERSION,
    },
};

/// Timeout from the end of the handshake to the client's hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the listeners of a session wait for the one that goes on with it.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the clients of a server share.
#[derive(Debug)]
pub(super) struct ServerContext {
    pub(super) peers: Arc<Peers>,
    pub(super) sessions: Sessions,
    of_key: PerKeyLimit<PublicKey>,
    /// Sessions by key whose client is gone, while what it has sent is delivered.
    gone: PerKeyLimit<PublicKey>,
    /// Connections by key that have not said hello.
    without_hello: PerKeyLimit<PublicKey>,
    /// Maximum number of sessions of one key, so that no client can use up the server's.
    sessions_per_key: usize,
    pub(super) limits: Arc<Limits>,
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
    resume_rate: ResumeRate,
}

/// What a connection is for, by the client's first frame.
enum Purpose {
    Session(NewClient),
    /// Carries the bulk streams of this session, for as long as its control stream is open.
    Bulk(Arc<LiveSession>, Control),
}

/// A session ready to be served.
struct NewClient {
    registration: Registration,
    control: Control,
    outgoing: mpsc::Receiver<Box<Frame>>,
    /// Whether it goes on with another session's streams, which was alive.
    renewed: bool,
}

/// Why no session was established.
enum HelloError {
    Connection(ConnectionError),
    Control(ControlError),
}

impl From<ConnectionError> for HelloError {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<ControlError> for HelloError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
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
            of_key: PerKeyLimit::default(),
            gone: PerKeyLimit::default(),
            without_hello: PerKeyLimit::default(),
            sessions_per_key,
            limits: Arc::clone(&transport.limits),
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
            resume_rate: ResumeRate::default(),
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

    /// Exchanges hellos.
    async fn exchange_hellos(&self, connection: Connection) -> Result<Purpose, HelloError> {
        // The handshake has checked the same list, but it may have changed since.
        let proof = proof_of(&connection);
        let listed = proof.and_then(|proof| Some((self.peers.admitted(&proof.key)?, proof)));
        let Some(((peer, identity), proof)) = listed else {
            close(&connection, CloseCode::Protocol, "this key is not listed");
            return Err(ConnectionError::LocallyClosed.into());
        };
        // A session may have two connections, and all sessions of a key may come back at once.
        let without_hello = self.without_hello.acquire(identity, 2 * self.sessions_per_key);
        let Some(_without_hello) = without_hello else {
            return Err(self.refuse_session(&connection, identity, &peer.label()));
        };
        let mut control = Control::new(connection.accept_bi().await?);
        let (instance, request) = match hello(&mut control).await {
            Ok(Hello::Session(instance, request)) => (instance, request),
            Ok(Hello::Bulk(token)) => {
                let session = self.sessions.find(&identity, token);
                return match session.filter(|it| it.attach_bulk(&connection, &proof)) {
                    Some(session) => {
                        // The list may have changed since the lookup.
                        self.end_inadmissible(&session);
                        let features = Features::OWN;
                        let hello = Frame::HelloServer { version: VERSION, hold: None, features };
                        control.send(&hello).await?;
                        Ok(Purpose::Bulk(session, control))
                    }
                    None => {
                        close(&connection, CloseCode::Protocol, "no session has this token");
                        Err(ConnectionError::LocallyClosed.into())
                    }
                };
            }
            Err(error) => {
                close(&connection, CloseCode::Protocol, &error.to_string());
                return Err(error.into());
            }
        };
        if request.as_ref().is_some_and(|request| request.token.is_some()) {
            let label = peer.label();
            tokio::select! {
                () = self.await_resumption(identity, &label) => {}
                error = connection.closed() => return Err(error.into()),
            }
        }
        if self.handover.is_suspended() {
            close(&connection, CloseCode::Hold, &SessionEnd::HandedOver.to_string());
            return Err(ConnectionError::LocallyClosed.into());
        }
        let (client, max) = ((identity, instance), self.sessions_per_key);
        // A client that comes back, or that replaces a live session, needs no other place.
        let older = self.sessions.newest(&identity, instance);
        let own = self.chains.take_slot(&client);
        let own = own.or_else(|| older.as_ref().and_then(|session| session.take_place()));
        let place = own.or_else(|| self.of_key.acquire(identity, max));
        let of_away = || {
            let (peer, chains, limits) = (&peer.label(), &self.chains, &self.limits);
            Newcomer { client, peer, chains, limits }.place()
        };
        let Some(place) = place.or_else(of_away) else {
            return Err(self.refuse_session(&connection, identity, &peer.label()));
        };
        // Without randomness nothing is held.
        let new_places = Places::new(self.forwards_max);
        let admitted = HoldToken::generate().ok().and_then(|token| {
            // A session for measurements carries nothing worth holding.
            let request = request.filter(|_| !proof.handshake.measures_only());
            let settings = HoldSettings { time: peer.hold.unwrap_or(self.hold.time), ..self.hold };
            let now = Instant::now().into_std();
            self.chains.admit(client, request, &settings, token, &new_places, now)
        });
        // From here on the session is served, even if its connection is lost: the end of that ends what was
        // admitted. So nothing waits here.
        let (grant, hold, counts, places) = match admitted {
            Some(Admitted { grant, hold, counts, places }) => {
                (Some(grant), Some(hold), counts, places)
            }
            None => (None, None, Arc::default(), new_places),
        };
        if let Some(hold) = &hold {
            connection.hold(&hold.streams, hold.epoch);
        }
        let resumed = grant.as_ref().is_some_and(|grant| grant.resumed);
        let renews = older.as_deref().filter(|older| resumed && !older.has_ended());
        let (sender, outgoing) = mpsc::channel(FRAMES_MAX);
        let features = Features::OWN;
        let _ =
            sender.try_send(Frame::HelloServer { version: VERSION, hold: grant, features }.into());
        let registration = self.sessions.add(NewSession {
            label: peer.label(),
            role: Role::Server,
            instance,
            features,
            proof,
            identity,
            connection,
            outgoing: sender,
            limits: Arc::clone(&self.limits),
            forwards: &[],
            places,
            counts,
            hold,
            chains: Some(Arc::clone(&self.chains)),
            lifetimes: self.key_lifetimes.clone(),
            renews,
            place: Some(place),
            target: None,
        });
        // The list may have changed since the lookup.
        self.end_inadmissible(&registration.session);
        self.sessions.replace_by(&registration.session, resumed);
        // Without randomness there is no bulk connection: one connection carries everything.
        if let Ok(token) = SessionToken::generate() {
            let token = *registration.session.token.get_or_init(|| token);
            registration.session.try_send(Frame::BulkOffer { token });
        }
        let renewed = renews.is_some();
        Ok(Purpose::Session(NewClient { registration, control, outgoing, renewed }))
    }

    /// Refuses a connection of a key that has as many as it may.
    fn refuse_session(
        &self,
        connection: &Connection,
        identity: PublicKey,
        peer: &str,
    ) -> HelloError {
        let max = self.sessions_per_key;
        self.limits.count_refused_session();
        if self.log.allows(LogLine::KeyFull(identity)) {
            warn!(peer, max, "refused: too many sessions of this key (max-sessions-per-key)");
        }
        let noun = if max == 1 { "session" } else { "sessions" };
        let reason = format!("this key already has {max} {noun} (max-sessions-per-key)");
        close(connection, CloseCode::KeyFull, &reason);
        ConnectionError::LocallyClosed.into()
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
                    // Looked up for each stream, because permits may have changed. A session whose
                    // key is no longer listed is being closed.
                    if let Some(peer) = self.peers.find(&session.key()) {
                        let (session, lookups) = (Arc::clone(session), lookups.clone());
                        streams.push(answer_client(session, peer, lookups, self.bench, stream));
                    }
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

    /// Waits until a client of this key may resume a session: what it would resume is held meanwhile, or
    /// goes on.
    async fn await_resumption(&self, key: PublicKey, peer: &str) {
        let mut is_told = false;
        loop {
            let now = Instant::now().into_std();
            let Err(wait) = self.resume_rate.take(key, self.sessions_per_key, now) else { return };
            if !std::mem::replace(&mut is_told, true) && self.limits.log.allow(key, peer, now) {
                warn!(peer, "sessions of this key are resumed too often: this one waits");
            }
            sleep(wait).await;
        }
    }

    /// Counts a session whose client is gone until its streams have finished; resets them if its key
    /// has as many of those as it may have sessions.
    fn finish(
        &self,
        session: &LiveSession,
        streams: &mut SessionStreams<Option<Unpermitted>>,
    ) -> Option<KeySlot<PublicKey>> {
        let max = self.sessions_per_key;
        let slot = self.gone.acquire(session.identity(), max);
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
        session.connection.settled().await;
        let client = (session.identity(), session.instance());
        let (over, is_over) = oneshot::channel();
        let listed = self.limits.hold.add(session.peer(), &hold.streams, hold.time);
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
        self.limits.hold.add_reset(ended);
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
            let listed = self.limits.hold.add(&label, streams, remaining);
            AwayState {
                slot: self.of_key.acquire(identity, self.sessions_per_key),
                _listed: listed,
                _over: over,
            }
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

/// A client's first frame.
enum Hello {
    Session(Instance, Option<HoldRequest>),
    Bulk(SessionToken),
}

async fn hello(control: &mut Control) -> Result<Hello, ControlError> {
    match control.receive().await? {
        Frame::HelloClient { version: VERSION, instance, hold } => {
            Ok(Hello::Session(instance, hold))
        }
        Frame::HelloBulk { version: VERSION, token } => Ok(Hello::Bulk(token)),
        Frame::HelloClient { version, .. } | Frame::HelloBulk { version, .. } => {
            Err(ControlError::Version(version))
        }
        _ => Err(ControlError::NoHello),
    }
}

fn close(connection: &Connection, code: CloseCode, reason: &str) {
    connection.close(code.value().into(), reason.as_bytes());
}

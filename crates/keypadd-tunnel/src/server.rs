//! The listening end: lets listed clients in and connects their streams to permitted targets.
//!
//! Who is a client was settled by the handshake; what it may reach is settled here, stream by
//! stream. Everything a client can make this end do is bounded: connections, handshakes in flight,
//! streams, time to say what it wants, time to connect.

use std::{future::pending, net::SocketAddr, sync::Arc, time::Duration};

use keypadd_provider::PublicKey;
use quinn::{Connecting, Connection, ConnectionError, Endpoint, Incoming, TokioRuntime, crypto};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    admission::{Attempt, Count, Counted, Tallied, Tally, Verdict, decide},
    answer::answer_client,
    clock::{Jumps, Watchman},
    control::{Control, ControlError},
    error::{BindError, Stranger},
    forward::{Goal, Listen},
    lookup::LookupShares,
    notices::Notices,
    peer::Peers,
    permit_listen::ListenPermit,
    publish::Publisher,
    published::Published,
    session::{FRAMES_MAX, Listed, LiveSession, Lost, NewSession, Sessions, Shown, proved},
    socket::bind_udp,
    source::{Source, plain},
    splice::StreamPair,
    status::Role,
    transport::{End, TransportSettings, endpoint_config},
    wire::{CloseCode, Frame, Instance, StreamCode, VERSION},
};

/// Time from a client's first packet to its hello.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Connections at once of one key, so that no client can take every place.
const KEY_CONNECTIONS_MAX: usize = 16;

/// Time for connections to say goodbye when the server ends.
pub(crate) const GOODBYE_TIME: Duration = Duration::from_secs(3);

/// Attempts to connect that wait for the accept loop; it never makes them wait long.
const WAITING_MAX: usize = 256;

/// Bytes that may come in for one waiting attempt, and for all of them.
const WAITING_BYTES: u64 = 64 << 10;
const WAITING_BYTES_TOTAL: u64 = 4 << 20;

/// What a server is made of.
pub struct ServerSettings {
    /// UDP address to listen on; port 0 for any that is free.
    pub listen: SocketAddr,
    /// Packet protection; it must have been made with the same list of peers.
    pub crypto: Arc<dyn crypto::ServerConfig>,
    /// Who may come in and what each may reach.
    pub peers: Arc<Peers>,
    /// Windows and timers.
    pub transport: TransportSettings,
    /// Connections at once; above it new ones are refused.
    pub connections_max: usize,
}

/// A bound server.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    config: quinn::ServerConfig,
    local_addr: SocketAddr,
    connections_max: usize,
    shared: Arc<Shared>,
}

/// Changes a server while it runs. It keeps the UDP port: drop it when the server has ended.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    endpoint: Endpoint,
    config: quinn::ServerConfig,
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// The list that the server and its packet protection share.
    pub fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.shared.peers)
    }

    /// Lists these clients and no others. Sessions of a key that is not among them are closed;
    /// others are not touched, and the new permits hold from their next stream on.
    pub fn set_peers(&self, peers: Peers) {
        self.shared.peers.replace(peers);
        for session in self.shared.sessions.live() {
            self.shared.end_unlisted(&session);
        }
    }

    /// From the next handshake on, packet protection is this. It must have been made with
    /// [`peers`](Self::peers).
    pub fn set_crypto(&self, crypto: Arc<dyn crypto::ServerConfig>) {
        let mut config = self.config.clone();
        config.crypto = crypto;
        self.endpoint.set_server_config(Some(config));
    }
}

#[derive(Debug)]
struct Shared {
    peers: Arc<Peers>,
    sessions: Sessions,
    handshakes: Count,
    handshakes_of: Tally<(Source, bool)>,
    connections: Count,
    connections_of: Tally<PublicKey>,
    lookups: LookupShares,
    notices: Notices<Notice>,
    /// The server ends: sessions take no more streams and go when they have none.
    draining: watch::Sender<bool>,
    watchman: Watchman,
    published: Published,
    /// Connections at once, in each direction, of one session.
    forwards_max: usize,
}

/// Lines that others can cause, each once a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Notice {
    Stranger(Source),
    Offer(Source),
    Full(Source),
    Permit(Source),
    ListenPermit(Source),
    Crowd,
    KeyFull(PublicKey),
}

/// What is counted from an attempt's first packet to the hello.
struct InFlight {
    _all: Counted,
    _of_source: Tallied<(Source, bool)>,
}

impl Server {
    /// Binds the UDP address. Nobody is answered before [`run`](Self::run). Needs a tokio runtime.
    pub fn bind(settings: ServerSettings) -> Result<Self, BindError> {
        let failed = |source| BindError { address: format!("udp {}", settings.listen), source };
        let mut config = quinn::ServerConfig::with_crypto(settings.crypto);
        config
            .transport_config(settings.transport.quinn(End::Server))
            .max_incoming(WAITING_MAX)
            .incoming_buffer_size(WAITING_BYTES)
            .incoming_buffer_size_total(WAITING_BYTES_TOTAL)
            // A client behind a NAT may come from another port at any time.
            .migration(true);
        let socket =
            bind_udp(settings.listen, settings.transport.udp_buffer_bytes).map_err(failed)?;
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(endpoint_config(), Some(config.clone()), socket, runtime)
            .map_err(failed)?;
        let local_addr = endpoint.local_addr().map_err(failed)?;
        let shared = Shared {
            peers: settings.peers,
            sessions: Sessions::default(),
            handshakes: Count::default(),
            handshakes_of: Tally::default(),
            connections: Count::default(),
            connections_of: Tally::default(),
            lookups: LookupShares::default(),
            notices: Notices::default(),
            draining: watch::Sender::new(false),
            watchman: Watchman::new(settings.transport.clocks),
            published: Published::default(),
            forwards_max: settings.transport.forwards_max as usize,
        };
        let connections_max = settings.connections_max;
        Ok(Self { endpoint, config, local_addr, connections_max, shared: Arc::new(shared) })
    }

    /// What changes the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        let (endpoint, config) = (self.endpoint.clone(), self.config.clone());
        ServerHandle { endpoint, config, shared: Arc::clone(&self.shared) }
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The sessions that live; the list outlasts the server.
    pub fn sessions(&self) -> Sessions {
        self.shared.sessions.clone()
    }

    /// Serves until `shutdown` completes with the time that open connections may still have.
    /// Nothing new is let in then; what has not ended in that time is reset, all clients are told,
    /// and a few seconds later at most it has ended.
    pub async fn run(self, shutdown: impl Future<Output = Duration>) {
        tokio::pin!(shutdown);
        let mut connections = JoinSet::new();
        let grace = loop {
            tokio::select! {
                grace = &mut shutdown => break grace,
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.admit(incoming, &mut connections),
                    None => break Duration::ZERO,
                },
                Some(_) = connections.join_next() => {}
            }
        };
        self.shared.draining.send_replace(true);
        let drained = async {
            loop {
                tokio::select! {
                    Some(incoming) = self.endpoint.accept() => incoming.refuse(),
                    done = connections.join_next() => if done.is_none() { break },
                }
            }
        };
        if timeout(grace, drained).await.is_err() && !grace.is_zero() {
            info!("what is still open is cut off");
        }
        let code = CloseCode::Shutdown.value().into();
        self.endpoint.close(code, Lost::Ending.to_string().as_bytes());
        let goodbye = async {
            while connections.join_next().await.is_some() {}
            self.endpoint.wait_idle().await;
        };
        if timeout(GOODBYE_TIME, goodbye).await.is_err() {
            debug!("some connections did not end in time");
        }
    }

    fn admit(&self, incoming: Incoming, connections: &mut JoinSet<()>) {
        let shared = &self.shared;
        let source = Source::of(incoming.remote_address());
        let validated = incoming.remote_address_validated();
        let attempt = Attempt {
            in_flight: shared.handshakes.now(),
            of_source: shared.handshakes_of.now(&(source, validated)),
            full: shared.connections.now() >= self.connections_max,
            validated,
        };
        match decide(attempt) {
            Verdict::Accept => {
                let in_flight = InFlight {
                    _all: shared.handshakes.add(),
                    _of_source: shared.handshakes_of.add((source, validated)),
                };
                let counted = (in_flight, shared.connections.add());
                match incoming.accept() {
                    Ok(connecting) => {
                        let shared = Arc::clone(shared);
                        connections.spawn(shared.serve(connecting, counted));
                    }
                    Err(error) => debug!(%source, error = %Shown(&error), "not accepted"),
                }
            }
            // An address that has proved itself cannot be asked again, and is not (`validated`).
            Verdict::Retry => drop(incoming.retry()),
            Verdict::Refuse => {
                if shared.may_log(Notice::Full(source)) {
                    let source = plain(incoming.remote_address());
                    warn!(%source, max = self.connections_max, "refused: too many connections");
                }
                incoming.refuse();
            }
            Verdict::IgnoreSource => incoming.ignore(),
            Verdict::IgnoreAll => {
                if shared.may_log(Notice::Crowd) {
                    let in_flight = attempt.in_flight;
                    warn!(in_flight, "too many handshakes at once: new clients are not answered");
                }
                incoming.ignore();
            }
        }
    }
}

/// A session that may begin.
struct Welcomed {
    listed: Listed,
    control: Control,
    to_say: mpsc::Receiver<Frame>,
    _of_key: Tallied<PublicKey>,
}

/// What went wrong before a session began.
enum Failed {
    Connection(ConnectionError),
    Control(ControlError),
}

impl From<ConnectionError> for Failed {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<ControlError> for Failed {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl Shared {
    /// One connection from its first packet to its end.
    async fn serve(self: Arc<Self>, connecting: Connecting, counted: (InFlight, Counted)) {
        let (in_flight, _open) = counted;
        let source = plain(connecting.remote_address());
        let (mut jumps, for_session) = (self.watchman.jumps(), self.watchman.jumps());
        let welcomed = tokio::select! {
            // Whatever keys were agreed on so far go with the connection.
            _ = jumps.next() => return,
            welcomed = timeout(HANDSHAKE_TIME, self.welcome(connecting)) => welcomed,
        };
        drop(in_flight);
        match welcomed {
            Ok(Ok(Welcomed { listed, control, to_say, _of_key })) => {
                self.serve_session(listed, control, to_say, for_session).await;
            }
            Ok(Err(Failed::Connection(error))) => self.log_stranger(source, &error),
            Ok(Err(Failed::Control(error))) => debug!(%source, %error, "no session"),
            Err(_) => debug!(%source, "no session: the handshake took too long"),
        }
    }

    /// Shakes hands and exchanges hellos.
    async fn welcome(&self, connecting: Connecting) -> Result<Welcomed, Failed> {
        let connection = connecting.await?;
        // The handshake has asked the same list; this is where the permits come from.
        let proved = proved(&connection);
        let listed = proved.and_then(|proved| Some((self.peers.find(&proved.key)?, proved)));
        let Some((peer, proved)) = listed else {
            close(&connection, CloseCode::Protocol, "this key is not listed");
            return Err(ConnectionError::LocallyClosed.into());
        };
        let Some(of_key) = self.connections_of.add_below(proved.key, KEY_CONNECTIONS_MAX) else {
            if self.may_log(Notice::KeyFull(proved.key)) {
                let (peer, max) = (peer.label(), KEY_CONNECTIONS_MAX);
                warn!(peer, max, "refused: too many connections of this key");
            }
            close(&connection, CloseCode::KeyFull, "too many connections of this key");
            return Err(ConnectionError::LocallyClosed.into());
        };
        let mut control = Control::new(connection.accept_bi().await?);
        let instance = match hello(&mut control).await {
            Ok(instance) => instance,
            Err(error) => {
                close(&connection, CloseCode::Protocol, &error.to_string());
                return Err(error.into());
            }
        };
        let (frames, to_say) = mpsc::channel(FRAMES_MAX);
        let listed = self.sessions.add(NewSession {
            label: peer.label(),
            role: Role::Server,
            instance,
            proved,
            connection,
            to_say: frames,
            forwards: &[],
        });
        // The list may have changed since it was asked.
        self.end_unlisted(&listed.session);
        self.sessions.replace_by(&listed.session);
        control.say(&Frame::HelloServer { version: VERSION }).await?;
        Ok(Welcomed { listed, control, to_say, _of_key: of_key })
    }

    /// Serves streams until the session ends; then all of them end at once.
    async fn serve_session(
        &self,
        listed: Listed,
        control: Control,
        to_say: mpsc::Receiver<Frame>,
        jumps: Jumps,
    ) {
        let session = &Arc::clone(&listed.session);
        info!(peer = session.peer(), remote = %session.remote(), "session up");
        let lookups = self.lookups.of(session.key());
        let mut streams = JoinSet::new();
        let (heard, frames) = mpsc::channel(FRAMES_MAX);
        let supervisor = session.supervise(control, to_say, heard, jumps);
        let (accepted, mut incoming) = mpsc::channel(1);
        let publisher = Publisher {
            session: Arc::clone(session),
            peers: Arc::clone(&self.peers),
            lookups: lookups.clone(),
            published: self.published.clone(),
            accepted,
            slots: Arc::new(Semaphore::new(self.forwards_max.min(Semaphore::MAX_PERMITS))),
            notices: Arc::default(),
        };
        let unpermitted = |listen: &Listen| self.log_unpermitted_listen(session, listen);
        let mut publishing = Some(Box::pin(publisher.run(frames, unpermitted)));
        tokio::pin!(supervisor);
        let mut draining = self.draining.subscribe();
        let lost = loop {
            let ending = *draining.borrow_and_update();
            if ending {
                publishing = None;
            }
            if ending && streams.is_empty() {
                session.end(Lost::Ending);
            }
            tokio::select! {
                lost = &mut supervisor => break lost,
                Ok(_) = draining.changed(), if !ending => {}
                Ok(pair) = session.connection.accept_bi() => {
                    let pair = StreamPair::new(session.connection.clone(), Role::Server, pair);
                    if ending {
                        pair.reset(StreamCode::ShuttingDown);
                        continue;
                    }
                    // Asked anew for each stream: permits may have changed. A session whose key
                    // is not listed is closed, so it does not come this far.
                    if let Some(peer) = self.peers.find(&session.key()) {
                        let session = Arc::clone(session);
                        streams.spawn(answer_client(session, peer, lookups.clone(), pair));
                    }
                }
                () = run(&mut publishing) => {}
                Some(accepted) = incoming.recv() => {
                    let carrying = accepted.carry(Arc::clone(session));
                    streams.spawn(async move {
                        carrying.await;
                        None
                    });
                }
                Some(done) = streams.join_next(), if !streams.is_empty() => {
                    if let Ok(Some(goal)) = done {
                        self.log_unpermitted(session, &goal);
                    }
                }
            }
        };
        info!(peer = session.peer(), cause = %lost, "session ended");
        drop(publishing);
        // What follows is for its targets: the session is over, and the next one may take its place.
        drop(listed);
        // The connection is closed, so the streams end by themselves: at once, unless bytes that
        // were acknowledged wait for a slow target. Those are delivered for as long as the target
        // takes some (`splice`); this task dropped, by a server that ends, resets what is left.
        while streams.join_next().await.is_some() {}
    }

    fn end_unlisted(&self, session: &LiveSession) {
        if self.peers.find(&session.key()).is_none() {
            session.end(Lost::Unlisted);
        }
    }

    fn may_log(&self, notice: Notice) -> bool {
        self.notices.admit(notice, Instant::now().into_std())
    }

    fn log_stranger(&self, source: SocketAddr, error: &ConnectionError) {
        match Stranger::of(error) {
            Stranger::Key(key) => {
                if self.may_log(Notice::Stranger(Source::of(source))) {
                    warn!(%source, "key not allowed; to let it in: --allow {key}");
                }
            }
            Stranger::Offer(lists) => {
                if self.may_log(Notice::Offer(Source::of(source))) {
                    warn!(%source, "{lists}");
                }
            }
            Stranger::Other(error) => debug!(%source, error, "handshake failed"),
        }
    }

    fn log_unpermitted_listen(&self, session: &LiveSession, listen: &Listen) {
        if self.may_log(Notice::ListenPermit(Source::of(session.remote()))) {
            let (peer, permit) = (session.peer(), ListenPermit::for_listen(listen));
            warn!(peer, %listen, "not permitted; to permit it: --permit-listen {permit}");
        }
    }

    fn log_unpermitted(&self, session: &LiveSession, goal: &Goal) {
        if self.may_log(Notice::Permit(Source::of(session.remote()))) {
            let peer = session.peer();
            warn!(peer, target = %goal, "not permitted; to permit it: --permit-open {goal}");
        }
    }
}

/// Polls a task that may be over.
async fn run(task: &mut Option<impl Future<Output = ()> + Unpin>) {
    match task {
        Some(task) => task.await,
        None => pending().await,
    }
}

async fn hello(control: &mut Control) -> Result<Instance, ControlError> {
    match control.hear().await? {
        Frame::HelloClient { version: VERSION, instance } => Ok(instance),
        Frame::HelloClient { version, .. } => Err(ControlError::Version(version)),
        _ => Err(ControlError::NoHello),
    }
}

fn close(connection: &Connection, code: CloseCode, reason: &str) {
    connection.close(code.value().into(), reason.as_bytes());
}

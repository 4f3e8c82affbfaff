//! One client at the listening end, from the end of its handshake on: hellos, streams.
//!
//! Who is a client was settled by the handshake; what it may reach is settled here, stream by
//! stream. Everything that it can make this end do is bounded: its connections, its streams, the
//! time to say what it wants. Knows no endpoint and lets nobody in.

use std::{future::pending, net::SocketAddr, sync::Arc, time::Duration};

use keypadd_provider::PublicKey;
use keypadd_transport::{Connection, ConnectionError};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    clock::monitor::{Jumps, Watchman},
    error::Stranger,
    forwards::{answer::answer_client, remote_listen::Publisher, reservations::Published},
    log_rate_limit::Notices,
    net::{
        lookup::LookupShares,
        source::{Source, plain},
    },
    permits::{listen::ListenPermit, peers::Peers},
    server::per_key_limit::{Tallied, Tally},
    sessions::{
        control::{Control, ControlError},
        session::{FRAMES_MAX, Listed, LiveSession, Lost, NewSession, Sessions, proved},
        status::Role,
    },
    spec::forward::{Goal, Listen},
    transport::TransportSettings,
    wire::{CloseCode, Frame, Instance, SessionToken, StreamCode, VERSION},
};

/// Time from the end of a client's handshake to its hello.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// Connections at once of one key, so that no client can take every place.
const KEY_CONNECTIONS_MAX: usize = 16;

/// What all clients of a server share.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) peers: Arc<Peers>,
    pub(super) sessions: Sessions,
    connections_of: Tally<PublicKey>,
    lookups: LookupShares,
    notices: Notices<Notice>,
    /// The server ends: sessions take no more streams and go when they have none.
    draining: watch::Sender<bool>,
    pub(super) watchman: Watchman,
    published: Published,
    /// Connections at once, in each direction, of one session.
    forwards_max: usize,
    /// Where bench streams go.
    bench: Option<SocketAddr>,
}

/// Lines that others can cause, each once a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Notice {
    Stranger(Source),
    Offer(Source),
    Full(Source),
    Permit(Source),
    ListenPermit(Source),
    Crowd,
    KeyFull(PublicKey),
}

/// What a client's first frame makes of its connection.
enum Welcome {
    Session(Welcomed),
    /// It carries the bulk streams of this session; the control stream says so as long as it is open.
    Bulk(Arc<LiveSession>, Control),
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

impl Serving {
    pub(super) fn new(
        peers: Arc<Peers>,
        transport: &TransportSettings,
        bench: Option<SocketAddr>,
    ) -> Self {
        Self {
            peers,
            sessions: Sessions::default(),
            connections_of: Tally::default(),
            lookups: LookupShares::default(),
            notices: Notices::default(),
            draining: watch::Sender::new(false),
            watchman: Watchman::new(Arc::clone(&transport.clocks)),
            published: Published::default(),
            forwards_max: transport.forwards_max as usize,
            bench,
        }
    }

    /// From now on sessions take no more streams and go when they have none.
    pub(super) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// One connection from the end of its handshake to its own.
    pub(super) async fn serve(self: Arc<Self>, connection: Connection) {
        let source = plain(connection.remote_address());
        let (mut jumps, for_session) = (self.watchman.jumps(), self.watchman.jumps());
        let welcomed = tokio::select! {
            // Whatever keys were agreed on so far go with the connection.
            _ = jumps.next() => return,
            welcomed = timeout(HELLO_TIME, self.welcome(connection)) => welcomed,
        };
        match welcomed {
            Ok(Ok(Welcome::Session(Welcomed { listed, control, to_say, _of_key }))) => {
                self.serve_session(listed, control, to_say, for_session).await;
            }
            Ok(Ok(Welcome::Bulk(session, _control))) => session.supervise_bulk().await,
            Ok(Err(Failed::Connection(error))) => self.log_stranger(source, &error),
            Ok(Err(Failed::Control(error))) => debug!(%source, %error, "no session"),
            Err(_) => debug!(%source, "no session: the client did not say hello in time"),
        }
    }

    /// Exchanges hellos.
    async fn welcome(&self, connection: Connection) -> Result<Welcome, Failed> {
        // The handshake has asked the same list; this is where the permits come from.
        let proved = proved(&connection);
        let listed = proved.and_then(|proved| Some((self.peers.find(&proved.key)?, proved)));
        let Some((peer, proved)) = listed else {
            close(&connection, CloseCode::Protocol, "this key is not listed");
            return Err(ConnectionError::LocallyClosed.into());
        };
        let mut control = Control::new(connection.accept_bi().await?);
        let instance = match hello(&mut control).await {
            Ok(Hello::Session(instance)) => instance,
            Ok(Hello::Bulk(token)) => {
                let session = self.sessions.find(&proved.key, token);
                return match session.filter(|it| it.attach_bulk(&connection, &proved)) {
                    Some(session) => {
                        control.say(&Frame::HelloServer { version: VERSION }).await?;
                        Ok(Welcome::Bulk(session, control))
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
        let Some(of_key) = self.connections_of.add_below(proved.key, KEY_CONNECTIONS_MAX) else {
            if self.may_log(Notice::KeyFull(proved.key)) {
                let (peer, max) = (peer.label(), KEY_CONNECTIONS_MAX);
                warn!(peer, max, "refused: too many connections of this key");
            }
            close(&connection, CloseCode::KeyFull, "too many connections of this key");
            return Err(ConnectionError::LocallyClosed.into());
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
        // Without randomness there is no bulk connection, and one connection carries all.
        if let Ok(token) = SessionToken::draw() {
            let token = *listed.session.token.get_or_init(|| token);
            control.say(&Frame::BulkOffer { token }).await?;
        }
        Ok(Welcome::Session(Welcomed { listed, control, to_say, _of_key: of_key }))
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
                Ok(stream) = session.connection.accept_bi() => {
                    if ending {
                        stream.reset(StreamCode::ShuttingDown.into());
                        continue;
                    }
                    // Asked anew for each stream: permits may have changed. A session whose key
                    // is not listed is closed, so it does not come this far.
                    if let Some(peer) = self.peers.find(&session.key()) {
                        let (session, lookups) = (Arc::clone(session), lookups.clone());
                        streams.spawn(answer_client(session, peer, lookups, self.bench, stream));
                    }
                }
                () = run(&mut publishing) => {}
                () = session.connection.bulk_wanted() => session.say_if_room(Frame::BulkWanted),
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

    /// Ends a session whose key is not listed any more.
    pub(super) fn end_unlisted(&self, session: &LiveSession) {
        if self.peers.find(&session.key()).is_none() {
            session.end(Lost::Unlisted);
        }
    }

    /// Whether a line may be logged again.
    pub(super) fn may_log(&self, notice: Notice) -> bool {
        self.notices.admit(notice, Instant::now().into_std())
    }

    pub(super) fn log_stranger(&self, source: SocketAddr, error: &ConnectionError) {
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

/// A client's first frame.
enum Hello {
    Session(Instance),
    Bulk(SessionToken),
}

async fn hello(control: &mut Control) -> Result<Hello, ControlError> {
    match control.hear().await? {
        Frame::HelloClient { version: VERSION, instance } => Ok(Hello::Session(instance)),
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

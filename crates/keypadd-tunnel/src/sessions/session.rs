//! A session: one authenticated connection past its hellos, what watches over it, and the list of
//! all that live.
//!
//! The same on both ends. Keys are known only as the handle that says when they must not be used any
//! more; the session closes the connection then.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

use keypadd_provider::{ConnectionKeys, HandshakeData, KeyFault, PublicKey};
use keypadd_transport::{Connection, ConnectionError, VarInt};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::{
    clock::{jump::Jump, monitor::Jumps},
    net::source::plain,
    sessions::{
        control::{Control, ControlError},
        key_renewal::renew,
        remote_forwards::Remotes,
        status::{ForwardStatus, Role, SessionStatus, unix_seconds},
    },
    wire::{CloseCode, Frame, Instance, ListenCode, SessionToken},
};

/// Frames that wait to be said, or to be taken in, at once.
pub(crate) const FRAMES_MAX: usize = 16;

/// Why a session ended.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Lost {
    /// The connection failed, or the peer closed it.
    #[error("{}", Shown(.0))]
    Connection(ConnectionError),
    /// Its keys must not be used any more.
    #[error(transparent)]
    Key(KeyFault),
    /// The peer broke the control protocol.
    #[error(transparent)]
    Control(ControlError),
    /// Time has jumped at this end.
    #[error("{0}")]
    Clock(Jump),
    /// The same run of the client has another session now.
    #[error("replaced by a newer session of the same client")]
    Replaced,
    /// The client's key has left the list.
    #[error("the key is no longer listed")]
    Unlisted,
    /// The server ends.
    #[error("the server is shutting down")]
    Ending,
}

impl Lost {
    /// What the peer is told, where this end is who ends it.
    fn code(&self) -> CloseCode {
        match self {
            // Nobody hears of a jump: the socket is silent.
            Self::Connection(_) | Self::Ending | Self::Clock(_) => CloseCode::Shutdown,
            Self::Key(_) => CloseCode::KeyFault,
            Self::Control(_) => CloseCode::Protocol,
            Self::Replaced => CloseCode::Replaced,
            Self::Unlisted => CloseCode::Unlisted,
        }
    }
}

/// A connection's end in one line; what the peer wrote is stripped of control characters.
pub(crate) struct Shown<'a>(pub(crate) &'a ConnectionError);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
                write!(f, "closed by peer: {}", printable(&String::from_utf8_lossy(&close.reason)))
            }
            ConnectionError::TimedOut => f.write_str("no answer"),
            error => f.write_str(&printable(&error.to_string())),
        }
    }
}

/// Text of the peer's, fit for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What the handshake has proved.
pub(crate) struct Proved {
    pub(crate) key: PublicKey,
    pub(crate) handshake: HandshakeData,
}

/// The peer's key and what was agreed on; `None` where packet protection is not ours.
pub(crate) fn proved(connection: &Connection) -> Option<Arc<Proved>> {
    connection.proof()
}

/// Updates a connection's keys when they are due; completes when they must not be used any more.
async fn watch_keys(connection: &Connection, proved: &Proved) -> KeyFault {
    let keys = &proved.handshake.keys;
    let renewal = keys.renewal(keys.age_max(), Instant::now());
    tokio::select! {
        biased;
        fault = keys.fault() => fault,
        fault = renew(connection, renewal) => fault,
    }
}

/// A session while it lives.
pub struct LiveSession {
    pub(crate) id: u64,
    label: String,
    proved: Arc<Proved>,
    role: Role,
    instance: Instance,
    since: SystemTime,
    pub(crate) connection: Connection,
    /// Carries bulk streams, once there are any.
    bulk: OnceLock<Bulk>,
    /// What ties a bulk connection to this session: drawn by the server, known to the client.
    pub(crate) token: OnceLock<SessionToken>,
    /// Frames for the control stream.
    to_say: mpsc::Sender<Frame>,
    /// What a client has asked its server to listen for.
    pub(crate) remotes: Remotes,
    fault: OnceLock<Lost>,
    forwards: Mutex<BTreeMap<String, Forwarded>>,
}

/// The connection that carries a session's bulk streams.
struct Bulk {
    connection: Connection,
    proved: Arc<Proved>,
}

/// The connections of one forward.
#[derive(Clone, Copy, Debug, Default)]
struct Forwarded {
    open: u64,
    /// Listed also while there is none. A server's targets are the client's words: idle ones are
    /// forgotten. Where it listens for the client is listed for as long as it does.
    standing: bool,
}

impl fmt::Debug for LiveSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSession").field("id", &self.id).field("label", &self.label).finish()
    }
}

impl LiveSession {
    /// What the handshake agreed on, with the handle of the connection's keys for their figures.
    pub fn handshake(&self) -> &HandshakeData {
        &self.proved.handshake
    }

    /// Whether this end opens and takes bench streams and nothing else: suite or key exchange are for
    /// measurements alone.
    pub(crate) fn measures_only(&self) -> bool {
        self.proved.handshake.measures_only()
    }

    /// The peer's name, or its key's first characters.
    pub fn peer(&self) -> &str {
        &self.label
    }

    /// The peer's public key.
    pub fn key(&self) -> PublicKey {
        self.proved.key
    }

    /// The run of the client that this session belongs to.
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Where the peer is now.
    pub fn remote(&self) -> SocketAddr {
        plain(self.connection.remote_address())
    }

    /// The session's figures now.
    pub fn status(&self) -> SessionStatus {
        let mut stats = self.connection.stats();
        if let Some(bulk) = self.bulk.get() {
            let more = bulk.connection.stats();
            // A path that has shrunk is found out by the connection that sends long packets on it.
            stats.path.current_mtu = stats.path.current_mtu.min(more.path.current_mtu);
            stats.path.sent_packets += more.path.sent_packets;
            stats.path.lost_packets += more.path.lost_packets;
            stats.udp_rx.datagrams += more.udp_rx.datagrams;
            stats.udp_rx.bytes += more.udp_rx.bytes;
            stats.udp_tx.bytes += more.udp_tx.bytes;
        }
        let refused = self.remotes.refused();
        let forwards = locked(&self.forwards);
        SessionStatus {
            id: self.id,
            peer: self.label.clone(),
            public_key: self.proved.key.to_string(),
            role: self.role,
            remote: self.remote(),
            suite: self.proved.handshake.suite.to_string(),
            kex: self.proved.handshake.kex.to_string(),
            since_unix_seconds: unix_seconds(self.since),
            rtt_seconds: stats.path.rtt.as_secs_f64(),
            mtu_bytes: stats.path.current_mtu,
            sent_packets: stats.path.sent_packets,
            received_datagrams: stats.udp_rx.datagrams,
            lost_packets: stats.path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            forwards: forwards
                .iter()
                .map(|(forward, of)| ForwardStatus {
                    forward: forward.clone(),
                    open: of.open,
                    cause: refused.get(forward).map(ToString::to_string),
                })
                .collect(),
        }
    }

    /// Completes when the session has ended, with the reason.
    pub(crate) async fn lost(&self) -> Lost {
        let error = self.connection.closed().await;
        self.fault.get().cloned().unwrap_or(Lost::Connection(error))
    }

    /// Ends the session, unless it has ended already; the peer is told why.
    pub(crate) fn end(&self, cause: Lost) {
        let cause = self.fault.get_or_init(|| cause);
        self.close(cause.code(), &cause.to_string());
    }

    /// Closes the connections, for a reason that the peer is told.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        let code = VarInt::from_u32(code.value());
        self.connection.close(code, reason.as_bytes());
        if let Some(bulk) = self.bulk.get() {
            bulk.connection.close(code, reason.as_bytes());
        }
    }

    /// The keys of its connections.
    pub fn keys(&self) -> impl Iterator<Item = &ConnectionKeys> {
        let bulk = self.bulk.get().map(|bulk| &bulk.proved.handshake.keys);
        [&self.proved.handshake.keys].into_iter().chain(bulk)
    }

    /// Has this connection carry the bulk streams of the session. False, where there is one already
    /// or it agreed on other packet protection.
    pub(crate) fn attach_bulk(&self, connection: &Connection, proved: &Arc<Proved>) -> bool {
        let (ours, theirs) = (&self.proved, proved);
        let same = ours.key == theirs.key
            && ours.handshake.suite == theirs.handshake.suite
            && ours.handshake.kex == theirs.handshake.kex;
        let bulk = Bulk { connection: connection.clone(), proved: Arc::clone(proved) };
        let attached = same && self.bulk.set(bulk).is_ok();
        if attached {
            self.connection.attach_bulk(connection);
            if self.has_ended() {
                self.close(CloseCode::Shutdown, "the session has ended");
            }
        }
        attached
    }

    /// Watches over the bulk connection until it or the session ends; each ends the other.
    pub(crate) async fn supervise_bulk(&self) {
        let Some(Bulk { connection, proved }) = self.bulk.get() else { return };
        tokio::select! {
            biased;
            fault = watch_keys(connection, proved) => self.end(Lost::Key(fault)),
            _ = self.connection.closed() => {}
            error = connection.closed() => self.end(Lost::Connection(error)),
        }
        let (code, reason) = match self.fault.get() {
            Some(cause) => (cause.code(), cause.to_string()),
            None => (CloseCode::Shutdown, String::new()),
        };
        connection.close(VarInt::from_u32(code.value()), reason.as_bytes());
    }

    /// Says something on the control stream; waits while much is to be said already.
    pub(crate) async fn say(&self, frame: Frame) {
        // Nobody says it any more where the session has ended.
        let _ = self.to_say.send(frame).await;
    }

    /// Asks the server for what a frame of its client's remote forwards says; where nothing may be
    /// asked for, the answer comes from here.
    pub(crate) async fn ask(&self, frame: Frame) {
        match frame {
            Frame::Listen { id, .. } if self.measures_only() => {
                self.remotes.heard(id, Err(ListenCode::NotPermitted));
            }
            frame => self.say(frame).await,
        }
    }

    /// Says something on the control stream, unless much is to be said already.
    pub(crate) fn say_if_room(&self, frame: Frame) {
        let _ = self.to_say.try_send(frame);
    }

    /// Watches over the connection until it ends: a key that must not be used any more, a clock that
    /// jumps, or a broken control stream, closes it. Streams notice by themselves when it is closed.
    ///
    /// What is heard on the control stream goes to `heard`.
    pub(crate) async fn supervise(
        &self,
        control: Control,
        to_say: mpsc::Receiver<Frame>,
        heard: mpsc::Sender<Frame>,
        mut jumps: Jumps,
    ) -> Lost {
        tokio::select! {
            biased;
            fault = watch_keys(&self.connection, &self.proved) => self.end(Lost::Key(fault)),
            jump = jumps.next() => self.end(Lost::Clock(jump)),
            _ = self.connection.closed() => {}
            error = control.serve(to_say, heard) => if self.connection.close_reason().is_none() {
                self.end(Lost::Control(error));
            },
        }
        self.lost().await
    }

    /// Makes these the forwards that are listed also while they are idle.
    pub(crate) fn list_forwards(&self, names: &[String]) {
        let mut forwards = locked(&self.forwards);
        for (name, of) in forwards.iter_mut() {
            of.standing = names.contains(name);
        }
        forwards.retain(|_, of| of.standing || of.open > 0);
        for name in names {
            forwards.entry(name.clone()).or_default().standing = true;
        }
    }

    /// Lists `forward` also while it is idle, for as long as the guard lives.
    pub(crate) fn forward_stands(self: &Arc<Self>, forward: &str) -> StandingForward {
        locked(&self.forwards).entry(forward.into()).or_default().standing = true;
        StandingForward { session: Arc::clone(self), forward: forward.into() }
    }

    /// Counts a connection of `forward` for as long as the guard lives.
    pub(crate) fn forward_opened(self: &Arc<Self>, forward: &str) -> OpenForward {
        locked(&self.forwards).entry(forward.into()).or_default().open += 1;
        OpenForward { session: Arc::clone(self), forward: forward.into() }
    }
}

/// A forward that is listed also while it is idle.
pub(crate) struct StandingForward {
    session: Arc<LiveSession>,
    forward: String,
}

impl Drop for StandingForward {
    fn drop(&mut self) {
        let mut forwards = locked(&self.session.forwards);
        if let Some(of) = forwards.get_mut(&self.forward) {
            of.standing = false;
            if of.open == 0 {
                forwards.remove(&self.forward);
            }
        }
    }
}

/// A connection of a forward, counted.
pub(crate) struct OpenForward {
    session: Arc<LiveSession>,
    forward: String,
}

impl Drop for OpenForward {
    fn drop(&mut self) {
        let mut forwards = locked(&self.session.forwards);
        if let Some(of) = forwards.get_mut(&self.forward) {
            of.open -= 1;
            if of.open == 0 && !of.standing {
                forwards.remove(&self.forward);
            }
        }
    }
}

/// All sessions that live; clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Registry>);

#[derive(Debug, Default)]
struct Registry(Mutex<List>);

/// Over all lists of the process: a daemon that listens and dials has several, and its figures tell
/// sessions apart by their ids.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
struct List {
    live: BTreeMap<u64, Arc<LiveSession>>,
}

/// What a session is known by from its start.
pub(crate) struct NewSession<'a> {
    pub(crate) label: String,
    pub(crate) role: Role,
    pub(crate) instance: Instance,
    pub(crate) proved: Arc<Proved>,
    pub(crate) connection: Connection,
    /// Where its frames for the control stream go.
    pub(crate) to_say: mpsc::Sender<Frame>,
    /// Forwards that are listed also while they are idle.
    pub(crate) forwards: &'a [String],
}

impl Sessions {
    /// The sessions that live now, oldest first.
    pub fn live(&self) -> Vec<Arc<LiveSession>> {
        locked(&self.0.0).live.values().cloned().collect()
    }

    /// Their figures now.
    pub fn status(&self) -> Vec<SessionStatus> {
        self.live().iter().map(|session| session.status()).collect()
    }

    /// The session of a client's key that has this token.
    pub(crate) fn find(&self, key: &PublicKey, token: SessionToken) -> Option<Arc<LiveSession>> {
        let known = |session: &LiveSession| session.token.get() == Some(&token);
        self.live().into_iter().find(|session| session.proved.key == *key && known(session))
    }

    /// Ends the sessions that this one takes the place of: older ones of the same run of the client.
    pub(crate) fn replace_by(&self, newest: &LiveSession) {
        for old in self.live() {
            let same = old.proved.key == newest.proved.key && old.instance == newest.instance;
            if same && old.id < newest.id {
                old.end(Lost::Replaced);
            }
        }
    }

    /// Lists a session for as long as the guard lives.
    pub(crate) fn add(&self, new: NewSession<'_>) -> Listed {
        let mut list = locked(&self.0.0);
        // Drawn under the lock, so that a list's ids are in the order of its sessions.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(LiveSession {
            id,
            label: new.label,
            proved: new.proved,
            role: new.role,
            instance: new.instance,
            since: SystemTime::now(),
            connection: new.connection,
            bulk: OnceLock::new(),
            token: OnceLock::new(),
            to_say: new.to_say,
            remotes: Remotes::default(),
            fault: OnceLock::new(),
            forwards: Mutex::default(),
        });
        session.list_forwards(new.forwards);
        list.live.insert(id, Arc::clone(&session));
        drop(list);
        Listed { sessions: self.clone(), session }
    }
}

/// A session in the list; dropped, it leaves the list.
#[derive(Debug)]
pub(crate) struct Listed {
    sessions: Sessions,
    pub(crate) session: Arc<LiveSession>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        locked(&self.sessions.0.0).live.remove(&self.session.id);
    }
}

/// These mutexes guard plain counts, which no panic can leave half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    time::SystemTime,
};

use keypadd_provider::{HandshakeData, KeyFault, PublicKey};
use quinn::{Connection, ConnectionError, VarInt};
use thiserror::Error;

use crate::{
    control::{Control, ControlError},
    source::plain,
    status::{ForwardStatus, Role, SessionStatus, unix_seconds},
    wire::{CloseCode, Instance},
};

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
pub(crate) fn proved(connection: &Connection) -> Option<Proved> {
    let key = *connection.peer_identity()?.downcast::<PublicKey>().ok()?;
    let handshake = *connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    Some(Proved { key, handshake })
}

/// A session while it lives.
pub struct LiveSession {
    id: u64,
    label: String,
    key: PublicKey,
    role: Role,
    instance: Instance,
    since: SystemTime,
    handshake: HandshakeData,
    pub(crate) connection: Connection,
    fault: OnceLock<Lost>,
    forwards: Mutex<BTreeMap<String, Forwarded>>,
}

/// The connections of one forward.
#[derive(Clone, Copy, Debug, Default)]
struct Forwarded {
    open: u64,
    /// Listed also while there is none. A server's targets are the client's words: idle ones are
    /// forgotten.
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
        &self.handshake
    }

    /// The peer's name, or its key's first characters.
    pub fn peer(&self) -> &str {
        &self.label
    }

    /// The run of the client that this session belongs to.
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// Where the peer is now.
    pub fn remote(&self) -> SocketAddr {
        plain(self.connection.remote_address())
    }

    /// The session's figures now.
    pub fn status(&self) -> SessionStatus {
        let stats = self.connection.stats();
        let forwards = locked(&self.forwards);
        SessionStatus {
            id: self.id,
            peer: self.label.clone(),
            public_key: self.key.to_string(),
            role: self.role,
            remote: self.remote(),
            suite: self.handshake.suite.to_string(),
            kex: self.handshake.kex.to_string(),
            since_unix_seconds: unix_seconds(self.since),
            rtt_seconds: stats.path.rtt.as_secs_f64(),
            mtu_bytes: stats.path.current_mtu,
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            forwards: forwards
                .iter()
                .map(|(forward, of)| ForwardStatus { forward: forward.clone(), open: of.open })
                .collect(),
        }
    }

    /// Completes when the session has ended, with the reason.
    pub(crate) async fn lost(&self) -> Lost {
        let error = self.connection.closed().await;
        self.fault.get().cloned().unwrap_or(Lost::Connection(error))
    }

    /// Closes the connection, for a reason that the peer is told.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        self.connection.close(VarInt::from_u32(code.value()), reason.as_bytes());
    }

    /// Watches over the connection until it ends: a key that must not be used any more, or a broken
    /// control stream, closes it. Streams notice by themselves when it is closed.
    pub(crate) async fn supervise(&self, mut control: Control) -> Lost {
        let keys = &self.handshake.keys;
        let (code, fault) = tokio::select! {
            biased;
            fault = keys.fault() => (CloseCode::KeyFault, Lost::Key(fault)),
            error = self.connection.closed() => return Lost::Connection(error),
            error = control.drain() => match self.connection.close_reason() {
                Some(error) => return Lost::Connection(error),
                None => (CloseCode::Protocol, Lost::Control(error)),
            },
        };
        let fault = self.fault.get_or_init(|| fault).clone();
        self.close(code, &fault.to_string());
        fault
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

    /// Counts a TCP connection of `forward` for as long as the guard lives.
    pub(crate) fn forward_opened(self: &Arc<Self>, forward: &str) -> OpenForward {
        locked(&self.forwards).entry(forward.into()).or_default().open += 1;
        OpenForward { session: Arc::clone(self), forward: forward.into() }
    }
}

/// A TCP connection of a forward, counted.
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
struct Registry {
    next_id: AtomicU64,
    live: Mutex<BTreeMap<u64, Arc<LiveSession>>>,
}

/// What a session is known by from its start.
pub(crate) struct NewSession<'a> {
    pub(crate) label: String,
    pub(crate) role: Role,
    pub(crate) instance: Instance,
    pub(crate) proved: Proved,
    pub(crate) connection: Connection,
    /// Forwards that are listed also while they are idle.
    pub(crate) forwards: &'a [String],
}

impl Sessions {
    /// The sessions that live now, oldest first.
    pub fn live(&self) -> Vec<Arc<LiveSession>> {
        locked(&self.0.live).values().cloned().collect()
    }

    /// Their figures now.
    pub fn status(&self) -> Vec<SessionStatus> {
        self.live().iter().map(|session| session.status()).collect()
    }

    /// Lists a session for as long as the guard lives.
    pub(crate) fn add(&self, new: NewSession<'_>) -> Listed {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(LiveSession {
            id,
            label: new.label,
            key: new.proved.key,
            role: new.role,
            instance: new.instance,
            since: SystemTime::now(),
            handshake: new.proved.handshake,
            connection: new.connection,
            fault: OnceLock::new(),
            forwards: Mutex::default(),
        });
        session.list_forwards(new.forwards);
        locked(&self.0.live).insert(id, Arc::clone(&session));
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
        locked(&self.sessions.0.live).remove(&self.session.id);
    }
}

/// These mutexes guard plain counts, which no panic can leave half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

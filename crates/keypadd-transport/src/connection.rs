//! Handles of connections for control tasks.
//!
//! Everything but the figures is a message to the connection's loop; figures are published by the
//! loop whenever it has worked on the connection.

use std::{
    any::Any,
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use quinn_proto::{ConnectError, ConnectionError, ConnectionStats, VarInt};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::{
    mailbox::{Command, ConnectionCommand, Key, Mailbox},
    migrate::{Migration, Sibling},
    stream::Stream,
};

/// What a handshake has proved, as the endpoint's `Inspect` took it out.
pub(crate) type Proof = Arc<dyn Any + Send + Sync>;

/// What a loop and the handles of one connection share.
pub(crate) struct Shared {
    pub(crate) key: Key,
    pub(crate) mailbox: Mailbox,
    closed: watch::Sender<Option<ConnectionError>>,
    bulk_wanted: Notify,
    live: Mutex<Live>,
}

/// Figures of a connection.
struct Live {
    remote: SocketAddr,
    stats: ConnectionStats,
}

impl Shared {
    pub(crate) fn new(key: Key, mailbox: Mailbox, remote: SocketAddr) -> Self {
        let live = Mutex::new(Live { remote, stats: ConnectionStats::default() });
        let (closed, bulk_wanted) = (watch::Sender::new(None), Notify::new());
        Self { key, mailbox, closed, bulk_wanted, live }
    }

    pub(crate) fn command(&self, command: ConnectionCommand) {
        self.mailbox.send(Command::Connection(self.key, command));
    }

    /// Notes why the connection ended. The first reason stands.
    pub(crate) fn close(&self, error: ConnectionError) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                *closed = Some(error);
            }
            first
        });
    }

    /// A stream has become bulk and there is no bulk connection.
    pub(crate) fn want_bulk(&self) {
        self.bulk_wanted.notify_one();
    }

    pub(crate) fn sibling(&self) -> Sibling {
        Sibling { mailbox: self.mailbox.clone(), key: self.key }
    }

    pub(crate) fn close_reason(&self) -> Option<ConnectionError> {
        self.closed.borrow().clone()
    }

    pub(crate) fn publish(&self, remote: SocketAddr, stats: ConnectionStats) {
        *self.live() = Live { remote, stats };
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.live().remote
    }

    /// Plain figures, which no panic leaves half changed.
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("key", &self.key).finish_non_exhaustive()
    }
}

/// An established connection; clones are one. When the last is dropped the connection is closed.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    proof: Option<Proof>,
    streams: tokio::sync::Mutex<mpsc::UnboundedReceiver<Stream>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        close(&self.shared, VarInt::from_u32(0), Bytes::new());
    }
}

fn close(shared: &Shared, code: VarInt, reason: Bytes) {
    if shared.close_reason().is_none() {
        shared.close(ConnectionError::LocallyClosed);
        shared.command(ConnectionCommand::Close { code, reason });
    }
}

/// What a loop makes handles from once the handshake is complete.
pub(crate) struct Established {
    pub(crate) shared: Arc<Shared>,
    pub(crate) proof: Option<Proof>,
    pub(crate) streams: mpsc::UnboundedReceiver<Stream>,
}

impl Connection {
    pub(crate) fn new(established: Established) -> Self {
        let Established { shared, proof, streams } = established;
        Self(Arc::new(Handle { shared, proof, streams: tokio::sync::Mutex::new(streams) }))
    }

    /// What the handshake has proved, where the endpoint's `Inspect` found a `T`.
    pub fn proof<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.proof.as_ref()?).downcast().ok()
    }

    /// Opens a bidirectional stream; waits while the peer allows no more.
    ///
    /// # Errors
    /// Why the connection ended, if it ended first.
    pub async fn open_bi(&self) -> Result<Stream, ConnectionError> {
        let (reply, opened) = oneshot::channel();
        self.0.shared.command(ConnectionCommand::Open(reply));
        tokio::select! {
            Ok(stream) = opened => Ok(stream),
            error = self.closed() => Err(error),
        }
    }

    /// The next stream that the peer opens.
    ///
    /// # Errors
    /// Why the connection ended, if it ended first.
    pub async fn accept_bi(&self) -> Result<Stream, ConnectionError> {
        let mut streams = self.0.streams.lock().await;
        tokio::select! {
            biased;
            Some(stream) = streams.recv() => Ok(stream),
            error = self.closed() => Err(error),
        }
    }

    /// Completes when the connection has ended, with the reason.
    pub async fn closed(&self) -> ConnectionError {
        let mut closed = self.0.shared.closed.subscribe();
        loop {
            if let Some(error) = closed.borrow_and_update().clone() {
                return error;
            }
            if closed.changed().await.is_err() {
                // The sender lives in `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Why the connection ended, if it has ended.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.0.shared.close_reason()
    }

    /// Closes the connection and tells the peer. The first reason stands.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        close(&self.0.shared, code, Bytes::copy_from_slice(reason));
    }

    /// Completes when a stream carries bulk data and there is no connection for that yet.
    pub async fn bulk_wanted(&self) {
        self.0.shared.bulk_wanted.notified().await;
    }

    /// Has `bulk`, another connection to the same peer, carry the bulk streams of this one. The peer
    /// must do the same with its ends.
    pub fn attach_bulk(&self, bulk: &Self) {
        let (here, there) = (&self.0.shared, &bulk.0.shared);
        let attach =
            |sibling, bulk| ConnectionCommand::Migration(Migration::Attach { sibling, bulk });
        there.command(attach(here.sibling(), true));
        here.command(attach(there.sibling(), false));
    }

    /// Replaces the keys of both directions at the next packet (RFC 9001 6).
    pub fn force_key_update(&self) {
        self.0.shared.command(ConnectionCommand::UpdateKeys);
    }

    /// Where the peer is now.
    pub fn remote_address(&self) -> SocketAddr {
        self.0.shared.remote()
    }

    /// Figures as of the last time the loop worked on the connection.
    pub fn stats(&self) -> ConnectionStats {
        self.0.shared.live().stats
    }
}

/// How far an attempt to connect has come.
pub(crate) struct Opened {
    pub(crate) attempt: Attempt,
    pub(crate) established: oneshot::Receiver<Result<Established, ConnectionError>>,
}

/// An attempt that is closed when it is dropped before it has become a connection.
pub(crate) struct Attempt(pub(crate) Option<Arc<Shared>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            close(&shared, VarInt::from_u32(0), Bytes::new());
        }
    }
}

/// A handshake under way; dropped, it is given up.
pub struct Connecting(State);

enum State {
    Asked(oneshot::Receiver<Result<Opened, ConnectError>>),
    Opened(Opened),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectingError {
    /// It was not tried: the address or the configuration makes no sense.
    #[error(transparent)]
    NotTried(#[from] ConnectError),
    /// The handshake failed.
    #[error(transparent)]
    Failed(#[from] ConnectionError),
}

impl Connecting {
    pub(crate) fn new(asked: oneshot::Receiver<Result<Opened, ConnectError>>) -> Self {
        Self(State::Asked(asked))
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectingError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                State::Asked(asked) => match ready!(Pin::new(asked).poll(cx)) {
                    Ok(opened) => self.0 = State::Opened(opened?),
                    // The loop has ended.
                    Err(_) => return Poll::Ready(Err(ConnectionError::LocallyClosed.into())),
                },
                State::Opened(opened) => {
                    let established = ready!(Pin::new(&mut opened.established).poll(cx));
                    let established = established.unwrap_or(Err(ConnectionError::LocallyClosed));
                    opened.attempt.0 = None;
                    return Poll::Ready(Ok(established.map(Connection::new)?));
                }
            }
        }
    }
}

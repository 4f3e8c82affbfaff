//! Queues messages to an event loop, and wakes it once, however many are waiting.
//!
//! Carries messages and publishes statistics; the loop alone acts on them.

use std::{
    fmt,
    net::SocketAddr,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use quinn_proto::{ConnectError, ConnectionError, ConnectionStats, ServerConfig, StreamId, VarInt};
use quinn_udp::RecvMeta;
use tokio::sync::{Notify, oneshot, watch};

use crate::{
    announcement::Continuation,
    dial::{ConnectingError, Dial},
    flows::handles::{FlowCommand, FlowCommands},
    handed_controller::HandedController,
    held::HeldStreams,
    queue_state::QueueState,
    rate_cap::RateCap,
    settings::Proof,
    socket::Socket,
    splice::{Key, SpliceConnection},
    stream::{Stream, StreamCommand, StreamCommands},
    to_socket::ToSocket,
    to_stream::ToStream,
};

/// Datagrams that may wait for a loop; further ones are dropped, as by a full socket buffer.
const DATAGRAMS_MAX: usize = 4_096;

/// A request to an event loop.
pub(crate) enum Command {
    Connect {
        dial: Box<Dial>,
        reply: oneshot::Sender<Result<Opened, ConnectError>>,
    },
    SetServerConfig(Arc<ServerConfig>),
    /// Refuse new clients.
    Refuse,
    /// Whether another process that shares the socket reads incoming datagrams.
    Suspend(bool),
    CloseAll {
        code: VarInt,
        reason: Bytes,
    },
    /// End the loop.
    Stop,
    /// Datagrams that arrived at another loop's socket.
    Datagram {
        received_at: Instant,
        bytes: BytesMut,
        meta: RecvMeta,
    },
    Connection(Key, ConnectionCommand),
}

/// A request to a connection.
pub(crate) enum ConnectionCommand {
    Open(oneshot::Sender<Stream>),
    Close {
        code: VarInt,
        reason: Bytes,
    },
    /// Reply once the peer has acknowledged what was sent before.
    Acknowledge(oneshot::Sender<()>),
    UpdateKeys,
    /// Let this other connection to the same peer carry bulk streams, and tell it.
    AttachBulk(Sibling),
    /// Send no more than this to the peer.
    Cap(RateCap),
    /// Hold streams spliced from now on when the connection is lost.
    Hold {
        streams: HeldStreams,
        epoch: u32,
    },
    Stream(StreamId, StreamCommand),
    Flow(FlowCommand),
    /// From the sibling connection's loop.
    Migration(Migration),
}

impl ConnectionCommand {
    /// Ends what a command carries if its connection is gone. Replies are dropped, and a stream to
    /// be resumed is held as before.
    pub(crate) fn abandon(self) {
        if let Self::Migration(message) = self {
            message.abandon();
        }
    }
}

/// The sibling connection's address for messages.
#[derive(Clone, Debug)]
pub(crate) struct Sibling {
    pub(crate) mailbox: Mailbox,
    pub(crate) key: Key,
}

impl Sibling {
    pub(crate) fn send(&self, command: Migration) {
        self.mailbox.send(Command::Connection(self.key, ConnectionCommand::Migration(command)));
    }
}

/// Messages between the loops of a session's two connections.
pub(crate) enum Migration {
    /// The receiver carries the bulk streams of this connection. `keeps`: how many bytes of a
    /// stream there is memory for, if that is little.
    Attach { sparse: Sibling, keeps: Option<NonZeroU64> },
    /// Continue this direction, which stream `origin` of the sibling has carried up to `offset`.
    Adopt(Box<MigratingDirection>),
    /// The peer has followed: send all.
    Proceed { origin: StreamId },
    /// The peer continues stream `origin` from `offset` on in the sibling's stream `at`.
    Continue { origin: StreamId, continuation: Continuation },
    /// Everything before stream `at` has been delivered.
    Arrive { at: StreamId, to_socket: Box<ToSocket>, socket: Socket },
    /// Stream `at` has nothing to continue.
    Refuse { at: StreamId },
    /// A splice was cut whose other direction may be here.
    Sweep,
}

/// A direction between two connections.
pub(crate) struct MigratingDirection {
    pub(crate) to_stream: ToStream,
    pub(crate) origin: StreamId,
    pub(crate) offset: u64,
    /// Comes with the first direction.
    pub(crate) controller: Option<HandedController>,
}

impl Migration {
    /// Ends what a message carries if its connection is gone.
    pub(crate) fn abandon(self) {
        match self {
            Self::Adopt(moving) => moving.to_stream.park(),
            Self::Arrive { to_socket, .. } => to_socket.park(),
            Self::Attach { .. }
            | Self::Proceed { .. }
            | Self::Continue { .. }
            | Self::Refuse { .. }
            | Self::Sweep => {}
        }
    }
}

/// State that a loop and the handles of one connection share.
pub(crate) struct ConnectionShared {
    pub(crate) key: Key,
    pub(crate) mailbox: Mailbox,
    closed: watch::Sender<Option<ConnectionError>>,
    bulk_wanted: Notify,
    live: Mutex<LiveStats>,
}

/// Statistics of a connection.
struct LiveStats {
    remote: SocketAddr,
    stats: ConnectionStats,
    acks: u64,
}

impl ConnectionShared {
    pub(crate) fn new(key: Key, mailbox: Mailbox, remote: SocketAddr) -> Self {
        let live = Mutex::new(LiveStats { remote, stats: ConnectionStats::default(), acks: 0 });
        let (closed, bulk_wanted) = (watch::Sender::new(None), Notify::new());
        Self { key, mailbox, closed, bulk_wanted, live }
    }

    pub(crate) fn command(&self, command: ConnectionCommand) {
        self.mailbox.send(Command::Connection(self.key, command));
    }

    /// Records why the connection ended. Only the first reason counts.
    pub(crate) fn ended(&self, error: ConnectionError) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                *closed = Some(error);
            }
            first
        });
    }

    /// Closes the connection and tells the peer, unless it has ended.
    pub(crate) fn close(&self, code: VarInt, reason: Bytes) {
        if self.close_reason().is_none() {
            // Queued first: a task that sees the end drops its streams, and the peer would
            // otherwise get their resets instead of the reason.
            self.command(ConnectionCommand::Close { code, reason });
            self.ended(ConnectionError::LocallyClosed);
        }
    }

    /// There is no bulk connection, and a stream has become bulk, or may soon on a long path.
    pub(crate) fn want_bulk(&self) {
        self.bulk_wanted.notify_one();
    }

    pub(crate) fn sibling(&self) -> Sibling {
        Sibling { mailbox: self.mailbox.clone(), key: self.key }
    }

    /// Completes when [`Self::want_bulk`] is called.
    pub(crate) async fn bulk_wanted(&self) {
        self.bulk_wanted.notified().await;
    }

    /// Watches for the reason of the connection's end.
    pub(crate) fn watch_end(&self) -> watch::Receiver<Option<ConnectionError>> {
        self.closed.subscribe()
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        self.live().stats
    }

    pub(crate) fn close_reason(&self) -> Option<ConnectionError> {
        self.closed.borrow().clone()
    }

    pub(crate) fn publish(&self, remote: SocketAddr, stats: ConnectionStats, acks: u64) {
        *self.live() = LiveStats { remote, stats, acks };
    }

    pub(crate) fn acks(&self) -> u64 {
        self.live().acks
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.live().remote
    }

    /// Plain numbers, which no panic leaves half changed.
    fn live(&self) -> MutexGuard<'_, LiveStats> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpliceConnection for ConnectionShared {
    fn reset(&self, id: StreamId, code: VarInt) {
        self.send(id, StreamCommand::Reset(code));
    }
}

impl StreamCommands for ConnectionShared {
    fn send(&self, id: StreamId, command: StreamCommand) {
        self.command(ConnectionCommand::Stream(id, command));
    }
}

impl FlowCommands for ConnectionShared {
    fn send_flow(&self, command: FlowCommand) {
        self.command(ConnectionCommand::Flow(command));
    }
}

impl fmt::Debug for ConnectionShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What handles are made from once the handshake is complete.
pub(crate) struct Established {
    pub(crate) shared: Arc<ConnectionShared>,
    pub(crate) proof: Option<Proof>,
    pub(crate) streams: tokio::sync::mpsc::UnboundedReceiver<Box<Stream>>,
    /// Whether the peer accepts DATAGRAM frames (RFC 9221 3).
    pub(crate) carries_datagrams: bool,
}

/// The progress of an attempt to connect.
pub(crate) struct Opened {
    pub(crate) attempt: PendingConnection,
    pub(crate) established: oneshot::Receiver<Result<Established, ConnectingError>>,
}

/// An attempt that is closed if dropped before it has become a connection.
pub(crate) struct PendingConnection(pub(crate) Option<Arc<ConnectionShared>>);

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.close(VarInt::from_u32(0), Bytes::new());
        }
    }
}

/// Sends commands to a loop. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox(Arc<MailboxState>);

#[derive(Debug)]
struct MailboxState {
    commands: mpsc::Sender<Command>,
    waker: mio::Waker,
    queue: QueueState,
}

/// The loop's end.
pub(crate) struct Inbox {
    commands: mpsc::Receiver<Command>,
    mailbox: Mailbox,
}

impl Mailbox {
    pub(crate) fn new(waker: mio::Waker) -> (Self, Inbox) {
        let (sender, commands) = mpsc::channel();
        let queue = QueueState::new(DATAGRAMS_MAX);
        let mailbox = Self(Arc::new(MailboxState { commands: sender, waker, queue }));
        (mailbox.clone(), Inbox { commands, mailbox })
    }

    /// Sends a command. If the loop has ended, the command and its replies are dropped.
    pub(crate) fn send(&self, command: Command) {
        if self.0.commands.send(command).is_ok() && self.0.queue.must_wake() {
            // Fails only if the loop has just ended.
            let _ = self.0.waker.wake();
        }
    }

    /// Passes a datagram to the loop of its connection; drops it and returns false if too many
    /// wait.
    pub(crate) fn hand_over(&self, received_at: Instant, bytes: BytesMut, meta: RecvMeta) -> bool {
        let has_place = self.0.queue.reserve_place();
        if has_place {
            self.send(Command::Datagram { received_at, bytes, meta });
        }
        has_place
    }
}

impl Inbox {
    /// Takes all waiting commands; from now on senders wake the loop again.
    pub(crate) fn take(&self) -> impl Iterator<Item = Command> + '_ {
        self.mailbox.0.queue.begin_read();
        self.commands.try_iter().inspect(|command| {
            if let Command::Datagram { .. } = command {
                self.mailbox.0.queue.release_place();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use mio::{Poll, Token};

    use super::*;

    #[test]
    fn datagrams_that_no_loop_takes_are_bounded() {
        let poll = Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), Token(0)).unwrap();
        let (mailbox, inbox) = Mailbox::new(waker);
        for (sent, taken) in [(DATAGRAMS_MAX + 1_000, DATAGRAMS_MAX), (3, 3)] {
            for _ in 0..sent {
                mailbox.hand_over(Instant::now(), BytesMut::new(), RecvMeta::default());
            }
            assert_eq!(inbox.take().count(), taken);
        }
    }
}

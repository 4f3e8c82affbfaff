//! Messages from control tasks to a loop. Sending wakes the loop once, however many are waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use quinn_proto::{ClientConfig, ConnectError, ServerConfig, StreamId, VarInt};
use quinn_udp::RecvMeta;
use tokio::sync::oneshot;

use crate::{
    cid::Lane,
    connection::Opened,
    migrate::Migration,
    socket::Socket,
    splice::{Cut, Delivery},
    stream::{Stream, WriteError},
};

/// Datagrams from other loops that wait for a loop at most; more are lost, as where a socket's buffer is full.
const DATAGRAMS_MAX: usize = 4_096;

/// One connection for as long as its loop lives; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// `quinn-proto`'s handle, which is used again.
    pub(crate) handle: usize,
    pub(crate) serial: u64,
}

/// What a loop is asked to do.
pub(crate) enum Command {
    Connect {
        config: Box<ClientConfig>,
        address: std::net::SocketAddr,
        server_name: String,
        lane: Lane,
        reply: oneshot::Sender<Result<Opened, ConnectError>>,
    },
    SetServerConfig(Arc<ServerConfig>),
    /// Refuse whoever comes from now on.
    Refuse,
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

/// What a connection is asked to do.
pub(crate) enum ConnectionCommand {
    Open(oneshot::Sender<Stream>),
    Close {
        code: VarInt,
        reason: Bytes,
    },
    UpdateKeys,
    Stream(StreamId, StreamCommand),
    /// From the sibling connection's loop.
    Migration(Migration),
}

impl ConnectionCommand {
    /// Ends what a command carries that finds its connection gone. Replies are dropped.
    pub(crate) fn abandon(self) {
        if let Self::Migration(message) = self {
            message.abandon();
        }
    }
}

/// What a stream is asked to do.
pub(crate) enum StreamCommand {
    Write {
        bytes: Bytes,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    /// Its reader has taken what was there.
    Resume,
    Splice {
        socket: Socket,
        delivery: Delivery,
        reply: oneshot::Sender<Result<(), Cut>>,
    },
    /// Give both directions up.
    Reset(VarInt),
}

/// Where commands for a loop go; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    commands: mpsc::Sender<Command>,
    waker: mio::Waker,
    /// Whether the loop has been woken and has not looked yet.
    woken: AtomicBool,
    /// Datagrams that wait.
    datagrams: AtomicUsize,
}

/// The loop's end.
pub(crate) struct Inbox {
    commands: mpsc::Receiver<Command>,
    mailbox: Mailbox,
}

impl Mailbox {
    pub(crate) fn new(waker: mio::Waker) -> (Self, Inbox) {
        let (sender, commands) = mpsc::channel();
        let woken = AtomicBool::new(false);
        let shared = Shared { commands: sender, waker, woken, datagrams: AtomicUsize::new(0) };
        let mailbox = Self(Arc::new(shared));
        (mailbox.clone(), Inbox { commands, mailbox })
    }

    /// Sends; where the loop has ended nothing happens, and replies are dropped.
    pub(crate) fn send(&self, command: Command) {
        if self.0.commands.send(command).is_ok() && !self.0.woken.swap(true, SeqCst) {
            // It fails where the loop has just ended.
            let _ = self.0.waker.wake();
        }
    }

    /// Hands a datagram over to the loop of its connection, or drops it where too many wait.
    pub(crate) fn hand_over(&self, received_at: Instant, bytes: BytesMut, meta: RecvMeta) {
        if self.0.datagrams.fetch_add(1, SeqCst) < DATAGRAMS_MAX {
            self.send(Command::Datagram { received_at, bytes, meta });
        } else {
            self.0.datagrams.fetch_sub(1, SeqCst);
        }
    }
}

impl Inbox {
    /// What waits now; senders wake the loop again from now on.
    pub(crate) fn take(&self) -> impl Iterator<Item = Command> + '_ {
        self.mailbox.0.woken.store(false, SeqCst);
        self.commands.try_iter().inspect(|command| {
            if let Command::Datagram { .. } = command {
                self.mailbox.0.datagrams.fetch_sub(1, SeqCst);
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

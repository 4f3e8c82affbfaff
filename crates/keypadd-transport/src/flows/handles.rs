//! Lets control tasks start a connection's flows and learn how they ended.
//!
//! Datagrams never pass through here: they go between QUIC packets and sockets in the loop.

use std::{
    any::Any,
    fmt,
    future::Future,
    io,
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use quinn_proto::StreamId;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::{
    network::NetworkSide,
    readers::{Paused, Reader},
};
use crate::transfer_stats::TransferStats;

/// Sources of a listener that may wait for a control task; datagrams of further ones are dropped.
const SOURCES_WAITING_MAX: usize = 64;

/// Why a flow has ended here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlowEnd {
    /// Nothing was carried for the idle time.
    #[error("idle")]
    Idle,
    /// Another flow needed its place, and it was idle for longest.
    #[error("displaced by a newer flow")]
    Displaced,
    /// The socket cannot be used.
    #[error(transparent)]
    Local(#[from] io::Error),
    /// The connection is gone, or the listener.
    #[error("connection lost")]
    Lost,
}

/// Dropped by the event loop after it has closed a listening socket.
pub type SocketLease = Arc<dyn Any + Send + Sync>;

/// A request about flows.
pub(crate) enum FlowCommand {
    Listen(NewListener),
    Unlisten {
        listener: u64,
    },
    Carry(StreamId, Box<NewFlow>),
    End(StreamId),
    /// Send the packets of this network from now on, in place of other connections; this pause is
    /// over then.
    AskToSend(StreamId, Option<Paused>),
    /// This network may read its device, or has something to send now, or no more.
    Read(StreamId),
    /// Make room: end the listeners' flow that was idle for longest, if it was for this time.
    Displace {
        idle: Duration,
    },
    /// Nobody wants this source: forget it, or drop its datagrams for a while.
    Refuse {
        source: SourceName,
        mute: bool,
    },
}

/// Sends commands about flows to a connection's loop.
pub(crate) trait FlowCommands: fmt::Debug + Send + Sync {
    fn send_flow(&self, command: FlowCommand);
}

/// A listening socket to separate by source.
pub(crate) struct NewListener {
    pub(crate) listener: u64,
    pub(crate) socket: UdpSocket,
    pub(crate) lease: SocketLease,
    /// Receives sources that have no flow.
    pub(crate) incoming: mpsc::Sender<Source>,
    pub(crate) sources_max: usize,
}

/// A flow to carry.
pub(crate) struct NewFlow {
    pub(crate) end: FlowSide,
    pub(crate) carried: Arc<TransferStats>,
    pub(crate) ended: oneshot::Sender<FlowEnd>,
}

/// Where the datagrams of a flow come from and go to.
pub(crate) enum FlowSide {
    Connected(UdpSocket),
    Source(SourceName),
    Network(NetworkSide),
}

/// A source of a listener. The number distinguishes it from an earlier one with the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceName {
    pub(crate) listener: u64,
    pub(crate) from: SocketAddr,
    pub(crate) number: u64,
}

/// Receives the sources of a listening socket. Dropping it ends their flows.
#[derive(Debug)]
pub struct FlowListener {
    sources: mpsc::Receiver<Source>,
    connection: Arc<dyn FlowCommands>,
    listener: u64,
}

impl FlowListener {
    pub(crate) fn new(
        connection: Arc<dyn FlowCommands>,
        socket: UdpSocket,
        lease: SocketLease,
        sources_max: usize,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let listener = NEXT.fetch_add(1, Relaxed);
        let (incoming, sources) = mpsc::channel(SOURCES_WAITING_MAX);
        let new = NewListener { listener, socket, lease, incoming, sources_max };
        connection.send_flow(FlowCommand::Listen(new));
        Self { sources, connection, listener }
    }

    /// The next source that has sent something and has no flow; `None` once the connection is gone,
    /// or if the socket cannot be used.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Source>> {
        self.sources.poll_recv(cx)
    }
}

impl Drop for FlowListener {
    fn drop(&mut self) {
        let unlisten = FlowCommand::Unlisten { listener: self.listener };
        self.connection.send_flow(unlisten);
    }
}

/// An address that has sent something to a listener. Its first few datagrams wait; dropping this
/// drops them.
#[derive(Debug)]
pub struct Source {
    name: SourceName,
    connection: Arc<dyn FlowCommands>,
    is_carried: bool,
}

impl Source {
    pub(crate) fn new(name: SourceName, connection: &Arc<dyn FlowCommands>) -> Self {
        Self { name, connection: Arc::clone(connection), is_carried: false }
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.name.from
    }

    pub(crate) fn carried_over(mut self, id: StreamId) -> Flow {
        self.is_carried = true;
        let connection = Arc::clone(&self.connection);
        Flow::new(connection, id, FlowSide::Source(self.name), Some(self.name))
    }

    fn refuse(&self, mute: bool) {
        let refuse = FlowCommand::Refuse { source: self.name, mute };
        self.connection.send_flow(refuse);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if !self.is_carried {
            self.refuse(false);
        }
    }
}

/// A network as one of the flows that may read its device, or send its packets.
#[derive(Debug)]
pub(super) struct NetworkReader {
    pub(super) connection: Arc<dyn FlowCommands>,
    pub(super) id: StreamId,
}

impl Reader for NetworkReader {
    fn read(&self) {
        self.connection.send_flow(FlowCommand::Read(self.id));
    }
}

/// A flow; completes when it has ended here. Dropping it ends it.
#[derive(Debug)]
pub struct Flow {
    connection: Arc<dyn FlowCommands>,
    id: StreamId,
    source: Option<SourceName>,
    carried: Arc<TransferStats>,
    ended: oneshot::Receiver<FlowEnd>,
}

impl Flow {
    pub(crate) fn new(
        connection: Arc<dyn FlowCommands>,
        id: StreamId,
        end: FlowSide,
        source: Option<SourceName>,
    ) -> Self {
        let (sender, ended) = oneshot::channel();
        let carried = match &end {
            FlowSide::Connected(_) | FlowSide::Source(_) => Arc::new(TransferStats::for_flow()),
            FlowSide::Network(side) => side.device.carried(),
        };
        let new = Box::new(NewFlow { end, carried: Arc::clone(&carried), ended: sender });
        connection.send_flow(FlowCommand::Carry(id, new));
        Self { connection, id, source, carried, ended }
    }

    /// What it has carried; stays readable after its end.
    pub fn carried(&self) -> Arc<TransferStats> {
        Arc::clone(&self.carried)
    }

    /// Sends the packets of its network from now on, as its role says: connections that have the
    /// role already only write to the device. `paused` is over then.
    pub fn send_packets(&self, paused: Option<Paused>) {
        self.connection.send_flow(FlowCommand::AskToSend(self.id, paused));
    }

    /// Ends it because the peer has refused it, and drops its source's datagrams for a while.
    pub fn refused(self) {
        if let Some(source) = self.source {
            let refuse = FlowCommand::Refuse { source, mute: true };
            self.connection.send_flow(refuse);
        }
    }
}

impl Future for Flow {
    type Output = FlowEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<FlowEnd> {
        Pin::new(&mut self.ended).poll(cx).map(|ended| ended.unwrap_or(FlowEnd::Lost))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.connection.send_flow(FlowCommand::End(self.id));
    }
}

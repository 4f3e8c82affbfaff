//! Controls an established connection from control tasks.
//!
//! Commands are messages to the connection's event loop. Statistics need none: the loop publishes
//! them each time it has driven the connection.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quinn_proto::{ConnectionError, ConnectionStats, VarInt};
use tokio::sync::{mpsc, oneshot};

use crate::{
    flows::{
        handles::{Flow, FlowCommand, FlowCommands, FlowListener, FlowSide, SocketLease, Source},
        network::{NetworkSide, PacketDevice},
        readers::PacketRole,
    },
    held::HeldStreams,
    mailbox::{ConnectionCommand, ConnectionShared, Established},
    rate_cap::RateCap,
    settings::Proof,
    stream::Stream,
};

/// An established connection. Clones share it; dropping the last one closes it.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<ConnectionShared>,
    proof: Option<Proof>,
    streams: tokio::sync::Mutex<mpsc::UnboundedReceiver<Box<Stream>>>,
    carries_datagrams: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close(VarInt::from_u32(0), Bytes::new());
    }
}

impl Connection {
    pub(crate) fn new(established: Established) -> Self {
        let Established { shared, proof, streams, carries_datagrams } = established;
        let streams = tokio::sync::Mutex::new(streams);
        Self(Arc::new(Handle { shared, proof, streams, carries_datagrams }))
    }

    /// What the handshake has proved, if the endpoint's `Inspect` returned a `T`.
    pub fn proof<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.proof.as_ref()?).downcast().ok()
    }

    /// Opens a bidirectional stream; waits while the peer's limit is reached.
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

    /// Waits until the connection has ended and its loop has done what it was told before.
    pub async fn settled(&self) {
        self.closed().await;
        let (reply, done) = oneshot::channel();
        self.0.shared.command(ConnectionCommand::Open(reply));
        // Dropped without a stream.
        let _ = done.await;
    }

    /// Waits until the peer has acknowledged what was sent before, or the connection has ended.
    pub async fn acknowledged(&self) {
        let (reply, acknowledged) = oneshot::channel();
        self.0.shared.command(ConnectionCommand::Acknowledge(reply));
        tokio::select! {
            // Without an answer, the connection is over.
            _ = acknowledged => {}
            _ = self.closed() => {}
        }
    }

    /// Waits for the next stream that the peer opens.
    ///
    /// # Errors
    /// Why the connection ended, if it ended first.
    pub async fn accept_bi(&self) -> Result<Stream, ConnectionError> {
        let mut streams = self.0.streams.lock().await;
        tokio::select! {
            biased;
            Some(stream) = streams.recv() => Ok(*stream),
            error = self.closed() => Err(error),
        }
    }

    /// Waits until the connection has ended; returns the reason.
    pub async fn closed(&self) -> ConnectionError {
        let mut closed = self.0.shared.watch_end();
        loop {
            if let Some(error) = closed.borrow_and_update().clone() {
                return error;
            }
            if closed.changed().await.is_err() {
                // Never happens: `self` owns the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Why the connection ended, if it has.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.0.shared.close_reason()
    }

    /// Closes the connection and tells the peer. Only the first reason counts.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.0.shared.close(code, Bytes::copy_from_slice(reason));
    }

    /// Completes when there is no bulk connection, and a stream becomes bulk, or may soon on a long
    /// path.
    pub async fn bulk_wanted(&self) {
        self.0.shared.bulk_wanted().await;
    }

    /// Lets `bulk`, another connection to the same peer, carry the bulk streams of this one. The
    /// peer must do the same with its ends of both.
    pub fn attach_bulk(&self, bulk: &Self) {
        self.0.shared.command(ConnectionCommand::AttachBulk(bulk.0.shared.sibling()));
    }

    /// Holds streams spliced from now on when the connection is lost, under names with this epoch.
    /// The peer must do the same.
    pub fn hold(&self, streams: &HeldStreams, epoch: u32) {
        let streams = streams.clone();
        self.0.shared.command(ConnectionCommand::Hold { streams, epoch });
    }

    /// Sends no more than this to the peer, over all connections that share the cap.
    pub fn cap(&self, cap: RateCap) {
        self.0.shared.command(ConnectionCommand::Cap(cap));
    }

    /// Whether the peer accepts datagrams (RFC 9221). If not, there are no flows.
    pub fn carries_datagrams(&self) -> bool {
        self.0.carries_datagrams
    }

    /// Receives datagrams from a listening socket and separates them by source: at most
    /// `sources_max`; beyond that, a new source displaces the one whose flow was idle longest. The
    /// loop drops `lease` once it has closed the socket, which is later than the [`FlowListener`]
    /// is dropped.
    pub fn listen(
        &self,
        socket: UdpSocket,
        lease: SocketLease,
        sources_max: usize,
    ) -> FlowListener {
        FlowListener::new(self.0.shared.clone(), socket, lease, sources_max)
    }

    /// Carries the datagrams of a connected socket as the flow of `stream`, which the caller keeps:
    /// the flow ends with it.
    pub fn carry(&self, stream: &Stream, socket: UdpSocket) -> Flow {
        Flow::new(self.0.shared.clone(), stream.id(), FlowSide::Connected(socket), None)
    }

    /// Carries the datagrams of a source of a listener of this connection as the flow of `stream`,
    /// which the caller keeps; they include what the source has sent so far.
    pub fn carry_source(&self, stream: &Stream, source: Source) -> Flow {
        source.carried_over(stream.id())
    }

    /// Carries the packets of the peer to a device as the flow of `stream`, which the caller keeps:
    /// the flow ends with it. Those of the device, too, from [`Flow::send_packets`] on, as this
    /// role among the connections of the session says.
    pub fn carry_packets(
        &self,
        stream: &Stream,
        device: PacketDevice,
        session: u64,
        role: PacketRole,
    ) -> Flow {
        let side = FlowSide::Network(NetworkSide { device, session, role });
        Flow::new(self.0.shared.clone(), stream.id(), side, None)
    }

    /// Ends the flow idle for longest among this connection's listeners, to make room, if it was
    /// idle for this time.
    pub fn displace_flow(&self, idle: Duration) {
        self.0.shared.send_flow(FlowCommand::Displace { idle });
    }

    /// Updates the keys of both directions with the next packet (RFC 9001 6).
    pub fn force_key_update(&self) {
        self.0.shared.command(ConnectionCommand::UpdateKeys);
    }

    /// The peer's current address.
    pub fn remote_address(&self) -> SocketAddr {
        self.0.shared.remote()
    }

    /// How often the peer has acknowledged something new, as of then: what shows that the path
    /// carries both ways.
    pub fn acks(&self) -> u64 {
        self.0.shared.acks()
    }

    /// Statistics as of the last time the loop drove the connection.
    pub fn stats(&self) -> ConnectionStats {
        self.0.shared.stats()
    }
}

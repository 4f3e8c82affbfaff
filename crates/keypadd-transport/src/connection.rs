//! Controls an established connection from control tasks.
//!
//! Commands are messages to the connection's event loop. Statistics are read without one: the loop publishes
//! them whenever it has worked on the connection.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use quinn_proto::{ConnectionError, ConnectionStats, VarInt};
use tokio::sync::{mpsc, oneshot};

use crate::{
    held::HeldStreams,
    mailbox::{ConnectionCommand, ConnectionShared, Established, Migration},
    settings::Proof,
    stream::Stream,
};

/// An established connection; clones are one. When the last is dropped the connection is closed.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<ConnectionShared>,
    proof: Option<Proof>,
    streams: tokio::sync::Mutex<mpsc::UnboundedReceiver<Stream>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close(VarInt::from_u32(0), Bytes::new());
    }
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
        let mut closed = self.0.shared.watch_end();
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
        self.0.shared.close(code, Bytes::copy_from_slice(reason));
    }

    /// Completes when a stream carries bulk data and there is no connection for that yet.
    pub async fn bulk_wanted(&self) {
        self.0.shared.bulk_wanted().await;
    }

    /// Has `bulk`, another connection to the same peer, carry the bulk streams of this one. The peer
    /// must do the same with its ends.
    pub fn attach_bulk(&self, bulk: &Self) {
        let attach = Migration::Attach { sibling: bulk.0.shared.sibling(), bulk: false };
        self.0.shared.command(ConnectionCommand::Migration(attach));
    }

    /// Has the streams that are spliced from now on held when the connection is lost, under names with
    /// this number. The peer must do the same.
    pub fn hold(&self, streams: &HeldStreams, epoch: u32) {
        let streams = streams.clone();
        self.0.shared.command(ConnectionCommand::Hold { streams, epoch });
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
        self.0.shared.stats()
    }
}

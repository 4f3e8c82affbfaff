//! Gives control tasks a stream to read and write, until it is spliced to a socket.
//!
//! What the peer sends before that is buffered up to `RECEIVED_BYTES`; the rest stays in the
//! stream's flow-control window, so an unread stream costs a bounded amount of memory.

mod buffer;
mod command;

use std::{
    any::Any,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use quinn_proto::{ConnectionError, StreamId, VarInt};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::oneshot,
};

pub(crate) use self::{
    buffer::StreamBuffer,
    command::{ResumeRequest, SpliceRequest, StreamCommand, StreamCommands},
};
use crate::{
    handed::HandedStream,
    held::{HeldStream, HeldStreams},
    replay::Receipt,
    socket::Socket,
    splice::{Cut, Delivery, Label, SpliceConnection, SpliceState},
    transfer_stats::TransferStats,
};

/// Why a stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The peer reset the stream, with this code.
    #[error("stream reset by peer: error {0}")]
    Reset(VarInt),
    /// The connection is gone.
    #[error("connection lost: {0}")]
    Lost(ConnectionError),
}

/// Why a stream cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The peer stopped reading, with this code.
    #[error("sending stopped by peer: error {0}")]
    Stopped(VarInt),
    /// The connection is gone, or the stream was reset here.
    #[error("connection lost")]
    Lost,
}

/// What ended the sending half while nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The peer stopped reading, with this code.
    ByPeer(VarInt),
    /// The connection is gone.
    Lost,
}

/// Shared by both halves of one stream; dropping the last one resets the stream.
#[derive(Debug)]
struct Core {
    connection: Arc<dyn StreamCommands>,
    id: StreamId,
    received: Arc<StreamBuffer>,
    /// The code of that reset.
    code: AtomicU64,
    /// The loop has the stream: there is nothing to reset.
    spliced: AtomicBool,
}

impl Core {
    fn command(&self, command: StreamCommand) {
        self.connection.send(self.id, command);
    }

    fn code(&self) -> VarInt {
        VarInt::from_u64(self.code.load(Relaxed)).unwrap_or_default()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.spliced.load(Relaxed) {
            self.command(StreamCommand::Reset(self.code()));
        }
    }
}

/// A bidirectional stream. Dropping it resets both directions: cut-off data never looks complete.
#[derive(Debug)]
pub struct Stream {
    /// The sending half.
    pub send: SendHalf,
    /// The receiving half.
    pub recv: RecvHalf,
    /// Dropped when it is spliced.
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct SendHalf(Arc<Core>);

/// The receiving half of a stream.
#[derive(Debug)]
pub struct RecvHalf(Arc<Core>);

impl Stream {
    pub(crate) fn new(
        connection: Arc<dyn StreamCommands>,
        id: StreamId,
        received: Arc<StreamBuffer>,
        drop_code: VarInt,
    ) -> Self {
        let code = AtomicU64::new(drop_code.into_inner());
        let spliced = AtomicBool::new(false);
        let core = Arc::new(Core { connection, id, received, code, spliced });
        Self { send: SendHalf(Arc::clone(&core)), recv: RecvHalf(core), _kept: None }
    }

    /// Keeps `guard` until the loop has been told to splice the stream, or the stream is dropped.
    pub fn keep_until_spliced(&mut self, guard: impl Any + Send + Sync) {
        self._kept = Some(Box::new(guard));
    }

    pub(crate) fn id(&self) -> StreamId {
        self.send.0.id
    }

    /// Resets both directions with this code.
    pub fn reset(self, code: VarInt) {
        self.send.0.code.store(code.into_inner(), Relaxed);
    }

    /// Gives the stream and a socket to the loop, which carries every byte between them. `label` is
    /// for [another process](crate::HandedStream) that continues it.
    pub fn splice(self, socket: Socket, delivery: Delivery, label: Label) -> Splice {
        self.splice_to(Bytes::new(), Bytes::new(), socket, delivery, label)
    }

    /// Splices the stream and a socket as [`Stream::splice`] does, and lets the peer's socket get
    /// `preface` before this socket's bytes. Nothing else may have been written to the stream for
    /// the peer's socket.
    pub fn splice_with_preface(
        self,
        preface: Vec<u8>,
        socket: Socket,
        delivery: Delivery,
        label: Label,
    ) -> Splice {
        self.splice_to(Bytes::new(), preface.into(), socket, delivery, label)
    }

    /// Splices the stream and a socket as [`Stream::splice`] does, and sends `first` before the
    /// socket's bytes. A peer that has `first` knows that the stream is spliced here, and will be
    /// held if the connection is lost.
    pub fn splice_after(
        self,
        first: &'static [u8],
        socket: Socket,
        delivery: Delivery,
        label: Label,
    ) -> Splice {
        self.splice_to(Bytes::from_static(first), Bytes::new(), socket, delivery, label)
    }

    fn splice_to(
        mut self,
        first: Bytes,
        preface: Bytes,
        socket: Socket,
        delivery: Delivery,
        label: Label,
    ) -> Splice {
        let core = &self.send.0;
        let (reply, outcome) = oneshot::channel();
        let carrier: Arc<dyn SpliceConnection> = Arc::<dyn StreamCommands>::clone(&core.connection);
        let state = SpliceState::new(delivery, label, reply, (carrier, core.id));
        let guard = Some(AbandonGuard { state: Arc::downgrade(&state), code: core.code() });
        let carried = Arc::clone(&state.carried);
        core.command(StreamCommand::Splice(SpliceRequest { first, preface, socket, state }));
        core.spliced.store(true, Relaxed);
        self._kept = None;
        Splice { outcome, carried, _guard: guard, _stream: Some(self) }
    }

    /// Continues a held stream, of which the peer has written this much to its socket. Completes
    /// when this connection no longer carries it; whoever spliced it first waits for its end.
    pub async fn resume(self, held: HeldStream, receipt: Receipt) {
        let core = &self.send.0;
        let (attached, detached) = oneshot::channel();
        core.command(StreamCommand::Resume(ResumeRequest { held, receipt, attached }));
        core.spliced.store(true, Relaxed);
        // The sender is dropped without a message.
        let _ = detached.await;
    }
}

/// Completes when both directions have finished and the peer has acknowledged every byte, or with
/// the reason why they were cut short; the socket is then reset.
///
/// If dropped before that, it resets both: cut-off data never looks complete.
#[derive(Debug)]
pub struct Splice {
    outcome: oneshot::Receiver<Result<(), Cut>>,
    carried: Arc<TransferStats>,
    // Dropped before the stream, which resets what is not spliced.
    _guard: Option<AbandonGuard>,
    _stream: Option<Stream>,
}

impl Splice {
    /// Holds a stream from another process in this one. If dropped, it resets both directions with
    /// `code`.
    pub fn adopt(handed: HandedStream, streams: &HeldStreams, code: VarInt) -> Self {
        let (reply, outcome) = oneshot::channel();
        let state = streams.adopt(handed, reply);
        let carried = state.as_ref().map(|state| Arc::clone(&state.carried)).unwrap_or_default();
        let _guard = state.map(|state| AbandonGuard { state: Arc::downgrade(&state), code });
        Self { outcome, carried, _guard, _stream: None }
    }

    /// What it has carried; stays readable after its end.
    pub fn carried(&self) -> Arc<TransferStats> {
        Arc::clone(&self.carried)
    }
}

impl Future for Splice {
    type Output = Result<(), Cut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(cx).map(|outcome| outcome.unwrap_or(Err(Cut::Lost)))
    }
}

/// If dropped, resets a splice that has not ended: nobody waits for its outcome any more.
#[derive(Debug)]
struct AbandonGuard {
    /// Whoever has the splice drops the sender if it cannot report the outcome.
    state: Weak<SpliceState>,
    code: VarInt,
}

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            state.abandon(self.code);
        }
    }
}

impl SendHalf {
    /// Writes all bytes; completes when the connection has accepted them.
    ///
    /// # Errors
    /// [`WriteError`] if the peer has stopped reading or the connection is gone.
    pub async fn write_all(&self, bytes: &[u8]) -> Result<(), WriteError> {
        let (reply, written) = oneshot::channel();
        let bytes = Bytes::copy_from_slice(bytes);
        self.0.command(StreamCommand::Write { bytes, reply });
        written.await.unwrap_or(Err(WriteError::Lost))
    }

    /// Completes when the peer stops reading or the connection is gone.
    pub fn stopped(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let received = Arc::clone(&self.0.received);
        poll_fn(move |cx| received.poll_stopped(cx))
    }
}

impl RecvHalf {
    /// Reads until `buffer` is full; `None` if the peer finished the stream before that.
    ///
    /// # Errors
    /// [`ReadError`] if the stream was reset or the connection is gone.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> Result<Option<()>, ReadError> {
        let mut read = 0;
        while read < buffer.len() {
            match poll_fn(|cx| self.poll_take(cx, &mut buffer[read..])).await? {
                0 => return Ok(None),
                bytes => read += bytes,
            }
        }
        Ok(Some(()))
    }

    /// Takes buffered data; 0 at the end of the stream.
    fn poll_take(&self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, ReadError>> {
        let taken = std::task::ready!(self.0.received.poll_take(cx, buffer))?;
        if taken.was_full {
            self.0.command(StreamCommand::Read);
        }
        Poll::Ready(Ok(taken.bytes))
    }
}

impl AsyncRead for RecvHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let unfilled = buffer.initialize_unfilled();
        if unfilled.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let read = std::task::ready!(self.poll_take(cx, unfilled)).map_err(io::Error::other)?;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

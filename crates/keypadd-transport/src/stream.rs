//! Gives control tasks a stream to read and write, until it is spliced to a socket.
//!
//! What the peer sends meanwhile is kept up to [`RECEIVED_BYTES`] and stays in the stream's flow-control
//! window beyond that, so a stream that nobody reads costs a bounded amount of memory.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes, BytesMut};
use quinn_proto::{ConnectionError, StreamId, VarInt};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::oneshot,
};

use crate::{
    held::HeldStream,
    replay::Receipt,
    socket::Socket,
    splice::{Cut, Delivery, SpliceState},
};

/// Bytes that are kept for a reader before the window closes.
pub(crate) const RECEIVED_BYTES: usize = 4 << 10;

/// Why a stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The peer gave the stream up, with this code.
    #[error("stream reset by peer: error {0}")]
    Reset(VarInt),
    /// The connection is gone.
    #[error("connection lost: {0}")]
    Lost(ConnectionError),
}

/// Why a stream cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The peer does not read it any more, for the reason of this code.
    #[error("sending stopped by peer: error {0}")]
    Stopped(VarInt),
    /// The connection is gone, or the stream was given up here.
    #[error("connection lost")]
    Lost,
}

/// What ended the sending half while nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The peer does not read it any more, for the reason of this code.
    ByPeer(VarInt),
    /// The connection is gone.
    Lost,
}

/// What a loop has received for a stream that a control task reads.
#[derive(Debug, Default)]
pub(crate) struct ReceivedState {
    bytes: BytesMut,
    end: Option<End>,
    stopped: Option<Stopped>,
    reader: Option<Waker>,
    watcher: Option<Waker>,
}

/// How the receiving half ended.
#[derive(Clone, Debug)]
enum End {
    Finished,
    Failed(ReadError),
}

/// Between the loop and the handles of one stream.
#[derive(Debug, Default)]
pub(crate) struct Received(Mutex<ReceivedState>);

impl Received {
    /// Bytes there is room for.
    pub(crate) fn room(&self) -> usize {
        RECEIVED_BYTES.saturating_sub(self.state().bytes.len())
    }

    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.bytes.extend_from_slice(bytes);
        wake(&mut state.reader);
    }

    pub(crate) fn finish(&self) {
        self.end(End::Finished);
    }

    pub(crate) fn fail(&self, error: ReadError) {
        self.end(End::Failed(error));
    }

    fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        wake(&mut state.reader);
    }

    pub(crate) fn stop(&self, stopped: Stopped) {
        let mut state = self.state();
        state.stopped.get_or_insert(stopped);
        wake(&mut state.watcher);
    }

    /// What no reader has taken, for the socket that the stream is spliced to, and whether the
    /// stream has ended after it. The error is what has ended either direction otherwise.
    pub(crate) fn take(&self) -> Result<(Bytes, bool), Cut> {
        let mut state = self.state();
        match (&state.end, state.stopped) {
            (Some(End::Failed(ReadError::Reset(code))), _) => Err(Cut::Remote(*code)),
            (_, Some(Stopped::ByPeer(code))) => Err(Cut::Remote(code)),
            (Some(End::Failed(ReadError::Lost(_))), _) | (_, Some(Stopped::Lost)) => Err(Cut::Lost),
            (end, None) => {
                let finished = end.is_some();
                Ok((state.bytes.split().freeze(), finished))
            }
        }
    }

    /// No panic leaves it half changed.
    fn state(&self) -> MutexGuard<'_, ReceivedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// What a stream is asked to do.
pub(crate) enum StreamCommand {
    Write {
        bytes: Bytes,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    /// Its reader has taken what was there.
    Read,
    Splice {
        /// Sent before the socket's bytes.
        first: Bytes,
        socket: Socket,
        state: Arc<SpliceState>,
    },
    /// Go on with a stream of an earlier connection, whose peer has written so much.
    Resume {
        held: HeldStream,
        receipt: Receipt,
        attached: oneshot::Sender<()>,
    },
    /// Give both directions up.
    Reset(VarInt),
}

/// Sends a connection's loop commands for its streams.
pub(crate) trait StreamCommands: fmt::Debug + Send + Sync {
    fn send(&self, id: StreamId, command: StreamCommand);
}

/// Both halves of one stream share this; the last one dropped resets the stream.
#[derive(Debug)]
struct Core {
    connection: Arc<dyn StreamCommands>,
    id: StreamId,
    received: Arc<Received>,
    /// The code of that reset.
    code: AtomicU64,
    /// The loop has it: there is nothing to reset.
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

/// A bidirectional stream. Dropped, both directions are reset: cut-off data never passes for all of
/// it.
#[derive(Debug)]
pub struct Stream {
    /// The sending half.
    pub send: SendHalf,
    /// The receiving half.
    pub recv: RecvHalf,
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
        received: Arc<Received>,
        drop_code: VarInt,
    ) -> Self {
        let code = AtomicU64::new(drop_code.into_inner());
        let spliced = AtomicBool::new(false);
        let core = Arc::new(Core { connection, id, received, code, spliced });
        Self { send: SendHalf(Arc::clone(&core)), recv: RecvHalf(core) }
    }

    /// Resets both directions with this code.
    pub fn reset(self, code: VarInt) {
        self.send.0.code.store(code.into_inner(), Relaxed);
    }

    /// Hands the stream and a socket to the loop, which carries every byte between them; completes
    /// when both directions have ended in order and the peer has acknowledged every byte.
    ///
    /// Dropped before that, the future resets both: what is cut off never passes for the end.
    ///
    /// # Errors
    /// What cut it short; the socket has been reset then.
    pub async fn splice(self, socket: Socket, delivery: Delivery) -> Result<(), Cut> {
        self.splice_after(&[], socket, delivery).await
    }

    /// The same, once the loop has sent `first`: a peer that has these bytes knows that the stream is spliced
    /// here, and held if the connection is lost.
    ///
    /// # Errors
    /// As of [`splice`](Self::splice).
    pub async fn splice_after(
        self,
        first: &'static [u8],
        socket: Socket,
        delivery: Delivery,
    ) -> Result<(), Cut> {
        let core = &self.send.0;
        let (reply, outcome) = oneshot::channel();
        let state = SpliceState::new(delivery, reply, (Arc::clone(&core.connection), core.id));
        let _waiting = Waiting { state: Arc::downgrade(&state), code: core.code() };
        core.command(StreamCommand::Splice { first: Bytes::from_static(first), socket, state });
        core.spliced.store(true, Relaxed);
        outcome.await.unwrap_or(Err(Cut::Lost))
    }

    /// Goes on with a stream that is held, whose peer has written so much of it to its socket; completes
    /// when this connection has it no more. Whoever spliced it first waits for its end.
    pub async fn resume(self, held: HeldStream, receipt: Receipt) {
        let core = &self.send.0;
        let (attached, detached) = oneshot::channel();
        core.command(StreamCommand::Resume { held, receipt, attached });
        core.spliced.store(true, Relaxed);
        // The sender is dropped, not used.
        let _ = detached.await;
    }
}

/// Resets a splice that is not over when it is dropped: nobody waits for the outcome any more.
struct Waiting {
    /// Whoever has the splice drops it where it cannot say how it ended.
    state: Weak<SpliceState>,
    code: VarInt,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            state.abandon(self.code);
        }
    }
}

impl SendHalf {
    /// Writes all of it; completes when it has been handed to the connection.
    ///
    /// # Errors
    /// [`WriteError`] when the peer does not want it, or there is no connection any more.
    pub async fn write_all(&self, bytes: &[u8]) -> Result<(), WriteError> {
        let (reply, written) = oneshot::channel();
        let bytes = Bytes::copy_from_slice(bytes);
        self.0.command(StreamCommand::Write { bytes, reply });
        written.await.unwrap_or(Err(WriteError::Lost))
    }

    /// Completes when the peer stops reading or the connection is gone.
    pub fn stopped(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let received = Arc::clone(&self.0.received);
        poll_fn(move |cx| {
            let mut state = received.state();
            match state.stopped {
                Some(stopped) => Poll::Ready(stopped),
                None => {
                    state.watcher = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}

impl RecvHalf {
    /// Reads until `buffer` is full; `None` when the peer finished the stream before that.
    ///
    /// # Errors
    /// [`ReadError`] when the stream was reset or the connection is gone.
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

    /// Takes what is there; 0 at the end of the stream.
    fn poll_take(&self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, ReadError>> {
        let mut state = self.0.received.state();
        let bytes = state.bytes.len().min(buffer.len());
        if bytes > 0 {
            let was_full = state.bytes.len() >= RECEIVED_BYTES;
            state.bytes.copy_to_slice(&mut buffer[..bytes]);
            drop(state);
            if was_full {
                self.0.command(StreamCommand::Read);
            }
            return Poll::Ready(Ok(bytes));
        }
        match &state.end {
            Some(End::Finished) => Poll::Ready(Ok(0)),
            Some(End::Failed(error)) => Poll::Ready(Err(error.clone())),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
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

//! One connection of a forward joined to one QUIC stream: every byte, the end of each direction, and
//! resets. What a unix socket has in place of TCP's ends is in `forwarded`.
//!
//! | one side               | the other side               |
//! | ---------------------- | ---------------------------- |
//! | TCP FIN                | stream finished              |
//! | stream finished        | TCP FIN                      |
//! | TCP RST                | RESET_STREAM and STOP_SENDING |
//! | RESET_STREAM or STOP_SENDING, connection lost | TCP RST |
//!
//! A join ends well only when both directions have ended and the peer has acknowledged every byte.
//! Anything else, a cancelled task included, ends in resets. What the peer was told has arrived is
//! still delivered when the connection is gone, for as long as the TCP connection takes bytes.
//! Nothing is buffered here but one copy buffer a direction; permits and names were dealt with
//! before.

use std::{
    future::pending,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use quinn::{
    Connection, ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt,
    WriteError,
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{tcp, unix},
    time::sleep,
};

use crate::{
    forwarded::{Forwarded, tcp_failed, unix_failed},
    status::Role,
    wire::{CloseCode, StreamCode},
};

/// Bytes of one copy buffer, each direction of each forward.
const COPY_BYTES: usize = 32 << 10;

/// Time in which a connection must take a byte once the QUIC connection is gone. The kernel
/// takes bytes in gulps, a third of its buffer each: a slow reader needs seconds for one.
const DELIVERY_TIME: Duration = Duration::from_secs(20);

/// The two halves of a bidirectional stream. Dropped before both have ended, it resets them:
/// quinn by itself would finish the sending half, and cut-off data would pass for all of it.
#[derive(Debug)]
pub(crate) struct StreamPair {
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
    connection: Connection,
    role: Role,
    code: StreamCode,
}

impl StreamPair {
    /// Two halves of this connection's; `role` is what this end of it is.
    pub(crate) fn new(
        connection: Connection,
        role: Role,
        (send, recv): (SendStream, RecvStream),
    ) -> Self {
        Self { send, recv, connection, role, code: StreamCode::ShuttingDown }
    }

    /// Gives the stream up, for this reason.
    pub(crate) fn reset(mut self, code: StreamCode) {
        self.code = code;
    }
}

impl Drop for StreamPair {
    fn drop(&mut self) {
        // Both do nothing where the half has ended or the connection is gone.
        let code = VarInt::from_u64(self.code.value()).unwrap_or_default();
        let _ = self.send.reset(code);
        let _ = self.recv.stop(code);
    }
}

/// Why a forward ended before both directions were through.
#[derive(Debug, Error)]
pub(crate) enum Cut {
    /// The TCP connection, or the standard input or output, failed here.
    #[error(transparent)]
    Local(#[from] io::Error),
    /// The other end gave the stream up.
    #[error("the other end ended it: {0}")]
    Remote(StreamCode),
    /// The QUIC connection is gone.
    #[error("connection lost")]
    Lost,
}

impl Cut {
    /// The code to pass on.
    fn code(&self) -> StreamCode {
        match self {
            Self::Local(_) | Self::Remote(_) => StreamCode::Reset,
            Self::Lost => StreamCode::ShuttingDown,
        }
    }
}

impl From<ReadError> for Cut {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Remote(StreamCode::from_value(code.into_inner())),
            _ => Self::Lost,
        }
    }
}

impl From<WriteError> for Cut {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Remote(StreamCode::from_value(code.into_inner())),
            _ => Self::Lost,
        }
    }
}

/// What the bytes to be sent come from.
trait Source: AsyncRead + Unpin {
    /// Completes when the source is known to have failed, also while nobody reads from it.
    async fn failed(&self) -> io::Error;
}

impl Source for tcp::ReadHalf<'_> {
    async fn failed(&self) -> io::Error {
        tcp_failed(self.as_ref()).await
    }
}

impl Source for unix::ReadHalf<'_> {
    async fn failed(&self) -> io::Error {
        unix_failed(self.as_ref()).await
    }
}

/// A source that tells of its failure only when it is read.
struct Plain<R>(R);

impl<R: AsyncRead + Unpin> AsyncRead for Plain<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<R: AsyncRead + Unpin> Source for Plain<R> {
    async fn failed(&self) -> io::Error {
        pending().await
    }
}

/// Joins a connection and a stream until both directions have ended or one is cut.
pub(crate) async fn splice(mut socket: Forwarded, mut pair: StreamPair) -> Result<(), Cut> {
    let joined = match &mut socket {
        Forwarded::Tcp(stream) => {
            let (source, sink) = stream.split();
            join(source, sink, &mut pair, Delivery::Bounded).await
        }
        Forwarded::Unix(stream) => {
            let (source, sink) = stream.split();
            join(source, sink, &mut pair, Delivery::Bounded).await
        }
    };
    match joined {
        Ok(()) => {
            socket.close_cleanly();
            Ok(())
        }
        Err(cut) => {
            pair.reset(cut.code());
            Err(cut)
        }
    }
}

/// Joins a reader and a writer (`-W`: standard input and output) and a stream. The writer is shut
/// down as soon as the other end has finished; the reader may still have much to say. Whoever reads
/// what is written may pause as long as they like: nothing else waits for it.
pub(crate) async fn splice_pair(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    mut pair: StreamPair,
) -> Result<(), Cut> {
    let joined = join(Plain(reader), writer, &mut pair, Delivery::Unbounded).await;
    if let Err(cut) = &joined {
        pair.reset(cut.code());
    }
    joined
}

/// How long a sink may stand still once the QUIC connection is gone.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    /// [`DELIVERY_TIME`] after each byte.
    Bounded,
    /// For ever.
    Unbounded,
}

async fn join(
    source: impl Source,
    sink: impl AsyncWrite + Unpin,
    pair: &mut StreamPair,
    delivery: Delivery,
) -> Result<(), Cut> {
    let StreamPair { send, recv, connection, role, .. } = pair;
    let outward = outward(source, send, *role);
    let inward = inward(recv, sink, connection, delivery);
    tokio::pin!(outward, inward);
    tokio::select! {
        source = &mut outward => {
            let source = source?;
            tokio::select! {
                done = &mut inward => done,
                error = source.failed() => Err(error.into()),
            }
        }
        done = &mut inward => {
            done?;
            outward.await.map(drop)
        }
    }
}

/// Copies until the source ends and the peer has acknowledged all of it; gives the source back.
async fn outward<S: Source>(mut source: S, send: &mut SendStream, role: Role) -> Result<S, Cut> {
    let mut buffer = vec![0; COPY_BYTES];
    let stopped = send.stopped();
    tokio::pin!(stopped);
    loop {
        let bytes = tokio::select! {
            bytes = source.read(&mut buffer) => bytes?,
            stop = &mut stopped => return Err(stop_cut(stop)),
        };
        if bytes == 0 {
            break;
        }
        // While flow control holds us nobody reads the source: watch it apart.
        tokio::select! {
            written = send.write_all(&buffer[..bytes]) => written?,
            error = source.failed() => return Err(error.into()),
        }
    }
    drop(buffer);
    // An error here means that the stream is stopped, which the next lines report.
    let _ = send.finish();
    tokio::select! {
        stop = &mut stopped => acknowledged(stop, role).map(|()| source),
        error = source.failed() => Err(error.into()),
    }
}

/// What the end of a finished stream says of its bytes, at an end with this role.
fn acknowledged(stop: Result<Option<VarInt>, StoppedError>, role: Role) -> Result<(), Cut> {
    match stop {
        Ok(None) => Ok(()),
        // A client that says goodbye in order has taken what it wanted of a finished stream.
        // A server's goodbye says nothing of what its targets have got (invariant I11).
        Err(StoppedError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
            if role == Role::Server && close.error_code == CloseCode::Shutdown.value().into() =>
        {
            Ok(())
        }
        stop => Err(stop_cut(stop)),
    }
}

fn stop_cut(stop: Result<Option<VarInt>, StoppedError>) -> Cut {
    match stop {
        Ok(Some(code)) => Cut::Remote(StreamCode::from_value(code.into_inner())),
        // Not finished and yet closed: only a connection that is gone can do that.
        Ok(None) | Err(_) => Cut::Lost,
    }
}

/// Copies until the peer has finished and the sink has taken everything, then ends the sink.
///
/// While the sink holds us a reset is not seen here: whoever gives a stream up also stops the other
/// half, which `outward` notices; and when that half is through, the sink's reader gets what came
/// before the reset first. (Watching with quinn's `received_reset` would leave a waker behind in
/// the connection for every stream that ends meanwhile.)
async fn inward(
    recv: &mut RecvStream,
    mut sink: impl AsyncWrite + Unpin,
    connection: &Connection,
    delivery: Delivery,
) -> Result<(), Cut> {
    let mut buffer = vec![0; COPY_BYTES];
    while let Some(bytes) = recv.read(&mut buffer).await? {
        let mut rest = &buffer[..bytes];
        while !rest.is_empty() {
            let written = tokio::select! {
                biased;
                written = sink.write(rest) => written?,
                // A new wait for each write: only a sink that takes nothing at all is given up.
                () = given_up(connection, delivery) => return Err(Cut::Lost),
            };
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            rest = &rest[written..];
        }
        sink.flush().await?;
    }
    sink.shutdown().await?;
    Ok(())
}

/// Completes when the connection has been gone for as long as a sink may stand still.
async fn given_up(connection: &Connection, delivery: Delivery) {
    match delivery {
        Delivery::Bounded => {
            connection.closed().await;
            sleep(DELIVERY_TIME).await;
        }
        Delivery::Unbounded => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use quinn::ApplicationClose;

    use super::*;

    fn closed_with(code: CloseCode) -> Result<Option<VarInt>, StoppedError> {
        let close = ApplicationClose { error_code: code.value().into(), reason: "".into() };
        Err(StoppedError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
    }

    #[test]
    fn only_a_clients_goodbye_stands_for_an_acknowledgement() {
        assert!(acknowledged(Ok(None), Role::Client).is_ok());
        assert!(acknowledged(closed_with(CloseCode::Shutdown), Role::Server).is_ok());
        assert!(acknowledged(closed_with(CloseCode::Protocol), Role::Server).is_err());
        // At the client, a server that shuts down has not acknowledged anything.
        let lost = acknowledged(closed_with(CloseCode::Shutdown), Role::Client);
        assert!(matches!(lost, Err(Cut::Lost)), "{lost:?}");
    }
}

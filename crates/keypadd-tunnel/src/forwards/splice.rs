//! Joins one connection of a forward to one QUIC stream.
//!
//! The transport carries the bytes (`keypadd-transport`, `splice`); here codes of the wire are put
//! on streams, and standard input and output (`-W`) are connected through a pair of unix sockets.

use std::{io, os::unix::net::UnixStream as StdUnixStream};

use keypadd_transport::{Delivery, ReadError, Socket, Stream, VarInt, WriteError};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::UnixStream,
};

use crate::{net::forwarded_socket::Forwarded, wire::StreamCode};

/// Bytes of each copy buffer of standard input and output.
const COPY_BYTES: usize = 32 << 10;

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

impl From<keypadd_transport::Cut> for Cut {
    fn from(cut: keypadd_transport::Cut) -> Self {
        match cut {
            keypadd_transport::Cut::Local(error) => Self::Local(error),
            keypadd_transport::Cut::Remote(code) => Self::Remote(code.into()),
            _ => Self::Lost,
        }
    }
}

impl From<ReadError> for Cut {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Remote(code.into()),
            ReadError::Lost(_) => Self::Lost,
        }
    }
}

impl From<WriteError> for Cut {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Remote(code.into()),
            WriteError::Lost => Self::Lost,
        }
    }
}

impl From<VarInt> for StreamCode {
    fn from(code: VarInt) -> Self {
        Self::from_value(code.into_inner())
    }
}

impl From<StreamCode> for VarInt {
    fn from(code: StreamCode) -> Self {
        // Codes of ours are small, and those of the peer came as such an integer.
        Self::from_u64(code.value()).unwrap_or_default()
    }
}

/// Joins a connection and a stream until both directions have ended or one is cut.
pub(crate) async fn splice(socket: Forwarded, stream: Stream) -> Result<(), Cut> {
    Ok(stream.splice(socket.into_socket()?, Delivery::Bounded).await?)
}

/// Joins a reader and a writer (`-W`: standard input and output) and a stream. The writer is shut
/// down as soon as the other end has finished; the reader may still have much to say. Whoever reads
/// what is written may pause as long as they like: nothing else waits for it.
pub(crate) async fn splice_pair(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    stream: Stream,
) -> Result<(), Cut> {
    let (near, far) = StdUnixStream::pair()?;
    near.set_nonblocking(true)?;
    let (from_stream, to_stream) = split(UnixStream::from_std(near)?);
    let spliced = stream.splice(Socket::from(far), Delivery::Unbounded);
    let outward = outward(reader, to_stream);
    let inward = inward(from_stream, writer);
    tokio::pin!(spliced, outward, inward);

    let (mut sending, mut receiving) = (true, true);
    let outcome = loop {
        tokio::select! {
            // A stream that is cut ends its socket as one that is finished does, but says so first.
            biased;
            outcome = &mut spliced => break outcome,
            sent = &mut outward, if sending => {
                sent?;
                sending = false;
            }
            received = &mut inward, if receiving => {
                received?.shutdown().await?;
                receiving = false;
            }
        }
    };
    if receiving {
        // What had arrived before the end is written, whatever the end was.
        let mut writer = inward.await?;
        if outcome.is_ok() {
            writer.shutdown().await?;
        }
    }
    Ok(outcome?)
}

/// Copies until the reader ends. A stream that is gone is no failure of the reader's.
async fn outward(
    mut reader: impl AsyncRead + Unpin,
    mut to_stream: WriteHalf<UnixStream>,
) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let bytes = reader.read(&mut buffer).await?;
        if bytes == 0 {
            let _ = to_stream.shutdown().await;
            return Ok(());
        }
        if to_stream.write_all(&buffer[..bytes]).await.is_err() {
            return Ok(());
        }
    }
}

/// Copies until the stream ends; gives the writer back.
async fn inward<W: AsyncWrite + Unpin>(
    mut from_stream: ReadHalf<UnixStream>,
    mut writer: W,
) -> io::Result<W> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        // A socket that is closed with data unread says ECONNRESET: the stream was cut.
        let bytes = from_stream.read(&mut buffer).await.unwrap_or(0);
        if bytes == 0 {
            return Ok(writer);
        }
        writer.write_all(&buffer[..bytes]).await?;
        writer.flush().await?;
    }
}

//! Splices a forwarded connection with a QUIC stream.
//!
//! The transport copies the bytes (`keypadd-transport`, `splice`). Here standard input and output
//! (`-W`) are connected through a pair of unix sockets.

use std::{io, os::unix::net::UnixStream as StdUnixStream};

use keypadd_transport::{Delivery, Label, Socket, Splice, Stream};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::UnixStream,
};

use crate::{
    forwards::{connection_log::ConnectionRecord, splice_error::SpliceError},
    net::forwarded_socket::ForwardedSocket,
};

/// Size of each copy buffer for standard input and output.
const COPY_BYTES: usize = 32 << 10;

/// Splices a connection with a stream until both directions have finished or one has failed.
pub(crate) async fn splice(
    socket: ForwardedSocket,
    stream: Stream,
    record: &mut ConnectionRecord,
) -> Result<(), SpliceError> {
    let splice = |socket, label| stream.splice(socket, Delivery::Bounded, label);
    carry(socket, splice, record).await
}

/// Splices a connection with a stream as [`splice`] does; the other end's socket gets `preface`
/// before the connection's bytes.
pub(crate) async fn splice_with_preface(
    preface: Vec<u8>,
    socket: ForwardedSocket,
    stream: Stream,
    record: &mut ConnectionRecord,
) -> Result<(), SpliceError> {
    let splice =
        |socket, label| stream.splice_with_preface(preface, socket, Delivery::Bounded, label);
    carry(socket, splice, record).await
}

/// Splices a connection with a stream as [`splice`] does; the other end first gets these bytes.
pub(crate) async fn splice_after(
    first: &'static [u8],
    socket: ForwardedSocket,
    stream: Stream,
    record: &mut ConnectionRecord,
) -> Result<(), SpliceError> {
    let splice = |socket, label| stream.splice_after(first, socket, Delivery::Bounded, label);
    carry(socket, splice, record).await
}

async fn carry(
    socket: ForwardedSocket,
    splice: impl FnOnce(Socket, Label) -> Splice,
    record: &mut ConnectionRecord,
) -> Result<(), SpliceError> {
    let outcome = match socket.into_socket() {
        Ok(socket) => {
            record.limit_buffers(&socket);
            let splice = splice(socket, record.label());
            record.set_carried(splice.carried());
            splice.await.map_err(SpliceError::from)
        }
        Err(error) => Err(error.into()),
    };
    record.ended(&outcome);
    outcome
}

/// Splices a reader and a writer (`-W`: standard input and output) with a stream. Shuts down the
/// writer when the other end has finished, while the reader may go on. A blocked writer blocks
/// nothing else.
pub(crate) async fn splice_pair(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    stream: Stream,
    record: &mut ConnectionRecord,
) -> Result<(), SpliceError> {
    let outcome = carry_pair(reader, writer, stream, record).await;
    record.ended(&outcome);
    outcome
}

async fn carry_pair(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    stream: Stream,
    record: &mut ConnectionRecord,
) -> Result<(), SpliceError> {
    let (near, far) = StdUnixStream::pair()?;
    near.set_nonblocking(true)?;
    let (from_stream, to_stream) = split(UnixStream::from_std(near)?);
    // Standard input and output end with this process: no other one continues them.
    let spliced = stream.splice(Socket::from(far), Delivery::Unbounded, "".into());
    record.set_carried(spliced.carried());
    let outward = outward(reader, to_stream);
    let inward = inward(from_stream, writer);
    tokio::pin!(spliced, outward, inward);

    let (mut sending, mut receiving) = (true, true);
    let outcome = loop {
        tokio::select! {
            // Checked first: a failed stream also closes its socket, like a finished one.
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
        // Writes what arrived before the end, also after a failure.
        let mut writer = inward.await?;
        if outcome.is_ok() {
            writer.shutdown().await?;
        }
    }
    Ok(outcome?)
}

/// Copies until the reader ends. A failed stream is not an error of the reader.
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

/// Copies until the stream ends; returns the writer.
async fn inward<W: AsyncWrite + Unpin>(
    mut from_stream: ReadHalf<UnixStream>,
    mut writer: W,
) -> io::Result<W> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        // ECONNRESET means that the stream failed with data unread.
        let bytes = from_stream.read(&mut buffer).await.unwrap_or(0);
        if bytes == 0 {
            return Ok(writer);
        }
        writer.write_all(&buffer[..bytes]).await?;
        writer.flush().await?;
    }
}

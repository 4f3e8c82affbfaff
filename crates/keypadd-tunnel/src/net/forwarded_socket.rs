//! A connection of a forward, over TCP or a unix socket, and how each of them ends.
//!
//! TCP ends in order (FIN) or by a reset (RST), which the other side can tell apart. A unix socket
//! has no reset: closed abruptly, it shows its reader an end as after a last byte, and only who
//! still writes gets an error. Whatever is carried there needs an end of its own if a cut must not
//! pass for the end (docs/DESIGN.md). The reverse direction is kept: a program that closes with data
//! unread, which Linux shows as ECONNRESET, is a reset here as well.

use std::{io, time::Duration};

use keypadd_transport::Socket;
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
};

/// A connection of a forward. Until [`close_cleanly`](Self::close_cleanly), whatever drops it (a
/// cancelled task, a panic, the end of the process) resets it, so that a cut-off stream can never
/// pass for a finished one, as far as the socket has words for that.
#[derive(Debug)]
pub(crate) enum Forwarded {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for Forwarded {
    fn from(stream: TcpStream) -> Self {
        let socket = SockRef::from(&stream);
        // On a connection that is already gone these fail, and reading will say so.
        let _ = socket.set_linger(Some(Duration::ZERO));
        let _ = socket.set_keepalive(true);
        let _ = stream.set_nodelay(true);
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Forwarded {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl Forwarded {
    /// Completes when the connection has failed, which it shows even while data waits unread.
    pub(crate) async fn failed(&self) -> io::Error {
        match self {
            Self::Tcp(stream) => tcp_failed(stream).await,
            Self::Unix(stream) => unix_failed(stream).await,
        }
    }

    /// Takes it out of the runtime, for a loop of the transport.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(stream) => stream.into_std()?.into(),
            Self::Unix(stream) => stream.into_std()?.into(),
        })
    }

    /// Closes in order; the kernel goes on delivering what was written.
    pub(crate) fn close_cleanly(self) {
        if let Self::Tcp(stream) = &self {
            let _ = SockRef::from(stream).set_linger(None);
        }
    }
}

/// Completes when a TCP connection has failed.
pub(crate) async fn tcp_failed(stream: &TcpStream) -> io::Error {
    loop {
        if let Err(error) = stream.ready(Interest::ERROR).await {
            return error;
        }
        let error = stream.try_io(Interest::ERROR, || taken(stream.take_error()));
        if let Some(error) = settled(error) {
            return error;
        }
    }
}

/// Completes when a connection over a unix socket has failed.
pub(crate) async fn unix_failed(stream: &UnixStream) -> io::Error {
    loop {
        if let Err(error) = stream.ready(Interest::ERROR).await {
            return error;
        }
        let error = stream.try_io(Interest::ERROR, || taken(stream.take_error()));
        if let Some(error) = settled(error) {
            return error;
        }
    }
}

/// Readiness may be stale, or a read or a write may have taken the error already and reported it:
/// asking the socket settles it, and WouldBlock clears the readiness.
fn taken(error: io::Result<Option<io::Error>>) -> io::Result<io::Error> {
    error?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

fn settled(error: io::Result<io::Error>) -> Option<io::Error> {
    match error {
        Ok(error) => Some(error),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(error),
    }
}

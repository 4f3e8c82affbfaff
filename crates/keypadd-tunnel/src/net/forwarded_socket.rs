//! Wraps the socket of a forwarded connection, TCP or unix, and ends it cleanly or with a reset.
//!
//! TCP tells an orderly end (FIN) from a reset (RST). A unix socket has no reset: after an abrupt
//! close its reader sees end of file, and only a writer gets an error. An application protocol over
//! a unix socket must therefore mark its own end (docs/protocol.md). In the other direction the
//! distinction is kept: if a program closes with data unread, Linux reports ECONNRESET, and the
//! stream is reset.

use std::{io, time::Duration};

use keypadd_transport::Socket;
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
};

/// The socket of a forwarded connection. Dropping it resets the connection (a canceled task, a
/// panic or the end of the process), so that a truncated stream never looks complete where the
/// socket can express that. [`close_cleanly`](Self::close_cleanly) does not.
#[derive(Debug)]
pub(crate) enum ForwardedSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for ForwardedSocket {
    fn from(stream: TcpStream) -> Self {
        let socket = SockRef::from(&stream);
        // If the connection has failed already, the next read reports it.
        let _ = socket.set_linger(Some(Duration::ZERO));
        let _ = socket.set_keepalive(true);
        let _ = stream.set_nodelay(true);
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for ForwardedSocket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl ForwardedSocket {
    /// Waits until the connection fails; notices this even while data is unread.
    pub(crate) async fn failed(&self) -> io::Error {
        const ERROR: Interest = Interest::ERROR;
        loop {
            let failed = match self {
                Self::Tcp(stream) => stream
                    .ready(ERROR)
                    .await
                    .and_then(|_| stream.try_io(ERROR, || pending_error(stream.take_error()))),
                Self::Unix(stream) => stream
                    .ready(ERROR)
                    .await
                    .and_then(|_| stream.try_io(ERROR, || pending_error(stream.take_error()))),
            };
            match failed {
                Ok(error) => return error,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return error,
            }
        }
    }

    /// Moves the socket from the runtime to the transport's event loops.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(stream) => stream.into_std()?.into(),
            Self::Unix(stream) => stream.into_std()?.into(),
        })
    }

    /// Closes without a reset; the kernel delivers what was written.
    pub(crate) fn close_cleanly(self) {
        if let Self::Tcp(stream) = &self {
            let _ = SockRef::from(stream).set_linger(None);
        }
    }
}

/// Readiness may be stale, or a read or write may have taken and reported the error already. Asking
/// the socket settles it, and WouldBlock clears the readiness.
fn pending_error(error: io::Result<Option<io::Error>>) -> io::Result<io::Error> {
    error?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

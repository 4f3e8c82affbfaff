//! Knows whom an accepted connection is between: its own addresses, or those that its PROXY header tells.
//!
//! Reads that header, where one is expected, in bounded time, and makes the one that is sent on. The format
//! is in `proxy_protocol`.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{io::AsyncReadExt, time::timeout};

use crate::{
    forwards::proxy_protocol::{self, Endpoints},
    net::{forwarded_socket::ForwardedSocket, source::plain},
};

/// Time for a header: it comes in the first packet, and 3 of the specification lets that be sent again
/// once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);

/// Whom an accepted connection is between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The address that it comes from, if it has one.
    from: Option<SocketAddr>,
    /// What its header tells, once that was read.
    told: Option<Option<Endpoints>>,
}

impl Origin {
    /// A connection from this address; a unix socket has none.
    pub(crate) fn new(from: Option<SocketAddr>) -> Self {
        Self { from, told: None }
    }

    /// Where it comes from.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        self.told.flatten().map(|endpoints| endpoints.source).or(self.from)
    }

    /// Reads the header, unless it was read; takes no byte after it.
    ///
    /// # Errors
    /// The connection begins in another way, ends, or has sent no whole header in time.
    pub(crate) async fn read_header(&mut self, socket: &mut ForwardedSocket) -> io::Result<()> {
        if self.told.is_some() {
            return Ok(());
        }
        let told = timeout(HEADER_TIMEOUT, read_header(socket)).await;
        self.told = Some(told.map_err(|_| io::ErrorKind::TimedOut)??);
        Ok(())
    }

    /// The header that tells the next one of it. `socket` is the connection.
    pub(crate) fn header(&self, socket: &ForwardedSocket) -> Vec<u8> {
        let own = || match socket {
            ForwardedSocket::Tcp(stream) => Some(Endpoints {
                source: plain(self.from?),
                destination: plain(stream.local_addr().ok()?),
            }),
            ForwardedSocket::Unix(_) => None,
        };
        proxy_protocol::encode(self.told.flatten().or_else(own))
    }
}

async fn read_header(socket: &mut ForwardedSocket) -> io::Result<Option<Endpoints>> {
    let refused = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut header = Vec::new();
    loop {
        let read = header.len();
        match proxy_protocol::wanted(&header).map_err(refused)? {
            0 => return proxy_protocol::decode(&header).map_err(refused),
            wanted => header.resize(read + wanted, 0),
        }
        match socket {
            ForwardedSocket::Tcp(stream) => stream.read_exact(&mut header[read..]).await?,
            ForwardedSocket::Unix(stream) => stream.read_exact(&mut header[read..]).await?,
        };
    }
}

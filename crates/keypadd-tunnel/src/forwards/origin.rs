//! Finds the two addresses of an accepted connection: its own, or those in its PROXY header.
//!
//! Reads that header, if one is expected, within a time limit, and builds the one sent to the
//! target. The format is in `proxy_protocol`.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{io::AsyncReadExt, time::timeout};

use crate::{
    forwards::{
        incomplete::Unread,
        proxy_protocol::{self, Endpoints},
    },
    net::{forwarded_socket::ForwardedSocket, source::plain},
};

/// Time for a header: it comes in the first packet, and section 3 of the specification allows for
/// one retransmission.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);

/// The two addresses of an accepted connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The address that it comes from, if it has one.
    from: Option<SocketAddr>,
    /// The addresses in its header, once that has been read.
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

    /// Reads the header unless it has been read; takes no byte after it.
    ///
    /// # Errors
    /// The connection does not begin with a header, ends, or has not sent a whole header in time or
    /// before a newer connection needed its room.
    pub(crate) async fn read_header(
        &mut self,
        socket: &mut ForwardedSocket,
        unread: Unread,
    ) -> io::Result<()> {
        if self.told.is_some() {
            return Ok(());
        }
        let reading = timeout(HEADER_TIMEOUT, read_header(socket));
        let told = unread.read(reading).await.ok_or(io::ErrorKind::ConnectionAborted)?;
        self.told = Some(told.map_err(|_| io::ErrorKind::TimedOut)??);
        Ok(())
    }

    /// The header for the next hop. `socket` is the connection.
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

//! Runs the bench service: answers request/response traffic, and datagrams, on loopback until
//! dropped.
//!
//! Anyone who can reach the port can use it. It checks what it reads and sends as many bytes as
//! requested, with one task and at most two buffers per connection. A datagram has an answer of its
//! own length.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::datagrams::{self, SetOnDrop};
use crate::exchange::{Exchange, HEADER_BYTES, PatternBytes, STEP_BYTES};

/// Ports to try: what is free for TCP may be taken for UDP.
const PORTS_TRIED: u32 = 16;

/// How long to wait when the system has no descriptor for a connection.
const RETRY: Duration = Duration::from_millis(100);

/// A service that is bound and does not answer yet.
#[derive(Debug)]
pub struct Service {
    listener: TcpListener,
    datagrams: UdpSocket,
    address: SocketAddr,
}

impl Service {
    /// Binds a port of the kernel's choice on 127.0.0.1.
    ///
    /// # Errors
    /// The system has no port or no descriptor.
    pub async fn bind() -> io::Result<Self> {
        Self::bind_at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Binds the service to a port of this address, in both protocols.
    ///
    /// # Errors
    /// As above, or the address is not this host's.
    pub async fn bind_at(address: IpAddr) -> io::Result<Self> {
        let mut tried = 1;
        loop {
            let listener = TcpListener::bind((address, 0)).await?;
            let address = listener.local_addr()?;
            match UdpSocket::bind(address) {
                Ok(datagrams) => return Ok(Self { listener, datagrams, address }),
                Err(error) if tried == PORTS_TRIED => return Err(error),
                Err(_) => tried += 1,
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until it is dropped; then its connections end too.
    pub async fn run(self) {
        let (mut connections, end) = (JoinSet::new(), SetOnDrop::default());
        let (datagrams, is_over) = (self.datagrams, Arc::clone(&end.0));
        spawn_blocking(move || datagrams::answer(&datagrams, &is_over));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn(async move {
                        // The requester sees the connection end and says what it waited for.
                        let _ = answer(stream).await;
                    });
                }
                Err(_) => sleep(RETRY).await,
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(STEP_BYTES, reader);
    let (mut requests, mut responses) = (PatternBytes::default(), PatternBytes::default());
    loop {
        let mut header = [0; HEADER_BYTES];
        if reader.fill_buf().await?.is_empty() {
            return Ok(()); // it has no more requests
        }
        reader.read_exact(&mut header).await?;
        let exchange = Exchange::parse(header).ok_or(io::ErrorKind::InvalidData)?;
        compare(&mut reader, &mut requests, exchange.request_bytes() - HEADER_BYTES as u64).await?;
        let mut left = exchange.response_bytes();
        while left > 0 {
            let bytes = responses.next(left);
            writer.write_all(bytes).await?;
            left -= bytes.len() as u64;
        }
    }
}

async fn compare(
    reader: &mut BufReader<OwnedReadHalf>,
    pattern: &mut PatternBytes,
    mut left: u64,
) -> io::Result<()> {
    while left > 0 {
        let bytes = reader.fill_buf().await?;
        let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !pattern.matches_next(&bytes[..len]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        reader.consume(len);
        left -= len as u64;
    }
    Ok(())
}

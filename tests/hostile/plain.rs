//! Runs tunnels that carry one repeated byte: cheap to generate, and known plaintext at every
//! offset of every packet on the wire.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{LineSettings, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::daemons::{Daemon, Desk};
use crate::exchange::HANG;
use crate::tunnel::{LOOK, figures};

/// The repeated byte.
pub(crate) const TEXT: u8 = 0x5a;

const PIECE_BYTES: usize = 64 << 10;

/// Longest datagram that passes a relay, as on Ethernet. Loopback carries more; once path MTU
/// discovery finds that, packets are few and longer than any pad in the pool.
const DATAGRAM_BYTES_MAX: usize = 1452;

/// The relay settings when a test asks for nothing else.
pub(crate) fn ethernet() -> LineSettings {
    LineSettings { bytes_max: Some(DATAGRAM_BYTES_MAX), ..LineSettings::default() }
}

/// Both ends of a tunnel, and one connection through it to a service.
pub(crate) struct KnownTextTunnel {
    suite: String,
    pool: String,
    service: String,
    pub(crate) server: Daemon,
    pub(crate) client: Daemon,
    stream: TcpStream,
}

impl KnownTextTunnel {
    pub(crate) async fn start(desk: &Desk, suite: &str, pool: &str, service: &str) -> Self {
        let server = serve(desk, suite, pool, service);
        let address = server.address();
        Self::connect(desk, server, &address, suite, pool, service).await
    }

    /// Starts one with a relay between its ends.
    pub(crate) async fn relayed(desk: &Desk, suite: &str, service: &str) -> (Self, Relay) {
        let server = serve(desk, suite, "on", service);
        let relay = Relay::start(server.address().parse().unwrap(), 0).await.unwrap();
        relay.set_both(ethernet());
        let address = relay.address().to_string();
        (Self::connect(desk, server, &address, suite, "on", service).await, relay)
    }

    async fn connect(
        desk: &Desk,
        server: Daemon,
        address: &str,
        suite: &str,
        pool: &str,
        service: &str,
    ) -> Self {
        let client = block_in_place(|| connect(desk, address, suite, pool, service));
        let stream = enter(&client).await;
        let [suite, pool, service] = [suite, pool, service].map(str::to_owned);
        Self { suite, pool, service, server, client, stream }
    }

    /// Restarts the client.
    pub(crate) async fn reconnected(self, desk: &Desk, relay: &Relay) -> Self {
        let Self { suite, pool, service, server, client, stream } = self;
        // The client drains its connections first.
        drop(stream);
        assert_eq!(block_in_place(|| client.stop()).status.code(), Some(0));
        let address = relay.address().to_string();
        Self::connect(desk, server, &address, &suite, &pool, &service).await
    }

    /// Stops the client; the server keeps running.
    pub(crate) fn end_client(self) -> Daemon {
        drop(self.stream);
        assert_eq!(block_in_place(|| self.client.stop()).status.code(), Some(0));
        self.server
    }

    /// Sends this many bytes of text up, then down; returns when the last byte has arrived.
    pub(crate) async fn carry(&mut self, up_bytes: u64, down_bytes: u64) -> Duration {
        let began = Instant::now();
        let carried = async {
            self.stream.write_u64(up_bytes).await?;
            self.stream.write_u64(down_bytes).await?;
            write(&mut self.stream, up_bytes).await?;
            read(&mut self.stream, down_bytes).await
        };
        timeout(HANG, carried).await.expect("the transfer hangs").unwrap();
        began.elapsed()
    }

    /// Writes this many bytes of text to the client without waiting for delivery.
    pub(crate) async fn give(&mut self, up_bytes: u64) {
        self.stream.write_u64(up_bytes).await.unwrap();
        self.stream.write_u64(0).await.unwrap();
        write(&mut self.stream, up_bytes).await.unwrap();
    }

    /// Waits until both pools hold pads for this many full packets in each direction.
    pub(crate) async fn filled(&self, desk: &Desk, packets: u64) {
        let deadline = Instant::now() + HANG;
        let lacks = |daemon: &Daemon| {
            let figures = figures(desk, daemon);
            let keys = &figures["sessions"][0]["keys"];
            ["send", "receive"].iter().any(|direction| {
                keys[direction]["body"]["packets"].as_u64().is_none_or(|body| body < packets)
            })
        };
        while lacks(&self.server) || lacks(&self.client) {
            let figures = [&self.server, &self.client].map(|daemon| figures(desk, daemon));
            assert!(Instant::now() < deadline, "the pools do not fill: {figures:?}");
            sleep(LOOK).await;
        }
    }

    /// The counters of the server, then of the client.
    pub(crate) fn figures(&self, desk: &Desk) -> [Value; 2] {
        [&self.server, &self.client].map(|daemon| figures(desk, daemon))
    }
}

fn flags<'a>(suite: &'a str, pool: &'a str) -> Vec<&'a str> {
    let mut flags = vec!["--suite", suite, "--pool", pool];
    flags.extend(suite.contains("des-").then_some("--allow-legacy"));
    flags
}

fn serve(desk: &Desk, suite: &str, pool: &str, service: &str) -> Daemon {
    Daemon::serve(desk, &[&["--permit-open", service][..], &flags(suite, pool)].concat())
}

fn connect(desk: &Desk, address: &str, suite: &str, pool: &str, service: &str) -> Daemon {
    let mut connect = Daemon::connect_to(desk, address);
    connect.args(flags(suite, pool)).args(["--log-format", "json"]);
    connect.args(["-L", &format!("127.0.0.1:0:{service}")]);
    Daemon::start(connect)
}

async fn enter(client: &Daemon) -> TcpStream {
    let listener = client.ready["forwards"][0]["listen"][0].as_str().unwrap();
    let stream = TcpStream::connect(listener.parse::<SocketAddr>().unwrap()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn write(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let piece = [TEXT; PIECE_BYTES];
    let mut rest = bytes as usize;
    while rest > 0 {
        let written = stream.write(&piece[..rest.min(PIECE_BYTES)]).await?;
        rest -= written;
    }
    Ok(())
}

async fn read(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut rest = bytes as usize;
    while rest > 0 {
        let most = rest.min(PIECE_BYTES);
        let length = stream.read(&mut piece[..most]).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        assert!(piece[..length].iter().all(|byte| *byte == TEXT), "wrong bytes");
        rest -= length;
    }
    Ok(())
}

/// Starts a service that loops: reads two lengths, reads that many bytes, answers with that many.
/// Returns its address.
pub(crate) async fn start_service() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.set_nodelay(true)?;
                loop {
                    let (up, down) = (stream.read_u64().await?, stream.read_u64().await?);
                    read(&mut stream, up).await?;
                    write(&mut stream, down).await?;
                }
                #[allow(unreachable_code, reason = "it tells the type")]
                io::Result::Ok(())
            });
        }
    });
    address
}

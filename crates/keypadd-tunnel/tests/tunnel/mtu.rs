//! Tests packet size: it grows to what the path carries and shrinks when the path carries less.

use std::sync::Arc;

use keypadd_keystream::{Protection, Suite};
use keypadd_provider::{PrivateKey, client_config, server_config};
use keypadd_tunnel::TransportSettings;
use testbed::{Direction, LineSettings, Relay};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::*;

/// UDP payload of an Ethernet packet over IPv6.
const ETHERNET: usize = 1_452;

/// Datagrams recorded per direction.
const RECORDED: usize = 4_096;

/// Both ends, with a relay between them that carries datagrams of any size.
struct Path {
    relay: Relay,
    server: RunningServer,
    client: RunningClient,
    here: TcpStream,
    there: TcpStream,
}

impl Path {
    async fn start(suite: impl Into<Protection>) -> Self {
        let (suite, key) = (suite.into(), new_key());
        let target = listener().await;
        let server_key: Arc<PrivateKey> = new_key();
        let of_server = Arc::clone(&server_key);
        let server =
            RunningServer::start_as(server_key, key.public(), &["localhost:*"], |settings| {
                let crypto = crypto(&of_server, suite);
                settings.crypto = server_config(&crypto, settings.peers.clone()).unwrap();
            });
        let forward: &str = &format!("0:{}", target.local_addr().unwrap());
        let mut settings = client_settings(&server, &key, &[forward]);
        let relay = relayed(&server, &mut settings).await;
        for direction in [Direction::ToServer, Direction::ToClient] {
            relay.record(direction, RECORDED);
        }
        settings.crypto = client_config(&crypto(&key, suite), server.key).unwrap();
        let client = RunningClient::start(settings).await;
        let here = TcpStream::connect(client.listeners[0]).await.unwrap();
        let there = accept(&target).await;
        Self { relay, server, client, here, there }
    }

    /// Transfers this many bytes each way at once, and compares.
    async fn transfer(&mut self, seed: u64, bytes: usize) {
        let (up, down) = (noise(seed, bytes), noise(seed + 1, bytes));
        let (mut from_here, mut to_there) = self.here.split();
        let (mut from_there, mut to_here) = self.there.split();
        let mut received = [vec![0; bytes], vec![0; bytes]];
        let [at_there, at_here] = &mut received;
        let transfer = async {
            tokio::join!(
                async { to_there.write_all(&up).await.unwrap() },
                async { to_here.write_all(&down).await.unwrap() },
                async { from_there.read_exact(at_there).await.unwrap() },
                async { from_here.read_exact(at_here).await.unwrap() },
            )
        };
        within(transfer).await;
        assert!(received == [up, down], "the bytes differ");
    }

    /// The current MTU of the client and of the server.
    fn sizes(&self) -> [usize; 2] {
        [&self.client.sessions, &self.server.sessions]
            .map(|sessions| sessions.status().first().map_or(0, |session| session.mtu_bytes.into()))
    }

    /// The longest recorded datagrams, to the server and to the client.
    fn longest(&self) -> [usize; 2] {
        [Direction::ToServer, Direction::ToClient].map(|direction| {
            let recorded = self.relay.recorded(direction);
            recorded.iter().map(|datagram| datagram.bytes.len()).max().unwrap_or(0)
        })
    }
}

#[tokio::test]
async fn packets_grow_to_what_the_route_carries() {
    let most = usize::from(TransportSettings::default().datagram_bytes_max);
    for suite in [Suite::AES_256_GCM, Suite::AES_128_CTR_HMAC_SHA256] {
        let mut path = Path::start(suite).await;
        until("MTU discovery ends", || path.sizes() == [most; 2]).await;
        path.transfer(1, 8 << 20).await;
        until("MTU discovery of the bulk connection ends", || path.sizes() == [most; 2]).await;
        path.transfer(3, 8 << 20).await;
        assert_eq!(path.longest(), [most; 2], "{suite}");
    }
}

#[tokio::test]
async fn packets_of_suites_with_64_bit_blocks_stay_at_1452_bytes() {
    for suite in [Suite::TRIPLE_DES_CTR_HMAC_SHA1, Suite::DES_CTR_HMAC_SHA256] {
        let mut path = Path::start(suite).await;
        until("MTU discovery ends", || path.sizes() == [ETHERNET; 2]).await;
        path.transfer(1, 2 << 20).await;
        until("MTU discovery of the bulk connection ends", || path.sizes() == [ETHERNET; 2]).await;
        path.transfer(3, 2 << 20).await;
        assert_eq!(path.longest(), [ETHERNET; 2], "{suite}");
    }
}

#[tokio::test]
async fn a_path_that_swallows_long_packets_from_now_on_costs_no_connection_and_no_byte() {
    const CARRIES: usize = 1_400;
    let mut path = Path::start(Suite::AES_128_GCM).await;
    path.transfer(1, 8 << 20).await;
    until("MTU discovery ends", || path.sizes().iter().all(|size| *size > 9_000)).await;
    path.transfer(3, 8 << 20).await;

    let narrow = LineSettings { bytes_max: Some(CARRIES), ..<_>::default() };
    path.relay.set_both(narrow);
    path.transfer(5, 8 << 20).await;
    assert!(path.sizes().iter().all(|size| *size <= CARRIES), "{:?}", path.sizes());
    assert!(path.relay.counts(Direction::ToServer).lost > 0);
    // So it took a few probe timeouts: a path that is silent for the peer timeout ends a session.
    assert!(path.client.reconnects().is_empty(), "the session was lost");
    assert_eq!(path.server.sessions.live().len(), 1);
}

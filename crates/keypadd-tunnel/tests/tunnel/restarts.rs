//! Tests a server that was killed and restarted: clients learn of it by a stateless reset (RFC 9000
//! 10.3), which is never sent for a connection in use.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use keypadd_tunnel::{HoldSettings, TransportSettings};
use testbed::{Datagram, Direction, LineSettings};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::support::*;

/// Bytes of connection IDs.
const CID_BYTES: usize = 8;
const TOKEN_BYTES: usize = 16;

/// Passes only injected datagrams.
fn cut() -> LineSettings {
    LineSettings { cut: true, ..<_>::default() }
}

/// Timeouts so long that none of them ends a session here.
fn patient(loops: usize) -> TransportSettings {
    let long = Duration::from_secs(3_600);
    let hold = HoldSettings { time: long, ..HoldSettings::OFF };
    TransportSettings { hold, peer_timeout: long, loops, ..<_>::default() }
}

#[tokio::test]
async fn a_restarted_server_resets_what_it_has_forgotten_whichever_loop_had_it() {
    let (target, key) = (listener().await, new_key());
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = patient(8);
    });
    let mut settings = client_settings(&server, &key, &[forward]);
    settings.transport = patient(2);
    let relay = relayed(&server, &mut settings).await;
    let client = RunningClient::start(settings).await;
    for (restarts, loops) in [1, 8, 2].into_iter().enumerate() {
        let mut before = TcpStream::connect(client.listeners[0]).await.unwrap();
        let _there = assert_reaches(&mut before, &target).await;
        relay.set_both(cut());
        let stopped = server.kill().await;
        server = RunningServer::start_as_before(stopped, key.public(), &["localhost:*"], |it| {
            it.transport = patient(loops);
        });
        relay.set_both(LineSettings::default());
        before.write_all(b"its next packet").await.unwrap();
        let count = restarts as u64 + 1;
        until("the client is told", || client.reconnects() == [("forgotten", count)]).await;
        // The server that held the other end is gone.
        assert_reset(&mut before).await;
    }
}

/// An attacker that sends to a server from its own address.
struct Attacker(UdpSocket);

impl Attacker {
    fn new() -> Self {
        let socket = UdpSocket::bind("[::1]:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self(socket)
    }

    /// Sends a packet with a short header that no key has sealed.
    fn send(&self, server: SocketAddr, cid: [u8; CID_BYTES]) {
        let datagram = [&[0x40], &cid[..], &[0x5a; 40]].concat();
        self.0.send_to(&datagram, server).unwrap();
    }

    /// Returns the token in the first answer to packets for an ID.
    fn token(&self, server: SocketAddr, cid: [u8; CID_BYTES]) -> [u8; TOKEN_BYTES] {
        let mut buffer = [0; 2_048];
        loop {
            self.send(server, cid);
            if let Ok(bytes) = self.0.recv(&mut buffer) {
                assert!(bytes < 1 + CID_BYTES + 40, "an answer is shorter: {bytes}");
                return buffer[bytes - TOKEN_BYTES..bytes].try_into().unwrap();
            }
        }
    }
}

/// A datagram that resets the peer that holds this token.
fn reset_with(token: [u8; TOKEN_BYTES]) -> Vec<u8> {
    [&[0x40], &[0xa5; 30][..], &token].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_the_token_of_a_connection_in_use() {
    let (target, key) = (listener().await, new_key());
    let start = |settings: &mut keypadd_tunnel::ServerSettings| settings.transport = patient(4);
    let server = RunningServer::start_with(key.public(), &["localhost:*"], start);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    settings.transport = patient(2);
    let relay = relayed(&server, &mut settings).await;
    relay.record(Direction::ToServer, 1_000);
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = assert_reaches(&mut here, &target).await;
    let seen = relay.recorded(Direction::ToServer);
    let last = seen.iter().rfind(|datagram| datagram.bytes[0] & 0x80 == 0).expect("a short header");
    let living: [u8; CID_BYTES] = last.bytes[1..=CID_BYTES].try_into().unwrap();
    let mut unknown = living;
    unknown[CID_BYTES - 1] ^= 1;

    // The loop that has the connection stays silent: it answers later packets, in order.
    let attacker = Attacker::new();
    let of_unknown = attacker.token(server.address, unknown);
    for _ in 0..50 {
        attacker.send(server.address, living);
        assert_eq!(attacker.token(server.address, unknown), of_unknown);
    }
    // No other loop answers in its place.
    for number in (0..4).filter(|number| *number != living[0]) {
        let mut elsewhere = unknown;
        elsewhere[0] = number;
        let of_elsewhere = attacker.token(server.address, elsewhere);
        attacker.send(server.address, living);
        assert_eq!(attacker.token(server.address, elsewhere), of_elsewhere);
    }

    // Another server with the same key has no state, and its tokens are not accepted here.
    let other = RunningServer::start_as(server.private.clone(), key.public(), &[], start);
    let forged = attacker.token(other.address, living);
    let reset_with = |token| Datagram { client: last.client, bytes: reset_with(token) };
    relay.inject(Direction::ToClient, &reset_with(forged)).unwrap();
    send_bytes_both_ways(&mut here, &mut there).await;
    assert!(client.reconnects().is_empty());

    // The server's own token, once it has lost its state, ends the connection.
    relay.set_both(cut());
    let stopped = server.kill().await;
    let server = RunningServer::start_as_before(stopped, key.public(), &[], start);
    assert_eq!(attacker.token(server.address, unknown), of_unknown);
    let right = attacker.token(server.address, living);
    relay.inject(Direction::ToClient, &reset_with(right)).unwrap();
    until("the client accepts the reset", || client.is_waiting()).await;
    assert_eq!(client.link.status().cause.unwrap(), "reset by peer");
}

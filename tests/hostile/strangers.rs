//! Floods a server with handshakes from unlisted keys: no chunk is filled and no memory is kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, PrivateKey, PublicKey, client_config};
use serde_json::Value;
use testbed::{Direction, Relay};
use tokio::time::{sleep, timeout};

use crate::SUITES;
use crate::daemons::{Daemon, Desk, PUBLIC_KEY, watched_desk};
use crate::exchange::HANG;
use crate::flood::number;
use crate::tunnel::{Holding, LOOK};

/// Runs handshakes with unlisted keys, `at_once` concurrently; all are refused.
async fn shake_hands(server: SocketAddr, handshakes: u64, at_once: u64) {
    let crypto = CryptoSettings::plain(
        Arc::new(PrivateKey::generate().unwrap()),
        SUITES[0].parse::<Suite>().unwrap(),
    );
    let key: PublicKey = PUBLIC_KEY.parse().unwrap();
    let config = quinn::ClientConfig::new(client_config(&crypto, key).unwrap());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut strangers = tokio::task::JoinSet::new();
    for stranger in 0..at_once {
        let (endpoint, config) = (endpoint.clone(), config.clone());
        let turns = handshakes / at_once + u64::from(stranger < handshakes % at_once);
        strangers.spawn(async move {
            for _ in 0..turns {
                let connecting = endpoint.connect_with(config.clone(), server, "x").unwrap();
                // The server decides last: the client may briefly consider itself connected.
                let refused = async {
                    match connecting.await {
                        Ok(connection) => connection.closed().await,
                        Err(error) => error,
                    }
                };
                let refused = timeout(HANG, refused).await.expect("the handshake hangs");
                let text = refused.to_string();
                assert!(text.contains("not allowed"), "{text}");
            }
        });
    }
    while let Some(done) = strangers.join_next().await {
        done.unwrap();
    }
}

/// Keystream bytes that the server has filled into its pool.
fn fill_bytes(desk: &Desk) -> u64 {
    let status = desk.keypadd(&["status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let daemons = status["daemons"].as_array().unwrap();
    number(daemons.iter().find(|daemon| daemon["verb"] == "serve").unwrap(), "/pool/fill_bytes")
}

/// Leaves handshakes unfinished: resends the first datagrams of strangers for a whole handshake
/// timeout. By then the server has keys for the pending connections.
async fn begin_and_fall_silent(desk: &Desk, server: SocketAddr) {
    /// The server's handshake timeout (docs/limits.md, "Strangers").
    const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
    /// First byte of an Initial packet, without the protected bits (RFC 9000 17.2).
    const INITIAL: u8 = 0xc0;

    let relay = Relay::start(server, 9).await.unwrap();
    relay.record(Direction::ToServer, 1024);
    shake_hands(relay.address(), 30, 3).await;
    let mut firsts = relay.recorded(Direction::ToServer);
    firsts.retain(|datagram| datagram.bytes[0] & 0xf0 == INITIAL);
    let answered = || relay.counts(Direction::ToClient).taken;
    let answered_before = answered();
    let until = Instant::now() + HANDSHAKE_TIME;
    while Instant::now() < until {
        for first in &firsts {
            let _ = relay.inject(Direction::ToServer, first);
        }
        sleep(LOOK).await;
        assert_eq!(fill_bytes(desk), 0, "chunks filled for unfinished handshakes");
    }
    assert!(answered() > answered_before, "no handshake was started");
}

/// Sends strangers to a server: no chunk is filled for them and no memory is kept.
async fn strangers(warm_up: u64, handshakes: u64) {
    /// Less than 420 bytes per stranger at 10^4 strangers.
    const GROWTH_BYTES_MAX: u64 = 4 << 20;

    let desk = watched_desk();
    let server = Daemon::serve(&desk, &["--pool", "on"]);
    let address = server.address().parse().unwrap();
    shake_hands(address, warm_up, 3).await;
    let before = Holding::of(&server);
    let began = Instant::now();
    shake_hands(address, handshakes, 3).await;
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(fill_bytes(&desk), 0);
    // A refused connection lives for three more probe timeouts (RFC 9000 10.2).
    let deadline = Instant::now() + HANG;
    let grown = loop {
        let grown = Holding::of(&server).resident_bytes.saturating_sub(before.resident_bytes);
        if grown <= GROWTH_BYTES_MAX {
            break grown;
        }
        assert!(Instant::now() < deadline, "grown by {} KiB", grown >> 10);
        sleep(LOOK).await;
    };
    println!("{handshakes} strangers in {seconds:.1} s: none filled, grown by {} KiB", grown >> 10);
    begin_and_fall_silent(&desk, address).await;
    // A listed client still gets in, and the pool does fill for it.
    let listed =
        Daemon::start(server.connect(&desk, &["--log-format", "json", "-L", "0:localhost:9"]));
    let deadline = Instant::now() + HANG;
    while fill_bytes(&desk) == 0 {
        assert!(Instant::now() < deadline, "no fill for a listed client either");
        sleep(LOOK).await;
    }
    assert_eq!(listed.stop().status.code(), Some(0));
    assert_eq!(server.stop().status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_fill_no_chunk() {
    strangers(500, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: a minute"]
async fn ten_thousand_strangers_fill_no_chunk_and_leave_memory_flat() {
    strangers(500, 10_000).await;
}

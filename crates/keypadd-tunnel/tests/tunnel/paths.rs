//! Tests path changes during a session: a path that goes silent, and a client whose address
//! changes.

use std::time::{Duration, Instant};

use testbed::{LineSettings, Relay};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

/// A target, a server, and a client that reaches it through a relay.
async fn relayed_tunnel() -> (TcpListener, RunningServer, Relay, RunningClient) {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    let relay = relayed(&server, &mut settings).await;
    // The shorter of both ends' timeouts applies.
    settings.transport.peer_timeout = Duration::from_secs(10);
    (target, server, relay, RunningClient::start(settings).await)
}

#[tokio::test]
async fn both_ends_detect_a_silent_path_within_fifteen_seconds() {
    let (target, server, relay, client) = relayed_tunnel().await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = assert_reaches(&mut here, &target).await;

    relay.set_both(LineSettings { cut: true, ..<_>::default() });
    let began = Instant::now();
    until("the client has lost the session", || client.is_waiting()).await;
    until("the server has lost the session", || server.sessions.live().is_empty()).await;
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(15), "{taken:?}");
    assert_eq!(client.link.status().cause.unwrap(), "timeout");
    assert_reset(&mut here).await;
    assert_reset(&mut there).await;

    relay.set_both(LineSettings::default());
    until("the client reconnects", || client.reconnects() == [("silent", 1)]).await;
    let mut after = TcpStream::connect(client.listeners[0]).await.unwrap();
    assert_reaches(&mut after, &target).await;
}

#[tokio::test]
async fn a_client_whose_address_changes_loses_nothing() {
    const BYTES: usize = 8 << 20;
    let (target, server, relay, client) = relayed_tunnel().await;
    let here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let there = accept(&target).await;
    let session = server.sessions.live().pop().unwrap();
    let first = session.remote();

    let (up, down) = (noise(1, BYTES), noise(2, BYTES));
    let (mut from_here, mut to_there) = here.into_split();
    let (mut from_there, mut to_here) = there.into_split();
    let mut received = [vec![0; BYTES], vec![0; BYTES]];
    let [at_there, at_here] = &mut received;
    let moves = async {
        for _ in 0..3 {
            let before = session.remote();
            relay.rebind().unwrap();
            until("the server sees the new address", || session.remote() != before).await;
        }
    };
    // In two halves: the address changes happen during the first.
    let (half_up, half_down) = (up.split_at(BYTES / 2), down.split_at(BYTES / 2));
    let (first_up, first_down) = (half_up.0, half_down.0);
    let transfer = async {
        tokio::join!(
            async { to_there.write_all(first_up).await.unwrap() },
            async { to_here.write_all(first_down).await.unwrap() },
            async { from_there.read_exact(&mut at_there[..BYTES / 2]).await.unwrap() },
            async { from_here.read_exact(&mut at_here[..BYTES / 2]).await.unwrap() },
        )
    };
    within(async { tokio::join!(moves, transfer) }).await;
    let rest = async {
        tokio::join!(
            async { to_there.write_all(half_up.1).await.unwrap() },
            async { to_here.write_all(half_down.1).await.unwrap() },
            async { from_there.read_exact(&mut at_there[BYTES / 2..]).await.unwrap() },
            async { from_here.read_exact(&mut at_here[BYTES / 2..]).await.unwrap() },
        )
    };
    within(rest).await;
    assert!(received == [up, down], "the bytes differ");
    assert_ne!(session.remote(), first);
    assert!(!session.has_ended(), "the session was lost");
    assert!(client.reconnects().is_empty());
}

//! Tests reconnects, forwards that change, and draining.

use std::{future::pending, io::ErrorKind, net::SocketAddr, time::Duration};

use keypadd_tunnel::{Client, LinkState, ReconnectReason};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::support::*;

#[tokio::test]
async fn a_client_reconnects_and_serves_connections_accepted_meanwhile() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut before = tunnel.enter().await;
    let _there = assert_reaches(&mut before, &target).await;
    assert_eq!(tunnel.link.status().state, LinkState::Connected);
    assert!(tunnel.link.status().reconnects.is_empty());

    let link = tunnel.link.clone();
    let listener_address = tunnel.addresses[0][0];
    let allowed = tunnel.client_key;
    let stopped = tunnel.server.stop().await;
    assert_reset(&mut before).await;
    until("the client has lost the session", || link.status().state == LinkState::Waiting).await;
    let cause = link.status().cause.unwrap();
    assert_eq!(cause, "closed by peer: \"the server is shutting down\"");

    let mut meanwhile = TcpStream::connect(listener_address).await.unwrap();
    let _server = RunningServer::start_again(stopped, allowed, &["localhost:*"]);
    assert_reaches(&mut meanwhile, &target).await;
    let status = link.status();
    assert_eq!((status.state, status.cause), (LinkState::Connected, None));
    assert_eq!(Vec::from_iter(status.reconnects), [(ReconnectReason::Shutdown, 1)]);
}

#[tokio::test]
async fn a_connection_without_a_session_is_reset_after_ten_seconds() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let client = Client::bind(client_settings(&server, &key, &["0:web:80"])).await.unwrap();
    let listener_address = addresses(&client)[0][0];
    let mut here = TcpStream::connect(listener_address).await.unwrap();
    let began = Instant::now();
    assert_reset(&mut here).await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(9), "{waited:?}");
}

#[tokio::test]
async fn forwards_change_and_open_connections_stay() {
    let (first, second) = (listener().await, listener().await);
    let forward = |target: &TcpListener| format!("0:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forwards = [&*forward(&first), &*forward(&second)];
    let (client, session) = connect_client(client_settings(&server, &key, &forwards)).await;
    let listeners = |client: &Client| -> Vec<SocketAddr> {
        addresses(client).iter().map(|addresses| addresses[0]).collect()
    };
    let change = async {
        let [of_first, of_second] = listeners(&client)[..] else { panic!("two forwards") };
        let mut into_first = TcpStream::connect(of_first).await.unwrap();
        let mut out_of_first = accept(&first).await;

        // Removes the first, keeps the second, adds a third.
        let third = listener().await;
        let wanted = [forward(&second), forward(&third)].map(|text| crate::support::forward(&text));
        client.set_forwards(wanted.to_vec()).await.unwrap();
        let [still_second, of_third] = listeners(&client)[..] else { panic!("two forwards") };
        assert_eq!(still_second, of_second);
        assert!(TcpStream::connect(of_first).await.is_err());
        assert_reaches(&mut TcpStream::connect(of_third).await.unwrap(), &third).await;
        assert_reaches(&mut TcpStream::connect(of_second).await.unwrap(), &second).await;
        into_first.write_u8(1).await.unwrap();
        assert_eq!(within(out_of_first.read_u8()).await.unwrap(), 1);
        let listed: Vec<_> = session_forwards(&client);
        assert!(listed.contains(&format!("-L {}", forward(&third))), "{listed:?}");

        // A forward that cannot be bound is reported; nothing has changed.
        let taken = format!("{}:web:80", of_second.port());
        let wanted = [forward(&second), taken].map(|text| crate::support::forward(&text));
        let error = client.set_forwards(wanted.to_vec()).await.unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
        assert_eq!(listeners(&client), [of_second, of_third]);
        Duration::ZERO
    };
    client.run(Some(session), change).await;
    assert!(client.forwards().is_empty());
}

fn session_forwards(client: &Client) -> Vec<String> {
    let sessions = client.sessions().status();
    sessions[0].forwards.iter().map(|status| status.forward.clone()).collect()
}

#[tokio::test]
async fn a_client_connects_when_its_server_starts_later() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    settings.connect_timeout = Duration::from_millis(300);
    let stopped = server.stop().await;
    let client = Client::bind(settings).await.unwrap();
    let (link, listener_address) = (client.link(), addresses(&client)[0][0]);
    let running = tokio::spawn(async move { client.run(None, pending()).await });
    until("an attempt has failed", || {
        link.status().cause.is_some_and(|cause| cause.contains("no answer in"))
    })
    .await;
    assert!(link.status().retry_unix_seconds.is_some());
    let _server = RunningServer::start_again(stopped, key.public(), &["localhost:*"]);
    assert_reaches(&mut TcpStream::connect(listener_address).await.unwrap(), &target).await;
    assert!(link.status().reconnects.is_empty(), "no session was lost");
    running.abort();
}

#[tokio::test]
async fn a_draining_server_finishes_open_connections_and_accepts_no_new_ones() {
    let (target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    let (link, listener_address) = (tunnel.link.clone(), tunnel.addresses[0][0]);
    let draining = tokio::spawn(tunnel.server.drain(Duration::from_secs(50)));
    // New connections are still accepted until draining begins.
    loop {
        let mut late = TcpStream::connect(listener_address).await.unwrap();
        let served = tokio::select! {
            served = target.accept() => served.is_ok(),
            ended = late.read_u8() => ended.is_ok(),
        };
        if !served {
            break;
        }
    }
    here.write_all(b"last words").await.unwrap();
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"last words");
    assert!(!draining.is_finished());
    drop(there);
    assert!(read_all(&mut here).await.unwrap().is_empty());
    within(draining).await.unwrap();
    until("the client has lost the session", || link.status().state == LinkState::Waiting).await;
}

#[tokio::test]
async fn connections_open_after_the_drain_time_are_reset() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    tunnel.server.drain(Duration::from_millis(50)).await;
    assert_reset(&mut here).await;
    assert_reset(&mut there).await;
}

#[tokio::test]
async fn a_draining_client_finishes_open_connections_and_accepts_no_new_ones() {
    let (_target, mut tunnel, mut here, mut there) = Tunnel::with_connection().await;
    let listener_address = tunnel.addresses[0][0];
    tunnel.drain_client(Duration::from_secs(50));
    while TcpStream::connect(listener_address).await.is_ok() {}
    here.write_all(b"last words").await.unwrap();
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"last words");
    there.write_all(b"answer").await.unwrap();
    drop(there);
    assert_eq!(read_all(&mut here).await.unwrap(), b"answer");
    let server = tunnel.client_ended().await;
    until("the server has closed the session", || server.sessions.live().is_empty()).await;
}

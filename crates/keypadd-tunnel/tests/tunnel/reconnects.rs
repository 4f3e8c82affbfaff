//! Tests reconnects, forwards that change, and draining.

use std::{future::pending, io::ErrorKind, net::SocketAddr, time::Duration};

use keypadd_keystream::Suite;
use keypadd_provider::client_config;
use keypadd_tunnel::{
    Client, LinkState, ReconnectReason, ServerLink,
    wire::{CONNECTED, CloseCode, Frame, HoldGrant, VERSION},
};
use quinn::Endpoint;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::yield_now,
    time::Instant,
};

use crate::{
    hold::holding,
    hostile::{header, raw_server, receive},
    support::*,
};

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

/// Accepts one session after another, and ends each when the client has it, as if another process
/// went on with it; the first one after a stream has carried a byte, if it `holds`.
async fn end_all_sessions(endpoint: Endpoint, holds: bool, client: oneshot::Receiver<ServerLink>) {
    let accept = async || {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        let (mut send, mut recv) = connection.accept_bi().await.unwrap();
        assert!(matches!(receive(&mut recv).await, Frame::HelloClient { .. }));
        let hold = HoldGrant { seconds: 600, epoch: 0, proof: None };
        let hold = holds.then_some(hold);
        let hello = Frame::HelloServer { version: VERSION, hold, home: None };
        send.write_all(&hello.encode()).await.unwrap();
        (connection, send, recv)
    };
    let mut session = accept().await;
    let link = client.await.unwrap();
    if holds {
        let (mut send, mut recv) = session.0.accept_bi().await.unwrap();
        recv.read_exact(&mut vec![0; header("web:80").len()]).await.unwrap();
        send.write_all(&[CONNECTED]).await.unwrap();
        recv.read_exact(&mut [0]).await.unwrap();
    }
    for reconnects in 1.. {
        session.0.close(CloseCode::Hold.value().into(), b"");
        session = accept().await;
        while link.status().reconnects.values().sum::<u64>() < reconnects {
            yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_client_waits_before_it_returns_to_a_server_that_ends_its_sessions_at_once() {
    for holds in [false, true] {
        let (server_key, key) = (new_key(), new_key());
        let settings = crypto(&server_key, Suite::AES_128_GCM);
        let (endpoint, address, server_key) = raw_server(&settings, key.public());
        let (connected, link) = oneshot::channel();
        let server = tokio::spawn(end_all_sessions(endpoint, holds, link));
        let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server_key).unwrap();
        let mut settings = settings_for(address, crypto, vec![forward("0:web:80")]);
        settings.transport = holding();
        let client = RunningClient::start(settings).await;
        let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
        here.write_u8(7).await.unwrap();
        assert!(connected.send(client.link.clone()).is_ok());
        until_without_timeouts("it waits", || client.link.status().retry_unix_seconds.is_some())
            .await;
        server.abort();
    }
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

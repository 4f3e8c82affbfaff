//! Tests remote forwards: the server listens, the client connects, and ports are taken over.

use std::{net::SocketAddr, sync::Arc};

use keypadd_provider::PrivateKey;
use keypadd_tunnel::{
    Client, ClientError, ClientSession, Peers, RemoteForward,
    wire::{Instance, ListenCode},
};
use testbed::LineSettings;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};

use crate::support::*;

/// The port of the only remote forward, or why it failed.
fn outcome(session: &ClientSession) -> Result<u16, ListenCode> {
    session.remote_forwards()[0].1
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A connection, if somebody listens. A socket that the kernel gives this very port is connected to
/// itself.
async fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(at(port)).await.ok()?;
    (stream.local_addr().unwrap() != at(port)).then_some(stream)
}

/// A free port.
async fn free_port() -> u16 {
    listener().await.local_addr().unwrap().port()
}

/// A server, a client's key, and a remote forward from a fixed port to a target.
struct Site {
    target: TcpListener,
    port: u16,
    forward: String,
    key: Arc<PrivateKey>,
    server: RunningServer,
}

impl Site {
    async fn start(permits: &[&str]) -> Self {
        let (target, port, key) = (listener().await, free_port().await, new_key());
        let forward = format!("-R {port}:{}", target.local_addr().unwrap());
        let server = RunningServer::start(key.public(), permits);
        Self { target, port, forward, key, server }
    }

    /// Connects to the forward's port and exchanges data with the target.
    async fn exchange(&self) {
        let near = TcpStream::connect(at(self.port)).await.unwrap();
        exchange(near, accept(&self.target).await).await;
    }
}

async fn client_of(
    server: &RunningServer,
    key: &Arc<PrivateKey>,
    instance: u8,
    forward: &str,
) -> (Client, ClientSession) {
    let mut settings = client_settings(server, key, &[forward]);
    settings.instance = Instance([instance; 16]);
    connect_client(settings).await
}

#[tokio::test]
async fn connections_to_the_server_reach_the_clients_target_with_exact_bytes() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let (_client, session) = client_of(&server, &key, 1, &forward).await;
    let port = outcome(&session).unwrap();
    for from in [at(port), format!("[::1]:{port}").parse().unwrap()] {
        let near = TcpStream::connect(from).await.unwrap();
        exchange(near, accept(&target).await).await;
    }
    // Resets pass both ways.
    let near = TcpStream::connect(at(port)).await.unwrap();
    let mut far = accept(&target).await;
    reset(near);
    assert_reset(&mut far).await;
    let mut near = TcpStream::connect(at(port)).await.unwrap();
    reset(accept(&target).await);
    assert_reset(&mut near).await;
    until("all connections are closed", || open(&server.sessions) == 0).await;
    // The server lists its listener even without connections.
    let [at_server] = &server.sessions.status()[..] else { panic!("one session") };
    let [forward] = &at_server.forwards[..] else { panic!("{at_server:?}") };
    assert_eq!((forward.forward.as_str(), forward.open), (format!("-R {port}").as_str(), 0));
    drop(session);
    until("the port is free", || std::net::TcpListener::bind(at(port)).is_ok()).await;
}

#[tokio::test]
async fn a_target_that_refuses_resets_the_connection() {
    let closed = free_port().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let (_client, session) = client_of(&server, &key, 1, &format!("-R 0:localhost:{closed}")).await;
    let port = outcome(&session).unwrap();
    assert_reset(&mut TcpStream::connect(at(port)).await.unwrap()).await;
}

#[tokio::test]
async fn a_unix_socket_is_removed_with_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sock");
    let path = path.to_str().unwrap();
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &[&format!("listen {path}")]);
    let forward = format!("-R {path}:{}", target.local_addr().unwrap());
    let (_client, session) = client_of(&server, &key, 1, &forward).await;
    assert_eq!(outcome(&session), Ok(0));
    let mut near = UnixStream::connect(path).await.unwrap();
    let mut far = accept(&target).await;
    near.write_all(b"hello").await.unwrap();
    near.shutdown().await.unwrap();
    assert_eq!(read_all(&mut far).await.unwrap(), b"hello");
    far.write_all(b"bye").await.unwrap();
    drop(far);
    assert_eq!(read_all(&mut near).await.unwrap(), b"bye");
    drop(session);
    until("the file is removed", || !std::path::Path::new(path).exists()).await;
}

#[tokio::test]
async fn unpermitted_and_taken_addresses_are_refused_with_a_code() {
    let occupied = listener().await;
    let occupied_port = occupied.local_addr().unwrap().port();
    let permitted = free_port().await;
    let key = new_key();
    let permits = [format!("listen {permitted}"), format!("listen {occupied_port}")];
    let server = RunningServer::start(key.public(), &["localhost:*", &permits[0], &permits[1]]);
    for (listen, code) in [
        ("0".to_owned(), ListenCode::NotPermitted),
        (format!("*:{permitted}"), ListenCode::NotPermitted),
        ("/tmp/keypadd-never.sock".into(), ListenCode::NotPermitted),
        (occupied_port.to_string(), ListenCode::InUse),
    ] {
        let (_client, session) = client_of(&server, &key, 1, &format!("-R {listen}:web:80")).await;
        assert_eq!(outcome(&session), Err(code), "{listen}");
        let [forward] = &session.live().status().forwards[..] else { panic!("one forward") };
        assert_eq!(forward.cause, Some(code.to_string()));
        let error = session.all_listening().unwrap_err();
        assert!(matches!(error, ClientError::NotListening { code: named, .. } if named == code));
        assert_eq!(
            error.to_string(),
            format!("remote forward -R {listen}:web:80 failed on the server: {code}")
        );
    }
}

#[tokio::test]
async fn forwards_change_while_the_session_is_open() {
    let target = listener().await;
    let (first, second) = (free_port().await, free_port().await);
    let text = |port| format!("-R {port}:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let client = RunningClient::start(client_settings(&server, &key, &[&text(first)])).await;
    let mut near = TcpStream::connect(at(first)).await.unwrap();
    let mut far = accept(&target).await;

    client.set_forwards(&[&text(second)]).await;
    until("the first is closed", || std::net::TcpListener::bind(at(first)).is_ok()).await;
    until("only the second and what is open are listed", || {
        let listed: Vec<_> = server.sessions.status().remove(0).forwards;
        let listed: Vec<_> = listed.iter().map(|one| (one.forward.clone(), one.open)).collect();
        let mut expected = vec![(format!("-R {first}"), 1), (format!("-R {second}"), 0)];
        expected.sort();
        listed == expected
    })
    .await;
    near.write_all(b"!").await.unwrap();
    assert_eq!(within(far.read_u8()).await.unwrap(), b'!', "open connections stay");
    let near = loop {
        if let Ok(near) = TcpStream::connect(at(second)).await {
            break near;
        }
        tokio::task::yield_now().await;
    };
    exchange(near, accept(&target).await).await;
}

#[tokio::test]
async fn a_newer_session_of_the_same_run_takes_the_address_over_at_once() {
    let site = Site::start(&["listen localhost:*"]).await;
    let (_old_client, old) = client_of(&site.server, &site.key, 1, &site.forward).await;
    assert_eq!(outcome(&old), Ok(site.port));
    let (_new_client, new) = client_of(&site.server, &site.key, 1, &site.forward).await;
    assert_eq!(outcome(&new), Ok(site.port));
    site.exchange().await;
}

#[tokio::test]
async fn a_live_holder_keeps_its_address_and_an_unresponsive_one_loses_it() {
    let site = Site::start(&["listen localhost:*"]).await;
    let mut settings = client_settings(&site.server, &site.key, &[&site.forward]);
    let relay = relayed(&site.server, &mut settings).await;
    let (_holder_client, holder) = connect_client(settings).await;
    assert_eq!(outcome(&holder), Ok(site.port));

    let (_second_client, second) = client_of(&site.server, &site.key, 2, &site.forward).await;
    assert_eq!(outcome(&second), Err(ListenCode::InUse));

    relay.set_both(LineSettings { cut: true, ..<_>::default() });
    let (_third_client, third) = client_of(&site.server, &site.key, 3, &site.forward).await;
    assert_eq!(outcome(&third), Ok(site.port));
    site.exchange().await;
}

#[tokio::test]
async fn another_key_never_takes_an_address_over() {
    let site = Site::start(&[]).await;
    let other = new_key();
    let listed = [&site.key, &other].map(|key| allowed_peer(key.public(), &["listen localhost:*"]));
    site.server.handle.set_peers(Peers::new(listed).unwrap());
    let mut settings = client_settings(&site.server, &site.key, &[&site.forward]);
    let relay = relayed(&site.server, &mut settings).await;
    let (_client, holder) = connect_client(settings).await;
    assert_eq!(outcome(&holder), Ok(site.port));
    relay.set_both(LineSettings { cut: true, ..<_>::default() });
    let (_other_client, second) = client_of(&site.server, &other, 2, &site.forward).await;
    assert_eq!(outcome(&second), Err(ListenCode::InUse));
}

#[tokio::test]
async fn remote_forwards_are_requested_again_after_a_reconnect() {
    let Site { target, port, forward, key, server } = Site::start(&["listen localhost:*"]).await;
    let client = RunningClient::start(client_settings(&server, &key, &[&forward])).await;
    let stopped = server.stop().await;
    assert!(TcpStream::connect(at(port)).await.is_err());
    // Another program holds the port at the first reconnect and has released it at the second.
    let squatter = TcpListener::bind(at(port)).await.unwrap();
    let server = RunningServer::start_again(stopped, key.public(), &["listen localhost:*"]);
    until("the client reconnects", || !server.sessions.live().is_empty()).await;
    until("its link is up", || !client.is_waiting()).await;
    drop(squatter);
    let stopped = server.stop().await;
    let _server = RunningServer::start_again(stopped, key.public(), &["listen localhost:*"]);
    let near = within(async {
        loop {
            match connect(port).await {
                Some(near) => break near,
                None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    });
    exchange(near.await, accept(&target).await).await;
}

#[tokio::test]
async fn a_removed_permit_closes_the_listener_at_its_next_connection() {
    let Site { port, forward, key, server, .. } = Site::start(&["listen localhost:*"]).await;
    let (_client, session) = client_of(&server, &key, 1, &forward).await;
    assert_eq!(outcome(&session), Ok(port));
    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &["localhost:*"])]).unwrap());
    assert_reset(&mut TcpStream::connect(at(port)).await.unwrap()).await;
    until("the port is free", || std::net::TcpListener::bind(at(port)).is_ok()).await;
    until("the client reports the refusal", || outcome(&session) == Err(ListenCode::NotPermitted))
        .await;
}

#[tokio::test]
async fn refused_forwards_are_requested_again_when_the_forwards_are_set() {
    let Site { target, port, forward, key, server } = Site::start(&["localhost:*"]).await;
    let client = RunningClient::start(client_settings(&server, &key, &[&forward])).await;
    let permits = ["listen localhost:*"];
    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &permits)]).unwrap());
    let near = within(async {
        loop {
            client.set_forwards(&[&forward]).await;
            if let Some(near) = connect(port).await {
                break near;
            }
            tokio::task::yield_now().await;
        }
    });
    exchange(near.await, accept(&target).await).await;
}

#[tokio::test]
async fn more_forwards_than_a_session_may_have_are_refused() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let forwards: Vec<String> = (0..70).map(|nth| format!("-R 0:web:{}", 1 + nth)).collect();
    let forwards: Vec<&str> = forwards.iter().map(String::as_str).collect();
    let (_client, session) = connect_client(client_settings(&server, &key, &forwards)).await;
    let outcomes = session.remote_forwards();
    let refused: Vec<&(RemoteForward, _)> =
        outcomes.iter().filter(|(_, outcome)| *outcome == Err(ListenCode::TooMany)).collect();
    assert_eq!((outcomes.len(), refused.len()), (70, 6));
}

//! Remote forwards: the server listens, the client connects, and addresses change hands.

use std::{net::SocketAddr, sync::Arc};

use keypadd_provider::PrivateKey;
use keypadd_tunnel::{
    Client, ClientError, ClientSession, Peers, RemoteForward,
    wire::{Instance, ListenCode},
};
use testbed::{Impairments, Relay};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};

use crate::support::*;

/// The one remote forward's port, or why there is none.
fn outcome(session: &ClientSession) -> Result<u16, ListenCode> {
    session.remote_forwards()[0].1
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A port that is free now.
async fn free_port() -> u16 {
    listener().await.local_addr().unwrap().port()
}

/// Half-closes from both sides in turn, with more bytes than any buffer holds.
async fn exchange(mut near: TcpStream, mut far: TcpStream) {
    let (question, answer) = (noise(5, 300_000), noise(6, 300_000));
    let ask = async {
        near.write_all(&question).await.unwrap();
        near.shutdown().await.unwrap();
        read_all(&mut near).await.unwrap()
    };
    let reply = async {
        let heard = read_all(&mut far).await.unwrap();
        far.write_all(&answer).await.unwrap();
        drop(far);
        heard
    };
    let (at_near, at_far) = within(async { tokio::join!(ask, reply) }).await;
    assert!(at_far == question && at_near == answer);
}

async fn client_of(
    server: &RunningServer,
    key: &Arc<PrivateKey>,
    instance: u8,
    forward: &str,
) -> (Client, ClientSession) {
    let mut settings = client_settings(server, key, &[forward]);
    settings.instance = Instance([instance; 16]);
    connected(settings).await
}

#[tokio::test]
async fn what_connects_there_is_connected_here_byte_by_byte() {
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
    // Resets, both ways.
    let near = TcpStream::connect(at(port)).await.unwrap();
    let mut far = accept(&target).await;
    reset(near);
    assert_reset(&mut far).await;
    let mut near = TcpStream::connect(at(port)).await.unwrap();
    reset(accept(&target).await);
    assert_reset(&mut near).await;
    until("all is over", || open(&server.sessions) == 0).await;
    // The server lists where it listens also while nobody is connected.
    let [at_server] = &server.sessions.status()[..] else { panic!("one session") };
    let [forward] = &at_server.forwards[..] else { panic!("{at_server:?}") };
    assert_eq!((forward.forward.as_str(), forward.open), (format!("-R {port}").as_str(), 0));
    drop(session);
    until("the port is free", || std::net::TcpListener::bind(at(port)).is_ok()).await;
}

#[tokio::test]
async fn a_target_that_refuses_resets_what_came_for_it() {
    let closed = free_port().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let (_client, session) = client_of(&server, &key, 1, &format!("-R 0:localhost:{closed}")).await;
    let port = outcome(&session).unwrap();
    assert_reset(&mut TcpStream::connect(at(port)).await.unwrap()).await;
}

#[tokio::test]
async fn a_unix_socket_can_be_published_and_goes_with_the_session() {
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
    let mut heard = String::new();
    within(near.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "bye");
    drop(session);
    until("the file is gone", || !std::path::Path::new(path).exists()).await;
}

#[tokio::test]
async fn what_is_not_permitted_or_taken_is_refused_by_name() {
    let occupied = listener().await;
    let occupied_port = occupied.local_addr().unwrap().port();
    let permitted = free_port().await;
    let key = new_key();
    let permits = [format!("listen {permitted}"), format!("listen {occupied_port}")];
    let server = RunningServer::start(key.public(), &["*:*", &permits[0], &permits[1]]);
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
            format!("the server does not listen for -R {listen}:web:80: {code}")
        );
    }
}

#[tokio::test]
async fn forwards_come_and_go_while_the_session_lives() {
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
    assert_eq!(within(far.read_u8()).await.unwrap(), b'!', "what was open stays");
    let near = loop {
        if let Ok(near) = TcpStream::connect(at(second)).await {
            break near;
        }
        tokio::task::yield_now().await;
    };
    exchange(near, accept(&target).await).await;
}

#[tokio::test]
async fn an_address_goes_to_the_next_session_of_the_same_run_at_once() {
    let target = listener().await;
    let port = free_port().await;
    let forward = format!("-R {port}:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let (_old_client, old) = client_of(&server, &key, 1, &forward).await;
    assert_eq!(outcome(&old), Ok(port));
    let (_new_client, new) = client_of(&server, &key, 1, &forward).await;
    assert_eq!(outcome(&new), Ok(port));
    let near = TcpStream::connect(at(port)).await.unwrap();
    exchange(near, accept(&target).await).await;
}

#[tokio::test]
async fn a_holder_that_lives_keeps_its_address_and_a_silent_one_loses_it() {
    let target = listener().await;
    let port = free_port().await;
    let forward = format!("-R {port}:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let relay = Relay::start(server.address, 1).await.unwrap();
    let mut settings = client_settings(&server, &key, &[&forward]);
    settings.server = relay.address().to_string().parse().unwrap();
    let (_holder_client, holder) = connected(settings).await;
    assert_eq!(outcome(&holder), Ok(port));

    let (_second_client, second) = client_of(&server, &key, 2, &forward).await;
    assert_eq!(outcome(&second), Err(ListenCode::InUse));

    relay.set_both(&Impairments { cut: true, ..<_>::default() });
    let (_third_client, third) = client_of(&server, &key, 3, &forward).await;
    assert_eq!(outcome(&third), Ok(port));
    let near = TcpStream::connect(at(port)).await.unwrap();
    exchange(near, accept(&target).await).await;
}

#[tokio::test]
async fn another_key_never_takes_an_address_over() {
    let port = free_port().await;
    let forward = format!("-R {port}:web:80");
    let (key, other) = (new_key(), new_key());
    let server = RunningServer::start(key.public(), &[]);
    let listed = [&key, &other].map(|key| allowed_peer(key.public(), &["listen localhost:*"]));
    server.handle.set_peers(Peers::new(listed).unwrap());
    let relay = Relay::start(server.address, 1).await.unwrap();
    let mut settings = client_settings(&server, &key, &[&forward]);
    settings.server = relay.address().to_string().parse().unwrap();
    let (_client, holder) = connected(settings).await;
    assert_eq!(outcome(&holder), Ok(port));
    relay.set_both(&Impairments { cut: true, ..<_>::default() });
    let (_other_client, second) = client_of(&server, &other, 2, &forward).await;
    assert_eq!(outcome(&second), Err(ListenCode::InUse));
}

#[tokio::test]
async fn after_a_reconnect_the_server_is_asked_again() {
    let target = listener().await;
    let port = free_port().await;
    let forward = format!("-R {port}:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let client = RunningClient::start(client_settings(&server, &key, &[&forward])).await;
    let gone = server.stop().await;
    assert!(TcpStream::connect(at(port)).await.is_err());
    // Somebody else has the port when the client comes back: it says so, and asks the next time.
    let squatter = TcpListener::bind(at(port)).await.unwrap();
    let server = RunningServer::start_again(gone, key.public(), &["listen localhost:*"]);
    until("it comes back", || !server.sessions.live().is_empty()).await;
    until("and knows it", || !client.is_waiting()).await;
    drop(squatter);
    let gone = server.stop().await;
    let _server = RunningServer::start_again(gone, key.public(), &["listen localhost:*"]);
    let near = within(async {
        loop {
            match TcpStream::connect(at(port)).await {
                Ok(near) => break near,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    });
    exchange(near.await, accept(&target).await).await;
}

#[tokio::test]
async fn a_permit_that_is_taken_back_closes_the_listener_at_its_next_connection() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let (_client, session) = client_of(&server, &key, 1, &forward).await;
    let port = outcome(&session).unwrap();
    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &["*:*"])]).unwrap());
    assert_reset(&mut TcpStream::connect(at(port)).await.unwrap()).await;
    until("the port is free", || std::net::TcpListener::bind(at(port)).is_ok()).await;
    until("the client knows", || outcome(&session) == Err(ListenCode::NotPermitted)).await;
}

#[tokio::test]
async fn what_was_refused_is_asked_for_again_when_the_forwards_are_set() {
    let target = listener().await;
    let (port, key) = (free_port().await, new_key());
    let server = RunningServer::start(key.public(), &["*:*"]);
    let text = format!("-R {port}:{}", target.local_addr().unwrap());
    let client = RunningClient::start(client_settings(&server, &key, &[&text])).await;
    let permits = ["listen localhost:*"];
    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &permits)]).unwrap());
    let near = within(async {
        loop {
            client.set_forwards(&[&text]).await;
            if let Ok(near) = TcpStream::connect(at(port)).await {
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
    let (_client, session) = connected(client_settings(&server, &key, &forwards)).await;
    let outcomes = session.remote_forwards();
    let refused: Vec<&(RemoteForward, _)> =
        outcomes.iter().filter(|(_, outcome)| *outcome == Err(ListenCode::TooMany)).collect();
    assert_eq!((outcomes.len(), refused.len()), (70, 6));
}

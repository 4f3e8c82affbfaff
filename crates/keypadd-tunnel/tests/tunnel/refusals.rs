//! Tests refusals by the other end, and the reasons that this end reports.

use std::{sync::Arc, time::Duration};

use keypadd_keystream::Suite;
use keypadd_provider::{PrivateKey, Refusal, client_config, server_config};
use keypadd_tunnel::{
    AllowedPeer, AuthError, Client, ClientError, ClientSettings, ListenPermits, Peers, Permits,
    wire::{Instance, StreamCode},
};
use tokio::{
    io::{duplex, split},
    net::TcpStream,
};

use crate::support::*;

/// The answer to a new connection that QUIC's CONNECTION_REFUSED stands for.
const NOT_NOW: &str =
    "the server accepts no new connections now: it has too many, is draining, or is shutting down";

async fn refusal(permits: &[&str], target: &str) -> StreamCode {
    let key = new_key();
    let server = RunningServer::start(key.public(), permits);
    let (client, session) = connect_client(client_settings(&server, &key, &[])).await;
    let (_near, far) = duplex(64);
    let (reader, writer) = split(far);
    let target = target.parse().unwrap();
    match within(client.forward_stdio(session, &target, reader, writer)).await {
        Err(ClientError::Refused { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

async fn closed_port() -> u16 {
    listener().await.local_addr().unwrap().port()
}

#[tokio::test]
async fn refused_targets_have_a_code() {
    let port = closed_port().await;
    let local: &str = &format!("localhost:{port}");
    assert_eq!(refusal(&[local], local).await, StreamCode::Refused);
    assert_eq!(refusal(&[], local).await, StreamCode::NotPermitted);
    assert_eq!(refusal(&["localhost:1"], local).await, StreamCode::NotPermitted);
    assert_eq!(refusal(&["10.0.0.0/8:*"], local).await, StreamCode::NotPermitted);
    let unknown = "no-such-name.invalid:1";
    assert_eq!(refusal(&["localhost:*"], unknown).await, StreamCode::NameNotFound);
    assert_eq!(refusal(&["*:2"], unknown).await, StreamCode::NotPermitted);
}

#[tokio::test]
async fn refused_and_unpermitted_targets_reset_the_local_connection() {
    let open = listener().await;
    let open_port = open.local_addr().unwrap().port();
    let closed_port = closed_port().await;
    let permit: &str = &format!("127.0.0.1:{closed_port}");
    let forwards = [format!("0:127.0.0.1:{closed_port}"), format!("0:127.0.0.1:{open_port}")];
    for forward in &forwards {
        let tunnel = Tunnel::start(&[permit], &[forward]).await;
        assert_reset(&mut tunnel.enter().await).await;
    }
}

#[tokio::test]
async fn refusals_of_many_forwards_are_logged_within_the_limit_of_their_server() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let forwards: Vec<_> = (1..=100).map(|port| format!("0:127.0.0.1:{port}")).collect();
    let forwards: Vec<_> = forwards.iter().map(String::as_str).collect();
    let settings = client_settings(&server, &key, &forwards);
    let limits = Arc::clone(&settings.transport.limits);
    let client = RunningClient::start(settings).await;
    for listener in &client.listeners {
        assert_reset(&mut TcpStream::connect(listener).await.unwrap()).await;
    }
    let suppressed = limits.counts().log_lines_suppressed;
    assert!(suppressed > 30, "{suppressed}");
}

pub async fn connect_error(settings: keypadd_tunnel::ClientSettings) -> ClientError {
    let client = Client::bind(settings).await.unwrap();
    within(client.connect()).await.expect_err("it connected")
}

#[tokio::test]
async fn a_key_that_is_not_listed_is_refused_as_such() {
    let server = RunningServer::start(new_key().public(), &[]);
    let stranger = new_key();
    let error = connect_error(client_settings(&server, &stranger, &[])).await;
    let expected = AuthError::Refused(Refusal::KeyNotAllowed(stranger.public()));
    assert!(matches!(&error, ClientError::Auth { cause, .. } if *cause == expected), "{error:?}");
    assert!(server.sessions.live().is_empty());
}

#[tokio::test]
async fn a_server_with_another_key_than_the_pinned_one_is_refused() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let mut settings = client_settings(&server, &key, &[]);
    let crypto = crypto(&key, Suite::AES_128_GCM);
    settings.crypto = client_config(&crypto, new_key().public()).unwrap();
    let error = connect_error(settings).await;
    let expected = AuthError::Refused(Refusal::NotPinned(server.key));
    assert!(matches!(&error, ClientError::Auth { cause, .. } if *cause == expected), "{error:?}");
}

#[tokio::test]
async fn no_common_suite_names_both_lists() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let mut settings = client_settings(&server, &key, &[]);
    let crypto = crypto(&key, Suite::AES_256_CTR_HMAC_SHA256);
    settings.crypto = client_config(&crypto, server.key).unwrap();
    let error = connect_error(settings).await.to_string();
    let lists = "no common suite: offered aes-256-ctr-hmac-sha256; allowed aes-128-gcm";
    assert!(error.ends_with(lists), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_unreachable() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let mut settings = client_settings(&server, &key, &[]);
    server.stop().await;
    settings.connect_timeout = Duration::from_millis(300);
    let error = connect_error(settings).await;
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_full_server_refuses_connections_as_such() {
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &[], |s| s.connections_max = 1);
    let _first = connect_client(client_settings(&server, &key, &[])).await;
    let error = connect_error(client_settings(&server, &key, &[])).await;
    assert!(error.to_string().ends_with(NOT_NOW), "{error}");
}

#[tokio::test]
async fn a_server_that_is_shutting_down_is_not_said_to_be_full() {
    let (key, target) = (new_key(), listener().await);
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward = format!("0:{}", target.local_addr().unwrap());
    let client = RunningClient::start(client_settings(&server, &key, &[&forward])).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let there = assert_reaches(&mut here, &target).await;
    let other =
        ClientSettings { instance: Instance([2; 16]), ..client_settings(&server, &key, &[]) };
    let draining = server.drain(Duration::from_secs(60));
    let connecting = async {
        let error = connect_error(other).await;
        assert!(error.to_string().ends_with(NOT_NOW), "{error}");
        drop((here, there));
    };
    tokio::join!(draining, connecting);
}

#[tokio::test]
async fn one_key_cannot_use_up_all_connections() {
    let (greedy, other, server_key) = (new_key(), new_key(), new_key());
    let mut server = RunningServer::start_with(greedy.public(), &[], |settings| {
        settings.connections_max = 1000;
        let peer = |key: &Arc<PrivateKey>| AllowedPeer {
            name: None,
            keys: vec![key.public()],
            permits: Permits::default(),
            listen_permits: ListenPermits::default(),
            allowance: None,
            rate_cap: None,
            hold: None,
            valid_until: None,
            network: None,
        };
        settings.peers = Arc::new(Peers::new([peer(&greedy), peer(&other)]).unwrap());
        let crypto = crypto(&server_key, Suite::AES_128_GCM);
        settings.crypto = server_config(&crypto, settings.peers.clone()).unwrap();
    });
    server.key = server_key.public();
    let settings = |key, nth| {
        let mut settings = client_settings(&server, key, &[]);
        // A session of the same instance would replace the previous one.
        settings.instance = Instance([nth; 16]);
        settings
    };
    let mut held = Vec::new();
    for nth in 0..16 {
        held.push(connect_client(settings(&greedy, nth)).await);
    }
    let error = connect_error(settings(&greedy, 16)).await;
    assert!(matches!(error, ClientError::TooManySessions { .. }), "{error:?}");
    let told = "this key already has 16 sessions (max-sessions-per-key)";
    assert!(error.to_string().ends_with(told), "{error}");
    connect_client(settings(&other, 0)).await;
    // A closed session makes room.
    held.pop();
    until("the server has closed one", || server.sessions.live().len() == 15).await;
    connect_client(settings(&greedy, 17)).await;
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_unreachable() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let mut settings = client_settings(&server, &Arc::clone(&key), &[]);
    settings.server = "no-such-name.invalid".parse().unwrap();
    let error = connect_error(settings).await;
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
}

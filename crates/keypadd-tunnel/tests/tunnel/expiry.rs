//! Tests expired peers: refused, disconnected, and not connected to.

use std::time::{Duration, SystemTime};

use keypadd_provider::Refusal;
use keypadd_tunnel::{AllowedPeer, AuthError, Client, ClientError, Peers};
use tokio::net::TcpStream;

use crate::{refusals::connect_error, support::*};

/// Lists the client until this time.
fn limit(server: &RunningServer, client: keypadd_provider::PublicKey, until: SystemTime) {
    let peer = allowed_peer(client, &["localhost:*"]);
    let peer = AllowedPeer { valid_until: Some(until), ..peer };
    server.handle.set_peers(Peers::new([peer]).unwrap());
}

fn soon() -> SystemTime {
    SystemTime::now() + Duration::from_millis(300)
}

fn long_ago() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

#[tokio::test]
async fn a_client_whose_time_is_over_is_refused_as_such() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    limit(&server, key.public(), long_ago());
    let error = connect_error(client_settings(&server, &key, &[])).await;
    let expected = AuthError::Refused(Refusal::KeyExpired(key.public()));
    assert!(matches!(&error, ClientError::Auth { cause, .. } if *cause == expected), "{error:?}");
    assert!(server.sessions.live().is_empty());
    // A later date admits it again.
    limit(&server, key.public(), SystemTime::now() + Duration::from_secs(3_600));
    connect_client(client_settings(&server, &key, &[])).await;
}

#[tokio::test]
async fn a_session_ends_when_the_time_of_its_client_is_over() {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward = format!("0:{}", target.local_addr().unwrap());
    let client = RunningClient::start(client_settings(&server, &key, &[&forward])).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = assert_reaches(&mut here, &target).await;
    limit(&server, key.public(), soon());
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_reset(&mut here).await;
    let cause = || client.link.status().cause.unwrap_or_default();
    until("the client knows why", || cause().contains("valid-until")).await;
    until("the server has ended it", || server.sessions.live().is_empty()).await;
}

#[tokio::test]
async fn a_client_ends_the_session_of_a_server_whose_time_is_over_and_does_not_connect_again() {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward = format!("0:{}", target.local_addr().unwrap());
    let client = RunningClient::start(client_settings(&server, &key, &[&forward])).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let _there = assert_reaches(&mut here, &target).await;
    client.set_valid_until(Some(soon()));
    assert_reset(&mut here).await;
    let cause = || client.link.status().cause.unwrap_or_default();
    until("status says why", || {
        cause().contains("not connecting: the peer's valid-until has passed")
    })
    .await;
    assert!(server.sessions.live().is_empty());
    // A later date.
    client.set_valid_until(None);
    until("the client connects", || !client.is_waiting()).await;

    let client = Client::bind(client_settings(&server, &key, &[])).await.unwrap();
    client.set_valid_until(Some(long_ago()));
    let error = within(client.connect()).await.unwrap_err();
    assert!(matches!(error, ClientError::Expired { .. }), "{error:?}");
}

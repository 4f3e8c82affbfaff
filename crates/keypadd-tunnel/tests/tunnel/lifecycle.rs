//! Tests start and shutdown: bind errors and the status of sessions.

use std::time::Duration;

use keypadd_tunnel::{Client, Role, Server, ServerSettings};

use crate::support::*;

#[tokio::test]
async fn a_taken_port_is_a_bind_error_that_names_it() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let taken = listener().await;
    let port = taken.local_addr().unwrap().port();
    let settings = client_settings(&server, &key, &[&format!("{port}:web:80")]);
    let error = Client::bind(settings).await.err().expect("the port is taken").to_string();
    let named = format!("cannot listen on tcp 127.0.0.1:{port}: ");
    assert!(error.starts_with(&named), "{error}");
}

#[tokio::test]
async fn two_forwards_of_one_port_are_a_bind_error() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let free = listener().await.local_addr().unwrap().port();
    let forward: &str = &format!("{free}:web:80");
    assert!(Client::bind(client_settings(&server, &key, &[forward, forward])).await.is_err());
}

#[tokio::test]
async fn a_taken_udp_port_is_a_bind_error_that_names_it() {
    let key = new_key();
    let first = RunningServer::start(key.public(), &[]);
    let mut second = None;
    RunningServer::start_with(key.public(), &[], |settings| {
        second = Some(ServerSettings {
            listen: first.address,
            crypto: settings.crypto.clone(),
            reset_keys: settings.reset_keys.clone(),
            peers: settings.peers.clone(),
            transport: settings.transport.clone(),
            connections_max: 1,
            sessions_per_key: 16,
            bench: None,
        });
    });
    let error = Server::bind(second.unwrap()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on udp {}: ", first.address)), "{error}");
}

#[tokio::test]
async fn both_ends_list_the_session_and_its_forwards() {
    let target = listener().await;
    let address = target.local_addr().unwrap();
    let tunnel = Tunnel::to(&target).await;
    let _here = tunnel.enter().await;
    let _there = accept(&target).await;
    until("both ends count the connection", || tunnel.open() == (1, 1)).await;

    let [at_server] = &tunnel.server.sessions.status()[..] else { panic!("one session") };
    assert_eq!((at_server.peer.as_str(), at_server.role), ("laptop", Role::Server));
    assert_eq!(at_server.suite, "aes-128-gcm");
    assert_eq!(at_server.forwards[0].forward, address.to_string());

    let [at_client] = &tunnel.client_sessions.status()[..] else { panic!("one session") };
    assert_eq!(at_client.role, Role::Client);
    assert_eq!(at_client.public_key, tunnel.server.key.to_string());
    assert_eq!(at_client.peer, at_client.public_key[..8]);
    assert_eq!(at_client.remote, tunnel.server.address);
    assert_eq!(at_client.forwards[0].forward, format!("-L 0:{address}"));
    assert!(at_client.sent_packets > 0 && at_client.mtu_bytes >= 1200);
    let window = at_client.congestion_window_bytes;
    assert!((10_000..64 << 20).contains(&window), "{window}");
}

#[tokio::test]
async fn a_server_that_stops_resets_what_is_open_and_tells_the_client() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    send_byte(&mut here, &mut there).await;

    let Tunnel { server, .. } = {
        let (server, sessions) = (tunnel.server.sessions.clone(), tunnel.client_sessions.clone());
        assert_eq!((server.live().len(), sessions.live().len()), (1, 1));
        tunnel
    };
    server.stop().await;
    assert_reset(&mut there).await;
    assert_reset(&mut here).await;
}

#[tokio::test]
async fn a_client_that_stops_resets_open_connections_and_ends_its_session() {
    let (_target, mut tunnel, mut here, mut there) = Tunnel::with_connection().await;
    send_byte(&mut here, &mut there).await;

    tunnel.stop_client().await;
    let server = tunnel.client_ended().await;
    assert_reset(&mut there).await;
    assert_reset(&mut here).await;
    until("the server has closed the session", || server.sessions.live().is_empty()).await;
}

#[tokio::test]
async fn a_client_can_connect_again_with_the_same_listeners() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["127.0.0.1:*"]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let (client, first) = connect_client(client_settings(&server, &key, &[forward])).await;
    let listener_address = addresses(&client)[0][0];
    drop(first);
    // A connection accepted in between waits for the next session.
    let mut here = tokio::net::TcpStream::connect(listener_address).await.unwrap();
    let second = within(client.connect()).await.unwrap();
    let talk = async {
        let mut there = accept(&target).await;
        send_byte(&mut here, &mut there).await;
        Duration::ZERO
    };
    client.run(Some(second), talk).await;
}

//! Staying connected: what outlives a session, and how another one comes.

use std::{future::pending, net::SocketAddr, time::Duration};

use keypadd_tunnel::{Client, LinkState};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::support::*;

#[tokio::test]
async fn a_server_that_comes_back_is_found_and_who_came_meanwhile_is_served() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut before = tunnel.enter().await;
    let _there = talks(&mut before, &target).await;
    assert_eq!(tunnel.link.status().state, LinkState::Connected);
    assert!(tunnel.link.status().reconnects.is_empty());

    let link = tunnel.link.clone();
    let entrance = tunnel.addresses[0][0];
    let allowed = tunnel.client_key;
    let gone = tunnel.server.stop().await;
    assert_reset(&mut before).await;
    until("the client knows", || link.status().state == LinkState::Waiting).await;
    let cause = link.status().cause.unwrap();
    assert_eq!(cause, "closed by peer: the server is shutting down");

    let mut meanwhile = TcpStream::connect(entrance).await.unwrap();
    let _server = RunningServer::start_again(gone, allowed, &["*:*"]);
    talks(&mut meanwhile, &target).await;
    let status = link.status();
    assert_eq!((status.state, status.cause), (LinkState::Connected, None));
    assert_eq!(Vec::from_iter(status.reconnects), [("shutdown", 1)]);
}

#[tokio::test]
async fn who_finds_no_session_in_ten_seconds_is_reset() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let client = Client::bind(client_settings(&server, &key, &["0:web:80"])).await.unwrap();
    let entrance = addresses(&client)[0][0];
    let mut here = TcpStream::connect(entrance).await.unwrap();
    let began = Instant::now();
    assert_reset(&mut here).await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(9), "{waited:?}");
}

#[tokio::test]
async fn forwards_change_and_what_is_open_stays() {
    let (first, second) = (listener().await, listener().await);
    let forward = |target: &TcpListener| format!("0:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start(key.public(), &["*:*"]);
    let forwards = [&*forward(&first), &*forward(&second)];
    let (client, session) = connected(client_settings(&server, &key, &forwards)).await;
    let entrances = |client: &Client| -> Vec<SocketAddr> {
        addresses(client).iter().map(|addresses| addresses[0]).collect()
    };
    let change = async {
        let [of_first, of_second] = entrances(&client)[..] else { panic!("two forwards") };
        let mut into_first = TcpStream::connect(of_first).await.unwrap();
        let mut out_of_first = accept(&first).await;

        // The first goes, the second stays as it is, and a third is new.
        let third = listener().await;
        let wanted = [forward(&second), forward(&third)].map(|text| crate::support::forward(&text));
        assert!(client.set_forwards(wanted.to_vec()).await.is_empty());
        let [still_second, of_third] = entrances(&client)[..] else { panic!("two forwards") };
        assert_eq!(still_second, of_second);
        assert!(TcpStream::connect(of_first).await.is_err());
        talks(&mut TcpStream::connect(of_third).await.unwrap(), &third).await;
        talks(&mut TcpStream::connect(of_second).await.unwrap(), &second).await;
        into_first.write_u8(1).await.unwrap();
        assert_eq!(within(out_of_first.read_u8()).await.unwrap(), 1);
        let listed: Vec<_> = session_forwards(&client);
        assert!(listed.contains(&format!("-L {}", forward(&third))), "{listed:?}");

        // One that cannot be bound is said, and harms no other.
        let taken = format!("{}:web:80", of_second.port());
        let wanted = [forward(&second), taken].map(|text| crate::support::forward(&text));
        let errors = client.set_forwards(wanted.to_vec()).await;
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(entrances(&client), [of_second]);
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
async fn a_client_whose_server_was_never_there_finds_it_when_it_comes() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["*:*"]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    settings.connect_timeout = Duration::from_millis(300);
    let gone = server.stop().await;
    let client = Client::bind(settings).await.unwrap();
    let (link, entrance) = (client.link(), addresses(&client)[0][0]);
    let running = tokio::spawn(async move { client.run(None, pending()).await });
    until("an attempt has failed", || {
        link.status().cause.is_some_and(|cause| cause.contains("no answer in"))
    })
    .await;
    assert!(link.status().retry_unix_seconds.is_some());
    let _server = RunningServer::start_again(gone, key.public(), &["*:*"]);
    talks(&mut TcpStream::connect(entrance).await.unwrap(), &target).await;
    assert!(link.status().reconnects.is_empty(), "it was never lost");
    running.abort();
}

#[tokio::test]
async fn a_server_that_drains_lets_what_is_open_finish_and_nothing_new_in() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    let (link, entrance) = (tunnel.link.clone(), tunnel.addresses[0][0]);
    let draining = tokio::spawn(tunnel.server.drain(Duration::from_secs(50)));
    // Until the server has begun, others still get in.
    loop {
        let mut late = TcpStream::connect(entrance).await.unwrap();
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
    until("the client is told", || link.status().state == LinkState::Waiting).await;
}

#[tokio::test]
async fn what_does_not_finish_in_the_time_to_drain_is_reset() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    tunnel.server.drain(Duration::from_millis(50)).await;
    assert_reset(&mut here).await;
    assert_reset(&mut there).await;
}

#[tokio::test]
async fn a_client_that_drains_lets_what_is_open_finish_and_nothing_new_in() {
    let target = listener().await;
    let mut tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    let entrance = tunnel.addresses[0][0];
    tunnel.drain_client(Duration::from_secs(50));
    while TcpStream::connect(entrance).await.is_ok() {}
    here.write_all(b"last words").await.unwrap();
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"last words");
    there.write_all(b"answer").await.unwrap();
    drop(there);
    assert_eq!(read_all(&mut here).await.unwrap(), b"answer");
    let server = tunnel.client_ended().await;
    until("the server forgets the session", || server.sessions.live().is_empty()).await;
}

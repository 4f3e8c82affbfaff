//! Tests the backoff between attempts, that each resolves the server's name, and the limit of log
//! lines.

use std::{
    future::pending,
    net::SocketAddr,
    sync::atomic::{AtomicU8, Ordering},
};

use keypadd_provider::PrivateKey;
use tokio::{net::UdpSocket, time::timeout};

use super::*;
use crate::{
    client::{ClientSettings, reach::ListPlace},
    net::lookup::Lookups,
};

#[test]
fn backoff_grows_from_a_second_to_half_a_minute_with_jitter() {
    let delays: Vec<f64> = backoff().take(100).map(|delay| delay.as_secs_f64()).collect();
    for (nth, &delay) in delays.iter().enumerate() {
        let least = [1.0, 2.0, 4.0, 8.0].get(nth).copied().unwrap_or(15.0);
        assert!((least..=2.0 * least).contains(&delay), "{nth}: {delay}");
    }
    assert!(delays.iter().any(|&delay| delay > 16.0), "no jitter: {delays:?}");
    let others: Vec<f64> = backoff().take(100).map(|delay| delay.as_secs_f64()).collect();
    assert_ne!(delays, others);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_connection_cuts_the_wait_for_a_retry_to_a_second() {
    let link = ServerLink::default();
    let began = Instant::now();
    retry_wait(&link, RETRY_MAX).await;
    assert_eq!(began.elapsed(), RETRY_MAX);

    for arrives in [Duration::ZERO, Duration::from_secs(7)] {
        let began = Instant::now();
        let connection = async {
            sleep(arrives).await;
            let _ = link.session().await;
        };
        tokio::select! {
            () = retry_wait(&link, RETRY_MAX) => {}
            () = connection => unreachable!("there is no session"),
        }
        assert_eq!(began.elapsed(), arrives.max(RETRY_MIN));
    }

    // One that has gone does not.
    let began = Instant::now();
    retry_wait(&link, RETRY_MAX).await;
    assert_eq!(began.elapsed(), RETRY_MAX);
}

/// Resolves to another address each time: 127.0.0.1, then 127.0.0.2, and so on.
fn moving(name: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    static ASKED: AtomicU8 = AtomicU8::new(0);
    assert_eq!(name, "moving.example");
    Ok(vec![([127, 0, 0, 1 + ASKED.fetch_add(1, Ordering::Relaxed)], port).into()])
}

/// Two sockets with different addresses and the same port.
async fn two_servers() -> [UdpSocket; 2] {
    loop {
        let first = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = first.local_addr().unwrap().port();
        if let Ok(second) = UdpSocket::bind(("127.0.0.2", port)).await {
            return [first, second];
        }
    }
}

#[tokio::test]
async fn the_servers_name_is_resolved_at_every_attempt() {
    let servers = two_servers().await;
    let port = servers[0].local_addr().unwrap().port();
    let own = Arc::new(PrivateKey::generate().unwrap());
    let server = PrivateKey::generate().unwrap().public();
    let settings = ClientSettings::bare(&format!("moving.example:{port}"), &own, server);
    let connect_timeout = Duration::from_millis(200);
    let client = Client::bind(ClientSettings { connect_timeout, ..settings });
    let client = Client { lookups: Lookups::with_resolver(moving), ..client.await.unwrap() };
    let receive_at_both = async {
        let mut datagram = [0; 2048];
        for server in &servers {
            server.recv(&mut datagram).await.unwrap();
        }
    };
    tokio::select! {
        () = client.run(None, pending()) => unreachable!("never shut down"),
        received = timeout(Duration::from_secs(60), receive_at_both) => received.expect("both"),
    }
}

#[tokio::test]
async fn a_server_causes_log_lines_within_its_limit_from_its_first_session_on() {
    /// Each of which may have its lines.
    const OUTAGES: u64 = 200;
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let own = Arc::new(PrivateKey::generate().unwrap());
    let key = PrivateKey::generate().unwrap().public();
    let settings = ClientSettings::bare(&address.to_string(), &own, key);
    let client = Client::bind(settings).await.unwrap();
    let refusal = ClientError::Expired { server: client.server.clone() };
    let log = &client.limits.log;
    for _ in 0..OUTAGES {
        client.failing(&mut Failures::default(), &refusal);
    }
    assert_eq!(log.suppressed(), 0);

    client.identity.set(key).unwrap();
    for _ in 0..OUTAGES {
        client.failing(&mut Failures::default(), &refusal);
    }
    let refusals = log.suppressed();
    assert!(refusals > OUTAGES / 2, "{refusals}");
    let time = Duration::ZERO;
    let held = HeldSession {
        name: "server".into(),
        key,
        count: 1,
        time,
        until: Instant::now(),
        at: (ListPlace::UNKNOWN, address),
        rtt: time,
        _listed: Arc::new(client.held.add("server", &client.lineage().hold.streams(), time)),
    };
    for _ in 0..OUTAGES {
        assert!(client.reconnect_held(&held).await.is_none());
    }
    let resets = log.suppressed() - refusals;
    assert!(resets > OUTAGES / 2, "{resets}");
}

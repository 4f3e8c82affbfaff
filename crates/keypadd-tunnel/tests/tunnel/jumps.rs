//! Clocks that jump: every connection ends, and the next one is a new handshake.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use keypadd_tunnel::{Clocks, Readings, SystemClocks};
use testbed::{Direction, Relay};
use tokio::net::TcpStream;

use crate::support::*;

/// The system's clocks, moved by hand.
#[derive(Debug, Default)]
struct Moved {
    slept_nanos: AtomicI64,
    set_nanos: AtomicI64,
}

impl Clocks for Moved {
    fn read(&self) -> Readings {
        let mut now = SystemClocks.read();
        let slept = i128::from(self.slept_nanos.load(Ordering::Relaxed));
        now.boottime_nanos += slept;
        now.realtime_nanos += slept + i128::from(self.set_nanos.load(Ordering::Relaxed));
        now
    }
}

const HOUR_NANOS: i64 = 3_600_000_000_000;

/// A tunnel through which a byte has gone; then a clock jumps, and what must follow.
async fn ends_and_comes_back(servers: bool, jump: impl FnOnce(&Moved)) {
    let clocks = Arc::new(Moved::default());
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &["*:*"], |settings| {
        if servers {
            settings.transport.clocks = clocks.clone();
        }
    });
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    if !servers {
        settings.transport.clocks = clocks.clone();
    }
    let client = RunningClient::start(settings).await;
    let mut before = TcpStream::connect(client.entrances[0]).await.unwrap();
    let mut there = talks(&mut before, &target).await;
    let first = client.sessions.live().pop().unwrap();
    let jumped = if servers { server.sessions.live().pop().unwrap() } else { first.clone() };

    let began = Instant::now();
    jump(&clocks);
    until("all is closed where it jumped", || jumped.has_ended()).await;
    // A second is the promise; a busy machine is given some more.
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(3), "{taken:?}");
    // The other end is not told. It learns from the next handshake, or from the answer to what it
    // says next, every three seconds at least.
    assert_reset(&mut before).await;
    assert_reset(&mut there).await;
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(12), "{taken:?}");
    assert!(first.has_ended());

    let reason = if servers { "forgotten" } else { "clock" };
    until("it comes back", || client.reconnects() == [(reason, 1)]).await;
    let mut after = TcpStream::connect(client.entrances[0]).await.unwrap();
    talks(&mut after, &target).await;
    until("the old session is forgotten", || server.sessions.live().len() == 1).await;
}

/// Whether a packet begins a connection: the others have a short header (RFC 9000 17.3).
fn has_long_header(datagram: &[u8]) -> bool {
    datagram[0] & 0x80 != 0
}

/// A copy whose clock is stepped must not send one more packet with the keys of its original: what
/// it says next, whatever it wants to say, is the first packet of a new handshake.
#[tokio::test]
async fn nothing_sealed_with_the_keys_of_before_leaves_after_a_jump_not_even_a_goodbye() {
    let clocks = Arc::new(Moved::default());
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["*:*"]);
    let relay = Relay::start(server.address, 1).await.unwrap();
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    settings.server = relay.address().to_string().parse().unwrap();
    settings.transport.clocks = clocks.clone();
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.entrances[0]).await.unwrap();
    talks(&mut here, &target).await;

    // Nothing is under way: a silent path is probed every three seconds.
    let mut last = None;
    until("it is quiet", || {
        let now = (relay.counts(Direction::ToServer).taken, Instant::now());
        let (count, since) = *last.get_or_insert(now);
        if count != now.0 {
            last = Some(now);
        }
        count == now.0 && since.elapsed() > Duration::from_millis(200)
    })
    .await;
    relay.record(Direction::ToServer, 1000);
    clocks.set_nanos.store(HOUR_NANOS, Ordering::Relaxed);
    // Taken in by the tunnel before the next look at the clocks.
    assert_eq!(here.try_write(b"the original said something else").unwrap(), 32);
    until("it comes back", || client.reconnects() == [("clock", 1)]).await;
    let said = relay.recorded(Direction::ToServer);
    assert!(has_long_header(&said[0]), "{:02x?}", said[0]);
}

#[tokio::test]
async fn a_client_that_slept_makes_its_connection_anew() {
    ends_and_comes_back(false, |clocks| clocks.slept_nanos.store(HOUR_NANOS, Ordering::Relaxed))
        .await;
}

#[tokio::test]
async fn a_client_whose_clock_was_set_makes_its_connection_anew() {
    ends_and_comes_back(false, |clocks| clocks.set_nanos.store(-HOUR_NANOS, Ordering::Relaxed))
        .await;
}

#[tokio::test]
async fn a_server_that_slept_closes_all_its_connections_and_lets_clients_back_in() {
    ends_and_comes_back(true, |clocks| clocks.slept_nanos.store(HOUR_NANOS, Ordering::Relaxed))
        .await;
}

#[tokio::test]
async fn a_server_whose_clock_was_set_closes_all_its_connections_and_lets_clients_back_in() {
    ends_and_comes_back(true, |clocks| clocks.set_nanos.store(HOUR_NANOS, Ordering::Relaxed)).await;
}

//! Clocks that jump: every connection ends, and the next one is a new handshake.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use keypadd_tunnel::{Clocks, Readings, SystemClocks};
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

    let began = Instant::now();
    jump(&clocks);
    assert_reset(&mut before).await;
    assert_reset(&mut there).await;
    // A second is the promise; a busy machine is given some more.
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(3), "{taken:?}");
    assert!(first.has_ended());

    // Nothing is waited for: the next handshake is made at once.
    until("it comes back", || client.reconnects() == [("clock", 1)]).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut after = TcpStream::connect(client.entrances[0]).await.unwrap();
    talks(&mut after, &target).await;
    until("the old session is forgotten", || server.sessions.live().len() == 1).await;
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

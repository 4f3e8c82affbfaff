//! Tests key renewal during transfers: sessions move to a new connection with every stream,
//! listener and byte.

use std::time::Duration;

use keypadd_keystream::Suite;
use keypadd_tunnel::{
    HoldSettings, KeyLifetime, KeyLifetimes, KeyRenewal, ProxyHeaders, SessionStatus,
    TransportSettings, proxy_protocol::LOCAL_HEADER,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream, UnixStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use crate::{
    hold::{Site, holding},
    support::*,
};

/// Both ends hold, and keys do not expire unless a test says so.
fn lasting() -> TransportSettings {
    TransportSettings { key_lifetimes: KeyLifetimes::new(KeyLifetime::UNLIMITED), ..holding() }
}

/// A key lifetime in bytes.
fn bytes(bytes: u64) -> KeyLifetime {
    KeyLifetime::new(Duration::ZERO, bytes)
}

impl Site {
    fn renewals(&self) -> u64 {
        self.client.link.status().renewals
    }

    /// Makes the client (0) or the server (1) renew keys once.
    async fn renew_by(&self, end: usize) {
        let before = self.renewals();
        let lifetimes = &self.transports[end].key_lifetimes;
        lifetimes.set(bytes(1));
        until("keys are renewed", || self.renewals() > before).await;
        lifetimes.set(KeyLifetime::UNLIMITED);
        // A second renewal may have started.
        until("one session is left", || self.statuses().is_some()).await;
    }

    /// The session at the client and at the server.
    fn statuses(&self) -> Option<[SessionStatus; 2]> {
        let one = |mut all: Vec<SessionStatus>| if all.len() == 1 { all.pop() } else { None };
        Some([one(self.client.sessions.status())?, one(self.server.sessions.status())?])
    }
}

/// Sends both ways until `enough`, then closes each way, and compares every byte.
async fn carry_until(here: TcpStream, there: TcpStream, enough: impl Fn() -> bool) {
    let block = noise(7, 1 << 20);
    let one_way = async |mut from: OwnedWriteHalf, mut to: OwnedReadHalf| {
        let write = async {
            let mut sent = 0;
            while !enough() {
                from.write_all(&block).await.unwrap();
                sent += block.len();
            }
            from.shutdown().await.unwrap();
            sent
        };
        let read = async {
            let (mut received, mut buffer) = (0, vec![0; 64 << 10]);
            loop {
                let bytes = to.read(&mut buffer).await.unwrap();
                for (nth, byte) in buffer[..bytes].iter().enumerate() {
                    assert_eq!(*byte, block[(received + nth) % block.len()], "{received} + {nth}");
                }
                received += bytes;
                if bytes == 0 {
                    return received;
                }
            }
        };
        let (sent, received) = tokio::join!(write, read);
        assert_eq!(sent, received);
    };
    let (here_reads, here_writes) = here.into_split();
    let (there_reads, there_writes) = there.into_split();
    tokio::join!(one_way(here_writes, there_reads), one_way(there_writes, here_reads));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_both_ways_goes_on_over_many_renewals_byte_for_byte() {
    let transports = [lasting(), lasting()];
    let lifetimes = transports[0].key_lifetimes.clone();
    // A relay would drop handshake packets beside bulk, which costs seconds.
    let site = Site::start_by(false, transports, &["localhost:*"], &[]).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let (mut here, mut there) = site.connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        open.push((here, there));
    }
    lifetimes.set(bytes(8 << 20));
    let mut carrying = JoinSet::new();
    for (here, there) in open {
        let link = site.client.link.clone();
        carrying.spawn(carry_until(here, there, move || link.status().renewals >= 8));
    }
    while let Some(carried) = within(carrying.join_next()).await {
        carried.unwrap();
    }
    assert!(site.client.reconnects().is_empty(), "{:?}", site.client.reconnects());
    assert!(site.counts().iter().all(|counts| counts.streams_reset == 0), "{:?}", site.counts());
    assert!(site.counts().iter().all(|counts| counts.streams_resumed >= 8), "{:?}", site.counts());
}

#[tokio::test]
async fn new_keys_come_from_another_handshake_and_the_old_connection_is_closed() {
    let site = Site::start_with([lasting(), lasting()], &["localhost:*"], &[]).await;
    let (mut here, mut there) = site.connection().await;
    // Initiated by the client, and by the server, which asks the client.
    for end in [0, 1] {
        send_bytes_both_ways(&mut here, &mut there).await;
        let old = [&site.client.sessions, &site.server.sessions].map(|all| all.live().remove(0));
        let before = site.statuses().unwrap();
        site.renew_by(end).await;
        assert!(old.iter().all(|session| session.has_ended()));
        let new = [&site.client.sessions, &site.server.sessions].map(|all| all.live().remove(0));
        for (old, new) in old.iter().zip(&new) {
            let keys = [old, new].map(|session| session.keys().next().unwrap());
            assert!(!std::ptr::eq(keys[0], keys[1]));
        }
        let after = site.statuses().unwrap();
        for (before, after) in before.iter().zip(&after) {
            assert!(after.id > before.id);
            assert_eq!(after.since_unix_seconds, before.since_unix_seconds);
            assert!(after.keys_since_unix_seconds >= before.keys_since_unix_seconds);
        }
    }
    exchange(here, there).await;
    assert!(site.client.reconnects().is_empty(), "{:?}", site.client.reconnects());
}

#[tokio::test]
async fn half_closed_connections_and_remote_listeners_live_through_renewals() {
    let behind = listener().await;
    let forward = format!("-R 0:{}", behind.local_addr().unwrap());
    let permits = ["localhost:*", "listen *:*"];
    let site = Site::start_with([lasting(), lasting()], &permits, &[&forward]).await;
    let (mut ended, mut answers) = site.connection().await;
    ended.write_all(b"question").await.unwrap();
    ended.shutdown().await.unwrap();
    assert_eq!(read_all(&mut answers).await.unwrap(), b"question");

    let port = site.client.remote_port();
    let is_over = std::cell::Cell::new(false);
    let renewing = async {
        for _ in 0..6 {
            site.renew_by(0).await;
        }
        is_over.set(true);
    };
    // None of them may be refused or reset, whenever it comes.
    let connecting = async {
        let mut count = 0;
        while !is_over.get() {
            let mut remote = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            remote.write_all(b"hello").await.unwrap();
            let mut hello = [0; 5];
            loop {
                // A stream that the client had opened when its session was replaced is opened
                // again.
                let mut there = accept(&behind).await;
                if within(there.read_exact(&mut hello)).await.is_ok() {
                    there.write_all(&hello).await.unwrap();
                    break;
                }
            }
            within(remote.read_exact(&mut hello)).await.unwrap();
            count += 1;
        }
        count
    };
    let ((), count) = tokio::join!(renewing, connecting);
    assert!(count > 0);
    assert!(site.client.listeners.len() == 1);
    answers.write_all(b"answer").await.unwrap();
    answers.shutdown().await.unwrap();
    assert_eq!(read_all(&mut ended).await.unwrap(), b"answer");
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_old_keys_and_a_later_one_replaces_them() {
    let site = Site::start_with([lasting(), lasting()], &["localhost:*"], &[]).await;
    let (mut here, mut there) = site.connection().await;
    site.server.accept_only(Suite::CHACHA20_POLY1305);
    let before = site.statuses().unwrap();
    site.transports[0].key_lifetimes.set(bytes(1));
    // The refused attempt is over once the server has seen another connection end.
    for _ in 0..200 {
        send_bytes_both_ways(&mut here, &mut there).await;
    }
    assert_eq!(site.renewals(), 0);
    assert_eq!(site.statuses().unwrap().map(|it| it.id), before.map(|it| it.id));
    site.server.accept_only(Suite::AES_128_GCM);
    until("keys are renewed", || site.renewals() > 0).await;
    site.transports[0].key_lifetimes.set(KeyLifetime::UNLIMITED);
    exchange(here, there).await;
}

#[tokio::test]
async fn a_server_closes_a_session_whose_client_replaces_no_keys_and_its_streams_are_held() {
    let site = Site::start_with([lasting(), lasting()], &["localhost:*"], &[]).await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.server.accept_only(Suite::CHACHA20_POLY1305);
    let lifetimes = &site.transports[1].key_lifetimes;
    lifetimes.set(KeyLifetime { grace: Duration::ZERO, ..bytes(1) });
    until("the server closes it", || site.client.is_waiting()).await;
    lifetimes.set(KeyLifetime::UNLIMITED);
    there.write_all(b"held").await.unwrap();
    site.server.accept_only(Suite::AES_128_GCM);
    let mut held = [0; 4];
    within(here.read_exact(&mut held)).await.unwrap();
    assert_eq!(held, *b"held");
    exchange(here, there).await;
}

#[tokio::test]
async fn a_path_that_goes_away_during_a_renewal_costs_no_byte() {
    let site = Site::start_with([lasting(), lasting()], &["localhost:*"], &[]).await;
    let (mut here, mut there) = site.connection().await;
    for _ in 0..3 {
        send_bytes_both_ways(&mut here, &mut there).await;
        site.transports[0].key_lifetimes.set(bytes(1));
        site.lose().await;
        here.write_all(b"q").await.unwrap();
        site.transports[0].key_lifetimes.set(KeyLifetime::UNLIMITED);
        site.heal();
        assert_eq!(within(there.read_u8()).await.unwrap(), b'q');
    }
    exchange(here, there).await;
}

#[tokio::test]
async fn a_renewal_needs_no_free_place_among_the_sessions_of_its_key() {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = lasting();
        settings.sessions_per_key = 1;
    });
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[&forward]);
    settings.transport = lasting();
    let lifetimes = settings.transport.key_lifetimes.clone();
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    lifetimes.set(bytes(1));
    until("keys are renewed", || client.link.status().renewals > 0).await;
    lifetimes.set(KeyLifetime::UNLIMITED);
    exchange(here, there).await;
}

#[tokio::test]
async fn the_status_says_whether_keys_are_replaced_and_why_not() {
    let off = TransportSettings { hold: HoldSettings::OFF, ..TransportSettings::default() };
    for (transports, expected) in [
        ([holding(), holding()], KeyRenewal::On),
        ([lasting(), lasting()], KeyRenewal::Off),
        ([holding(), off], KeyRenewal::NeedsHold),
    ] {
        let site = Site::start_with(transports, &["localhost:*"], &[]).await;
        until("both ends have one session", || site.statuses().is_some()).await;
        assert_eq!(site.statuses().unwrap()[0].key_renewal, expected);
        assert_eq!(site.statuses().unwrap()[1].key_renewal, expected);
    }
}

#[tokio::test]
async fn a_connection_that_is_answered_while_keys_are_renewed_goes_on() {
    let site = Site::start_with([lasting(), lasting()], &["localhost:*"], &[]).await;
    let (carrier, mut slot) = (site.client.carrier(), None);
    until("it has a session", || {
        slot = carrier.slot(|_| true);
        slot.is_some()
    })
    .await;
    let target = format!("localhost:{}", site.target.local_addr().unwrap().port());
    let answered = within(slot.unwrap().connect(target.parse().unwrap())).await.unwrap();
    let mut there = accept(&site.target).await;
    let (mut here, carried) = UnixStream::pair().unwrap();
    let before = site.client.sessions.live().remove(0);
    let carrying = async {
        until("its session has ended", || before.has_ended()).await;
        answered.carry(carried.into_std().unwrap(), [].into()).await
    };
    let carrying = async { tokio::join!(site.renew_by(0), carrying).1.unwrap() };
    let using = async {
        send_bytes_both_ways(&mut here, &mut there).await;
        drop((here, there));
    };
    within(async { tokio::join!(carrying, using) }).await;
}

#[tokio::test]
async fn a_connection_whose_proxy_header_comes_after_a_renewal_goes_on() {
    let (key, target, transport) = (new_key(), listener().await, lasting());
    let server = RunningServer::start_with(key.public(), &["listen localhost:*"], |settings| {
        settings.transport = lasting();
    });
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[&forward]);
    settings.transport = transport.clone();
    settings.proxy_headers = ProxyHeaders { send: false, accept: true };
    let client = RunningClient::start(settings).await;
    let mut near = TcpStream::connect(("127.0.0.1", client.remote_port())).await.unwrap();
    until("it is accepted", || open(&server.sessions) == 1).await;

    transport.key_lifetimes.set(bytes(1));
    until("keys are renewed", || client.link.status().renewals > 0).await;
    transport.key_lifetimes.set(KeyLifetime::UNLIMITED);
    until("one session is left", || server.sessions.live().len() == 1).await;
    near.write_all(&LOCAL_HEADER).await.unwrap();
    let mut far = accept(&target).await;
    send_bytes_both_ways(&mut near, &mut far).await;
}

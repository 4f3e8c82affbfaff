//! A fault inside ends one connection, or none: a number that is sealed twice and a panic at a server
//! with several sessions, a filler that panics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use interposer::{Interposer, Origin};
use keypadd_keystream::Suite;
use keypadd_pool::{FillerFault, FillerHost, Pool, PoolSettings, Priority};
use keypadd_provider::{CryptoSettings, KeyFault, client_config, server_config};
use keypadd_tunnel::ServerSettings;
use keypadd_tunnel::wire::{CloseCode, Instance};
use quinn::ConnectionError;
use quinn::crypto::PacketKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::hostile::{connect, connected, control, hello, welcome};
use crate::support::*;

/// The type of an application's CONNECTION_CLOSE (RFC 9000 19.19).
const APPLICATION_CLOSE: u8 = 0x1d;

/// Seals as quinn asks, but for one packet of the 1-RTT space, which it seals twice when it is told to.
#[derive(Default)]
struct Repeats {
    is_armed: AtomicBool,
    /// Packets that were sealed twice, and what of the second time was not zeros.
    repeated: AtomicU64,
    leaked: AtomicU64,
    /// Plaintexts of packets from then on.
    since: Mutex<Vec<Vec<u8>>>,
}

impl Interposer for Repeats {
    fn seal(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        buf: &mut [u8],
        header_len: usize,
    ) {
        let is_one_rtt = !matches!(origin, Origin::Initial | Origin::Handshake(0));
        if is_one_rtt && self.is_armed.swap(false, Relaxed) {
            key.encrypt(packet_number, &mut buf.to_vec(), header_len);
            self.repeated.fetch_add(1, Relaxed);
        } else if self.repeated.load(Relaxed) > 0 {
            self.since.lock().unwrap().push(buf[header_len..].to_vec());
        }
        key.encrypt(packet_number, buf, header_len);
        if self.repeated.load(Relaxed) > 0 {
            let leaked = buf[header_len..].iter().filter(|byte| **byte != 0).count();
            self.leaked.fetch_add(leaked as u64, Relaxed);
        }
    }
}

/// A quarter of a MiB through a connection, each way, byte for byte.
async fn carry(here: &mut TcpStream, there: &mut TcpStream, round: u64) {
    for _ in 0..2 {
        let sent = noise(round, 256 << 10);
        let mut heard = vec![0; sent.len()];
        let (written, read) =
            within(async { tokio::join!(here.write_all(&sent), there.read_exact(&mut heard)) })
                .await;
        written.unwrap();
        read.unwrap();
        assert!(heard == sent, "round {round}");
        std::mem::swap(here, there);
    }
}

#[tokio::test]
async fn a_number_sealed_twice_ends_its_connection_with_code_2_and_no_other() {
    let (key, server_key) = (new_key(), new_key());
    let settings = crypto(&server_key, Suite::AES_128_GCM);
    let meters = Arc::clone(&settings.meters);
    let ends: Arc<Mutex<Vec<Arc<Repeats>>>> = Arc::default();
    let adjust = |server: &mut ServerSettings| {
        let inner = server_config(&settings, server.peers.clone()).unwrap();
        let ends = Arc::clone(&ends);
        server.crypto = interposer::each_of_server(inner, move || {
            let end = Arc::new(Repeats::default());
            ends.lock().unwrap().push(Arc::clone(&end));
            end
        });
    };
    let server = RunningServer::start_as(server_key.clone(), key.public(), &["*:*"], adjust);

    // The connection that will fail, with a stream that is open.
    let client = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let (_endpoint, connection) = connect(&server, client).await;
    let (_control, mut answer) = control(&connection, &hello()).await;
    welcome(&mut answer).await;
    let target = listener().await;
    let (mut send, _recv) = connected(&connection, &target).await;
    let mut failing = accept(&target).await;

    // The other one, which carries all the time.
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut other = client_settings(&server, &key, &[&forward]);
    other.instance = Instance([2; 16]);
    let other = RunningClient::start(other).await;
    let mut here = TcpStream::connect(other.entrances[0]).await.unwrap();
    let mut there = accept(&target).await;
    until("both sessions are up", || server.sessions.live().len() == 2).await;
    let survivor = server.sessions.status()[1].id;
    let rounds = Arc::new(AtomicU64::new(0));
    let carried = Arc::clone(&rounds);
    let carrying = tokio::spawn(async move {
        for seed in 0.. {
            carry(&mut here, &mut there, seed).await;
            carried.fetch_add(1, Relaxed);
        }
    });
    until("the other one carries", || rounds.load(Relaxed) > 0).await;

    let ends = ends.lock().unwrap().clone();
    // The sound one has made a second connection by now, for its bulk data.
    let [faulty, sound, ..] = &ends[..] else { panic!("two sessions") };
    faulty.is_armed.store(true, Relaxed);
    send.write_all(&noise(1, 1000)).await.unwrap();
    until("a number is sealed twice", || faulty.repeated.load(Relaxed) == 1).await;
    let left = || server.sessions.status().iter().map(|session| session.id).collect::<Vec<_>>();
    until("its session is over", || left() == [survivor]).await;

    // Its own target is reset. Of its packets there are zeros from then on, so that the code stays here
    // and its client is told that nobody knows it.
    let mut rest = Vec::new();
    let _ = within(failing.read_to_end(&mut rest)).await;
    assert!(matches!(within(connection.closed()).await, ConnectionError::Reset));
    let reason = KeyFault::NumberRepeated.to_string();
    let close =
        [&[APPLICATION_CLOSE, CloseCode::KeyFault.value() as u8], &[reason.len() as u8][..]];
    let close = [&close.concat(), reason.as_bytes()].concat();
    let has_close = |packet: &Vec<u8>| packet.windows(close.len()).any(|part| part == close);
    assert!(faulty.since.lock().unwrap().iter().any(has_close), "closed with another code");
    assert_eq!((faulty.repeated.load(Relaxed), faulty.leaked.load(Relaxed)), (1, 0));
    assert_eq!(meters.pad_reuse(), 1);

    // The other one goes on.
    let before = rounds.load(Relaxed);
    until("the other one goes on", || {
        assert!(!carrying.is_finished(), "the other one has failed");
        rounds.load(Relaxed) >= before + 4
    })
    .await;
    carrying.abort();
    assert_eq!(left(), [survivor]);
    assert!(other.reconnects().is_empty());
    assert_eq!(sound.repeated.load(Relaxed), 0);
}

/// Seals as it is asked, and panics when it is told to.
#[derive(Default)]
struct Panics {
    is_armed: AtomicBool,
    happened: AtomicBool,
}

impl Interposer for Panics {
    fn seal(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        buf: &mut [u8],
        header_len: usize,
    ) {
        if !matches!(origin, Origin::Initial | Origin::Handshake(0))
            && self.is_armed.swap(false, Relaxed)
        {
            self.happened.store(true, Relaxed);
            panic!("a fault in sealing, as the test wants it");
        }
        key.encrypt(packet_number, buf, header_len);
    }
}

#[tokio::test]
async fn a_panic_in_sealing_ends_its_session_and_no_other() {
    let (key, server_key) = (new_key(), new_key());
    let ends: Arc<Mutex<Vec<Arc<Panics>>>> = Arc::default();
    let adjust = |server: &mut ServerSettings| {
        let settings = crypto(&server_key, Suite::AES_128_GCM);
        let inner = server_config(&settings, server.peers.clone()).unwrap();
        let ends = Arc::clone(&ends);
        server.crypto = interposer::each_of_server(inner, move || {
            let end = Arc::new(Panics::default());
            ends.lock().unwrap().push(Arc::clone(&end));
            end
        });
    };
    let server = RunningServer::start_as(server_key.clone(), key.public(), &["*:*"], adjust);
    let target = listener().await;
    let forward = format!("0:{}", target.local_addr().unwrap());
    let start = |instance| {
        let mut settings = client_settings(&server, &key, &[&forward]);
        settings.instance = Instance([instance; 16]);
        RunningClient::start(settings)
    };
    let failing = start(1).await;
    let mut failing_here = TcpStream::connect(failing.entrances[0]).await.unwrap();
    let _failing_there = accept(&target).await;
    let other = start(2).await;
    let mut here = TcpStream::connect(other.entrances[0]).await.unwrap();
    let mut there = accept(&target).await;
    carry(&mut here, &mut there, 1).await;

    let armed = Arc::clone(&ends.lock().unwrap()[0]);
    armed.is_armed.store(true, Relaxed);
    failing_here.write_all(b"a keystroke").await.unwrap();
    until("sealing panics", || armed.happened.load(Relaxed)).await;
    assert_reset(&mut failing_here).await;
    until("its client comes again", || !failing.reconnects().is_empty()).await;

    // The other session, new clients and the server's end are as before.
    carry(&mut here, &mut there, 2).await;
    assert!(other.reconnects().is_empty());
    let third = start(3).await;
    let mut here = TcpStream::connect(third.entrances[0]).await.unwrap();
    talks(&mut here, &target).await;
    drop((failing, other, third));
    within(server.stop()).await;
}

/// A kernel whose clock fails when it is told to.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicBool>);

impl FillerHost for Failing {
    fn stand_back(&mut self) -> Priority {
        Priority::Idle
    }

    fn cpu_time(&mut self) -> Duration {
        assert!(!self.0.load(Relaxed), "a clock that fails, as the test wants it");
        Duration::ZERO
    }

    fn now(&mut self) -> Duration {
        Duration::ZERO
    }
}

#[tokio::test]
async fn a_tunnel_whose_fillers_panic_goes_on_and_carries_its_bytes_exactly() {
    let host = Failing::default();
    let settings = |key: &_| {
        let pool = Pool::with_host(PoolSettings { budget_bytes: 8 << 20 }, host.clone()).unwrap();
        CryptoSettings { supply: Some(pool).into(), ..crypto(key, Suite::AES_256_CTR_HMAC_SHA256) }
    };
    let (key, server_key) = (new_key(), new_key());
    let ends = [settings(&key), settings(&server_key)];
    let adjust = |server: &mut ServerSettings| {
        server.crypto = server_config(&ends[1], server.peers.clone()).unwrap();
    };
    let server = RunningServer::start_as(server_key.clone(), key.public(), &["*:*"], adjust);
    let target = listener().await;
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut client = client_settings(&server, &key, &[&forward]);
    client.crypto = client_config(&ends[0], server.key).unwrap();
    let client = RunningClient::start(client).await;
    let mut here = TcpStream::connect(client.entrances[0]).await.unwrap();
    let mut there = accept(&target).await;
    let sessions = || server.sessions.status().iter().map(|session| session.id).collect::<Vec<_>>();
    let before = sessions();
    assert_eq!(before.len(), 1);

    let mut round = 0;
    let pooled = || ends.each_ref().map(|end| end.meters.keystream_pool_bytes());
    while pooled().contains(&0) {
        carry(&mut here, &mut there, round).await;
        round += 1;
    }
    host.0.store(true, Relaxed);
    let pools = ends.each_ref().map(|end| end.supply.pool().unwrap());
    // What the fillers had made is used up: then whole rounds come by without a pad.
    let mut last = [0; 2];
    while pools.iter().any(|pool| pool.snapshot().filler_alive) || pooled() != last {
        last = pooled();
        carry(&mut here, &mut there, round).await;
        round += 1;
    }
    for round in round..round + 4 {
        carry(&mut here, &mut there, round).await;
    }
    for pool in pools {
        assert_eq!(pool.snapshot().filler_fault, Some(FillerFault::Failed));
    }
    // What the other connection of the session had left may still go, a packet now and then.
    for (now, before) in pooled().into_iter().zip(last) {
        assert!(now - before < 256 << 10, "the lanes are dry");
    }
    assert_eq!(sessions(), before);
    assert!(client.reconnects().is_empty());
}

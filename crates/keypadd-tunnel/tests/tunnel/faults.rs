//! Tests that an internal fault ends at most one connection: a packet number sealed twice, a panic
//! at a server with several sessions, and a panic of the pool filler.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use bytes::BytesMut;
use interposer::{Interposer, Origin};
use keypadd_keystream::Suite;
use keypadd_pool::{FillerFault, FillerHost, Pool, PoolSettings, Priority};
use keypadd_provider::{
    CryptoSettings, KeyFault, Meters, PrivateKey, client_config, server_config,
};
use keypadd_tunnel::wire::{CloseCode, Instance};
use keypadd_tunnel::{ClientSettings, ServerSettings, Sessions};
use quinn::ConnectionError;
use quinn::crypto::{CryptoError, PacketKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::Level;

use crate::hostile::{connect, control, hello, open_valid_stream, welcome};
use crate::support::*;

/// A server with an interposer in each connection, and a target.
struct Site<I> {
    server: RunningServer,
    meters: Arc<Meters>,
    /// Interposers, in order of connections.
    ends: Arc<Mutex<Vec<Arc<I>>>>,
    /// The key that the server accepts.
    key: Arc<PrivateKey>,
    target: TcpListener,
}

impl<I: Interposer + Default + 'static> Site<I> {
    async fn start() -> Self {
        let (key, server_key) = (new_key(), new_key());
        let settings = crypto(&server_key, Suite::AES_128_GCM);
        let meters = Arc::clone(&settings.meters);
        let ends: Arc<Mutex<Vec<Arc<I>>>> = Arc::default();
        let adjust = |server: &mut ServerSettings| {
            let inner = server_config(&settings, server.peers.clone()).unwrap();
            let ends = Arc::clone(&ends);
            server.crypto = interposer::each_of_server(inner, move || {
                let end = Arc::new(I::default());
                ends.lock().unwrap().push(Arc::clone(&end));
                end
            });
        };
        let server =
            RunningServer::start_as(server_key.clone(), key.public(), &["localhost:*"], adjust);
        Self { server, meters, ends, key, target: listener().await }
    }

    fn end(&self, nth: usize) -> Arc<I> {
        Arc::clone(&self.ends.lock().unwrap()[nth])
    }

    /// Starts a client with a connection through its forward.
    async fn client(&self, instance: u8) -> (RunningClient, TcpStream, TcpStream) {
        let forward = format!("0:{}", self.target.local_addr().unwrap());
        let instance = Instance([instance; 16]);
        let settings = client_settings(&self.server, &self.key, &[&forward]);
        let client = RunningClient::start(ClientSettings { instance, ..settings }).await;
        let here = TcpStream::connect(client.listeners[0]).await.unwrap();
        let there = accept(&self.target).await;
        (client, here, there)
    }

    /// Starts a session that transfers data continuously.
    async fn survivor(&self, instance: u8) -> Survivor {
        let (client, mut here, mut there) = self.client(instance).await;
        let rounds = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&rounds);
        let transferring = tokio::spawn(async move {
            for seed in 0.. {
                transfer(&mut here, &mut there, seed).await;
                counter.fetch_add(1, Relaxed);
            }
        });
        let sessions = self.server.sessions.clone();
        let id = sessions.status().last().unwrap().id;
        let survivor = Survivor { id, client, sessions, rounds, transferring };
        survivor.goes_on().await;
        survivor
    }
}

/// A session that must keep transferring data.
struct Survivor {
    id: u64,
    client: RunningClient,
    /// The server's.
    sessions: Sessions,
    rounds: Arc<AtomicU64>,
    transferring: JoinHandle<()>,
}

impl Survivor {
    /// Waits for a few more rounds over the same session.
    async fn goes_on(&self) {
        let before = self.rounds.load(Relaxed);
        until("the other session transfers more", || {
            assert!(!self.transferring.is_finished(), "the other session has failed");
            self.is_listed() && self.rounds.load(Relaxed) >= before + 4
        })
        .await;
        assert!(self.client.reconnects().is_empty());
    }

    /// Reads the status, which locks the data that connections publish.
    fn is_listed(&self) -> bool {
        self.sessions.status().iter().any(|session| session.id == self.id)
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        self.transferring.abort();
    }
}

/// The type of an application's CONNECTION_CLOSE (RFC 9000 19.19).
const APPLICATION_CLOSE: u8 = 0x1d;

/// Seals one packet of the 1-RTT space twice when armed.
#[derive(Default)]
struct Repeats {
    is_armed: AtomicBool,
    /// Packets sealed twice, and bytes of later ciphertexts that are not zero.
    repeated: AtomicU64,
    leaked: AtomicU64,
    /// Plaintexts of the later packets.
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

/// Transfers 256 KiB each way and compares.
async fn transfer(here: &mut TcpStream, there: &mut TcpStream, round: u64) {
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
    let site = Site::<Repeats>::start().await;
    let server = &site.server;

    // The connection that will fail, with an open stream.
    let client = client_config(&crypto(&site.key, Suite::AES_128_GCM), server.key).unwrap();
    let (_endpoint, connection) = connect(server, client).await;
    let (_control, mut answer) = control(&connection, &hello()).await;
    welcome(&mut answer).await;
    let (mut send, _recv) = open_valid_stream(&connection, &site.target).await;
    let mut failing = accept(&site.target).await;
    let other = site.survivor(2).await;

    // The other session has a second connection by now, for its bulk data.
    let (faulty, intact) = (site.end(0), site.end(1));
    faulty.is_armed.store(true, Relaxed);
    send.write_all(&noise(1, 1000)).await.unwrap();
    until("a number is sealed twice", || faulty.repeated.load(Relaxed) == 1).await;
    let left = || server.sessions.status().iter().map(|session| session.id).collect::<Vec<_>>();
    until("its session has ended", || left() == [other.id]).await;

    // Its target is reset. Its packets are zeros from then on, so the close code is never sent, and
    // its client gets a stateless reset.
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
    assert_eq!(site.meters.pad_reuse(), 1);

    other.goes_on().await;
    assert_eq!(left(), [other.id]);
    assert_eq!(intact.repeated.load(Relaxed), 0);
}

/// Where to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Sealing,
    Opening,
}

/// Panics once, where armed.
#[derive(Default)]
struct Panics {
    armed: Mutex<Option<Place>>,
    happened: AtomicBool,
}

impl Panics {
    fn pass(&self, origin: Origin, place: Place) {
        let is_one_rtt = !matches!(origin, Origin::Initial | Origin::Handshake(0));
        let armed = self.armed.lock().unwrap().take_if(|armed| is_one_rtt && *armed == place);
        if armed.is_some() {
            self.happened.store(true, Relaxed);
            panic!("test fault in {place:?}");
        }
    }
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
        self.pass(origin, Place::Sealing);
        key.encrypt(packet_number, buf, header_len);
    }

    fn open(
        &self,
        origin: Origin,
        key: &dyn PacketKey,
        packet_number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.pass(origin, Place::Opening);
        key.decrypt(packet_number, header, payload)
    }
}

/// Errors logged in this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_errors() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let log = tracing_subscriber::fmt().with_max_level(Level::ERROR).with_ansi(false);
        log.with_writer(|| Log).init();
    });
}

/// Logged errors that mention this address.
fn logged(address: impl ToString) -> Vec<String> {
    let address = address.to_string();
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    log.lines().filter(|line| line.contains(&address)).map(String::from).collect()
}

/// Two sessions at one server, one of which panics while the status is read continuously.
async fn a_panic_ends_its_session_and_no_other(place: Place) {
    log_errors();
    let site = Site::<Panics>::start().await;
    let (failing, mut here, mut there) = site.client(1).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    let remote = site.server.sessions.status()[0].remote;
    let other = site.survivor(2).await;

    let faulty = site.end(0);
    *faulty.armed.lock().unwrap() = Some(place);
    here.write_all(b"a keystroke").await.unwrap();
    until("it panics", || {
        assert!(other.is_listed());
        faulty.happened.load(Relaxed)
    })
    .await;
    assert_reset(&mut here).await;
    assert_reset(&mut there).await;
    until("its client reconnects", || {
        assert!(other.is_listed());
        !failing.reconnects().is_empty()
    })
    .await;
    other.goes_on().await;
    let lines = logged(remote);
    assert_eq!(lines.len(), 1, "{lines:?}");

    // New clients are accepted, and the server shuts down in order.
    let (third, mut here, mut there) = site.client(3).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    drop((failing, other, third));
    within(site.server.stop()).await;
}

#[tokio::test]
async fn a_panic_in_sealing_ends_its_session_and_no_other() {
    a_panic_ends_its_session_and_no_other(Place::Sealing).await;
}

#[tokio::test]
async fn a_panic_in_opening_ends_its_session_and_no_other() {
    a_panic_ends_its_session_and_no_other(Place::Opening).await;
}

/// A filler host whose clock fails when armed.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicBool>);

impl FillerHost for Failing {
    fn lower_priority(&mut self) -> Priority {
        Priority::Idle
    }

    fn cpu_time(&mut self) -> Duration {
        assert!(!self.0.load(Relaxed), "test fault of a clock");
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
        CryptoSettings { pool: Some(pool).into(), ..crypto(key, Suite::AES_256_CTR_HMAC_SHA256) }
    };
    let (key, server_key) = (new_key(), new_key());
    let ends = [settings(&key), settings(&server_key)];
    let adjust = |server: &mut ServerSettings| {
        server.crypto = server_config(&ends[1], server.peers.clone()).unwrap();
    };
    let server =
        RunningServer::start_as(server_key.clone(), key.public(), &["localhost:*"], adjust);
    let target = listener().await;
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut client = client_settings(&server, &key, &[&forward]);
    client.crypto = client_config(&ends[0], server.key).unwrap();
    let client = RunningClient::start(client).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;
    let sessions = || server.sessions.status().iter().map(|session| session.id).collect::<Vec<_>>();
    let before = sessions();
    assert_eq!(before.len(), 1);

    let mut round = 0;
    let pooled = || ends.each_ref().map(|end| end.meters.keystream_pool_bytes());
    while pooled().contains(&0) {
        transfer(&mut here, &mut there, round).await;
        round += 1;
    }
    host.0.store(true, Relaxed);
    let pools = ends.each_ref().map(|end| end.pool.pool().unwrap());
    // Uses up filled pads until a round takes nothing from the pool.
    let mut last = [0; 2];
    while pools.iter().any(|pool| pool.snapshot().filler_alive) || pooled() != last {
        last = pooled();
        transfer(&mut here, &mut there, round).await;
        round += 1;
    }
    for round in round..round + 4 {
        transfer(&mut here, &mut there, round).await;
    }
    for pool in pools {
        assert_eq!(pool.snapshot().filler_fault, Some(FillerFault::Failed));
    }
    // The session's other connection may still use up its remaining pads.
    for (now, before) in pooled().into_iter().zip(last) {
        assert!(now - before < 256 << 10, "the lanes are not empty");
    }
    assert_eq!(sessions(), before);
    assert!(client.reconnects().is_empty());
    drop(client);
    within(server.stop()).await;
}

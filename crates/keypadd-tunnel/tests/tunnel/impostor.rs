//! Tests an impostor on the path that holds an old key of a server, which its clients still list,
//! and says that it goes on with their connections, or that it has none.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use keypadd_keystream::Suite;
use keypadd_provider::{Assertion, PinnedServer, PrivateKey, client_config};
use keypadd_tunnel::{
    Client, ClientSettings, KeyLifetime, KeyLifetimes, TransportSettings,
    wire::{CONNECTED, Frame, HoldGrant, Instance, STREAM_HEAD_BYTES, VERSION},
};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::{
    hold::holding,
    hostile::{channel, connect, control, raw_server, receive},
    support::*,
};

/// Sent in a held connection while the impostor is there.
const CONFIDENTIAL: &[u8] = b"for the server that holds this connection";

/// Bytes of connection IDs of either server.
const CID_BYTES: usize = 8;

/// What an impostor was sent.
#[derive(Clone, Default)]
struct Loot {
    hellos: Vec<Frame>,
    /// In streams, the control stream apart.
    bytes: Vec<u8>,
}

/// A server that says that it goes on with each session of a client, unless it denies that.
struct Impostor {
    address: SocketAddr,
    denies: Arc<AtomicBool>,
    loot: Arc<Mutex<Loot>>,
    task: JoinHandle<()>,
}

impl Impostor {
    fn start(key: &Arc<PrivateKey>, client: &PrivateKey) -> Self {
        let settings = crypto(key, Suite::AES_128_GCM);
        let (endpoint, address, _) = raw_server(&settings, client.public());
        let (denies, loot) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Loot>>::default());
        let task = tokio::spawn(Self::run(endpoint, Arc::clone(&denies), Arc::clone(&loot)));
        Self { address, denies, loot, task }
    }

    async fn run(endpoint: Endpoint, denies: Arc<AtomicBool>, loot: Arc<Mutex<Loot>>) {
        let mut serving = JoinSet::new();
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else { continue };
            serving.spawn(Self::serve(connection, denies.load(Relaxed), Arc::clone(&loot)));
        }
    }

    async fn serve(connection: Connection, denies: bool, loot: Arc<Mutex<Loot>>) {
        let Ok((mut send, mut recv)) = connection.accept_bi().await else { return };
        let hello = receive(&mut recv).await;
        // It has this connection's token alone.
        let channel = channel(&connection);
        let proof = |by, instance: &Instance| channel.proof(channel.token(), by, &instance.0);
        let answer = match &hello {
            Frame::HelloClient { instance, .. } => {
                let proof = (!denies).then(|| proof(Assertion::ServerResumes, instance));
                let hold = Some(HoldGrant { seconds: 600, epoch: 1, proof });
                Frame::HelloServer { version: VERSION, hold, home: None }
            }
            Frame::HelloBulk { instance, .. } => {
                let (instance, proof) = (*instance, proof(Assertion::ServerBulk, instance));
                Frame::HelloBulk { version: VERSION, instance, proof }
            }
            frame => panic!("{frame:?}"),
        };
        loot.lock().unwrap().hellos.push(hello);
        let _ = send.write_all(&answer.encode()).await;
        let mut taking = JoinSet::new();
        loop {
            tokio::select! {
                Ok((send, recv)) = connection.accept_bi() => {
                    taking.spawn(Self::take_claimed(send, recv, Arc::clone(&loot)));
                }
                Ok(recv) = connection.accept_uni() => {
                    taking.spawn(Self::take(recv, Arc::clone(&loot)));
                }
                _ = connection.closed() => return,
            }
        }
    }

    /// Accepts a claim: the client then sends from the beginning on.
    async fn take_claimed(mut send: SendStream, mut recv: RecvStream, loot: Arc<Mutex<Loot>>) {
        let mut claim = [0; STREAM_HEAD_BYTES + 20];
        if recv.read_exact(&mut claim).await.is_ok() {
            loot.lock().unwrap().bytes.extend(claim);
            let _ = send.write_all(&[&[CONNECTED][..], &[0; 8]].concat()).await;
            Self::take(recv, loot).await;
        }
    }

    async fn take(mut recv: RecvStream, loot: Arc<Mutex<Loot>>) {
        while let Ok(Some(chunk)) = recv.read_chunk(1 << 16, true).await {
            loot.lock().unwrap().bytes.extend(&chunk.bytes);
        }
    }

    fn loot(&self) -> Loot {
        self.loot.lock().unwrap().clone()
    }

    /// Waits until a client has said hello, and for what it may send then.
    async fn until_asked(&self) {
        until("the client asks the impostor", || !self.loot().hellos.is_empty()).await;
        sleep(Duration::from_secs(1)).await;
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A path to a server. Somebody on it can lead new connections elsewhere, and cut the old ones.
struct Path {
    address: SocketAddr,
    is_taken: Arc<AtomicBool>,
    is_cut: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Path {
    async fn start(server: SocketAddr, impostor: SocketAddr) -> Self {
        let front = Arc::new(UdpSocket::bind("[::1]:0").await.unwrap());
        let address = front.local_addr().unwrap();
        let [is_taken, is_cut] = [(); 2].map(|()| Arc::<AtomicBool>::default());
        let run = Self::run(front, [server, impostor], Arc::clone(&is_taken), Arc::clone(&is_cut));
        Self { address, is_taken, is_cut, task: tokio::spawn(run) }
    }

    async fn run(
        front: Arc<UdpSocket>,
        ends: [SocketAddr; 2],
        is_taken: Arc<AtomicBool>,
        is_cut: Arc<AtomicBool>,
    ) {
        let (mut backs, mut reading) = (HashMap::new(), JoinSet::new());
        // Which end has a connection ID.
        let routes = Arc::<Mutex<HashMap<Vec<u8>, usize>>>::default();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let Ok((bytes, client)) = front.recv_from(&mut buffer).await else { continue };
            let datagram = &buffer[..bytes];
            let (is_long, id) = destination(datagram);
            let new = usize::from(is_long && is_taken.load(Relaxed));
            let end = *routes.lock().unwrap().entry(id.to_vec()).or_insert(new);
            if end == 0 && is_cut.load(Relaxed) {
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(back) = backs.entry((client, end)) {
                let socket = Arc::new(UdpSocket::bind("[::1]:0").await.unwrap());
                socket.connect(ends[end]).await.unwrap();
                back.insert(Arc::clone(&socket));
                let (front, routes) = (Arc::clone(&front), Arc::clone(&routes));
                let is_cut = Arc::clone(&is_cut);
                reading.spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    loop {
                        let Ok(bytes) = socket.recv(&mut buffer).await else { continue };
                        let datagram = &buffer[..bytes];
                        if let Some(id) = source(datagram) {
                            routes.lock().unwrap().insert(id.to_vec(), end);
                        }
                        if end == 1 || !is_cut.load(Relaxed) {
                            let _ = front.send_to(datagram, client).await;
                        }
                    }
                });
            }
            let _ = backs[&(client, end)].send(datagram).await;
        }
    }

    fn take(&self) {
        self.is_taken.store(true, Relaxed);
    }

    fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    fn restore(&self) {
        self.is_taken.store(false, Relaxed);
        self.is_cut.store(false, Relaxed);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether the header is long, and the destination's ID.
fn destination(datagram: &[u8]) -> (bool, &[u8]) {
    match datagram[0] & 0x80 {
        0 => (false, &datagram[1..=CID_BYTES]),
        _ => (true, &datagram[6..][..usize::from(datagram[5])]),
    }
}

/// The source's ID, in a long header.
fn source(datagram: &[u8]) -> Option<&[u8]> {
    let (true, before) = destination(datagram) else { return None };
    let (bytes, rest) = datagram[6 + before.len()..].split_first()?;
    rest.get(..usize::from(*bytes))
}

/// Both ends hold, and keys do not expire unless a test says so.
fn lasting() -> TransportSettings {
    TransportSettings { key_lifetimes: KeyLifetimes::new(KeyLifetime::UNLIMITED), ..holding() }
}

/// A server that has replaced its key, a client that lists both keys, and who has the old one.
struct Site {
    target: TcpListener,
    server: RunningServer,
    impostor: Impostor,
    path: Path,
    key: Arc<PrivateKey>,
    old: Arc<PrivateKey>,
    transport: TransportSettings,
}

impl Site {
    async fn start(transport: TransportSettings) -> Self {
        let (target, key, old) = (listener().await, new_key(), new_key());
        let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
            settings.transport = lasting();
        });
        let impostor = Impostor::start(&old, &key);
        let path = Path::start(server.address, impostor.address).await;
        Self { target, server, impostor, path, key, old, transport }
    }

    fn settings(&self) -> ClientSettings {
        let pinned = PinnedServer::one_of(self.server.key, [self.old.public()]);
        let crypto = client_config(&crypto(&self.key, Suite::AES_128_GCM), pinned).unwrap();
        let forwards = vec![forward(&format!("0:{}", self.target.local_addr().unwrap()))];
        let mut settings = settings_for(self.path.address, crypto, forwards);
        settings.transport = self.transport.clone();
        settings
    }

    async fn enter(&self, listener: SocketAddr) -> (TcpStream, TcpStream) {
        let mut here = TcpStream::connect(listener).await.unwrap();
        let mut there = accept(&self.target).await;
        send_bytes_both_ways(&mut here, &mut there).await;
        (here, there)
    }

    /// Checks that the impostor got nothing of a connection.
    fn assert_kept(&self) {
        let Loot { bytes, .. } = self.impostor.loot();
        assert!(bytes.is_empty(), "the impostor has {} bytes", bytes.len());
    }

    /// Checks that what the impostor was told is of no use at the server, even to who has the
    /// client's key.
    async fn assert_worthless(&self) {
        let pinned = PinnedServer::from(self.server.key);
        let crypto = client_config(&crypto(&self.key, Suite::AES_128_GCM), pinned).unwrap();
        let hellos = self.impostor.loot().hellos;
        assert!(!hellos.is_empty());
        for hello in hellos {
            let (_endpoint, connection) = connect(&self.server, Arc::clone(&crypto)).await;
            let (_send, mut recv) = control(&connection, &hello.encode()).await;
            let answer = within(keypadd_tunnel::read_frame(&mut recv)).await;
            match (hello, answer) {
                (
                    Frame::HelloClient { hold: Some(asked), .. },
                    Ok(Frame::HelloServer { hold: Some(granted), .. }),
                ) => assert!(asked.proof.is_some() && granted.proof.is_none(), "it is resumed"),
                (Frame::HelloBulk { .. }, Err(_)) => {}
                (hello, answer) => panic!("{hello:?} {answer:?}"),
            }
        }
    }

    /// Cuts the path to the server; checks that the impostor, once it is asked, gets nothing of the
    /// connection, which then goes on.
    async fn assert_goes_on_once_asked(&self, (mut here, there): (TcpStream, TcpStream)) {
        self.path.cut();
        here.write_all(CONFIDENTIAL).await.unwrap();
        self.impostor.until_asked().await;
        self.assert_kept();
        self.assert_goes_on(here, there).await;
    }

    /// Checks that the connection goes on at the server that holds it, with what was sent
    /// meanwhile.
    async fn assert_goes_on(&self, here: TcpStream, mut there: TcpStream) {
        self.path.restore();
        let mut confidential = [0; CONFIDENTIAL.len()];
        within(there.read_exact(&mut confidential)).await.unwrap();
        assert_eq!(confidential, CONFIDENTIAL);
        exchange(here, there).await;
        self.assert_kept();
        assert_eq!(self.transport.held.counts().streams_reset, 0);
        self.assert_worthless().await;
    }
}

#[tokio::test]
async fn a_client_comes_back_to_no_server_that_only_says_that_it_holds_its_connections() {
    let site = Site::start(lasting()).await;
    let client = RunningClient::start(site.settings()).await;
    let ends = site.enter(client.listeners[0]).await;
    site.path.take();
    site.assert_goes_on_once_asked(ends).await;
}

#[tokio::test]
async fn a_client_moves_to_no_server_that_only_says_that_it_holds_its_connections() {
    let transport = TransportSettings { peer_timeout: Duration::from_secs(60), ..lasting() };
    let site = Site::start(transport).await;
    let mut settings = site.settings();
    settings.server = format!("{},{}", site.path.address, site.impostor.address).parse().unwrap();
    let client = RunningClient::start(settings).await;
    let ends = site.enter(client.listeners[0]).await;
    site.assert_goes_on_once_asked(ends).await;
}

#[tokio::test]
async fn a_client_renews_keys_with_no_server_that_only_says_that_it_holds_its_connections() {
    let site = Site::start(lasting()).await;
    let lifetimes = &site.transport.key_lifetimes;
    let client = RunningClient::start(site.settings()).await;
    let (mut here, there) = site.enter(client.listeners[0]).await;
    site.path.take();
    lifetimes.set(KeyLifetime { bytes: 1, ..KeyLifetime::UNLIMITED });
    site.impostor.until_asked().await;
    here.write_all(CONFIDENTIAL).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    site.assert_kept();
    site.path.restore();
    until("keys are renewed", || client.link.status().renewals > 0).await;
    lifetimes.set(KeyLifetime::UNLIMITED);
    assert!(client.reconnects().is_empty(), "{:?}", client.reconnects());
    site.assert_goes_on(here, there).await;
}

#[tokio::test]
async fn a_server_that_denies_to_hold_connections_ends_none_by_a_renewal() {
    let site = Site::start(lasting()).await;
    site.impostor.denies.store(true, Relaxed);
    let lifetimes = &site.transport.key_lifetimes;
    let client = RunningClient::start(site.settings()).await;
    let (mut here, there) = site.enter(client.listeners[0]).await;
    site.path.take();
    lifetimes.set(KeyLifetime { bytes: 1, ..KeyLifetime::UNLIMITED });
    site.impostor.until_asked().await;
    here.write_all(CONFIDENTIAL).await.unwrap();
    lifetimes.set(KeyLifetime::UNLIMITED);
    assert!(client.reconnects().is_empty(), "{:?}", client.reconnects());
    site.assert_goes_on(here, there).await;
}

#[tokio::test]
async fn bulk_moves_to_no_server_that_does_not_prove_to_have_the_session() {
    let site = Site::start(lasting()).await;
    let client = RunningClient::start(site.settings()).await;
    let (mut here, mut there) = site.enter(client.listeners[0]).await;
    let session = client.sessions.live().remove(0);
    site.path.take();
    let (sent, mut read) = (noise(1, 1 << 20), vec![0; 1 << 20]);
    let mut carry = async || {
        let (one, two) =
            within(async { tokio::join!(here.write_all(&sent), there.read_exact(&mut read)) })
                .await;
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    };
    while site.impostor.loot().hellos.is_empty() {
        carry().await;
    }
    for _ in 0..20 {
        carry().await;
        site.assert_kept();
        sleep(Duration::from_millis(50)).await;
    }
    site.path.restore();
    while session.keys().count() < 2 {
        carry().await;
    }
    here.write_all(CONFIDENTIAL).await.unwrap();
    assert!(!session.has_ended());
    site.assert_goes_on(here, there).await;
}

#[tokio::test]
async fn a_new_process_goes_on_at_no_server_that_only_says_that_it_holds_its_connections() {
    let site = Site::start(lasting()).await;
    let (before, session) = connect_client(site.settings()).await;
    let listener = addresses(&before)[0][0];
    let before = Arc::new(before);
    let running = Arc::clone(&before);
    let old_process =
        tokio::spawn(async move { running.run(Some(session), std::future::pending()).await });
    let (mut here, there) = site.enter(listener).await;
    site.transport.handover.suspend();
    let handed = within(before.hand_over()).await.unwrap().pop().expect("a connection");
    here.write_all(CONFIDENTIAL).await.unwrap();
    site.path.take();

    let mut settings = site.settings();
    settings.transport = lasting();
    settings.forwards.clear();
    let held = settings.transport.held.clone();
    let client = Client::bind(settings).await.unwrap();
    assert!(client.adopt(handed, &[site.server.key]).is_empty());
    let new_process = tokio::spawn(async move { client.run(None, std::future::pending()).await });
    site.impostor.until_asked().await;
    site.assert_kept();
    site.assert_goes_on(here, there).await;
    assert_eq!(held.counts().streams_reset, 0);
    old_process.abort();
    new_process.abort();
}

#[tokio::test]
async fn what_an_impostor_is_told_resumes_no_connection_that_is_still_held() {
    let site = Site::start(lasting()).await;
    let client = RunningClient::start(site.settings()).await;
    let (_here, _there) = site.enter(client.listeners[0]).await;
    site.path.take();
    site.path.cut();
    site.impostor.until_asked().await;
    until("the server holds it", || site.server.sessions.live().is_empty()).await;
    drop(client);
    site.assert_worthless().await;
}

#[tokio::test]
async fn a_server_that_replaces_its_key_goes_on_with_what_it_holds_while_both_keys_are_listed() {
    let site = Site::start(lasting()).await;
    let with_key = |key: &Arc<PrivateKey>| site.server.use_crypto(&crypto(key, Suite::AES_128_GCM));
    with_key(&site.old);
    let client = RunningClient::start(site.settings()).await;
    assert_eq!(client.sessions.live()[0].key(), site.old.public());
    let (mut here, mut there) = site.enter(client.listeners[0]).await;
    site.path.cut();
    until("both ends have lost the session", || {
        client.sessions.live().is_empty() && site.server.sessions.live().is_empty()
    })
    .await;
    with_key(&site.server.private);
    site.path.restore();
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!(client.sessions.live()[0].key(), site.server.key);
    assert_eq!(site.transport.held.counts().streams_reset, 0);
    exchange(here, there).await;
}

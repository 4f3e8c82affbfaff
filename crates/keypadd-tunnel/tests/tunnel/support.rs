//! Provides the servers, clients, targets and checks that the tests share.

use std::{
    future::pending,
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use keypadd_keystream::{Protection, Suite};
use keypadd_provider::{CryptoSettings, PrivateKey, PublicKey, client_config, server_config};
use keypadd_tunnel::{
    AllowedPeer, Bound, Carrier, Client, ClientSession, ClientSettings, Forward, LinkState, Peers,
    ProxyHeaders, Server, ServerHandle, ServerLink, ServerSettings, Sessions, TransportSettings,
    wire::Instance,
};
use socket2::SockRef;
use testbed::Relay;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
    time::{self, sleep, timeout},
};

/// Stands for this host in the keys of resets.
pub const HOST: &[u8] = b"host";

/// Longer than any test step; reaching it means a hang.
const HANG: Duration = Duration::from_secs(60);

pub fn new_key() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::generate().unwrap())
}

pub fn crypto(key: &Arc<PrivateKey>, suite: impl Into<Protection>) -> CryptoSettings {
    CryptoSettings::plain(Arc::clone(key), suite)
}

/// A running server.
pub struct RunningServer {
    pub address: SocketAddr,
    pub key: PublicKey,
    pub private: Arc<PrivateKey>,
    pub sessions: Sessions,
    pub handle: ServerHandle,
    stop: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<()>,
}

/// The address and key of a stopped server.
pub struct StoppedServer {
    address: SocketAddr,
    private: Arc<PrivateKey>,
}

/// Waits until the sender is used or dropped.
pub async fn stop_signal(stopped: oneshot::Receiver<Duration>) -> Duration {
    stopped.await.unwrap_or_default()
}

impl RunningServer {
    pub fn start(allowed: PublicKey, permits: &[&str]) -> Self {
        Self::start_with(allowed, permits, |_| {})
    }

    pub fn start_with(
        allowed: PublicKey,
        permits: &[&str],
        adjust: impl FnOnce(&mut ServerSettings),
    ) -> Self {
        Self::start_as(new_key(), allowed, permits, adjust)
    }

    pub fn start_as(
        key: Arc<PrivateKey>,
        allowed: PublicKey,
        permits: &[&str],
        adjust: impl FnOnce(&mut ServerSettings),
    ) -> Self {
        let peer = AllowedPeer { name: Some("laptop".into()), ..allowed_peer(allowed, permits) };
        let peers = Arc::new(Peers::new([peer]).unwrap());
        let mut settings = ServerSettings {
            listen: "[::1]:0".parse().unwrap(),
            crypto: server_config(&crypto(&key, Suite::AES_128_GCM), peers.clone()).unwrap(),
            reset_keys: key.reset_keys(HOST),
            peers,
            transport: TransportSettings::default(),
            connections_max: 16,
            sessions_per_key: 16,
            bench: None,
        };
        adjust(&mut settings);
        let server = Server::bind(settings).unwrap();
        let (address, sessions) = (server.local_addr(), server.sessions());
        let handle = server.handle();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(stop_signal(stopped)));
        Self { address, key: key.public(), private: key, sessions, handle, stop: Some(stop), task }
    }

    /// Restarts a stopped server with the same port and key.
    pub fn start_again(stopped: StoppedServer, allowed: PublicKey, permits: &[&str]) -> Self {
        let StoppedServer { address, private } = stopped;
        Self::start_as(private, allowed, permits, |settings| settings.listen = address)
    }

    /// Like [`Self::start_again`], with other settings.
    pub fn start_as_before(
        stopped: StoppedServer,
        allowed: PublicKey,
        permits: &[&str],
        adjust: impl FnOnce(&mut ServerSettings),
    ) -> Self {
        let StoppedServer { address, private } = stopped;
        Self::start_as(private, allowed, permits, |settings| {
            settings.listen = address;
            adjust(settings);
        })
    }

    /// Accepts only this suite in new handshakes.
    pub fn accept_only(&self, suite: Suite) {
        self.use_crypto(&crypto(&self.private, suite));
    }

    /// Uses this key and suite in new handshakes.
    pub fn use_crypto(&self, settings: &CryptoSettings) {
        let config = server_config(settings, self.handle.peers()).unwrap();
        self.handle.set_crypto(config, &settings.key.reset_keys(HOST));
    }

    pub async fn stop(self) -> StoppedServer {
        self.drain(Duration::ZERO).await
    }

    /// Kills it without closing its sessions. Dropped handles may still send a close; cut the path
    /// first to keep it from the peer.
    pub async fn kill(self) -> StoppedServer {
        self.task.abort();
        drop(self.handle);
        assert!(within(self.task).await.unwrap_err().is_cancelled());
        StoppedServer { address: self.address, private: self.private }
    }

    pub async fn drain(self, grace: Duration) -> StoppedServer {
        let _ = self.stop.expect("not stopped yet").send(grace);
        // The handle keeps the port open.
        drop(self.handle);
        within(self.task).await.unwrap();
        StoppedServer { address: self.address, private: self.private }
    }
}

/// A peer with these permits; `listen 8080` is a listen permit.
pub fn allowed_peer(key: PublicKey, permits: &[&str]) -> AllowedPeer {
    let listen = permits.iter().filter_map(|permit| permit.strip_prefix("listen "));
    let open = permits.iter().filter(|permit| !permit.starts_with("listen "));
    AllowedPeer {
        name: None,
        keys: vec![key],
        permits: open.map(|permit| permit.parse().unwrap()).collect(),
        listen_permits: listen.map(|permit| permit.parse().unwrap()).collect(),
        allowance: None,
        rate_cap: None,
        hold: None,
        valid_until: None,
        network: None,
    }
}

pub fn client_settings(
    server: &RunningServer,
    key: &Arc<PrivateKey>,
    forwards: &[&str],
) -> ClientSettings {
    let crypto = client_config(&crypto(key, Suite::AES_128_GCM), server.key).unwrap();
    let forwards = forwards.iter().map(|text| forward(text)).collect();
    settings_for(server.address, crypto, forwards)
}

/// Settings for a server at this address.
pub fn settings_for(
    server: SocketAddr,
    crypto: Arc<dyn quinn::crypto::ClientConfig>,
    forwards: Vec<Forward>,
) -> ClientSettings {
    ClientSettings {
        server: server.to_string().parse().unwrap(),
        crypto,
        name: None,
        forwards,
        proxy_headers: <_>::default(),
        transport: TransportSettings::default(),
        connect_timeout: Duration::from_secs(20),
        instance: Instance([1; 16]),
    }
}

/// Routes a client through a relay.
pub async fn relayed(server: &RunningServer, settings: &mut ClientSettings) -> Relay {
    let relay = Relay::start(server.address, 1).await.unwrap();
    settings.server = relay.address().to_string().parse().unwrap();
    relay
}

/// Parses a forward with its flag; without one, a local forward.
pub fn forward(text: &str) -> Forward {
    match text.split_at_checked(3) {
        Some(("-R ", text)) => Forward::Remote(text.parse().unwrap()),
        Some(("-D ", text)) => Forward::Dynamic(text.parse().unwrap()),
        _ => Forward::Local(text.parse().unwrap()),
    }
}

/// The TCP or UDP addresses of each forward.
pub fn addresses(client: &Client) -> Vec<Vec<SocketAddr>> {
    let address = |bound: Bound| match bound {
        Bound::Tcp(address) | Bound::Udp(address) => Some(address),
        Bound::Unix(_) => None,
    };
    let forwards = client.forwards().into_iter();
    forwards.map(|(_, bound)| bound.into_iter().filter_map(address).collect()).collect()
}

pub async fn connect_client(settings: ClientSettings) -> (Client, ClientSession) {
    let client = Client::bind(settings).await.unwrap();
    let session = within(client.connect()).await.unwrap();
    (client, session)
}

/// A running client with its forwards.
pub struct RunningClient {
    pub link: ServerLink,
    pub sessions: Sessions,
    /// The first address of each forward that listens here.
    pub listeners: Vec<SocketAddr>,
    pub crypto: Arc<dyn quinn::crypto::ClientConfig>,
    remote_ports: Vec<u16>,
    client: Arc<Client>,
    task: JoinHandle<()>,
}

impl RunningClient {
    /// Connects, then runs.
    pub async fn start(settings: ClientSettings) -> Self {
        let crypto = settings.crypto.clone();
        let (client, session) = connect_client(settings).await;
        let (link, sessions) = (client.link(), client.sessions());
        let remote = session.remote_forwards().into_iter();
        let remote_ports = remote.filter_map(|(_, port)| port.ok()).collect();
        let listeners = addresses(&client).iter().filter_map(|all| all.first().copied()).collect();
        let client = Arc::new(client);
        let running = Arc::clone(&client);
        let task = tokio::spawn(async move { running.run(Some(session), pending()).await });
        Self { link, sessions, listeners, crypto, remote_ports, client, task }
    }

    /// The server's port for the client's only remote forward.
    pub fn remote_port(&self) -> u16 {
        self.remote_ports[0]
    }

    /// Hands over; returns the number of connections that another process would continue.
    pub async fn hand_over(&self) -> usize {
        let handed = within(self.client.hand_over()).await.unwrap();
        handed.iter().map(|handed| handed.streams.len()).sum()
    }

    pub async fn set_forwards(&self, forwards: &[&str]) {
        let forwards = forwards.iter().map(|text| forward(text)).collect();
        self.client.set_forwards(forwards).await.unwrap();
    }

    pub fn carrier(&self) -> Carrier {
        self.client.carrier()
    }

    pub fn set_proxy_headers(&self, headers: ProxyHeaders) {
        self.client.set_proxy_headers(headers);
    }

    pub fn set_crypto(&self, crypto: Arc<dyn quinn::crypto::ClientConfig>) {
        self.client.set_crypto(crypto);
    }

    pub fn end_unlisted(&self, keys: &[PublicKey]) {
        self.client.end_unlisted(keys);
    }

    pub fn set_valid_until(&self, until: Option<SystemTime>) {
        self.client.set_valid_until(until);
    }

    pub fn reconnects(&self) -> Vec<(&'static str, u64)> {
        let reconnects = self.link.status().reconnects.into_iter();
        reconnects.map(|(reason, count)| (reason.label(), count)).collect()
    }

    pub fn is_waiting(&self) -> bool {
        self.link.status().state == LinkState::Waiting
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A running server, and a running client with its forwards.
pub struct Tunnel {
    pub server: RunningServer,
    pub client_key: PublicKey,
    pub client_sessions: Sessions,
    pub addresses: Vec<Vec<SocketAddr>>,
    pub link: ServerLink,
    stop: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<()>,
}

impl Tunnel {
    pub async fn start(permits: &[&str], forwards: &[&str]) -> Self {
        Self::start_with(permits, forwards, TransportSettings::default()).await
    }

    pub async fn start_with(
        permits: &[&str],
        forwards: &[&str],
        transport: TransportSettings,
    ) -> Self {
        Self::start_between([transport.clone(), transport], permits, forwards).await
    }

    /// The same, with the settings of the client and those of the server.
    pub async fn start_between(
        transports: [TransportSettings; 2],
        permits: &[&str],
        forwards: &[&str],
    ) -> Self {
        let key = new_key();
        let client_key = key.public();
        let [of_client, of_server] = transports;
        let server = RunningServer::start_with(client_key, permits, |settings| {
            settings.transport = of_server;
        });
        let mut settings = client_settings(&server, &key, forwards);
        settings.transport = of_client;
        let (client, session) = connect_client(settings).await;
        let addresses = addresses(&client);
        let client_sessions = client.sessions();
        let link = client.link();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            client.run(Some(session), stop_signal(stopped)).await;
            client.close().await;
        });
        Self { server, client_key, client_sessions, addresses, link, stop: Some(stop), task }
    }

    /// A tunnel to one listener.
    pub async fn to(target: &TcpListener) -> Self {
        let target = target.local_addr().unwrap();
        Self::start(&["localhost:*"], &[&format!("0:{target}")]).await
    }

    /// A tunnel with one forward and a connection: the target, the tunnel, and both ends.
    pub async fn with_connection() -> (TcpListener, Self, TcpStream, TcpStream) {
        let target = listener().await;
        let tunnel = Self::to(&target).await;
        let here = tunnel.enter().await;
        let there = accept(&target).await;
        (target, tunnel, here, there)
    }

    /// Connects to the first forward.
    pub async fn enter(&self) -> TcpStream {
        TcpStream::connect(self.addresses[0][0]).await.unwrap()
    }

    pub async fn stop_client(&mut self) {
        drop(self.stop.take());
    }

    pub fn drain_client(&mut self, grace: Duration) {
        let _ = self.stop.take().expect("not stopped yet").send(grace);
    }

    /// Waits until the client has ended.
    pub async fn client_ended(self) -> RunningServer {
        within(self.task).await.unwrap();
        self.server
    }

    /// Open connections as counted by the server and by the client.
    pub fn open(&self) -> (u64, u64) {
        (open(&self.server.sessions), open(&self.client_sessions))
    }
}

pub fn open(sessions: &Sessions) -> u64 {
    sessions.status().iter().flat_map(|session| &session.forwards).map(|f| f.open).sum()
}

pub async fn within<F: IntoFuture>(future: F) -> F::Output {
    timeout(HANG, future).await.expect("hangs")
}

pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Waits with the clock of all timeouts stopped.
pub async fn until_without_timeouts(what: &str, condition: impl Fn() -> bool) {
    time::pause();
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < HANG, "never: {what}");
        // While it blocks, the clock does not advance.
        spawn_blocking(|| thread::sleep(Duration::from_millis(5))).await.unwrap();
    }
    time::resume();
}

pub async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub async fn accept(listener: &TcpListener) -> TcpStream {
    within(listener.accept()).await.unwrap().0
}

/// Reads to the end; returns the bytes, or how the connection failed.
pub async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    within(stream.read_to_end(&mut bytes)).await?;
    Ok(bytes)
}

/// Sends a byte through the tunnel.
pub async fn send_byte(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin)) {
    from.write_u8(7).await.unwrap();
    assert_eq!(within(to.read_u8()).await.unwrap(), 7);
}

/// Accepts the connection at the target and sends a byte to it; returns the target's end.
pub async fn assert_reaches(here: &mut TcpStream, target: &TcpListener) -> TcpStream {
    let mut there = accept(target).await;
    send_byte(here, &mut there).await;
    there
}

/// Sends a byte each way.
pub async fn send_bytes_both_ways(
    here: &mut (impl AsyncRead + AsyncWrite + Unpin),
    there: &mut (impl AsyncRead + AsyncWrite + Unpin),
) {
    send_byte(here, there).await;
    send_byte(there, here).await;
}

/// Sends more than the buffers hold each way, one direction after the other, each ended by a
/// half-close, and compares.
pub async fn exchange(
    mut near: impl AsyncRead + AsyncWrite + Unpin,
    mut far: impl AsyncRead + AsyncWrite + Unpin,
) {
    let (question, answer) = (noise(5, 300_000), noise(6, 300_000));
    let ask = async {
        near.write_all(&question).await.unwrap();
        near.shutdown().await.unwrap();
        read_all(&mut near).await.unwrap()
    };
    let reply = async {
        let received = read_all(&mut far).await.unwrap();
        far.write_all(&answer).await.unwrap();
        drop(far);
        received
    };
    let (at_near, at_far) = within(async { tokio::join!(ask, reply) }).await;
    assert!(at_far == question && at_near == answer);
}

/// Reads until the connection is reset; fails on an orderly end.
pub async fn assert_reset(stream: &mut TcpStream) {
    let error = read_all(stream).await.expect_err("ended in order");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Resets a connection (RST).
pub fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Writes until the connection blocks; returns the number of bytes written.
pub async fn write_until_stuck(stream: &mut TcpStream, limit: usize) -> usize {
    let block = vec![0x5a; 64 << 10];
    let mut written = 0;
    while written < limit {
        match timeout(Duration::from_millis(700), stream.write(&block)).await {
            Ok(bytes) => written += bytes.unwrap(),
            Err(_) => break,
        }
    }
    written
}

/// Pseudorandom bytes for a seed.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend(state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

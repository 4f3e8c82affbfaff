//! Tests servers that share one address, behind a balancer that routes by connection IDs.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use keypadd_provider::PrivateKey;
use keypadd_tunnel::{
    ClientSettings, HoldSettings, KeyLifetime, KeyLifetimes, ServerId, TransportSettings,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
    time::Instant,
};

use crate::{endpoints, support::*};

/// Where the ID of a server is in a short and in a long header.
const SHORT_AT: usize = 2;
const LONG_AT: usize = 7;

/// A balancer in front of a server with each of these IDs.
pub struct Balancer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

/// A socket that a server knows, and what carries the answers.
type Back = (Arc<UdpSocket>, JoinSet<()>);

struct Shared {
    front: UdpSocket,
    servers: Vec<(ServerId, SocketAddr)>,
    /// Servers that nothing reaches.
    cut: Mutex<Vec<ServerId>>,
    /// By client and server.
    backs: Mutex<HashMap<(SocketAddr, usize), Back>>,
    /// The servers of connections whose first IDs have none of these IDs.
    chosen: Mutex<HashMap<Vec<u8>, usize>>,
    /// Chooses that of the nth.
    choose: fn(usize) -> usize,
}

impl Balancer {
    pub async fn start(servers: &[&RunningServer], choose: fn(usize) -> usize) -> Self {
        let servers = servers.iter().enumerate().map(|(nth, server)| (id(nth), server.address));
        let front = UdpSocket::bind("[::1]:0").await.unwrap();
        let address = front.local_addr().unwrap();
        let shared = Arc::new(Shared {
            front,
            servers: servers.collect(),
            cut: Mutex::default(),
            backs: Mutex::default(),
            chosen: Mutex::default(),
            choose,
        });
        let mut task = JoinSet::new();
        task.spawn(carry(Arc::clone(&shared)));
        Self { address, shared, _task: task }
    }

    /// Nothing reaches these servers or comes from them from now on.
    pub fn cut(&self, servers: &[usize]) {
        *self.shared.cut.lock().unwrap() = servers.iter().copied().map(id).collect();
    }

    /// The servers see other addresses of all clients from now on.
    pub fn rebind(&self) {
        self.shared.backs.lock().unwrap().clear();
    }
}

/// Chooses another server for each connection but the first than that one has.
fn another(nth: usize) -> usize {
    nth.min(1)
}

/// The ID of the nth server.
fn id(nth: usize) -> ServerId {
    ServerId([0xf1, 0xee, 7, 0, 0, 0, 0, nth as u8])
}

async fn carry(shared: Arc<Shared>) {
    let mut datagram = vec![0; 65_535];
    while let Ok((length, client)) = shared.front.recv_from(&mut datagram).await {
        let datagram = &datagram[..length];
        let nth = shared.server_of(datagram);
        if shared.is_cut(nth) {
            continue;
        }
        let back = match shared.back(client, nth) {
            Some(back) => back,
            None => shared.add_back(client, nth).await,
        };
        let _ = back.send(datagram).await;
    }
}

impl Shared {
    fn is_cut(&self, nth: usize) -> bool {
        self.cut.lock().unwrap().contains(&self.servers[nth].0)
    }

    fn server_of(&self, datagram: &[u8]) -> usize {
        let is_long = datagram[0] & 0x80 != 0;
        let at = if is_long { LONG_AT } else { SHORT_AT };
        let found = datagram.get(at..at + 8);
        let is_it = |(ServerId(id), _): &(ServerId, SocketAddr)| found == Some(&id[..]);
        let known = self.servers.iter().position(is_it);
        known.unwrap_or_else(|| {
            assert!(is_long, "a short header without an ID of ours");
            let first = datagram[6..6 + usize::from(datagram[5])].to_vec();
            let mut chosen = self.chosen.lock().unwrap();
            let nth = chosen.len();
            *chosen.entry(first).or_insert_with(|| (self.choose)(nth))
        })
    }

    fn back(&self, client: SocketAddr, nth: usize) -> Option<Arc<UdpSocket>> {
        Some(Arc::clone(&self.backs.lock().unwrap().get(&(client, nth))?.0))
    }

    async fn add_back(self: &Arc<Self>, client: SocketAddr, nth: usize) -> Arc<UdpSocket> {
        let back = Arc::new(UdpSocket::bind("[::1]:0").await.unwrap());
        back.connect(self.servers[nth].1).await.unwrap();
        let (shared, from) = (Arc::clone(self), Arc::clone(&back));
        let mut answers = JoinSet::new();
        answers.spawn(async move {
            let mut datagram = vec![0; 65_535];
            loop {
                match from.recv(&mut datagram).await {
                    Ok(length) if !shared.is_cut(nth) => {
                        let _ = shared.front.send_to(&datagram[..length], client).await;
                    }
                    _ => {}
                }
            }
        });
        self.backs.lock().unwrap().insert((client, nth), (Arc::clone(&back), answers));
        back
    }
}

fn holding() -> TransportSettings {
    let hold = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
    let key_lifetimes = KeyLifetimes::new(KeyLifetime::UNLIMITED);
    TransportSettings { hold, key_lifetimes, ..<_>::default() }
}

/// Three servers with keys of their own.
pub fn servers(key: &Arc<PrivateKey>) -> [RunningServer; 3] {
    servers_with([new_key(), new_key(), new_key()], key)
}

/// Three servers with these keys.
fn servers_with(keys: [Arc<PrivateKey>; 3], client: &Arc<PrivateKey>) -> [RunningServer; 3] {
    let mut nth = 0..;
    keys.map(|key| {
        RunningServer::start_as(key, client.public(), &["localhost:*"], |settings| {
            let server_id = nth.next().map(id);
            settings.transport = TransportSettings { server_id, ..holding() };
        })
    })
}

pub fn settings(
    key: &Arc<PrivateKey>,
    servers: &[&RunningServer],
    address: SocketAddr,
    target: &TcpListener,
) -> ClientSettings {
    let settings = endpoints::settings(key, servers, &[address], target);
    ClientSettings { transport: holding(), ..settings }
}

impl RunningClient {
    /// The position of its server among these.
    pub fn server_among(&self, servers: &[&RunningServer]) -> Option<usize> {
        let key = self.sessions.live().last()?.key();
        servers.iter().position(|server| server.key == key)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_of_a_session_find_its_server_behind_a_balancer() {
    let (target, key) = (listener().await, new_key());
    let [one, two, three] = servers(&key);
    let servers = [&one, &two, &three];
    let balancer = Balancer::start(&servers, another).await;
    let settings = settings(&key, &servers, balancer.address, &target);
    let (held, lifetimes) =
        (settings.transport.held.clone(), settings.transport.key_lifetimes.clone());
    let client = RunningClient::start(settings).await;
    let at = client.server_among(&servers);
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;

    // Its bulk connection, which another server would refuse.
    let session = client.sessions.live().remove(0);
    let (sent, mut read) = (noise(1, 1 << 20), vec![0; 1 << 20]);
    within(async {
        while session.keys().count() < 2 {
            let (one, two) = tokio::join!(here.write_all(&sent), there.read_exact(&mut read));
            assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
        }
    })
    .await;
    // What was routed by the client's address is lost.
    balancer.rebind();
    send_bytes_both_ways(&mut here, &mut there).await;
    // New keys.
    lifetimes.set(KeyLifetime { bytes: 1, ..KeyLifetime::UNLIMITED });
    until("keys are renewed", || client.link.status().renewals > 1).await;
    lifetimes.set(KeyLifetime::UNLIMITED);
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!(client.server_among(&servers), at);
    assert!(client.reconnects().is_empty(), "{:?}", client.reconnects());
    assert_eq!(held.counts().streams_reset, 0);
    exchange(here, there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_connections_come_back_to_their_server_behind_a_balancer() {
    come_back([new_key(), new_key(), new_key()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_connections_come_back_to_their_server_though_others_have_its_key() {
    let shared = new_key();
    come_back([shared.clone(), shared.clone(), shared]).await;
}

/// Cuts the path for as long as it takes to lose the session of a client with an open connection.
async fn come_back(keys: [Arc<PrivateKey>; 3]) {
    let (target, key) = (listener().await, new_key());
    let [one, two, three] = servers_with(keys, &key);
    let servers = [&one, &two, &three];
    let balancer = Balancer::start(&servers, another).await;
    let mut settings = settings(&key, &servers, balancer.address, &target);
    settings.transport.peer_timeout = Duration::from_secs(3);
    let held = settings.transport.held.clone();
    let client = RunningClient::start(settings).await;
    let at = client.server_among(&servers);
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    balancer.cut(&[0, 1, 2]);
    until("the session is lost", || client.is_waiting()).await;
    balancer.cut(&[]);
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!(client.server_among(&servers), at);
    let counts = held.counts();
    assert_eq!((counts.streams_resumed, counts.streams_reset), (1, 0));
    exchange(here, there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_left_for_another_behind_the_same_address() {
    let (target, key) = (listener().await, new_key());
    let [one, two, three] = servers(&key);
    let servers = [&one, &two, &three];
    let balancer = Balancer::start(&servers, |nth| nth % 3).await;
    let client = RunningClient::start(settings(&key, &servers, balancer.address, &target)).await;
    let at = client.server_among(&servers).unwrap();
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    let began = Instant::now();
    // The balancer still chooses it.
    balancer.cut(&[at]);
    assert_reset(&mut here).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_ne!(client.server_among(&servers), Some(at));
}

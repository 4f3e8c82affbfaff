//! Tests networks between two ends whose devices are pairs of sockets: what passes, what does not,
//! and over which sessions.

use std::{
    future::pending,
    net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr},
    os::unix::net::UnixDatagram,
    sync::Arc,
    time::Duration,
};

use keypadd_keystream::Suite;
use keypadd_network::{DEVICE_HEADER_BYTES, HostAddresses, Reason};
use keypadd_pool::Direction;
use keypadd_provider::{PrivateKey, client_config};
use keypadd_tunnel::{
    AllowedPeer, Client, ClientSession, ClientSettings, KeyLifetime, KeyLifetimes, Network,
    NetworkPhase, NetworkRules, PeerRoutes, Peers, ServerLink, TransportSettings,
    handover::DeviceRecord,
    wire::{Instance, StreamCode, StreamHeader},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::{net::TcpStream, task::JoinHandle, time::sleep};

use crate::{endpoints, hold::holding, hostile::*, support::*};

const MTU: u16 = 1_400;

/// Behind the client, and behind the server.
const NEAR: [u8; 4] = [10, 1, 0, 2];
const FAR: [u8; 4] = [10, 2, 0, 2];

/// The networks of one end, and the socket at which its host's stack would be.
struct Site {
    network: Arc<Network>,
    host: UnixDatagram,
}

impl Site {
    fn new(peer: &str) -> Self {
        let flags = SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (device, host) = pair.unwrap();
        let record = DeviceRecord { name: "tun0".into(), mtu: MTU, setup: None };
        let network = Arc::new(Network::new(peer, record, device));
        network.set_host(Arc::default(), Vec::new());
        Self { network, host: host.into() }
    }

    /// This is behind the peer, which may begin what these permits name.
    fn set_rules(&self, peer: &str, networks: &[&str], permits: &[&str]) {
        let networks: Vec<_> = networks.iter().map(|text| text.parse().unwrap()).collect();
        let peer: Arc<str> = peer.into();
        let all = networks.iter().map(|prefix| (Arc::clone(&peer), *prefix));
        let routes = Arc::new(PeerRoutes::new(all).unwrap());
        let permits = permits.iter().map(|text| text.parse().unwrap()).collect();
        self.network.set_rules(Some(NetworkRules { networks, permits, routes }));
    }

    fn send(&self, packet: &[u8]) {
        let frame = [&[0; DEVICE_HEADER_BYTES], packet].concat();
        assert_eq!(self.host.send(&frame).unwrap(), frame.len());
    }

    /// The next packet for the host's stack, if there is one.
    fn received(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 70_000];
        let bytes = self.host.recv(&mut buffer).ok()?;
        let (header, packet) = buffer[..bytes].split_at(DEVICE_HEADER_BYTES);
        assert_eq!(header, [0; DEVICE_HEADER_BYTES], "nothing is left to do");
        Some(packet.to_vec())
    }

    /// The next packet for the host's stack.
    async fn receive(&self) -> Vec<u8> {
        loop {
            if let Some(packet) = self.received() {
                return packet;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Reads and writes fail from now on, as those of a device that was deleted do.
    fn delete(&self) {
        self.host.shutdown(Shutdown::Both).unwrap();
    }

    fn dropped(&self, wanted: Reason) -> u64 {
        let counts = self.network.status().counts.dropped;
        counts.into_iter().find(|(reason, _)| *reason == wanted).unwrap().1
    }

    fn phase(&self) -> NetworkPhase {
        self.network.status().phase
    }
}

/// Adds up 16-bit words (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A UDP packet of so many bytes, whose hosts know of marks: it is not dropped for having waited.
fn packet(from: [u8; 4], to: [u8; 4], port: u16, bytes: usize) -> Vec<u8> {
    let mut packet = vec![7; bytes];
    packet[..20].fill(0);
    (packet[0], packet[1], packet[8], packet[9]) = (0x45, 2, 64, 17);
    packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    let sum = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&40_000_u16.to_be_bytes());
    packet[22..24].copy_from_slice(&port.to_be_bytes());
    packet[24..26].copy_from_slice(&((bytes - 20) as u16).to_be_bytes());
    // No checksum (RFC 768).
    packet[26..28].fill(0);
    packet
}

/// The answer to a packet.
fn reversed(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let (from, to) = packet[12..20].split_at_mut(4);
    from.swap_with_slice(to);
    let (from, to) = packet[20..24].split_at_mut(2);
    from.swap_with_slice(to);
    packet
}

/// Two sites, and the ends that join them.
struct Joined {
    server: RunningServer,
    _client: (Client, ClientSession),
    near: Site,
    far: Site,
}

/// Joins two sites. The client may begin what these permits name.
async fn join(permits: &[&str]) -> Joined {
    let (near, far) = (Site::new("server"), Site::new("laptop"));
    near.set_rules("server", &["10.2.0.0/16"], &[]);
    far.set_rules("laptop", &["10.1.0.0/16"], permits);
    let (server, client) = start(&near, Some(&far)).await;
    within(async {
        while near.phase() != NetworkPhase::Up || far.phase() != NetworkPhase::Up {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    Joined { server, _client: client, near, far }
}

async fn start(near: &Site, far: Option<&Site>) -> (RunningServer, (Client, ClientSession)) {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    server.handle.set_peers(listing(&key, far));
    let client = Client::bind(client_settings(&server, &key, &[])).await.unwrap();
    client.carry_network(Arc::clone(&near.network));
    let session = within(client.connect()).await.unwrap();
    (server, (client, session))
}

fn listing(key: &PrivateKey, far: Option<&Site>) -> Peers {
    let network = far.map(|site| Arc::clone(&site.network));
    let peer =
        AllowedPeer { name: Some("laptop".into()), network, ..allowed_peer(key.public(), &[]) };
    Peers::new([peer]).unwrap()
}

#[tokio::test]
async fn packets_of_any_size_pass_both_ways_unchanged() {
    let joined = join(&["10.2.0.0/16"]).await;
    let Joined { near, far, .. } = &joined;
    for bytes in [28, 100, usize::from(MTU), 3_000, 60_000] {
        for (from, to, addresses) in [(near, far, (NEAR, FAR)), (far, near, (FAR, NEAR))] {
            let sent = packet(addresses.0, addresses.1, 40_000, bytes);
            from.send(&sent);
            let received = within(to.receive()).await;
            assert!(received == sent, "{bytes}");
        }
    }
    let counts = near.network.status().counts;
    assert_eq!((counts.sent_packets, counts.received_packets), (5, 5));
    assert_eq!(counts.fragmented_packets, 1, "the longest: {counts:?}");
    let accepts: Vec<_> = near.network.status().peer_accepts.unwrap();
    assert_eq!(accepts, ["10.1.0.0/16".parse().unwrap()]);
}

/// Sends a burst of packets, more than a flow that is not bulk does at once.
fn burst(from: &Site, port: u16) -> Vec<Vec<u8>> {
    let packets = (0..16).map(|nth| packet(NEAR, FAR, port, 1_200 + nth));
    packets.inspect(|packet| from.send(packet)).collect()
}

#[tokio::test]
async fn a_burst_makes_a_bulk_connection_that_carries_it_while_the_network_is_open() {
    let Joined { near, far, server, _client: (_, session) } = &join(&["10.2.0.0/16"]).await;
    let live = session.live();
    assert_eq!(live.keys().count(), 1);
    let first = burst(near, 1);
    until("there is a bulk connection", || live.keys().count() == 2).await;
    for packet in first {
        assert_eq!(within(far.receive()).await, packet);
    }
    // Each packet takes something of what a connection's keys may serve.
    let left = || -> Vec<_> {
        live.keys().map(|keys| keys.status(Direction::Send).key_budget_left_ratio).collect()
    };
    within(async {
        loop {
            let before = left();
            for packet in burst(near, 1) {
                assert_eq!(far.receive().await, packet);
            }
            let used: Vec<_> =
                before.iter().zip(left()).map(|(before, now)| before - now).collect();
            if used[1] > 4.0 * used[0] {
                break;
            }
        }
    })
    .await;
    let before = left();
    let key = packet(NEAR, FAR, 2, 100);
    near.send(&key);
    assert_eq!(within(far.receive()).await, key);
    assert!(left()[0] < before[0], "a sparse flow goes over the first connection");
    far.network.set_rules(None);
    until("the network is closed", || near.phase() != NetworkPhase::Up).await;
    assert!(!live.has_ended() && server.sessions.live().len() == 1);
}

#[tokio::test]
async fn a_packet_from_elsewhere_or_for_elsewhere_is_dropped_and_counted() {
    let Joined { near, far, server: _server, .. } = &join(&["10.2.0.0/16"]).await;
    near.send(&packet([10, 9, 0, 2], FAR, 1, 100));
    near.send(&packet(NEAR, [10, 9, 0, 2], 1, 100));
    near.send(b"no packet");
    let last = packet(NEAR, FAR, 1, 101);
    near.send(&last);
    assert_eq!(within(far.receive()).await, last);
    assert_eq!(far.dropped(Reason::Source), 1);
    assert_eq!(near.dropped(Reason::NoRoute), 1);
    assert_eq!(near.dropped(Reason::Malformed), 1);
}

#[tokio::test]
async fn a_peer_begins_only_what_is_permitted_and_may_answer() {
    let Joined { near, far, server: _server, .. } = &join(&["10.2.0.0/16:udp:53"]).await;
    near.send(&packet(NEAR, FAR, 54, 100));
    let permitted = packet(NEAR, FAR, 53, 100);
    near.send(&permitted);
    assert_eq!(within(far.receive()).await, permitted);
    assert_eq!(far.dropped(Reason::Destination), 1);
    // Nothing is permitted there, but answers are.
    far.send(&packet(FAR, NEAR, 9, 100));
    far.send(&reversed(&permitted));
    // Each sender is told as well what was prohibited.
    let is_icmp = |packet: &Vec<u8>| packet[9] == 1;
    let received = [within(near.receive()).await, within(near.receive()).await];
    assert!(received.contains(&reversed(&permitted)) && received.iter().any(is_icmp));
    assert!(is_icmp(&within(far.receive()).await));
    assert_eq!(near.dropped(Reason::Destination), 1);
}

#[tokio::test]
async fn a_server_without_networks_refuses_them_and_the_session_goes_on() {
    let near = Site::new("server");
    near.set_rules("server", &["10.2.0.0/16"], &[]);
    let (_server, (_client, session)) = start(&near, None).await;
    within(async {
        while near.phase() == NetworkPhase::Down {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let why = "it has no `networks` for this host";
    assert_eq!(near.phase(), NetworkPhase::Refused(why.into()));
    assert!(!session.live().has_ended());
}

#[tokio::test]
async fn a_peer_has_one_network_however_many_it_asks_for() {
    let (far, key) = (Site::new("laptop"), new_key());
    far.set_rules("laptop", &["10.1.0.0/16"], &["10.2.0.0/16"]);
    let server = RunningServer::start(key.public(), &[]);
    server.handle.set_peers(listing(&key, Some(&far)));
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let peer = RawPeer::connect(&server, crypto).await;
    let header = StreamHeader::Network.encode();
    let (mut send, mut recv) = peer.connection.open_bi().await.unwrap();
    send.write_all(&header).await.unwrap();
    within(recv.read_exact(&mut [0])).await.unwrap();
    for _ in 0..3 {
        assert_eq!(code_for(&peer.connection, &header).await, StreamCode::Refused);
    }
    // An announcement that is malformed ends the network, after which there may be another.
    send.write_all(&[0, 1, 1, 9]).await.unwrap();
    within(async {
        while far.phase() == NetworkPhase::Up {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let (mut send, mut recv) = peer.connection.open_bi().await.unwrap();
    send.write_all(&header).await.unwrap();
    within(recv.read_exact(&mut [0])).await.unwrap();
}

#[tokio::test]
async fn a_device_that_is_deleted_ends_its_network_once_and_not_the_session() {
    let joined = join(&["10.2.0.0/16"]).await;
    let Joined { near, far, server: _server, _client: (_, session) } = &joined;
    near.delete();
    within(async {
        while far.phase() == NetworkPhase::Up || near.phase() == NetworkPhase::Up {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(matches!(near.phase(), NetworkPhase::DeviceLost(_)));
    assert_eq!(far.phase(), NetworkPhase::Down);
    assert!(!session.live().has_ended());
}

#[tokio::test]
async fn networks_that_a_reload_removes_end_and_nothing_passes() {
    let Joined { near, far, server: _server, .. } = &join(&["10.2.0.0/16"]).await;
    far.network.set_rules(None);
    within(async {
        while near.phase() == NetworkPhase::Up || far.phase() == NetworkPhase::Up {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    near.send(&packet(NEAR, FAR, 1, 100));
    assert_eq!(far.received(), None);
}

#[tokio::test]
async fn a_device_that_fails_for_a_moment_is_not_lost() {
    let joined = join(&["10.2.0.0/16"]).await;
    let Joined { near, far, server: _server, _client: (_, session) } = joined;
    // The next read says that the other end has not read what it got, and no more.
    let asked = packet(NEAR, FAR, 1, 100);
    near.send(&asked);
    assert_eq!(within(far.receive()).await, asked);
    far.send(&reversed(&asked));
    let Site { network, host } = near;
    until("the packet waits", || network.status().counts.received_packets == 1).await;
    drop(host);
    until("the network has ended", || network.status().phase != NetworkPhase::Up).await;
    assert_eq!(network.status().phase, NetworkPhase::Down);
    assert!(!session.live().has_ended());
}

#[tokio::test]
async fn when_the_newest_session_of_a_key_ends_the_other_one_carries_its_network() {
    let (sites, far, key) = ([(); 2].map(|()| Site::new("server")), Site::new("laptop"), new_key());
    far.set_rules("laptop", &["10.1.0.0/16"], &["10.2.0.0/16"]);
    let server = RunningServer::start(key.public(), &[]);
    server.handle.set_peers(listing(&key, Some(&far)));
    let mut clients = Vec::new();
    for (instance, site) in sites.iter().enumerate() {
        site.set_rules("server", &["10.2.0.0/16"], &["10.1.0.0/16"]);
        let instance = Instance([instance as u8; 16]);
        let settings = ClientSettings { instance, ..client_settings(&server, &key, &[]) };
        let client = Client::bind(settings).await.unwrap();
        client.carry_network(Arc::clone(&site.network));
        let before = far.network.status().session;
        let session = within(client.connect()).await.unwrap();
        until("it is the newest", || far.network.status().session != before).await;
        clients.push((client, session));
        let sent = packet(FAR, NEAR, 1, 100);
        far.send(&sent);
        assert_eq!(within(site.receive()).await, sent);
    }
    let newest = far.network.status().session;
    // What comes now goes with the newest session, or waits in the device.
    let (client, session) = clients.pop().unwrap();
    drop(session);
    client.close().await;
    until("the other one sends", || far.network.status().session != newest).await;
    assert_eq!(far.phase(), NetworkPhase::Up);
    let sent = packet(FAR, NEAR, 2, 100);
    far.send(&sent);
    assert_eq!(within(sites[0].receive()).await, sent);
}

#[tokio::test]
async fn a_network_leaves_a_drained_server_that_keeps_a_connection() {
    let (near, key, target) = (Site::new("server"), new_key(), listener().await);
    near.set_rules("server", &["10.2.0.0/16"], &[]);
    let fars = [(); 2].map(|()| Site::new("laptop"));
    let servers = fars.each_ref().map(|far| {
        far.set_rules("laptop", &["10.1.0.0/16"], &["10.2.0.0/16"]);
        let server = endpoints::server(&key);
        let network = Some(Arc::clone(&far.network));
        let peer = allowed_peer(key.public(), &["localhost:*"]);
        let peer = AllowedPeer { name: Some("laptop".into()), network, ..peer };
        server.handle.set_peers(Peers::new([peer]).unwrap());
        server
    });
    let [one, two] = &servers;
    let mut settings = endpoints::settings(&key, &[one, two], &[one.address, two.address], &target);
    settings.transport.return_interval = Duration::from_secs(600);
    let lifetimes = KeyLifetimes::new(KeyLifetime::UNLIMITED);
    settings.transport.key_lifetimes = lifetimes.clone();
    let client = Client::bind(settings).await.unwrap();
    client.carry_network(Arc::clone(&near.network));
    let port = addresses(&client)[0][0];
    let running = tokio::spawn(async move { client.run(None, pending()).await });
    let (here, there) = (TcpStream::connect(port).await.unwrap(), accept(&target).await);
    until("it is at the first", || fars[0].phase() == NetworkPhase::Up).await;
    let sent = packet(NEAR, FAR, 1, 100);
    near.send(&sent);
    assert_eq!(within(fars[0].receive()).await, sent);

    one.handle.draining().begin(None);
    until("it is at the second", || fars[1].phase() == NetworkPhase::Up).await;
    until("it has left the first", || fars[0].phase() != NetworkPhase::Up).await;
    let sent = packet(NEAR, FAR, 2, 100);
    near.send(&sent);
    assert_eq!(within(fars[1].receive()).await, sent);
    // New keys for what is left there do not bring it back.
    let session_there = || one.sessions.live().first().map(|session| session.status().id);
    let before = session_there();
    lifetimes.set(KeyLifetime::new(Duration::ZERO, 1));
    until("its session has new keys", || session_there() != before).await;
    lifetimes.set(KeyLifetime::UNLIMITED);
    for port in 3..20 {
        let sent = packet(NEAR, FAR, port, 100);
        near.send(&sent);
        assert_eq!(within(fars[1].receive()).await, sent);
    }
    assert_eq!((one.sessions.live().len(), fars[0].phase()), (1, NetworkPhase::Down));
    exchange(here, there).await;
    running.abort();
}

/// A UDP packet of IPv6 without data.
fn packet6(from: Ipv6Addr, to: SocketAddr) -> Vec<u8> {
    let IpAddr::V6(destination) = to.ip() else { panic!("{to}") };
    let mut packet = vec![0; 48];
    (packet[0], packet[5], packet[6], packet[7]) = (0x60, 8, 17, 64);
    packet[8..24].copy_from_slice(&from.octets());
    packet[24..40].copy_from_slice(&destination.octets());
    packet[40..42].copy_from_slice(&40_000_u16.to_be_bytes());
    packet[42..44].copy_from_slice(&to.port().to_be_bytes());
    packet[45] = 8;
    packet
}

#[tokio::test]
async fn the_tunnels_own_packets_are_found_where_the_peer_is_now() {
    let (near, far, key) = (Site::new("server"), Site::new("laptop"), new_key());
    near.set_rules("server", &["10.2.0.0/16"], &[]);
    far.set_rules("laptop", &["10.1.0.0/16"], &[]);
    let own: Ipv6Addr = "fd00::1".parse().unwrap();
    let host = HostAddresses::new([(own.into(), "fd00::1/128".parse().unwrap())]);
    far.network.set_host(Arc::new(host), Vec::new());
    let server = RunningServer::start(key.public(), &[]);
    server.handle.set_peers(listing(&key, Some(&far)));
    let mut settings = client_settings(&server, &key, &[]);
    let relay = relayed(&server, &mut settings).await;
    let client = Client::bind(settings).await.unwrap();
    client.carry_network(Arc::clone(&near.network));
    let _session = within(client.connect()).await.unwrap();
    until("packets pass", || far.phase() == NetworkPhase::Up).await;
    let session = server.sessions.live().pop().unwrap();
    for moves in 0..2 {
        far.send(&packet6(own, session.remote()));
        until("it is found", || far.dropped(Reason::Loop) == moves + 1).await;
        let before = session.remote();
        relay.rebind().unwrap();
        until("the server sees the new address", || session.remote() != before).await;
    }
    assert_eq!(far.dropped(Reason::Martian), 0);
}

/// Two sites whose client gets new keys when it is told to.
struct Renewing {
    near: Site,
    far: Site,
    lifetimes: KeyLifetimes,
    link: ServerLink,
    _server: RunningServer,
    task: JoinHandle<()>,
}

impl Renewing {
    async fn start() -> Self {
        let (near, far) = (Site::new("server"), Site::new("laptop"));
        near.set_rules("server", &["10.2.0.0/16"], &["10.1.0.0/16"]);
        far.set_rules("laptop", &["10.1.0.0/16"], &["10.2.0.0/16"]);
        let lifetimes = KeyLifetimes::new(KeyLifetime::UNLIMITED);
        let transport = TransportSettings { key_lifetimes: lifetimes.clone(), ..holding() };
        let key = new_key();
        let server =
            RunningServer::start_with(key.public(), &[], |settings| settings.transport = holding());
        server.handle.set_peers(listing(&key, Some(&far)));
        let settings = ClientSettings { transport, ..client_settings(&server, &key, &[]) };
        let client = Client::bind(settings).await.unwrap();
        client.carry_network(Arc::clone(&near.network));
        let (session, link) = (within(client.connect()).await.unwrap(), client.link());
        let task = tokio::spawn(async move { client.run(Some(session), pending()).await });
        until("packets pass", || {
            near.phase() == NetworkPhase::Up && far.phase() == NetworkPhase::Up
        })
        .await;
        Self { near, far, lifetimes, link, _server: server, task }
    }

    /// Sends packets both ways until the client has had new keys so often, and all have arrived in
    /// order.
    async fn exchange(&self, renewals_wanted: u64, load: Load) {
        let Load { at_once, under_way, bytes } = load;
        let (mut sent, mut arrived) = ([0_u64; 2], [0_u64; 2]);
        let mut is_done = || {
            let is_over = self.link.status().renewals >= renewals_wanted;
            self.lifetimes.set(match is_over {
                true => KeyLifetime::UNLIMITED,
                false => KeyLifetime::new(Duration::ZERO, 1),
            });
            let ways = [(&self.near, NEAR, FAR), (&self.far, FAR, NEAR)];
            let counts = sent.iter_mut().zip(arrived);
            for ((site, from, to), (sent, arrived)) in ways.into_iter().zip(counts) {
                let room = under_way.saturating_sub(*sent - arrived).min(at_once);
                for _ in 0..if is_over { 0 } else { room } {
                    *sent += 1;
                    let mut packet = packet(from, to, 1, bytes);
                    packet[28..36].copy_from_slice(&sent.to_be_bytes());
                    site.send(&packet);
                }
            }
            for (site, arrived) in [&self.far, &self.near].into_iter().zip(&mut arrived) {
                while let Some(received) = site.received() {
                    *arrived += 1;
                    let number = u64::from_be_bytes(received[28..36].try_into().unwrap());
                    assert_eq!((received.len(), number), (bytes, *arrived), "the next one");
                }
            }
            is_over && arrived == sent
        };
        within(async {
            while !is_done() {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

/// What is sent each way.
struct Load {
    /// Packets each millisecond.
    at_once: u64,
    /// Packets that may be on their way.
    under_way: u64,
    bytes: usize,
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn no_packet_is_lost_while_a_session_gets_new_keys() {
    let load = Load { at_once: 1, under_way: u64::MAX, bytes: 100 };
    Renewing::start().await.exchange(2, load).await;
}

#[tokio::test]
async fn no_packet_of_full_streams_is_lost_while_a_session_gets_new_keys() {
    // As many as fit into the sockets that stand for devices.
    let load = Load { at_once: 48, under_way: 48, bytes: 1_200 };
    Renewing::start().await.exchange(3, load).await;
}

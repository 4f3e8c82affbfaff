//! Tests servers with several addresses: tried in parallel, abandoned when silent, returned to.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use keypadd_keystream::Suite;
use keypadd_provider::{PinnedServer, PrivateKey, client_config};
use keypadd_tunnel::{ClientSettings, HoldSettings, TransportSettings};
use testbed::{
    Direction, LineSettings, Relay,
    dns::{Answer, DnsServer, NXDOMAIN, answer},
};
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::{Instant, sleep, timeout},
};

use crate::{hostile::raw_server, support::*};

/// Both ends hold; a preferred address is retried soon.
fn holding() -> TransportSettings {
    let hold = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
    let return_interval = Duration::from_millis(200);
    TransportSettings { hold, return_interval, ..<_>::default() }
}

/// An address that never answers; the socket reserves its port.
async fn silent() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

pub fn server(key: &Arc<PrivateKey>) -> RunningServer {
    RunningServer::start_with(key.public(), &["localhost:*", "udp:localhost:*"], |settings| {
        settings.transport = holding();
    })
}

/// Settings of a client that accepts these servers at these addresses and forwards to `target`.
pub fn settings(
    key: &Arc<PrivateKey>,
    servers: &[&RunningServer],
    addresses: &[SocketAddr],
    target: &TcpListener,
) -> ClientSettings {
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(servers[0], key, &[&forward]);
    let others = servers[1..].iter().map(|server| server.key);
    let pinned = PinnedServer::one_of(servers[0].key, others);
    settings.crypto = client_config(&crypto(key, Suite::AES_128_GCM), pinned).unwrap();
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    settings.server = texts.join(",").parse().unwrap();
    settings.transport = holding();
    settings
}

/// The same, of a client that resolves an SRV record to targets with these priorities and
/// addresses.
async fn by_service(
    settings: ClientSettings,
    targets: &[(u16, SocketAddr)],
) -> (DnsServer, ClientSettings) {
    let targets = targets.to_vec();
    let dns = DnsServer::start(move |asked, _| {
        let record = |(priority, address): &(u16, SocketAddr)| {
            Answer::Srv(*priority, 1, address.port(), "localhost")
        };
        let records: Vec<_> = targets.iter().map(record).collect();
        vec![answer(asked, 0, &records)]
    });
    let dns = dns.await.unwrap();
    let settings = looking_up(settings, &dns);
    (dns, settings)
}

fn looking_up(mut settings: ClientSettings, dns: &DnsServer) -> ClientSettings {
    settings.server = "_keypadd._udp.example.com".parse().unwrap();
    settings.transport.nameservers = vec![dns.address()];
    settings
}

pub fn cut(relay: &Relay) {
    relay.set_both(LineSettings { cut: true, ..<_>::default() });
}

pub fn heal(relay: &Relay) {
    relay.set_both(LineSettings::default());
}

pub async fn relay_to(server: &RunningServer, seed: u64) -> Relay {
    Relay::start(server.address, seed).await.unwrap()
}

impl RunningClient {
    /// The address of its server.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.sessions.live().last().map(|session| session.remote())
    }

    pub async fn enter(&self, target: &TcpListener) -> (TcpStream, TcpStream) {
        let here = TcpStream::connect(self.listeners[0]).await.unwrap();
        (here, accept(target).await)
    }

    async fn until_at(&self, address: SocketAddr) {
        until("the session has moved", || self.remote() == Some(address)).await;
        until("one session is left", || self.sessions.live().len() == 1).await;
    }
}

#[tokio::test]
async fn a_dead_first_address_costs_a_fraction_of_a_second_and_not_a_share_of_the_timeout() {
    let (target, key, dead) = (listener().await, new_key(), silent().await);
    let server = server(&key);
    let addresses = [dead.local_addr().unwrap(), server.address];
    let mut settings = settings(&key, &[&server], &addresses, &target);
    settings.connect_timeout = Duration::from_secs(50);
    let began = Instant::now();
    let client = RunningClient::start(settings).await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(client.remote(), Some(server.address));
    // The dead address was tried.
    within(dead.recv(&mut [0; 2048])).await.unwrap();
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

#[tokio::test]
async fn a_server_that_refuses_is_passed_over_and_named_if_no_other_answers() {
    let (target, key, other) = (listener().await, new_key(), new_key());
    let (refusing, server) = (RunningServer::start(other.public(), &[]), server(&key));
    let pinned = [&server, &refusing];
    let addresses = [refusing.address, server.address];
    let client = RunningClient::start(settings(&key, &pinned, &addresses, &target)).await;
    assert_eq!(client.remote(), Some(server.address));

    let dead = silent().await.local_addr().unwrap();
    let mut settings = settings(&key, &pinned, &[dead, refusing.address], &target);
    settings.connect_timeout = Duration::from_secs(1);
    let error = crate::refusals::connect_error(settings).await.to_string();
    assert!(error.starts_with(&refusing.address.to_string()), "{error}");
    assert!(error.contains("does not allow this key"), "{error}");
}

#[tokio::test]
async fn a_server_that_says_nothing_after_its_handshake_is_passed_over() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let (endpoint, mute, mute_key) =
        raw_server(&crypto(&new_key(), Suite::AES_128_GCM), key.public());
    let mute_task = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Some(incoming) = endpoint.accept().await {
            connections.push(incoming.await);
        }
    });
    let mut settings = settings(&key, &[&server], &[mute, server.address], &target);
    let pinned = PinnedServer::one_of(server.key, [mute_key]);
    settings.crypto = client_config(&crypto(&key, Suite::AES_128_GCM), pinned).unwrap();
    settings.connect_timeout = Duration::from_secs(4);
    let client = RunningClient::start(settings).await;
    assert_eq!(client.remote(), Some(server.address));
    mute_task.abort();
}

#[tokio::test]
async fn a_failure_names_what_happened_at_each_address() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let dead = [silent().await, silent().await];
    let addresses = dead.each_ref().map(|socket| socket.local_addr().unwrap());
    let mut settings = settings(&key, &[&server], &addresses, &target);
    settings.connect_timeout = Duration::from_millis(700);
    let [first, second] = addresses;
    let error = crate::refusals::connect_error(settings).await.to_string();
    assert_eq!(
        error,
        format!(
            "cannot reach {first}, {second}: \
             {first}: no answer in 700ms; {second}: no answer in 700ms"
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_servers_session_goes_on_at_its_other_address_without_losing_a_byte() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    let addresses = [first.address(), second.address()];
    let mut settings = settings(&key, &[&server], &addresses, &target);
    // Do not return automatically.
    settings.transport.return_interval = Duration::from_secs(3_600);
    let held = settings.transport.held.clone();
    let client = RunningClient::start(settings).await;
    assert_eq!(client.remote(), Some(first.address()));
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;

    cut(&first);
    // Nothing is in flight: a dead path is noticed when idle too.
    client.until_at(second.address()).await;
    assert_eq!(client.reconnects(), [("moved", 1)]);
    send_bytes_both_ways(&mut here, &mut there).await;

    // And return, under load.
    heal(&first);
    cut(&second);
    exchange(here, there).await;
    client.until_at(first.address()).await;
    assert_eq!(client.reconnects(), [("moved", 2)]);
    let counts = held.counts();
    assert_eq!((counts.streams_resumed, counts.streams_reset), (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_carries_nothing_to_the_server_is_left_although_the_server_is_heard() {
    let (target, key) = (listener().await, new_key());
    let patient = || TransportSettings {
        peer_timeout: Duration::from_secs(3_600),
        return_interval: Duration::from_secs(3_600),
        ..holding()
    };
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = patient();
    });
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    let addresses = [first.address(), second.address()];
    let mut settings = settings(&key, &[&server], &addresses, &target);
    settings.transport = patient();
    let client = RunningClient::start(settings).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    first.set(Direction::ToServer, LineSettings { cut: true, ..<_>::default() });
    // The server keeps probing an idle client.
    send_byte(&mut there, &mut here).await;
    client.until_at(second.address()).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!(client.reconnects(), [("moved", 1)]);
}

#[tokio::test]
async fn a_server_that_is_heard_again_before_another_answers_keeps_its_session() {
    let (target, key, dead) = (listener().await, new_key(), silent().await);
    let server = server(&key);
    let relay = relay_to(&server, 1).await;
    let addresses = [relay.address(), dead.local_addr().unwrap()];
    let client = RunningClient::start(settings(&key, &[&server], &addresses, &target)).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    let id = || client.sessions.status().iter().map(|it| it.id).collect::<Vec<_>>();
    let before = id();
    cut(&relay);
    // The other address is tried.
    within(dead.recv(&mut [0; 2048])).await.unwrap();
    heal(&relay);
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!((id(), client.reconnects()), (before, Vec::new()));
}

#[tokio::test]
async fn another_server_takes_over_and_connections_it_does_not_have_are_reset() {
    let (target, key) = (listener().await, new_key());
    let (first, second) = (server(&key), server(&key));
    let relay = relay_to(&first, 1).await;
    let addresses = [relay.address(), second.address];
    let client =
        RunningClient::start(settings(&key, &[&first, &second], &addresses, &target)).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    cut(&relay);
    assert_reset(&mut here).await;
    client.until_at(second.address).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

#[tokio::test]
async fn a_session_returns_to_the_preferred_address_with_its_connections() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    cut(&first);
    let addresses = [first.address(), second.address()];
    let client = RunningClient::start(settings(&key, &[&server], &addresses, &target)).await;
    assert_eq!(client.remote(), Some(second.address()));
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    heal(&first);
    client.until_at(first.address()).await;
    exchange(here, there).await;
    assert_eq!(client.reconnects(), [("moved", 1)]);
}

#[tokio::test]
async fn a_session_that_holds_nothing_returns_only_while_no_connection_is_open() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    cut(&first);
    let addresses = [first.address(), second.address()];
    let mut settings = settings(&key, &[&server], &addresses, &target);
    settings.transport.hold = HoldSettings::OFF;
    let client = RunningClient::start(settings).await;
    let (mut here, mut there) = client.enter(&target).await;
    heal(&first);
    // Many intervals.
    for _ in 0..20 {
        send_bytes_both_ways(&mut here, &mut there).await;
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(client.remote(), Some(second.address()));
    drop((here, there));
    client.until_at(first.address()).await;
}

#[tokio::test]
async fn a_session_returns_to_another_server_only_while_no_connection_is_open() {
    let (target, key) = (listener().await, new_key());
    let (first, second) = (server(&key), server(&key));
    let relay = relay_to(&first, 1).await;
    cut(&relay);
    let addresses = [relay.address(), second.address];
    let client =
        RunningClient::start(settings(&key, &[&first, &second], &addresses, &target)).await;
    let (mut here, mut there) = client.enter(&target).await;
    heal(&relay);
    // Many intervals.
    for _ in 0..20 {
        send_bytes_both_ways(&mut here, &mut there).await;
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(client.remote(), Some(second.address));
    assert!(first.sessions.live().is_empty());
    drop((here, there));
    client.until_at(relay.address()).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

#[tokio::test]
async fn udp_flows_keep_no_session_from_its_preferred_server() {
    let (target, key) = (listener().await, new_key());
    let permits = ["localhost:*", "udp:127.0.0.1:*"];
    let [first, second] = [(); 2].map(|()| {
        RunningServer::start_with(key.public(), &permits, |settings| {
            settings.transport = holding();
        })
    });
    let relay = relay_to(&first, 1).await;
    cut(&relay);
    let addresses = [relay.address(), second.address];
    let mut settings = settings(&key, &[&first, &second], &addresses, &target);
    let far = silent().await;
    settings.forwards = vec![forward(&format!("127.0.0.1:0:udp:{}", far.local_addr().unwrap()))];
    let client = RunningClient::start(settings).await;
    let near = silent().await;
    let ask = async || {
        near.send_to(b"ask", client.listeners[0]).await.unwrap();
        timeout(Duration::from_millis(200), far.recv(&mut [0; 8])).await.is_ok()
    };
    within(async { while !ask().await {} }).await;
    heal(&relay);
    client.until_at(relay.address()).await;
    // The next datagram opens another flow.
    within(async { while !ask().await {} }).await;
}

#[tokio::test]
async fn held_connections_go_on_wherever_their_server_answers() {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = holding();
    });
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    let addresses = [first.address(), second.address()];
    let mut settings = settings(&key, &[&server], &addresses, &target);
    settings.transport.peer_timeout = Duration::from_secs(4);
    let client = RunningClient::start(settings).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    cut(&first);
    cut(&second);
    until("the session is lost", || client.is_waiting()).await;
    heal(&second);
    client.until_at(second.address()).await;
    exchange(here, there).await;
}

#[tokio::test]
async fn a_server_that_shuts_down_is_replaced_by_the_next() {
    let (target, key) = (listener().await, new_key());
    let (first, second) = (server(&key), server(&key));
    let addresses = [first.address, second.address];
    let client =
        RunningClient::start(settings(&key, &[&first, &second], &addresses, &target)).await;
    assert_eq!(client.remote(), Some(first.address));
    first.stop().await;
    client.until_at(second.address).await;
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

#[tokio::test]
async fn a_service_is_reached_at_its_next_target_if_the_first_is_dead_and_the_status_names_it() {
    let (target, key, dead) = (listener().await, new_key(), silent().await);
    let server = server(&key);
    let preferred = dead.local_addr().unwrap();
    let settings = settings(&key, &[&server], &[server.address], &target);
    let (_dns, settings) = by_service(settings, &[(20, server.address), (10, preferred)]).await;
    let client = RunningClient::start(settings).await;
    assert_eq!(client.remote(), Some(server.address));
    let named = client.sessions.status()[0].target.clone();
    assert_eq!(named, Some(format!("localhost:{}", server.address.port())));
    // The dead address was tried.
    within(dead.recv(&mut [0; 2048])).await.unwrap();
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

#[tokio::test]
async fn a_session_leaves_a_silent_target_of_its_service_and_returns_when_it_is_back() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    let targets = [(10, first.address()), (20, second.address())];
    let settings = settings(&key, &[&server], &[server.address], &target);
    let (_dns, settings) = by_service(settings, &targets).await;
    let client = RunningClient::start(settings).await;
    assert_eq!(client.remote(), Some(first.address()));
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    cut(&first);
    client.until_at(second.address()).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    heal(&first);
    client.until_at(first.address()).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!(client.reconnects(), [("moved", 2)]);
}

#[tokio::test]
async fn a_session_stays_at_one_of_several_targets_that_are_preferred_alike() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let (first, second) = (relay_to(&server, 1).await, relay_to(&server, 2).await);
    let targets = [(10, first.address()), (10, second.address())];
    let settings = settings(&key, &[&server], &[server.address], &target);
    let (_dns, settings) = by_service(settings, &targets).await;
    let client = RunningClient::start(settings).await;
    let (mut here, mut there) = client.enter(&target).await;
    let before = client.remote();
    // Many intervals.
    for _ in 0..20 {
        send_bytes_both_ways(&mut here, &mut there).await;
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((client.remote(), client.reconnects()), (before, Vec::new()));
}

#[tokio::test]
async fn a_service_that_dns_does_not_know_is_passed_over_and_returned_to() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let relay = relay_to(&server, 1).await;
    let (is_known, port) = (Arc::new(AtomicBool::new(false)), relay.address().port());
    let known = Arc::clone(&is_known);
    let dns = DnsServer::start(move |asked, _| {
        vec![match known.load(Ordering::Relaxed) {
            true => answer(asked, 0, &[Answer::Srv(0, 0, port, "localhost")]),
            false => answer(asked, NXDOMAIN, &[]),
        }]
    });
    let settings = settings(&key, &[&server], &[server.address], &target);
    let dns = dns.await.unwrap();
    let mut settings = looking_up(settings, &dns);
    settings.server = format!("_keypadd._udp.example.com,{}", server.address).parse().unwrap();
    let client = RunningClient::start(settings).await;
    assert_eq!(client.remote(), Some(server.address));
    is_known.store(true, Ordering::Relaxed);
    client.until_at(relay.address()).await;
}

#[tokio::test]
async fn a_failure_says_what_dns_has_of_a_service_or_what_happened_at_each_target() {
    let (target, key, dead) = (listener().await, new_key(), silent().await);
    let server = server(&key);
    let settings = || settings(&key, &[&server], &[server.address], &target);
    let dns = DnsServer::start(|asked, _| vec![answer(asked, NXDOMAIN, &[])]).await.unwrap();
    let error = crate::refusals::connect_error(looking_up(settings(), &dns)).await.to_string();
    let unreached = "cannot reach _keypadd._udp.example.com";
    assert_eq!(error, format!("{unreached}: no SRV record: DNS has no such name"));

    let dead = dead.local_addr().unwrap();
    let (_dns, mut settings) = by_service(settings(), &[(1, dead)]).await;
    settings.connect_timeout = Duration::from_millis(700);
    let error = crate::refusals::connect_error(settings).await.to_string();
    let expected = format!("{unreached}: localhost:{}: {dead}: no answer in 700ms", dead.port());
    assert!(error.starts_with(&expected), "{error}");
}

//! Tests servers that are drained: what is open stays, new connections go to other servers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use keypadd_provider::PrivateKey;
use keypadd_tunnel::{Client, ClientSettings, KeyLifetime, KeyLifetimes};
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::{sleep, timeout},
};

use crate::{
    endpoints::{cut, heal, relay_to, server, settings},
    fleet::{self, Balancer},
    support::*,
};

/// Two servers, and a client that knows both and is at the first.
struct Site {
    target: TcpListener,
    key: Arc<PrivateKey>,
    servers: [RunningServer; 2],
}

impl Site {
    async fn start() -> Self {
        let (target, key) = (listener().await, new_key());
        let servers = [server(&key), server(&key)];
        Self { target, key, servers }
    }

    /// Settings of a client that knows both, the first one maybe at another address.
    fn settings(&self, first: SocketAddr) -> ClientSettings {
        let [one, two] = &self.servers;
        settings(&self.key, &[one, two], &[first, two.address], &self.target)
    }

    async fn client(&self) -> RunningClient {
        let mut settings = self.settings(self.servers[0].address);
        // Where it is does not change by itself.
        settings.transport.return_interval = Duration::from_secs(600);
        RunningClient::start(settings).await
    }

    fn drain(&self, nth: usize) {
        self.servers[nth].handle.draining().begin(None);
    }

    /// A connection by way of this server, once the client makes its connections there.
    async fn enter(&self, client: &RunningClient, nth: usize) -> (TcpStream, TcpStream) {
        let address = self.servers[nth].address;
        until("the client is there", || client.remote() == Some(address)).await;
        client.enter(&self.target).await
    }

    fn sessions(&self) -> [usize; 2] {
        [0, 1].map(|nth| self.servers[nth].sessions.live().len())
    }
}

#[tokio::test]
async fn a_drained_server_keeps_what_is_open_and_new_connections_go_elsewhere() {
    let site = Site::start().await;
    let client = site.client().await;
    let (mut here, mut there) = site.enter(&client, 0).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.drain(0);
    let next = site.enter(&client, 1).await;
    assert_eq!(site.sessions(), [1, 1]);
    send_bytes_both_ways(&mut here, &mut there).await;
    exchange(next.0, next.1).await;
    assert_eq!(site.sessions(), [1, 1]);
    exchange(here, there).await;
    until("what has ended is left", || site.sessions() == [0, 1]).await;
    assert_eq!(client.reconnects(), [("moved", 1)]);
}

#[tokio::test]
async fn a_client_comes_back_to_a_server_that_still_has_connections_of_it() {
    let site = Site::start().await;
    let client = site.client().await;
    let first = site.enter(&client, 0).await;
    site.drain(0);
    let second = site.enter(&client, 1).await;
    site.servers[0].handle.draining().end();
    site.drain(1);
    let third = site.enter(&client, 0).await;
    assert_eq!(site.sessions(), [2, 1]);
    for (here, there) in [first, second, third] {
        exchange(here, there).await;
    }
    until("only the last session is left", || site.sessions() == [1, 0]).await;
}

#[tokio::test]
async fn a_client_that_knows_one_server_stays_until_the_time_is_over_and_comes_back_later() {
    let (target, key) = (listener().await, new_key());
    let server = server(&key);
    let draining = server.handle.draining();
    let settings = || settings(&key, &[&server], &[server.address], &target);
    let client = RunningClient::start(settings()).await;
    let (mut here, _there) = client.enter(&target).await;
    draining.begin(None);
    let stranger = Client::bind(settings()).await.unwrap();
    let refused = within(stranger.connect()).await.unwrap_err().to_string();
    assert!(refused.contains("accepts no new connections now"), "{refused}");
    let (new, accepted) = client.enter(&target).await;
    exchange(new, accepted).await;
    assert!(client.reconnects().is_empty());

    draining.begin(Some(Duration::from_millis(50)));
    assert_reset(&mut here).await;
    until("there is no session", || client.is_waiting()).await;
    sleep(Duration::from_millis(500)).await;
    assert!(client.is_waiting());
    draining.end();
    let (new, accepted) = client.enter(&target).await;
    exchange(new, accepted).await;
}

#[tokio::test]
async fn an_outage_costs_nothing_that_is_open_at_a_server_that_was_left() {
    let site = Site::start().await;
    let relay = relay_to(&site.servers[0], 1).await;
    let mut settings = site.settings(relay.address());
    settings.transport.peer_timeout = Duration::from_secs(3);
    settings.transport.return_interval = Duration::from_secs(600);
    let held = settings.transport.held.clone();
    let client = RunningClient::start(settings).await;
    let (mut here, mut there) = client.enter(&site.target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.drain(0);
    let next = site.enter(&client, 1).await;
    cut(&relay);
    until("its connection is held", || !held.peers().is_empty()).await;
    heal(&relay);
    send_bytes_both_ways(&mut here, &mut there).await;
    assert_eq!((held.counts().streams_resumed, held.counts().streams_reset), (1, 0));
    exchange(here, there).await;
    exchange(next.0, next.1).await;
    until("what has ended is left", || site.sessions() == [0, 1]).await;
}

#[tokio::test]
async fn a_drain_amid_renewals_of_keys_costs_nothing() {
    let site = Site::start().await;
    let mut settings = site.settings(site.servers[0].address);
    settings.transport.return_interval = Duration::from_secs(600);
    let always = KeyLifetimes::new(KeyLifetime { bytes: 1, ..KeyLifetime::UNLIMITED });
    settings.transport.key_lifetimes = always.clone();
    let held = settings.transport.held.clone();
    let client = RunningClient::start(settings).await;
    let (mut here, mut there) = client.enter(&site.target).await;
    until("keys are renewed", || client.link.status().renewals > 0).await;
    site.drain(0);
    let (mut new, mut accepted) = site.enter(&client, 1).await;
    for _ in 0..20 {
        send_bytes_both_ways(&mut here, &mut there).await;
        send_bytes_both_ways(&mut new, &mut accepted).await;
        sleep(Duration::from_millis(50)).await;
    }
    always.set(KeyLifetime::UNLIMITED);
    assert_eq!(held.counts().streams_reset, 0);
    exchange(here, there).await;
    exchange(new, accepted).await;
}

#[tokio::test]
async fn a_new_process_goes_on_with_what_is_open_at_servers_that_were_left() {
    let site = Site::start().await;
    let mut settings = site.settings(site.servers[0].address);
    settings.transport.return_interval = Duration::from_secs(600);
    let (instance, handover) = (settings.instance, settings.transport.handover.clone());
    let (before, session) = connect_client(settings).await;
    let port = addresses(&before)[0][0];
    let before = Arc::new(before);
    let running = Arc::clone(&before);
    let task =
        tokio::spawn(async move { running.run(Some(session), std::future::pending()).await });
    let mut first = (TcpStream::connect(port).await.unwrap(), accept(&site.target).await);
    site.drain(0);
    until("it has left", || before.instance() != instance).await;
    let mut second = (TcpStream::connect(port).await.unwrap(), accept(&site.target).await);
    for (here, there) in [&mut first, &mut second] {
        send_bytes_both_ways(here, there).await;
    }
    let current = before.instance();
    handover.suspend();
    let handed = within(before.hand_over()).await.unwrap();
    assert_eq!(handed.len(), 2);

    let mut settings = site.settings(site.servers[0].address);
    settings.instance = current;
    settings.forwards.clear();
    let held = settings.transport.held.clone();
    let client = Client::bind(settings).await.unwrap();
    for one in handed {
        let keys = [0, 1].map(|nth| site.servers[nth].key);
        assert!(client.adopt(one, &keys).is_empty());
    }
    let next = tokio::spawn(async move { client.run(None, std::future::pending()).await });
    exchange(first.0, first.1).await;
    exchange(second.0, second.1).await;
    assert_eq!(held.counts().streams_reset, 0);
    task.abort();
    next.abort();
}

#[tokio::test]
async fn datagrams_go_elsewhere_too_and_their_flows_start_over() {
    let site = Site::start().await;
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut settings = site.settings(site.servers[0].address);
    settings.transport.return_interval = Duration::from_secs(600);
    settings.forwards.push(forward(&format!("0:udp:{}", target.local_addr().unwrap())));
    let client = RunningClient::start(settings).await;
    let (here, there) = client.enter(&site.target).await;
    let source = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    source.connect(client.listeners[1]).await.unwrap();
    let mut datagram = [0; 16];
    // One that comes between the two flows is lost.
    let mut ask = async || loop {
        source.send(b"ask").await.unwrap();
        let arrives = target.recv_from(&mut datagram);
        if let Ok(arrived) = timeout(Duration::from_millis(500), arrives).await {
            return arrived.unwrap().1;
        }
    };
    let before = within(ask()).await;
    assert_eq!(within(ask()).await, before);
    site.drain(0);
    within(async { while ask().await == before {} }).await;
    assert_eq!(site.sessions(), [1, 1]);
    exchange(here, there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_server_behind_a_balancer_is_left_though_the_balancer_still_chooses_it() {
    let (target, key) = (listener().await, new_key());
    let [one, two, three] = fleet::servers(&key);
    let servers = [&one, &two, &three];
    // The first one for two connections more.
    let balancer = Balancer::start(&servers, |nth| nth.saturating_sub(2)).await;
    let settings = fleet::settings(&key, &servers, balancer.address, &target);
    let client = RunningClient::start(settings).await;
    assert_eq!(client.server_among(&servers), Some(0));
    let (mut here, mut there) = client.enter(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;
    one.handle.draining().begin(None);
    until("the client is elsewhere", || client.server_among(&servers) == Some(1)).await;
    let (new, accepted) = client.enter(&target).await;
    balancer.rebind();
    send_bytes_both_ways(&mut here, &mut there).await;
    exchange(new, accepted).await;
    exchange(here, there).await;
    until("what has ended is left", || one.sessions.live().is_empty()).await;
}

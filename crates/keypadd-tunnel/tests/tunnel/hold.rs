//! Tests connections that survive a lost path between client and server: held, then resumed.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use keypadd_provider::{PrivateKey, PublicKey};
use keypadd_tunnel::{
    Client, ClientError, ClientSession, ClientSettings, HeldCounts, HoldSettings, LimitCounts,
    MemoryShares, Peers, SharedLimits, TransportSettings, wire::Instance,
};
use testbed::{LineSettings, Relay};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex, split},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinSet,
};

use crate::{refusals::connect_error, support::*};

/// Both ends hold longer than any test waits, and soon give up a silent path.
pub fn holding() -> TransportSettings {
    let hold = HoldSettings { time: Duration::from_secs(600), ..HoldSettings::OFF };
    TransportSettings { hold, peer_timeout: Duration::from_secs(2), ..<_>::default() }
}

/// A server, and a client that reaches it through a relay.
pub struct Site {
    pub target: TcpListener,
    pub server: RunningServer,
    pub client: RunningClient,
    pub relay: Relay,
    pub key: PublicKey,
    pub transports: [TransportSettings; 2],
}

impl Site {
    pub async fn start() -> Self {
        Self::start_with([holding(), holding()], &["localhost:*"], &[]).await
    }

    /// Starts with a local forward to the target, and these permits and forwards.
    pub async fn start_with(
        transports: [TransportSettings; 2],
        permits: &[&str],
        forwards: &[&str],
    ) -> Self {
        Self::start_by(true, transports, permits, forwards).await
    }

    /// The same, with the client connected to the relay or directly to the server.
    pub async fn start_by(
        through_relay: bool,
        transports: [TransportSettings; 2],
        permits: &[&str],
        forwards: &[&str],
    ) -> Self {
        Self::start_at(transports, permits, forwards, |server, relay| {
            if through_relay { relay.to_string() } else { server.to_string() }
        })
        .await
    }

    /// Starts with a client that has this many addresses of the server, the last of which answers.
    pub async fn start_listing(servers: usize) -> Self {
        Self::start_at([holding(), holding()], &["localhost:*"], &[], |_, relay| {
            let silent = ["127.0.0.1:9".to_owned()].into_iter().cycle().take(servers - 1);
            silent.chain([relay.to_string()]).collect::<Vec<_>>().join(",")
        })
        .await
    }

    async fn start_at(
        transports: [TransportSettings; 2],
        permits: &[&str],
        forwards: &[&str],
        addresses: impl Fn(SocketAddr, SocketAddr) -> String,
    ) -> Self {
        let (target, key) = (listener().await, new_key());
        let server = RunningServer::start_with(key.public(), permits, |settings| {
            settings.transport = transports[1].clone();
        });
        let own: &str = &format!("0:{}", target.local_addr().unwrap());
        let forwards: Vec<_> = [&[own][..], forwards].concat();
        let mut settings = client_settings(&server, &key, &forwards);
        settings.transport = transports[0].clone();
        let relay = relayed(&server, &mut settings).await;
        settings.server = addresses(server.address, relay.address()).parse().unwrap();
        let client = RunningClient::start(settings).await;
        Self { target, server, client, relay, key: key.public(), transports }
    }

    pub async fn connection(&self) -> (TcpStream, TcpStream) {
        let here = TcpStream::connect(self.client.listeners[0]).await.unwrap();
        (here, accept(&self.target).await)
    }

    pub fn cut(&self) {
        self.relay.set_both(LineSettings { cut: true, ..<_>::default() });
    }

    pub fn heal(&self) {
        self.relay.set_both(LineSettings::default());
    }

    /// Cuts the path until both ends have lost the connection.
    pub async fn lose(&self) {
        self.cut();
        until("the client has lost the session", || self.client.is_waiting()).await;
        until("the server has lost the session", || self.server.sessions.live().is_empty()).await;
    }

    /// Outcomes of held streams, at the client and at the server.
    pub fn counts(&self) -> [HeldCounts; 2] {
        self.transports.each_ref().map(|transport| transport.held.counts())
    }

    async fn until_resumed(&self, count: u64) {
        until("the streams are resumed", || {
            self.counts().iter().all(|counts| counts.streams_resumed >= count)
        })
        .await;
    }
}

/// Sends data both ways, each ended by a half-close, and compares.
pub async fn carry(here: TcpStream, there: TcpStream, seed: u64, bytes: usize) {
    let (up, down) = (noise(seed, bytes), noise(seed + 1, bytes));
    let one_way = async |mut from: tokio::net::tcp::OwnedWriteHalf,
                         mut to: tokio::net::tcp::OwnedReadHalf,
                         sent: &[u8]| {
        let write = async {
            from.write_all(sent).await.unwrap();
            from.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(write, to.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    };
    let (here_reads, here_writes) = here.into_split();
    let (there_reads, there_writes) = there.into_split();
    tokio::join!(one_way(here_writes, there_reads, &up), one_way(there_writes, here_reads, &down),);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_goes_on_after_outages_without_losing_a_byte() {
    let site = Site::start().await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    // Cuts at arbitrary places, and the rest after the outages.
    for outage in 1..=2 {
        let (up, down) = (noise(outage, 8 << 20), noise(outage + 2, 8 << 20));
        let ((mut here_reads, mut here_writes), (mut there_reads, mut there_writes)) =
            (here.split(), there.split());
        let [mut at_there, mut at_here] = [vec![0; up.len()], vec![0; down.len()]];
        let disturbing = async {
            site.lose().await;
            site.heal();
            site.until_resumed(outage).await;
        };
        let (sent, sent_back, read, read_back, ()) = tokio::join!(
            here_writes.write_all(&up),
            there_writes.write_all(&down),
            there_reads.read_exact(&mut at_there),
            here_reads.read_exact(&mut at_here),
            disturbing
        );
        assert!(sent.is_ok() && sent_back.is_ok() && read.is_ok() && read_back.is_ok());
        assert!(at_there == up && at_here == down, "outage {outage}");
    }
    within(carry(here, there, 5, 4 << 20)).await;
    assert!(site.client.reconnects().iter().all(|(_, count)| *count > 0));
}

#[tokio::test]
async fn what_is_written_while_the_path_is_away_arrives_when_it_is_back() {
    let site = Site::start().await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.lose().await;
    here.write_all(b"question").await.unwrap();
    there.write_all(b"answer").await.unwrap();
    there.shutdown().await.unwrap();
    site.heal();
    assert_eq!(read_all(&mut here).await.unwrap(), b"answer");
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"question");
    let open = || open(&site.server.sessions) + open(&site.client.sessions);
    until("both ends have closed it", || open() == 0).await;
}

#[tokio::test]
async fn an_end_that_is_reset_while_the_path_is_away_resets_the_other_when_it_is_back() {
    let site = Site::start().await;
    for reset_here in [true, false] {
        let (here, there) = site.connection().await;
        let (mut here, mut there) = (here, there);
        send_bytes_both_ways(&mut here, &mut there).await;
        site.lose().await;
        let (gone, mut left) = if reset_here { (here, there) } else { (there, here) };
        reset(gone);
        site.heal();
        assert_reset(&mut left).await;
    }
}

#[tokio::test]
async fn a_client_whose_connections_are_held_says_why_the_server_refuses_it() {
    for servers in 1..=2 {
        let site = Site::start_listing(servers).await;
        let (mut here, mut there) = site.connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        site.lose().await;
        site.server.handle.set_peers(Peers::new([]).unwrap());
        site.heal();
        let cause = || site.client.link.status().cause.unwrap_or_default();
        until("status says why", || cause().contains("the server does not allow this key")).await;
        assert_eq!(site.counts()[0].streams_reset, 0);
    }
}

#[tokio::test]
async fn held_connections_end_when_the_valid_until_of_their_server_has_passed() {
    for servers in 1..=2 {
        let site = Site::start_listing(servers).await;
        let (mut here, mut there) = site.connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        site.lose().await;
        site.client.set_valid_until(Some(SystemTime::UNIX_EPOCH));
        assert_reset(&mut here).await;
        assert_eq!(site.counts()[0].streams_reset, 1);
        let cause = || site.client.link.status().cause.unwrap_or_default();
        let expected = "not connecting: the peer's valid-until has passed";
        until("status says why", || cause().contains(expected)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_resumed_at_once_with_their_own_bytes() {
    const COUNT: u64 = 1_000;
    let site = Site::start().await;
    let mut open = Vec::new();
    for _ in 0..COUNT {
        let (mut here, mut there) = site.connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        open.push((here, there));
    }
    site.lose().await;
    site.heal();
    site.until_resumed(COUNT).await;
    let mut carrying = JoinSet::new();
    for (seed, (here, there)) in open.into_iter().enumerate() {
        carrying.spawn(carry(here, there, seed as u64, 5_000));
    }
    while let Some(carried) = within(carrying.join_next()).await {
        carried.unwrap();
    }
    assert!(site.counts().iter().all(|counts| counts.streams_reset == 0));
}

#[tokio::test]
async fn remote_dynamic_and_unix_forwards_are_resumed_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("target");
    let unix = tokio::net::UnixListener::bind(&path).unwrap();
    let behind = listener().await;
    let forwards = [
        "-D 0".into(),
        format!("0:{}", path.display()),
        format!("-R 0:{}", behind.local_addr().unwrap()),
    ];
    let forwards: Vec<_> = forwards.iter().map(String::as_str).collect();
    let permits = ["localhost:*", "listen *:*", path.to_str().unwrap()];
    let site = Site::start_with([holding(), holding()], &permits, &forwards).await;

    let mut dynamic = TcpStream::connect(site.client.listeners[1]).await.unwrap();
    let target = site.target.local_addr().unwrap();
    let SocketAddr::V4(address) = target else { panic!("{target}") };
    let mut request = vec![5, 1, 0, 5, 1, 0, 1];
    request.extend(address.ip().octets());
    request.extend(address.port().to_be_bytes());
    dynamic.write_all(&request).await.unwrap();
    let mut reply = [0; 12];
    within(dynamic.read_exact(&mut reply)).await.unwrap();
    let mut of_dynamic = accept(&site.target).await;

    let mut local = TcpStream::connect(site.client.listeners[2]).await.unwrap();
    let mut of_local: UnixStream = within(unix.accept()).await.unwrap().0;

    let port = site.client.remote_port();
    let mut remote = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut of_remote = accept(&behind).await;
    // A stream whose client has not been answered yet is not held.
    send_bytes_both_ways(&mut dynamic, &mut of_dynamic).await;
    send_bytes_both_ways(&mut local, &mut of_local).await;
    send_bytes_both_ways(&mut remote, &mut of_remote).await;

    site.lose().await;
    for (near, text) in [(&mut dynamic, b"d"), (&mut local, b"l"), (&mut remote, b"r")] {
        near.write_all(text).await.unwrap();
    }
    site.heal();
    assert_eq!(within(of_dynamic.read_u8()).await.unwrap(), b'd');
    assert_eq!(within(of_local.read_u8()).await.unwrap(), b'l');
    assert_eq!(within(of_remote.read_u8()).await.unwrap(), b'r');
    exchange(local, of_local).await;
    exchange(dynamic, of_dynamic).await;
    exchange(remote, of_remote).await;
}

/// A target, its server, and a client connected through a relay.
async fn stdio_site(
    transport: TransportSettings,
) -> (TcpListener, RunningServer, Relay, (Client, ClientSession)) {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start_with(key.public(), &["127.0.0.1:*"], |settings| {
        settings.transport = holding();
    });
    let mut settings = client_settings(&server, &key, &[]);
    settings.transport = transport;
    let relay = relayed(&server, &mut settings).await;
    (target, server, relay, connect_client(settings).await)
}

#[tokio::test]
async fn standard_streams_survive_an_outage() {
    let (target, server, relay, (client, session)) = stdio_site(holding()).await;
    let sessions = client.sessions();
    let address = target.local_addr().unwrap().to_string().parse().unwrap();
    let (near, far) = duplex(4096);
    let (reader, writer) = split(far);
    let forwarding = client.forward_stdio(session, &address, reader, writer);
    let talking = async {
        let (mut near, mut there) = (near, accept(&target).await);
        send_bytes_both_ways(&mut near, &mut there).await;
        relay.set_both(LineSettings { cut: true, ..<_>::default() });
        until("the client notices", || sessions.live().is_empty()).await;
        until("the server notices", || server.sessions.live().is_empty()).await;
        relay.set_both(LineSettings::default());
        exchange(near, there).await;
    };
    let forwarding = async { forwarding.await.unwrap() };
    within(async { tokio::join!(forwarding, talking) }).await;
}

#[tokio::test]
async fn both_ends_reset_what_nobody_resumes_within_the_hold_time() {
    let mut short = holding();
    short.hold.time = Duration::from_secs(3);
    let site = Site::start_with([short, holding()], &["localhost:*"], &[]).await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.cut();
    // The shorter hold time counts at both ends.
    assert_reset(&mut here).await;
    assert_reset(&mut there).await;
    until("the reset is counted", || site.counts().iter().all(|counts| counts.streams_reset == 1))
        .await;
    site.heal();
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

#[tokio::test]
async fn a_server_that_was_started_again_resets_what_its_client_held() {
    let site = Site::start().await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.lose().await;
    let Site { server, relay, client, target, key, transports, .. } = site;
    let stopped = server.stop().await;
    assert_reset(&mut there).await;
    let _server = RunningServer::start_as_before(stopped, key, &["localhost:*"], |settings| {
        settings.transport = holding();
    });
    relay.set_both(LineSettings::default());
    assert_reset(&mut here).await;
    until("the reset is counted", || transports[0].held.counts().streams_reset == 1).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    assert_reaches(&mut here, &target).await;
}

#[tokio::test]
async fn both_ends_reset_if_either_does_not_hold() {
    let off = TransportSettings { hold: HoldSettings::OFF, ..holding() };
    for transports in [[holding(), off.clone()], [off, holding()]] {
        let site = Site::start_with(transports, &["localhost:*"], &[]).await;
        let (mut here, mut there) = site.connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        site.cut();
        assert_reset(&mut here).await;
        assert_reset(&mut there).await;
    }
}

#[tokio::test]
async fn another_run_of_the_client_with_the_same_key_gets_nothing_that_is_held() {
    let site = Site::start().await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.lose().await;
    let crypto = site.client.crypto.clone();
    let mut settings = settings_for(site.server.address, crypto, Vec::new());
    settings.transport = holding();
    let other = ClientSettings { instance: Instance([2; 16]), ..settings };
    let (_client, session) = connect_client(other).await;
    assert!(!session.live().has_ended());
    site.heal();
    send_bytes_both_ways(&mut here, &mut there).await;
    assert!(site.counts()[1].streams_reset == 0);
}

/// A site whose server takes this many sessions of a key, and its client's key.
async fn with_places(sessions_per_key: usize) -> (Site, Arc<PrivateKey>) {
    let (target, key, transports) = (listener().await, new_key(), [holding(), holding()]);
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = transports[1].clone();
        settings.sessions_per_key = sessions_per_key;
    });
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[&forward]);
    settings.transport = transports[0].clone();
    let relay = relayed(&server, &mut settings).await;
    let client = RunningClient::start(settings).await;
    (Site { target, server, client, relay, key: key.public(), transports }, key)
}

/// The settings of another run of a site's client.
fn another_run(site: &Site, key: &Arc<PrivateKey>, instance: u8) -> ClientSettings {
    let settings = client_settings(&site.server, key, &[]);
    ClientSettings { instance: Instance([instance; 16]), ..settings }
}

#[tokio::test]
async fn a_session_that_is_held_gives_its_place_to_another_of_its_key_and_a_live_one_does_not() {
    let (site, key) = with_places(1).await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    let held = &site.transports[1].held;
    site.cut();
    until("the server holds it", || !held.peers().is_empty()).await;

    let (_client, session) = connect_client(another_run(&site, &key, 2)).await;
    assert_reset(&mut there).await;
    assert_eq!(held.counts().streams_reset, 1);
    assert!(held.peers().is_empty());
    let error = connect_error(another_run(&site, &key, 3)).await;
    assert!(matches!(error, ClientError::TooManySessions { .. }), "{error:?}");
    assert!(!session.live().has_ended());
}

#[tokio::test]
async fn a_client_that_is_held_is_counted_once_and_comes_back_where_its_key_has_no_more_places() {
    let (site, key) = with_places(2).await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    let held = &site.transports[1].held;
    let (_other, other) = connect_client(another_run(&site, &key, 2)).await;
    for _ in 0..3 {
        site.cut();
        until("the server holds it", || !held.peers().is_empty()).await;
        site.heal();
        send_bytes_both_ways(&mut here, &mut there).await;
        until("the server holds nothing", || held.peers().is_empty()).await;
        let error = connect_error(another_run(&site, &key, 3)).await.to_string();
        assert!(error.contains("already has 2 sessions"), "{error}");
    }
    assert!(!other.live().has_ended());
    assert_eq!(held.counts().streams_reset, 0);
}

#[tokio::test]
async fn descriptors_of_a_client_that_is_away_go_to_another_of_its_key() {
    // Two connections of one peer take its share.
    let limits = SharedLimits::new(8, |_| 0, &MemoryShares::default());
    let narrow = TransportSettings { limits: Arc::new(limits), ..holding() };
    let site = Site::start_with([holding(), narrow], &["localhost:*"], &[]).await;
    let mut open = [site.connection().await, site.connection().await];
    for (here, there) in &mut open {
        send_bytes_both_ways(here, there).await;
    }
    site.cut();
    let held = &site.transports[1].held;
    until("the server holds them", || !held.peers().is_empty()).await;

    let forward = forward(&format!("0:{}", site.target.local_addr().unwrap()));
    let settings = settings_for(site.server.address, site.client.crypto.clone(), vec![forward]);
    let settings = ClientSettings { instance: Instance([2; 16]), ..settings };
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    assert_reaches(&mut here, &site.target).await;
    for (_, there) in &mut open {
        assert_reset(there).await;
    }
    let LimitCounts { descriptors_refused, .. } = site.transports[1].limits.counts();
    assert_eq!((held.counts().streams_reset, descriptors_refused), (2, 0));
}

#[tokio::test]
async fn a_client_that_stops_while_it_holds_resets_its_connections_at_once() {
    let site = Site::start().await;
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
    site.lose().await;
    drop(site.client);
    assert_reset(&mut here).await;
    site.server.stop().await;
    assert_reset(&mut there).await;
}

#[tokio::test]
async fn a_stdio_connection_that_is_given_up_ends_with_the_reason() {
    let mut short = holding();
    short.hold.time = Duration::from_secs(1);
    let (target, _server, relay, (client, session)) = stdio_site(short).await;
    let address = target.local_addr().unwrap().to_string().parse().unwrap();
    let (_near, far) = duplex(4096);
    let (reader, writer) = split(far);
    let forwarding = client.forward_stdio(session, &address, reader, writer);
    let cutting = async {
        let there = accept(&target).await;
        relay.set_both(LineSettings { cut: true, ..<_>::default() });
        there
    };
    let (forwarded, _there) = within(async { tokio::join!(forwarding, cutting) }).await;
    assert!(matches!(forwarded, Err(ClientError::Lost { .. })), "{forwarded:?}");
}

#[tokio::test]
async fn connections_that_take_all_places_of_both_ends_are_resumed_without_those_of_the_other() {
    const EACH: usize = 8;
    let target = listener().await;
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let transport = TransportSettings { forwards_max: EACH as u32, ..holding() };
    let permits = ["localhost:*", "listen localhost:*"];
    let site = Site::start_with([transport.clone(), transport], &permits, &[&forward]).await;
    let (mut local, mut remote) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        let (mut here, mut there) = site.connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        local.push((here, there));
        let mut here = TcpStream::connect(("127.0.0.1", site.client.remote_port())).await.unwrap();
        let mut there = accept(&target).await;
        send_bytes_both_ways(&mut here, &mut there).await;
        remote.push((here, there));
    }
    for resumed in 1..=2 {
        site.lose().await;
        site.heal();
        site.until_resumed(resumed * 2 * EACH as u64).await;
        for (here, there) in local.iter_mut().chain(&mut remote) {
            send_bytes_both_ways(here, there).await;
        }
    }
    // A place of the client's own is free, whatever the server's take.
    drop(local.pop());
    let (mut here, mut there) = site.connection().await;
    send_bytes_both_ways(&mut here, &mut there).await;
}

//! Tests UDP forwards both ways: payloads, permits, and when flows end.

use std::{net::SocketAddr, time::Duration};

use keypadd_keystream::Suite;
use keypadd_provider::client_config;
use keypadd_tunnel::{
    ConnectionEnd, Destination, ForwardTotals, KeyLifetime, KeyLifetimes, TransportSettings,
    wire::{ListenCode, StreamCode, StreamHeader},
};
use tokio::{
    net::{TcpStream, UdpSocket},
    task::JoinHandle,
    time::timeout,
};

use crate::{hold::holding, hostile::*, support::*};

/// Maximum payload over IPv4.
const LONGEST: usize = 65_507;

/// Maximum payload over IPv6.
const LONGEST_V6: usize = 65_527;

/// Retry interval on loopback, where a datagram may be lost.
const AGAIN: Duration = Duration::from_millis(500);

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

/// A target that answers each datagram with itself, after its source address.
struct Echo {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        Self::on(socket().await)
    }

    fn on(socket: UdpSocket) -> Self {
        let address = socket.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; LONGEST_V6];
            loop {
                let (bytes, from) = socket.recv_from(&mut buffer).await.unwrap();
                // On loopback no datagram is too long.
                let _ = socket.send_to(&buffer[..bytes], from).await;
            }
        });
        Self { address, task }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends a datagram until it is answered; returns the answer.
async fn ask(socket: &UdpSocket, to: SocketAddr, question: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; LONGEST_V6];
    let asking = async {
        loop {
            socket.send_to(question, to).await.unwrap();
            let received = timeout(AGAIN, socket.recv_from(&mut answer)).await;
            // A refusal on loopback (ICMP) is not an answer.
            if let Ok(Ok((bytes, from))) = received {
                assert_eq!(from, to, "answered from another address");
                return bytes;
            }
        }
    };
    let bytes = within(asking).await;
    answer.truncate(bytes);
    answer
}

/// Asks until the answer is the question: an earlier answer may arrive twice.
async fn assert_echoed(socket: &UdpSocket, to: SocketAddr, question: &[u8]) {
    while ask(socket, to, question).await != question {}
}

/// Checks that nothing has arrived; called after a round trip on another socket.
fn assert_silent(socket: &UdpSocket) {
    let received = socket.try_recv_from(&mut [0; 16]);
    assert!(received.is_err(), "received {received:?}");
}

fn forward_to(target: SocketAddr) -> String {
    format!("127.0.0.1:0:udp:{target}")
}

fn totals(tunnel: &Tunnel, transport: &TransportSettings) -> Vec<ForwardTotals> {
    assert!(!tunnel.addresses.is_empty());
    transport.limits.forwards()
}

/// Both ends with this idle timeout.
fn idle_after(time: Duration) -> TransportSettings {
    TransportSettings { flow_idle: time, ..TransportSettings::default() }
}

#[tokio::test]
async fn datagrams_reach_the_target_and_answers_the_source_that_asked() {
    let target = socket().await;
    let address = target.local_addr().unwrap();
    let tunnel = Tunnel::start(&["udp:127.0.0.1:*"], &[&forward_to(address)]).await;
    let (entry, one, two) = (tunnel.addresses[0][0], socket().await, socket().await);
    // All at once: the first ones wait until the flow is open.
    for number in 0..3 {
        one.send_to(&[1, number], entry).await.unwrap();
        two.send_to(&[2, number], entry).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut buffer = [0; 16];
    for _ in 0..6 {
        let (bytes, from) = within(target.recv_from(&mut buffer)).await.unwrap();
        assert_eq!(bytes, 2);
        seen.push((buffer[0], buffer[1], from));
        target.send_to(&[buffer[0], 10 + buffer[1]], from).await.unwrap();
    }
    for (number, source) in [(1, &one), (2, &two)] {
        let of_source: Vec<_> = seen.iter().filter(|(source, ..)| *source == number).collect();
        let sent: Vec<_> = of_source.iter().map(|(_, number, _)| *number).collect();
        assert_eq!(sent, [0, 1, 2], "in order");
        assert!(of_source.iter().all(|(.., from)| *from == of_source[0].2), "one flow");
        for answer in 10..13 {
            let (bytes, from) = within(source.recv_from(&mut buffer)).await.unwrap();
            assert_eq!((&buffer[..bytes], from), (&[number, answer][..], entry));
        }
    }
    assert_eq!(tunnel.open(), (2, 2));
}

#[tokio::test]
async fn udp_needs_a_permit_of_its_own() {
    let (echo, permitted) = (Echo::start().await, Echo::start().await);
    let transport = TransportSettings::default();
    let permits = ["localhost:*", "*:*", &format!("udp:{}", permitted.address)];
    let forwards = [forward_to(echo.address), forward_to(permitted.address)];
    let forwards = forwards.each_ref().map(String::as_str);
    let tunnel = Tunnel::start_with(&permits, &forwards, transport.clone()).await;
    let (near, other) = (socket().await, socket().await);
    let refused = || {
        let refused = ConnectionEnd::Refused as usize;
        totals(&tunnel, &transport).iter().map(|one| one.ended[refused].1).sum::<u64>()
    };
    near.send_to(b"no", tunnel.addresses[0][0]).await.unwrap();
    // Counted at both ends.
    until("the datagrams are refused", || refused() == 2).await;
    // A flow for its source is not requested again at once.
    for _ in 0..50 {
        near.send_to(b"no", tunnel.addresses[0][0]).await.unwrap();
    }
    assert_echoed(&other, tunnel.addresses[1][0], b"yes").await;
    assert_silent(&near);
    assert_eq!(refused(), 2);
}

#[tokio::test]
async fn datagrams_of_any_size_arrive_whole() {
    let echo = Echo::start().await;
    // As on Ethernet, so that most datagrams need fragments.
    let transport = TransportSettings { datagram_bytes_max: 1_452, ..<_>::default() };
    let forward = forward_to(echo.address);
    let tunnel = Tunnel::start_with(&["udp:localhost:*"], &[&forward], transport).await;
    let near = socket().await;
    for bytes in [0, 1, 1_200, 1_414, 1_452, 1_500, 9_000, LONGEST] {
        assert_echoed(&near, tunnel.addresses[0][0], &noise(bytes as u64, bytes)).await;
    }
}

#[tokio::test]
async fn the_longest_datagrams_of_ipv6_arrive_whole() {
    let v6 = async || UdpSocket::bind("[::1]:0").await.unwrap();
    let echo = Echo::on(v6().await);
    let forward = format!("[::1]:0:udp:{}", echo.address);
    let tunnel = Tunnel::start(&["udp:localhost:*"], &[&forward]).await;
    let near = v6().await;
    for bytes in [LONGEST, LONGEST + 1, LONGEST_V6] {
        assert_echoed(&near, tunnel.addresses[0][0], &noise(bytes as u64, bytes)).await;
    }
}

#[tokio::test]
async fn an_idle_flow_ends_at_both_ends_and_the_next_datagram_begins_another() {
    let echo = Echo::start().await;
    let transport = idle_after(Duration::from_millis(200));
    let forward = forward_to(echo.address);
    let tunnel = Tunnel::start_with(&["udp:localhost:*"], &[&forward], transport.clone()).await;
    let near = socket().await;
    for round in 1..=2 {
        assert_echoed(&near, tunnel.addresses[0][0], b"ping").await;
        until("the flow has ended", || tunnel.open() == (0, 0)).await;
        let closed = ConnectionEnd::Closed as usize;
        let ended = totals(&tunnel, &transport).iter().map(|one| one.ended[closed].1).sum::<u64>();
        assert!(ended >= 2 * round);
    }
    let datagrams = totals(&tunnel, &transport)[0].datagrams.unwrap();
    assert!(datagrams.sent >= 2 && datagrams.received >= 2, "{datagrams:?}");
    assert_eq!(datagrams.dropped, 0);
}

#[tokio::test]
async fn at_the_limit_the_flow_that_was_idle_for_the_longest_makes_room() {
    const FLOWS: u32 = 3;
    let echo = Echo::start().await;
    let transport = TransportSettings { forwards_max: FLOWS, ..TransportSettings::default() };
    let forward = forward_to(echo.address);
    let tunnel = Tunnel::start_with(&["udp:localhost:*"], &[&forward], transport).await;
    let entry = tunnel.addresses[0][0];
    let mut sources = Vec::new();
    for number in 0..3 * FLOWS as u8 {
        let source = socket().await;
        assert_echoed(&source, entry, &[number]).await;
        assert!(tunnel.open().1 <= FLOWS.into());
        sources.push(source);
    }
    // Displaced flows are replaced by new ones.
    for source in &sources {
        assert_echoed(source, entry, b"again").await;
    }
}

#[tokio::test]
async fn connections_that_wait_for_a_place_leave_a_flow_that_is_in_use_alone() {
    let (echo, target) = (Echo::start().await, listener().await);
    let transport = TransportSettings { forwards_max: 2, ..TransportSettings::default() };
    let forwards =
        [forward_to(echo.address), format!("127.0.0.1:0:{}", target.local_addr().unwrap())];
    let forwards = forwards.each_ref().map(String::as_str);
    let permits = ["localhost:*", "udp:localhost:*"];
    let tunnel = Tunnel::start_with(&permits, &forwards, transport.clone()).await;
    let (flow, entry) = (socket().await, tunnel.addresses[1][0]);
    assert_echoed(&flow, tunnel.addresses[0][0], b"flow").await;
    let mut first = TcpStream::connect(entry).await.unwrap();
    assert_reaches(&mut first, &target).await;
    let mut waiting = TcpStream::connect(entry).await.unwrap();
    // Enough round trips for the client to have accepted it.
    for number in 0..200 {
        assert_echoed(&flow, tunnel.addresses[0][0], &[number]).await;
    }
    let ended = |one: ForwardTotals| one.ended.map(|(_, count)| count).iter().sum::<u64>();
    assert_eq!(totals(&tunnel, &transport).into_iter().map(ended).sum::<u64>(), 0);
    drop(first);
    assert_reaches(&mut waiting, &target).await;
}

#[tokio::test]
async fn a_flow_outlives_the_absence_of_its_target() {
    let target = socket().await;
    let address = target.local_addr().unwrap();
    drop(target);
    let tunnel = Tunnel::start(&["udp:localhost:*"], &[&forward_to(address)]).await;
    let near = socket().await;
    for _ in 0..20 {
        near.send_to(b"nobody", tunnel.addresses[0][0]).await.unwrap();
    }
    until("the flow is open", || tunnel.open() == (1, 1)).await;
    let _echo = Echo::on(UdpSocket::bind(address).await.unwrap());
    assert_echoed(&near, tunnel.addresses[0][0], b"somebody").await;
    assert_eq!(tunnel.open(), (1, 1));
}

#[tokio::test]
async fn a_remote_forward_carries_udp_where_it_is_permitted() {
    let (echo, key) = (Echo::start().await, new_key());
    for (permit, outcome) in [
        ("listen localhost:*", Err(ListenCode::NotPermitted)),
        ("listen *:*", Err(ListenCode::NotPermitted)),
        ("listen udp:localhost:*", Ok(())),
    ] {
        let server = RunningServer::start(key.public(), &[permit]);
        let forward = format!("-R 0:udp:{}", echo.address);
        let settings = client_settings(&server, &key, &[&forward]);
        if let Err(code) = outcome {
            let (_client, session) = connect_client(settings).await;
            assert_eq!(session.remote_forwards()[0].1, Err(code), "{permit}");
            continue;
        }
        let client = RunningClient::start(settings).await;
        let entry = SocketAddr::from(([127, 0, 0, 1], client.remote_port()));
        let (one, two) = (socket().await, socket().await);
        assert_echoed(&one, entry, b"from the server's side").await;
        assert_echoed(&two, entry, &noise(3, LONGEST)).await;
        assert_eq!((open(&server.sessions), open(&client.sessions)), (2, 2));
        // Forwards that are removed are closed.
        client.set_forwards(&[]).await;
        until("its flows have ended", || open(&server.sessions) == 0).await;
        let rebound = async {
            while UdpSocket::bind(entry).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        within(rebound).await;
    }
}

#[tokio::test]
async fn a_server_without_datagrams_is_not_asked_to_listen_for_udp() {
    let (server_key, key) = (new_key(), new_key());
    let settings = crypto(&server_key, Suite::AES_128_GCM);
    let (endpoint, address, server_key) = raw_server(&settings, key.public());
    let mut config = raw_server_config(&settings, key.public());
    let mut transport = quinn::TransportConfig::default();
    transport.datagram_receive_buffer_size(None);
    config.transport_config(transport.into());
    endpoint.set_server_config(Some(config));
    let client = client_config(&crypto(&key, Suite::AES_128_GCM), server_key).unwrap();
    let forwards = vec![forward("-R 0:udp:localhost:53")];
    let client = tokio::spawn(connect_client(settings_for(address, client, forwards)));
    let _server = RawPeer::accept(endpoint).await;
    let (_client, session) = within(client).await.unwrap();
    assert_eq!(session.remote_forwards()[0].1, Err(ListenCode::NoDatagrams));
}

#[tokio::test]
async fn a_client_that_sends_any_datagrams_reaches_nothing_and_ends_nothing() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &["udp:127.0.0.1:*"]);
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let peer = RawPeer::connect(&server, crypto).await;
    let connection = &peer.connection;
    let target = socket().await;
    let address = target.local_addr().unwrap();
    let flood = |id: u8| {
        let frames: [&[u8]; 6] =
            [&[], &[id], &[id, 1, 2], &[id | 2], &[id | 2, 0, 1, 0xff, 0xff, 0, 0], &[0xff; 9]];
        for frame in frames.iter().cycle().take(3_000) {
            // Older ones are dropped.
            let _ = connection.send_datagram(frame.to_vec().into());
        }
        for number in 0..300_u16 {
            // Fragments of datagrams that will never be complete.
            let head = [&[id | 2][..], &number.to_be_bytes(), &[0xff, 0xe3, 0, 0]].concat();
            let _ = connection.send_datagram([head, vec![0; 600]].concat().into());
        }
    };
    // IDs of the control stream, of a stream being refused, and of none.
    for id in [0, 4, 60] {
        flood(id);
    }
    let refused = StreamHeader::Destination(Destination::Udp("192.0.2.1:9".parse().unwrap()));
    assert_eq!(code_for(connection, &refused.encode()).await, StreamCode::NotPermitted);
    let header = StreamHeader::Destination(Destination::Udp(address.to_string().parse().unwrap()));
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&header.encode()).await.unwrap();
    within(recv.read_exact(&mut [0])).await.unwrap();
    let id = u8::try_from(u64::from(quinn::VarInt::from(send.id()))).unwrap();
    let asking = async {
        loop {
            connection.send_datagram(vec![id, b'!'].into()).unwrap();
            let mut buffer = [0; 16];
            if let Ok(received) = timeout(AGAIN, target.recv_from(&mut buffer)).await {
                assert_eq!(received.unwrap().0, 1);
                assert_eq!(buffer[0], b'!');
                return;
            }
        }
    };
    within(asking).await;
    // Either end closes the flow by ending the stream.
    send.reset(0_u32.into()).unwrap();
    until("the flow has ended", || open(&server.sessions) == 0).await;
}

#[tokio::test]
async fn flows_begin_anew_when_the_server_returns() {
    let (echo, key) = (Echo::start().await, new_key());
    let permits = ["udp:localhost:*"];
    let server = RunningServer::start(key.public(), &permits);
    let settings = client_settings(&server, &key, &[&forward_to(echo.address)]);
    let client = RunningClient::start(settings).await;
    let near = socket().await;
    assert_echoed(&near, client.listeners[0], b"before").await;
    let stopped = server.stop().await;
    until("the client has lost the session", || client.is_waiting()).await;
    // Queued in the kernel; makes the client reconnect sooner.
    near.send_to(b"meanwhile", client.listeners[0]).await.unwrap();
    let server = RunningServer::start_again(stopped, key.public(), &permits);
    assert_echoed(&near, client.listeners[0], b"after").await;
    assert_eq!(open(&server.sessions), 1);
}

#[tokio::test]
async fn flows_go_on_when_keys_are_renewed() {
    let (echo, key) = (Echo::start().await, new_key());
    let lifetimes = KeyLifetimes::new(KeyLifetime::UNLIMITED);
    let transport = TransportSettings { key_lifetimes: lifetimes.clone(), ..holding() };
    let permits = ["udp:localhost:*", "listen udp:localhost:*"];
    let server = RunningServer::start_with(key.public(), &permits, |settings| {
        settings.transport = holding();
    });
    let remote = format!("-R 0:udp:{}", echo.address);
    let mut settings = client_settings(&server, &key, &[&forward_to(echo.address), &remote]);
    settings.transport = transport;
    let client = RunningClient::start(settings).await;
    let entries = [client.listeners[0], ([127, 0, 0, 1], client.remote_port()).into()];
    let (one, two) = (socket().await, socket().await);
    for round in 1..=2 {
        for (near, entry) in [&one, &two].into_iter().zip(entries) {
            assert_echoed(near, entry, b"ping").await;
        }
        lifetimes.set(KeyLifetime::new(Duration::ZERO, 1));
        until("keys are renewed", || client.link.status().renewals >= round).await;
        lifetimes.set(KeyLifetime::UNLIMITED);
    }
    for (near, entry) in [&one, &two].into_iter().zip(entries) {
        assert_echoed(near, entry, b"ping").await;
    }
}

#[tokio::test]
async fn a_flood_of_one_source_leaves_the_others_and_streams_their_turn() {
    let target = listener().await;
    let echo = Echo::start().await;
    let forwards = [forward_to(echo.address), format!("0:{}", target.local_addr().unwrap())];
    let forwards = forwards.each_ref().map(String::as_str);
    let tunnel = Tunnel::start(&["udp:localhost:*", "localhost:*"], &forwards).await;
    let entry = tunnel.addresses[0][0];
    let flood = socket().await;
    let flooding = tokio::spawn(async move {
        let block = noise(1, 1_300);
        loop {
            for _ in 0..64 {
                let _ = flood.try_send_to(&block, entry);
            }
            tokio::task::yield_now().await;
        }
    });
    let near = socket().await;
    let mut here = tokio::net::TcpStream::connect(tunnel.addresses[1][0]).await.unwrap();
    let mut there = accept(&target).await;
    for number in 0..20 {
        assert_echoed(&near, entry, &[number]).await;
        send_bytes_both_ways(&mut here, &mut there).await;
    }
    flooding.abort();
}

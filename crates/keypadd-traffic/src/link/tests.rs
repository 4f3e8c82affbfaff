//! Tests the relay with UDP and TCP connections on loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn line(delay: Duration, bits_per_second: u64) -> LinkSettings {
    LinkSettings { delay, bits_per_second: NonZeroU64::new(bits_per_second), ipv6: false }
}

#[test]
fn a_queue_holds_a_round_trip_and_no_more() {
    let (line, now) = (Way::new(line(SECOND, 8_000)), Instant::now());
    // A second of the line each; the queue holds two, and accepts whole what starts within it.
    for _ in 0..3 {
        line.take(now, 1_000).unwrap();
    }
    assert_eq!(line.take(now, 1_000), None);
    assert!(line.take(now + SECOND, 1_000).is_some());
}

#[test]
fn a_stream_that_fills_a_queue_delays_another_by_the_queue_and_no_more() {
    let (line, now) = (Way::new(line(SECOND, 8_000)), Instant::now());
    // The first one has two seconds of the queue and one more on the way, and has to wait.
    let waits = [(); 3].map(|()| line.take_of_stream(now, 1_000).unwrap().1);
    assert_eq!(waits, [Duration::ZERO, Duration::ZERO, SECOND]);
    let (arrives, _) = line.take_of_stream(now, 1).unwrap();
    assert_eq!(arrives, now + 4 * SECOND + Duration::from_millis(1));
}

/// Starts a socket that echoes until it gets an empty datagram.
fn echo(loopback: IpAddr) -> SocketAddr {
    let socket = UdpSocket::bind((loopback, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if len == 0 {
                return;
            }
            socket.send_to(&buffer[..len], from).unwrap();
        }
    });
    address
}

#[test]
fn a_datagram_comes_back_whole_after_both_delays_in_either_family() {
    for ipv6 in [false, true] {
        let delay = Duration::from_millis(20);
        let link = Link::new(LinkSettings { delay, bits_per_second: None, ipv6 });
        let (address, relay) = link.udp(echo(link.settings().loopback())).unwrap();
        let socket = UdpSocket::bind((link.settings().loopback(), 0)).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(10 * SECOND)).unwrap();
        let (start, mut buffer) = (Instant::now(), [0; 64]);
        socket.send(b"there and back").unwrap();
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"there and back");
        assert!(start.elapsed() >= 2 * delay);
        let seen = LinkCounts { bytes: 14, datagrams: 1, lost: 0 };
        assert_eq!(relay.unwrap().counts(), [seen; 2]);
    }
}

#[test]
fn each_of_two_clients_has_its_own_answers_whoever_sent_last() {
    let delay = Duration::from_millis(20);
    let link = Link::new(LinkSettings { delay, bits_per_second: None, ipv6: false });
    let (address, _relay) = link.udp(echo(link.settings().loopback())).unwrap();
    let clients = [b"one", b"two"].map(|text| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(10 * SECOND)).unwrap();
        socket.send_to(text, address).unwrap();
        (socket, text)
    });
    for (socket, text) in clients {
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], text);
    }
}

/// How long `count` datagrams of 1,000 bytes, sent at once over `links`, take to arrive.
fn time_of(links: &[&Link], count: u32) -> Duration {
    let start = Instant::now();
    let mut receivers = Vec::new();
    for link in links {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(10 * SECOND)).unwrap();
        let (address, relay) = link.udp(receiver.local_addr().unwrap()).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..count {
            sender.send_to(&[7; 1_000], address).unwrap();
        }
        receivers.push((receiver, relay));
    }
    for (receiver, _relay) in &receivers {
        for _ in 0..count {
            assert_eq!(receiver.recv(&mut [0; 2048]).unwrap(), 1_000);
        }
    }
    start.elapsed()
}

#[test]
fn pairs_that_share_a_line_have_its_rate_together() {
    // Ten datagrams take 8.2 ms on it, with 28 bytes of headers each.
    let settings = line(Duration::ZERO, 10_000_000);
    let (shared, each) = (Link::new(settings), 10 * 1028 * 8 * SECOND / 10_000_000);
    assert!(time_of(&[&shared], 10) >= each);
    assert!(time_of(&[&shared, &shared.clone()], 10) >= 2 * each);
}

#[test]
fn what_a_full_queue_does_not_take_is_lost_and_counted() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let link = Link::new(line(Duration::ZERO, 1_000_000));
    let (address, relay) = link.udp(receiver.local_addr().unwrap()).unwrap();
    let (sender, relay) = (UdpSocket::bind("127.0.0.1:0").unwrap(), relay.unwrap());
    // 50 ms of this line are six datagrams; a hundred take 0.8 s.
    let deadline = Instant::now() + 10 * SECOND;
    while relay.counts()[0].lost == 0 && Instant::now() < deadline {
        sender.send_to(&[7; 1_000], address).unwrap();
    }
    let seen = relay.counts()[0];
    assert!(seen.lost > 0 && seen.datagrams > seen.lost, "{seen:?}");
}

#[test]
fn a_tcp_connection_is_carried_to_its_last_byte_and_waits_for_its_round_trip() {
    let delay = Duration::from_millis(10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let link = Link::new(line(delay, 100_000_000));
    let (address, _relay) = link.tcp(to).unwrap();
    let start = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    let sent: Vec<u8> = (0..200_000_u32).map(|nth| (nth % 251) as u8).collect();
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back == sent, "{} bytes came back", back.len());
    // One round trip to open it, one for the data, and twice the time on the line.
    let on_the_line = 2 * 200_000 * 8 * SECOND / 100_000_000;
    assert!(start.elapsed() >= 4 * delay + on_the_line, "{:?}", start.elapsed());
}

#[test]
fn what_is_sent_over_a_cut_line_is_lost_or_with_tcp_waits() {
    let link = Link::new(line(Duration::from_millis(1), 10_000_000));
    let loopback = link.settings().loopback();
    let (address, _relay) = link.udp(echo(loopback)).unwrap();
    let udp = UdpSocket::bind((loopback, 0)).unwrap();
    udp.connect(address).unwrap();
    let (address, _relay) = link.tcp(tcp_echo()).unwrap();
    let mut tcp = TcpStream::connect(address).unwrap();
    let mut back = [0; 1];
    link.cut(true);
    udp.send(b"lost").unwrap();
    tcp.write_all(b"1").unwrap();
    tcp.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(tcp.read(&mut back).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    link.cut(false);
    udp.send(b"next").unwrap();
    let mut answer = [0; 64];
    udp.set_read_timeout(Some(10 * SECOND)).unwrap();
    let len = udp.recv(&mut answer).unwrap();
    assert_eq!(&answer[..len], b"next");
    tcp.set_read_timeout(Some(10 * SECOND)).unwrap();
    tcp.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"1");
}

#[test]
fn clients_that_move_are_seen_elsewhere_and_their_tcp_connections_are_reset() {
    let link = Link::new(line(Duration::from_millis(1), 10_000_000));
    let [first, second] = [2, 3].map(|last| IpAddr::from([127, 0, 0, last]));
    link.move_clients(first);
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(10 * SECOND)).unwrap();
    let (address, _relay) = link.udp(server.local_addr().unwrap()).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(address).unwrap();
    client.set_read_timeout(Some(10 * SECOND)).unwrap();
    let seen_at = || {
        client.send(b"here").unwrap();
        server.recv_from(&mut [0; 64]).unwrap().1
    };
    let (address, _relay) = link.tcp(tcp_echo()).unwrap();
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(10 * SECOND)).unwrap();
    let mut back = [0; 1];
    tcp.write_all(b"1").unwrap();
    tcp.read_exact(&mut back).unwrap();

    let before = seen_at();
    assert_eq!(before.ip(), first);
    link.move_clients(second);
    let after = seen_at();
    assert_eq!(after.ip(), second);
    server.send_to(b"lost", before).unwrap();
    server.send_to(b"found", after).unwrap();
    let mut answer = [0; 64];
    let len = client.recv(&mut answer).unwrap();
    assert_eq!(&answer[..len], b"found");
    assert_eq!(tcp.read(&mut back).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    // A new one comes from the new address.
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(10 * SECOND)).unwrap();
    tcp.write_all(b"2").unwrap();
    tcp.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"2");
}

/// Starts a listener that echoes what each of its connections sends.
fn tcp_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

#[test]
fn a_link_that_is_loopback_has_no_relay() {
    let to = "127.0.0.1:9".parse().unwrap();
    let (address, relay) = Link::default().udp(to).unwrap();
    assert!(address == to && relay.is_none());
}

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
    assert_eq!(line.take(now, 1_000), Err(SECOND));
    assert!(line.take(now + SECOND, 1_000).is_ok());
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
fn a_link_that_is_loopback_has_no_relay() {
    let to = "127.0.0.1:9".parse().unwrap();
    let (address, relay) = Link::default().udp(to).unwrap();
    assert!(address == to && relay.is_none());
}

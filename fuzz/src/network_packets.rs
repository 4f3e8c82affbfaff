//! Checks what a gateway does with packets: any bytes are a packet or an error; what a peer may not
//! begin passes only as the answer to what was sent; errors and changed packets are packets again;
//! what is joined for a device is cut into the packets that arrived.

use std::{
    hash::RandomState,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use keypadd_network::{
    ANSWER_BYTES_MAX, Answers, Classes, Coalescer, DEVICE_HEADER_BYTES, Flows, HostAddresses,
    Joined, Packet, PacketQueue, Part, Permit, Ports, Prefix, Routes, Rules, Shape, SuperPacket,
    Transport, clamp_mss,
};

use super::input::Input;

/// What the peer may begin. Nothing with IPv6.
const PERMITS: [&str; 2] = ["10.1.0.0/16:443", "10.1.0.1/32:udp:53"];
const NETWORKS: [(&str, &str); 3] =
    [("peer", "10.2.0.0/16"), ("peer", "2001:db8:2::/48"), ("other", "10.2.7.0/24")];

/// Longest path of which an MTU is drawn.
const MTU_MAX: usize = 2048;

/// UDP between two addresses and ports.
#[derive(PartialEq)]
struct Sent(IpAddr, IpAddr, Ports);

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let networks = NETWORKS.map(|(peer, prefix)| (peer, parse::<Prefix>(prefix)));
    let routes = Arc::new(Routes::new(networks).expect("the prefixes differ"));
    let permits = PERMITS.map(parse::<Permit>).to_vec();
    let own = ("10.1.0.1".parse().expect("an address"), parse("10.1.0.0/16"));
    let rules = Rules::new("peer", routes, permits, Arc::new(HostAddresses::new([own])));
    let mut now = Instant::now();
    let mut flows = Flows::new(RandomState::new(), now);
    let mut answers = Answers::new(vec![own.0]);
    let mut sent = Vec::new();
    let mut coalescer = Coalescer::default();
    while let (Some(operation), Some(length)) = (input.byte(), input.short()) {
        let mut bytes = input.bytes(length).to_vec();
        if operation & 2 != 0 {
            seal(&mut bytes);
        }
        now += Duration::from_secs(u64::from(operation >> 2));
        check_clamped(&bytes, 1 + length % MTU_MAX);
        check_cut(&mut bytes.clone(), 1 + length % MTU_MAX);
        let Ok(packet) = Packet::parse(&bytes) else { continue };
        let verdict = if operation & 1 == 0 {
            rules.inbound(&packet, &mut flows, now)
        } else {
            rules.outbound(&packet, &mut flows, now)
        };
        match (verdict, packet.transport()) {
            (Err(reason), _) => {
                let mut buffer = [0; ANSWER_BYTES_MAX];
                if let Some(problem) = reason.problem()
                    && let Some(answer) = answers.answer(&packet, problem, now, &mut buffer)
                {
                    check_answer(answer, &packet);
                }
            }
            (Ok(()), Transport::Udp(ports)) if operation & 1 != 0 => {
                sent.push(Sent(packet.source(), packet.destination(), ports));
            }
            (Ok(()), Transport::Udp(ports)) if ports.destination != 53 => {
                let ports = Ports { source: ports.destination, destination: ports.source };
                let asked = Sent(packet.destination(), packet.source(), ports);
                assert!(sent.contains(&asked), "{packet:?} answers nothing");
            }
            (Ok(()), _) => {}
        }
        coalescer.push(Bytes::copy_from_slice(packet.bytes()), |joined| check_joined(&joined));
    }
    coalescer.flush(|joined| check_joined(&joined));
}

fn parse<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().expect("it is written right")
}

/// An error is a packet to the sender, not longer than any link carries.
fn check_answer(answer: &[u8], packet: &Packet<'_>) {
    let answer = Packet::parse(answer).expect("an answer is a packet");
    assert_eq!(answer.transport(), Transport::IcmpError);
    assert_eq!(answer.destination(), packet.source());
    assert!(packet.part() != Part::Later && packet.transport() != Transport::IcmpError);
    let longest = if answer.source().is_ipv4() { 576 } else { 1280 };
    assert!(answer.bytes().len() <= longest);
}

/// A packet with a lower segment size is the same packet otherwise.
fn check_clamped(bytes: &[u8], mtu: usize) {
    let mut clamped = bytes.to_vec();
    if !clamp_mss(&mut clamped, mtu) {
        assert_eq!(clamped, bytes);
        return;
    }
    let packets = (Packet::parse(bytes), Packet::parse(&clamped));
    let (Ok(before), Ok(after)) = packets else { panic!("only a packet is changed") };
    assert_eq!((before.transport(), before.is_syn()), (after.transport(), true));
    assert!(!clamp_mss(&mut clamped, mtu), "once is enough");
}

/// A frame of a device is cut into packets that are no longer than it says.
fn check_cut(frame: &mut [u8], room: usize) {
    let Ok(shape) = Shape::read(frame) else { return };
    let packet = &frame[DEVICE_HEADER_BYTES..];
    if Packet::parse(packet).is_err() {
        return;
    }
    for cut in cut(SuperPacket::new(packet, shape), room) {
        Packet::parse(&cut).expect("a packet");
        assert!(cut.len() <= shape.packet_bytes_max);
    }
}

/// What a device gets at once is cut into the packets that arrived.
fn check_joined(joined: &Joined) {
    let mut frame: Vec<u8> = joined.parts().iter().flat_map(|part| part.to_vec()).collect();
    let shape = Shape::read(&mut frame).expect("a frame");
    assert_eq!(shape.packets, joined.packets().len());
    let cut = cut(SuperPacket::new(&frame[DEVICE_HEADER_BYTES..], shape), usize::MAX);
    for (cut, packet) in cut.iter().zip(joined.packets()) {
        let mut same = packet.to_vec();
        // With DF it means nothing, and need not have been consecutive.
        if joined.packets().len() > 1 && same[0] >> 4 == 4 {
            same[4..6].copy_from_slice(&cut[4..6]);
            seal(&mut same);
        }
        assert_eq!(*cut, same);
    }
}

fn cut(packet: SuperPacket, room: usize) -> Vec<Vec<u8>> {
    let (mut queue, now) = (PacketQueue::new(RandomState::new()), Instant::now());
    queue.push(packet, now);
    let next = || {
        let mut frame = BytesMut::new();
        queue.next(Classes::ALL, room, now, &mut frame).then(|| frame.to_vec())
    };
    std::iter::from_fn(next).collect()
}

/// Fixes the IPv4 header checksum, so that parsing goes beyond it.
fn seal(packet: &mut [u8]) {
    let header_bytes = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    if header_bytes < 20 || packet.len() < header_bytes || packet[0] >> 4 != 4 {
        return;
    }
    packet[10..12].fill(0);
    let words = packet[..header_bytes].chunks_exact(2);
    let mut sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

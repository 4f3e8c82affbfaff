use etherparse::{Icmpv4Type, Icmpv6Type, IpSlice, SlicedPacket, TransportSlice, icmpv4, icmpv6};

use super::*;
use crate::samples::{echo, fragment, headers, seal, udp};

const A4: &str = "10.1.0.5";
const B4: &str = "10.2.0.9";
const A6: &str = "2001:db8:1::5";
const B6: &str = "2001:db8:2::9";

/// A packet of UDP that is as long as this.
fn packet_of(source: &str, destination: &str, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ip(headers(source, destination)).udp(1, 2);
    let payload = vec![7; length - builder.size(0)];
    builder.write(&mut bytes, &payload).unwrap();
    bytes
}

/// The answer to a packet, if there is one.
fn answer(packet: &[u8], problem: Problem, addresses: &[&str]) -> Option<Vec<u8>> {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let mut buffer = [0xaa; ANSWER_BYTES_MAX];
    let packet = Packet::parse(packet).unwrap();
    let answer = Answers::new(addresses).answer(&packet, problem, Instant::now(), &mut buffer);
    answer.map(<[u8]>::to_vec)
}

/// Reads an answer with another parser, which checks all sums, and with ours.
fn check(answer: &[u8], packet: &[u8]) -> Vec<u8> {
    assert_eq!(Packet::parse(answer).unwrap().transport(), Transport::IcmpError);
    let other = IpSlice::from_slice(answer).unwrap();
    let sliced = SlicedPacket::from_ip(answer).unwrap();
    let quoted = match (&other, sliced.transport.unwrap()) {
        (IpSlice::Ipv4(v4), TransportSlice::Icmpv4(icmp)) => {
            let header = v4.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
            icmp.payload().to_vec()
        }
        (IpSlice::Ipv6(v6), TransportSlice::Icmpv6(icmp)) => {
            let header = v6.header();
            assert!(icmp.is_checksum_valid(header.source(), header.destination()));
            icmp.payload().to_vec()
        }
        (_, other) => panic!("{other:?}"),
    };
    assert_eq!(quoted, packet[..quoted.len()]);
    quoted
}

fn kind_v4(answer: &[u8]) -> Icmpv4Type {
    match SlicedPacket::from_ip(answer).unwrap().transport.unwrap() {
        TransportSlice::Icmpv4(icmp) => icmp.icmp_type(),
        other => panic!("{other:?}"),
    }
}

fn kind_v6(answer: &[u8]) -> Icmpv6Type {
    match SlicedPacket::from_ip(answer).unwrap().transport.unwrap() {
        TransportSlice::Icmpv6(icmp) => icmp.icmp_type(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_packet_that_is_too_big_is_answered_with_what_the_path_carries() {
    let (v4, v6) = (packet_of(A4, B4, 1500), packet_of(A6, B6, 1500));
    let too_big = |packet: &[u8], mtu| {
        let answer = answer(packet, Problem::TooBig { mtu }, &[]).unwrap();
        check(&answer, packet);
        answer
    };
    let next_hop_mtu = 1363;
    let header = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu };
    assert_eq!(kind_v4(&too_big(&v4, 1363)), Icmpv4Type::DestinationUnreachable(header));
    assert_eq!(kind_v6(&too_big(&v6, 1363)), Icmpv6Type::PacketTooBig { mtu: 1363 });
    let never_below = Icmpv6Type::PacketTooBig { mtu: 1280 };
    assert_eq!(kind_v6(&too_big(&v6, 1200)), never_below);
}

#[test]
fn what_may_not_pass_is_answered_with_why() {
    let (v4, v6) = (udp(A4, 1, B4, 2), udp(A6, 1, B6, 2));
    use icmpv4::DestUnreachableHeader as V4;
    use icmpv6::DestUnreachableCode as V6;
    for (reason, of_v4, of_v6) in [
        (Reason::Destination, V4::FilterProhibited, V6::Prohibited),
        (Reason::Source, V4::FilterProhibited, V6::SourceAddressFailedPolicy),
        (Reason::NoRoute, V4::Network, V6::NoRoute),
    ] {
        let problem = reason.problem().unwrap();
        let answers = [&v4, &v6].map(|packet| answer(packet, problem, &[]).unwrap());
        assert_eq!(kind_v4(&answers[0]), Icmpv4Type::DestinationUnreachable(of_v4));
        assert_eq!(kind_v6(&answers[1]), Icmpv6Type::DestinationUnreachable(of_v6));
        assert_eq!(check(&answers[0], &v4), v4);
        assert_eq!(check(&answers[1], &v6), v6);
    }
    assert_eq!(Reason::Malformed.problem(), None);
}

#[test]
fn an_error_comes_from_the_device_or_else_from_the_destination() {
    let own = ["2001:db8::1", "10.255.0.1", "10.255.0.2"];
    for (packet, from_own, to) in
        [(udp(A4, 1, B4, 2), "10.255.0.1", B4), (udp(A6, 1, B6, 2), "2001:db8::1", B6)]
    {
        let source = Packet::parse(&packet).unwrap().source();
        for (addresses, from) in [(&own[..], from_own), (&own[..0], to)] {
            let answer = answer(&packet, Problem::Prohibited, addresses).unwrap();
            let answer = Packet::parse(&answer).unwrap();
            assert_eq!(answer.source().to_string(), from);
            assert_eq!(answer.destination(), source);
        }
        // The kernel drops what comes from a device with an IPv4 address of its own as source.
        let here = answer(&packet, Problem::TooBig { mtu: 1_300 }, &own).unwrap();
        let from = if source.is_ipv4() { to } else { from_own };
        assert_eq!(Packet::parse(&here).unwrap().source().to_string(), from);
    }
}

#[test]
fn no_error_is_longer_than_every_link_carries() {
    for length in [548, 549, 1232, 1233, 1500, 65_535] {
        let (v4, v6) = (packet_of(A4, B4, length), packet_of(A6, B6, length));
        let answers = [&v4, &v6].map(|packet| {
            let answer = answer(packet, Problem::Prohibited, &[]).unwrap();
            check(&answer, packet);
            answer
        });
        assert_eq!(answers[0].len(), (length + 28).min(576));
        assert_eq!(answers[1].len(), (length + 48).min(1280));
    }
}

#[test]
fn errors_fragments_and_martians_are_not_answered() {
    let packet = udp(A4, 1, B4, 2);
    let error = answer(&packet, Problem::Prohibited, &[]).unwrap();
    assert_eq!(answer(&error, Problem::Prohibited, &[]), None);
    let packet = udp(A6, 1, B6, 2);
    let error = answer(&packet, Problem::Prohibited, &[]).unwrap();
    assert_eq!(answer(&error, Problem::Prohibited, &[]), None);
    let later = fragment(A4, B4, 17, (32, false), &[0; 30]);
    assert_eq!(answer(&later, Problem::Prohibited, &[]), None);
    let first = fragment(A4, B4, 17, (0, true), &[9; 32]);
    assert!(answer(&first, Problem::Prohibited, &[]).is_some());
    for (source, destination) in
        [(A4, "224.0.0.1"), (A4, "255.255.255.255"), ("0.0.0.0", B4), (A6, "ff02::1"), ("::", B6)]
    {
        let packet = udp(source, 1, destination, 2);
        assert_eq!(answer(&packet, Problem::Prohibited, &[]), None, "{source} {destination}");
    }
    let mut redirect = echo(A4, B4, true, 7);
    redirect[20] = 5;
    seal(&mut redirect);
    assert_eq!(answer(&redirect, Problem::Prohibited, &[]), None);
    assert!(answer(&echo(A4, B4, true, 7), Problem::Prohibited, &[]).is_some());
}

#[test]
fn errors_come_at_a_limited_rate_and_those_about_size_have_their_own() {
    let (mut answers, now) = (Answers::new(Vec::new()), Instant::now());
    let bytes = udp(A4, 1, B4, 2);
    let packet = Packet::parse(&bytes).unwrap();
    let mut count = |problem, now| {
        let mut buffer = [0; ANSWER_BYTES_MAX];
        (0..1000).filter(|_| answers.answer(&packet, problem, now, &mut buffer).is_some()).count()
    };
    let too_big = Problem::TooBig { mtu: 1280 };
    assert_eq!(count(Problem::Prohibited, now), 10);
    assert_eq!(count(Problem::NoRoute, now), 0, "one rate for all that may not pass");
    assert_eq!(count(too_big, now), 100);
    let second = Duration::from_secs(1);
    assert_eq!(count(Problem::SourceRefused, now + second), 10);
    assert_eq!(count(too_big, now + second), 100);
}

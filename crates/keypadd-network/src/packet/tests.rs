use etherparse::{IpHeaders, IpNumber, IpSlice, SlicedPacket, TcpHeader, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::samples::{echo, fragment, headers, ip, seal, tcp, udp};

const A4: &str = "10.1.0.5";
const B4: &str = "10.2.0.9";
const A6: &str = "2001:db8:1::5";
const B6: &str = "2001:db8:2::9";

fn malformed(packet: &[u8]) -> Malformed {
    Packet::parse(packet).unwrap_err()
}

/// The packet with another byte, and a right checksum.
fn with(packet: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at] = byte;
    seal(&mut packet);
    packet
}

/// A packet of UDP with these options of IPv4.
fn with_options(options: [u8; 8]) -> Vec<u8> {
    let IpHeaders::Ipv4(mut header, extensions) = headers(A4, B4) else { panic!("IPv4") };
    header.options = options.into();
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ip(IpHeaders::Ipv4(header, extensions));
    builder.udp(1, 2).write(&mut bytes, b"x").unwrap();
    bytes
}

/// A packet of UDP with these extension headers before it: each its number and bytes 2 to 7.
fn with_extensions(extensions: &[(u8, [u8; 6])]) -> Vec<u8> {
    let plain = udp(A6, 1, B6, 2);
    let mut packet = plain[..40].to_vec();
    let mut next_at = 6;
    for (number, content) in extensions {
        packet[next_at] = *number;
        next_at = packet.len();
        packet.extend([0, 0]);
        packet.extend(content);
    }
    packet[next_at] = 17;
    packet.extend(&plain[40..]);
    let length = packet.len() as u16 - 40;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet
}

#[test]
fn the_headers_of_both_families_are_read() {
    let ports = Ports { source: 50_000, destination: 53 };
    for (a, b) in [(A4, B4), (A6, B6)] {
        let bytes = udp(a, 50_000, b, 53);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.source().to_string(), a);
        assert_eq!(packet.destination().to_string(), b);
        assert_eq!(packet.transport(), Transport::Udp(ports));
        assert_eq!(packet.part(), Part::Whole);
        assert_eq!(packet.bytes(), bytes);

        let mut header = TcpHeader::new(50_000, 53, 1, 1000);
        header.syn = true;
        let bytes = tcp(a, b, header);
        let transport = Packet::parse(&bytes).unwrap().transport();
        assert_eq!(transport, Transport::Tcp { ports, syn: true, ack: false });

        for (is_request, transport) in
            [(true, Transport::EchoRequest(7)), (false, Transport::EchoReply(7))]
        {
            let bytes = echo(a, b, is_request, 7);
            assert_eq!(Packet::parse(&bytes).unwrap().transport(), transport);
        }
    }
}

#[test]
fn only_ipv4_without_df_may_be_fragmented() {
    let (v4, v6) = (udp(A4, 1, B4, 2), udp(A6, 1, B6, 2));
    let may = |packet: &[u8]| Packet::parse(packet).unwrap().may_fragment();
    assert!(!may(&with(&v4, 6, 0x40)) && may(&with(&v4, 6, 0)) && !may(&v6));
}

#[test]
fn bytes_that_are_no_packet_are_malformed() {
    assert_eq!(malformed(&[]), Malformed::Version);
    assert_eq!(malformed(&[0x50; 40]), Malformed::Version);
    for packet in [udp(A4, 1, B4, 2), udp(A6, 1, B6, 2)] {
        for length in 1..packet.len() {
            assert!(Packet::parse(&packet[..length]).is_err(), "{length}");
        }
        let longer = [packet.as_slice(), &[0]].concat();
        assert_eq!(malformed(&longer), Malformed::Length);
    }
    let mut v4 = udp(A4, 1, B4, 2);
    assert_eq!(malformed(&with(&v4, 0, 0x44)), Malformed::Headers);
    v4[8] -= 1;
    assert_eq!(malformed(&v4), Malformed::Checksum);
}

#[test]
fn lengths_of_transports_must_fit_into_the_packet() {
    let mut bytes = Vec::new();
    ip(A4, B4).udp(1, 2).write(&mut bytes, &[]).unwrap();
    let length = |length: u8| with(&bytes, 25, length);
    assert!(Packet::parse(&length(8)).is_ok());
    assert_eq!(malformed(&length(7)), Malformed::Headers);
    assert_eq!(malformed(&length(9)), Malformed::Headers);
    let tcp = tcp(A4, B4, TcpHeader::new(1, 2, 3, 4));
    assert_eq!(malformed(&with(&tcp, 32, 0x40)), Malformed::Headers);
    assert_eq!(malformed(&with(&tcp, 32, 0x60)), Malformed::Headers);
}

#[test]
fn source_routes_of_both_families_are_refused() {
    assert!(Packet::parse(&with_options([1, 7, 6, 4, 0, 0, 0, 0])).is_ok(), "record route");
    for option in [131, 137] {
        let packet = with_options([1, option, 7, 4, 10, 3, 0, 1]);
        assert_eq!(malformed(&packet), Malformed::SourceRoute);
    }
    let routing = |kind, left| with_extensions(&[(43, [kind, left, 0, 0, 0, 0])]);
    assert!(Packet::parse(&routing(2, 0)).is_ok(), "nothing is left to go");
    assert_eq!(malformed(&routing(0, 1)), Malformed::SourceRoute);
    assert_eq!(malformed(&routing(4, 1)), Malformed::SourceRoute);
}

#[test]
fn options_that_do_not_end_are_malformed() {
    for options in [[7, 0, 0, 0, 0, 0, 0, 0], [7, 1, 0, 0, 0, 0, 0, 0], [1, 7, 8, 4, 0, 0, 0, 0]] {
        assert_eq!(malformed(&with_options(options)), Malformed::Options);
    }
    assert!(Packet::parse(&with_options([0, 7, 99, 0, 0, 0, 0, 0])).is_ok(), "the list has ended");
    assert_eq!(malformed(&with_options([1, 1, 1, 1, 1, 1, 1, 7])), Malformed::Options);
}

#[test]
fn ports_are_read_behind_extension_headers() {
    let pad = [1, 4, 0, 0, 0, 0];
    let packet = with_extensions(&[(0, pad), (60, pad), (43, [0; 6]), (44, [0; 6]), (60, pad)]);
    let packet = Packet::parse(&packet).unwrap();
    assert_eq!(packet.transport(), Transport::Udp(Ports { source: 1, destination: 2 }));
    assert_eq!(packet.part(), Part::Whole, "a fragment that is all of it (RFC 6946)");
    assert_eq!(malformed(&with_extensions(&[(60, pad), (0, pad)])), Malformed::Options);
    assert!(Packet::parse(&with_extensions(&[(60, pad); 8])).is_ok());
    assert_eq!(malformed(&with_extensions(&[(60, pad); 9])), Malformed::Options);
}

#[test]
fn no_header_is_cut_apart_or_overwritten_by_fragments() {
    let payload = [0x50; 32];
    for (a, b) in [(A4, B4), (A6, B6)] {
        let of = |protocol, place, bytes: usize| fragment(a, b, protocol, place, &payload[..bytes]);
        let first = of(6, (0, true), 24);
        let packet = Packet::parse(&first).unwrap();
        assert_eq!(packet.part(), Part::First);
        assert!(matches!(packet.transport(), Transport::Tcp { .. }));
        assert_eq!(malformed(&of(6, (0, true), 16)), Malformed::Fragment, "a tiny one");
        assert_eq!(malformed(&of(6, (8, false), 8)), Malformed::Fragment);
        assert_eq!(malformed(&of(6, (16, false), 8)), Malformed::Fragment);
        let later = of(6, (24, false), 5);
        let packet = Packet::parse(&later).unwrap();
        assert_eq!((packet.part(), packet.transport()), (Part::Later, Transport::Later(6)));
        assert_eq!(malformed(&of(17, (0, true), 12)), Malformed::Fragment, "not by 8");
        assert_eq!(malformed(&of(17, (24, true), 12)), Malformed::Fragment);
        assert_eq!(malformed(&of(17, (24, false), 0)), Malformed::Fragment, "empty");
        assert_eq!(malformed(&of(17, (65_528, false), 32)), Malformed::Fragment, "too far");
    }
    // The longest packets there are: 65,535 bytes with the header, and without.
    assert!(Packet::parse(&fragment(A4, B4, 17, (65_512, false), &[0; 3])).is_ok());
    assert!(Packet::parse(&fragment(A4, B4, 17, (65_512, false), &[0; 4])).is_err());
    assert!(Packet::parse(&fragment(A6, B6, 17, (65_528, false), &[0; 7])).is_ok());
    assert!(Packet::parse(&fragment(A6, B6, 17, (65_528, false), &[0; 8])).is_err());
}

#[test]
fn extension_headers_in_a_first_fragment_are_refused() {
    // The fragment's payload begins with destination options, and the ports follow.
    let mut payload = vec![17, 0, 1, 4, 0, 0, 0, 0];
    payload.extend([0; 8]);
    for extension in [0, 43, 44, 60] {
        let first = fragment(A6, B6, extension, (0, true), &payload);
        assert_eq!(Packet::parse(&first).unwrap_err(), Malformed::Fragment);
    }
}

#[test]
fn messages_of_icmp_are_told_apart() {
    let v4 = |kind| with(&echo(A4, B4, true, 7), 20, kind);
    let v6 = |kind| with(&echo(A6, B6, true, 7), 40, kind);
    let transport = |packet: &[u8]| Packet::parse(packet).unwrap().transport();
    for kind in [3, 4, 11, 12] {
        assert_eq!(transport(&v4(kind)), Transport::IcmpError);
    }
    for kind in [5, 9, 10] {
        assert_eq!(transport(&v4(kind)), Transport::LinkIcmp);
    }
    assert_eq!(transport(&v4(13)), Transport::OtherIcmp);
    for kind in [1, 2, 3, 4, 5, 127] {
        assert_eq!(transport(&v6(kind)), Transport::IcmpError);
    }
    for kind in [130, 133, 134, 135, 136, 137, 143] {
        assert_eq!(transport(&v6(kind)), Transport::LinkIcmp);
    }
    assert_eq!(transport(&v6(139)), Transport::OtherIcmp);
}

#[test]
fn a_packet_is_a_martian_by_either_address_and_as_a_message_of_one_link() {
    let is_martian = |packet: &[u8]| Packet::parse(packet).unwrap().is_martian();
    for (a, b) in [(A4, B4), (A6, B6)] {
        assert!(!is_martian(&udp(a, 1, b, 2)) && !is_martian(&echo(a, b, true, 7)));
    }
    for (source, destination) in
        [("127.0.0.1", B4), (A4, "255.255.255.255"), ("fe80::1", B6), (A6, "::ffff:10.2.0.9")]
    {
        assert!(is_martian(&udp(source, 1, destination, 2)));
    }
    assert!(is_martian(&with(&echo(A4, B4, true, 7), 20, 5)), "redirect");
}

/// Packets of both families and of all kinds.
fn samples() -> Vec<Vec<u8>> {
    let pad = [1, 4, 0, 0, 0, 0];
    let mut samples = vec![
        with_options([1, 7, 6, 4, 0, 0, 0, 0]),
        with_extensions(&[(0, pad), (60, pad), (43, [0; 6]), (44, [0; 6])]),
    ];
    for (a, b) in [(A4, B4), (A6, B6)] {
        samples.push(udp(a, 1, b, 2));
        samples.push(tcp(a, b, TcpHeader::new(1, 2, 3, 4)));
        samples.push(echo(a, b, true, 7));
        samples.push(fragment(a, b, 17, (0, true), &[9; 32]));
        samples.push(fragment(a, b, 17, (32, false), &[9; 7]));
    }
    samples
}

/// What the other parser makes of a packet that ours accepts.
fn check_against_etherparse(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let authentication = IpNumber::AUTHENTICATION_HEADER.0;
    let other = match IpSlice::from_slice(bytes) {
        // It also reads this header, and where a later fragment begins: they may be cut short.
        Err(_) if packet.protocol() == authentication || packet.part() == Part::Later => return,
        other => other.unwrap(),
    };
    assert_eq!(packet.source(), other.source_addr());
    assert_eq!(packet.destination(), other.destination_addr());
    assert_eq!(packet.part() != Part::Whole, other.is_fragmenting_payload());
    if let IpSlice::Ipv4(v4) = &other {
        assert_eq!(v4.header().header_checksum(), v4.header().to_header().calc_header_checksum());
        assert_eq!(packet.may_fragment(), !v4.header().dont_fragment());
    }
    // What it reads behind an authentication header, or in a fragment, is not looked at by ours.
    if matches!(packet.transport(), Transport::Other(_) | Transport::Later(_)) {
        return;
    }
    let fragment = packet.part() != Part::Whole;
    let number = other.payload_ip_number();
    let sliced = match SlicedPacket::from_ip(bytes) {
        // It reads timestamps, too, and finds that they are cut short.
        Err(_) if packet.transport() == Transport::OtherIcmp => return,
        sliced => sliced.unwrap(),
    };
    match (packet.transport(), sliced.transport) {
        (Transport::Tcp { ports, syn, ack }, Some(TransportSlice::Tcp(tcp))) => {
            assert_eq!(
                (ports.source, ports.destination),
                (tcp.source_port(), tcp.destination_port())
            );
            assert_eq!((syn, ack), (tcp.syn(), tcp.ack()));
        }
        (Transport::Udp(ports), Some(TransportSlice::Udp(udp))) => {
            assert_eq!(
                (ports.source, ports.destination),
                (udp.source_port(), udp.destination_port())
            );
        }
        (Transport::Tcp { .. }, None) => assert!(fragment && number == IpNumber::TCP),
        (Transport::Udp(_), None) => assert!(fragment && number == IpNumber::UDP),
        (transport, Some(TransportSlice::Icmpv4(icmp))) => {
            assert_eq!(transport == Transport::IcmpError, [3, 4, 11, 12].contains(&icmp.type_u8()));
        }
        (transport, Some(TransportSlice::Icmpv6(icmp))) => {
            assert_eq!(transport == Transport::IcmpError, icmp.type_u8() < 128);
        }
        (transport, None) => {
            let icmp = [IpNumber::ICMP, IpNumber::IPV6_ICMP].contains(&number);
            assert!(fragment && icmp, "{transport:?}");
        }
        (transport, other) => panic!("{transport:?}, but {other:?}"),
    }
}

#[test]
fn samples_read_as_another_parser_reads_them() {
    for sample in samples() {
        assert!(Packet::parse(&sample).is_ok(), "{sample:?}");
        check_against_etherparse(&sample);
    }
}

proptest! {
    #[test]
    fn any_packet_reads_as_another_parser_reads_it_or_is_refused(
        sample in prop::sample::select(samples()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        sealed in any::<bool>(),
    ) {
        let mut bytes = sample;
        for (at, byte) in changes {
            // Headers are where a change tells.
            let at = at.index(bytes.len().min(64));
            bytes[at] = byte;
        }
        if sealed {
            seal(&mut bytes);
        }
        check_against_etherparse(&bytes);
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        check_against_etherparse(&bytes);
    }
}

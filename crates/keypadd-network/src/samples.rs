//! Packets for tests, written by another library (etherparse).

use std::net::IpAddr;

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, IpSlice, Ipv4Extensions, Ipv4Header, Ipv6Extensions,
    Ipv6FragmentHeader, Ipv6Header, PacketBuilder, PacketBuilderStep, SlicedPacket, TcpHeader,
    TransportSlice,
};

/// A packet from one address to another; the builder fills in lengths and checksums.
pub(crate) fn ip(source: &str, destination: &str) -> PacketBuilderStep<IpHeaders> {
    PacketBuilder::ip(headers(source, destination))
}

/// The headers of such a packet, to be changed.
pub(crate) fn headers(source: &str, destination: &str) -> IpHeaders {
    match (source.parse().unwrap(), destination.parse().unwrap()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let no_protocol = IpNumber::EXPERIMENTAL_AND_TESTING_0;
            let (source, destination) = (source.octets(), destination.octets());
            let header = Ipv4Header::new(0, 64, no_protocol, source, destination).unwrap();
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (source, destination) = (source.octets(), destination.octets());
            let header = Ipv6Header { hop_limit: 64, source, destination, ..Ipv6Header::default() };
            IpHeaders::Ipv6(header, Ipv6Extensions::default())
        }
        _ => panic!("two families"),
    }
}

/// A packet of UDP with some bytes of payload.
pub(crate) fn udp(source: &str, source_port: u16, destination: &str, port: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = ip(source, destination).udp(source_port, port);
    builder.write(&mut bytes, b"payload of some length").unwrap();
    bytes
}

/// A packet of TCP without payload.
pub(crate) fn tcp(source: &str, destination: &str, header: TcpHeader) -> Vec<u8> {
    let mut bytes = Vec::new();
    ip(source, destination).tcp_header(header).write(&mut bytes, &[]).unwrap();
    bytes
}

/// A segment of TCP with this payload. Over IPv4 it has DF and this identification.
pub(crate) fn segment(v6: bool, header: TcpHeader, identification: u16, payload: &[u8]) -> Vec<u8> {
    let mut ip = if v6 {
        headers("2001:db8:1::5", "2001:db8:2::9")
    } else {
        headers("10.1.0.5", "10.2.0.9")
    };
    if let IpHeaders::Ipv4(ip, _) = &mut ip {
        (ip.identification, ip.dont_fragment) = (identification, true);
    }
    let mut bytes = Vec::new();
    PacketBuilder::ip(ip).tcp_header(header).write(&mut bytes, payload).unwrap();
    bytes
}

/// Whether another parser finds all checksums right.
pub(crate) fn has_right_checksums(packet: &[u8]) -> bool {
    let ip = IpSlice::from_slice(packet).unwrap();
    let transport = SlicedPacket::from_ip(packet).unwrap().transport;
    match (&ip, transport) {
        (IpSlice::Ipv4(v4), Some(transport)) => {
            let header = v4.header().to_header();
            let (from, to) = (header.source, header.destination);
            let is_right = match transport {
                TransportSlice::Tcp(tcp) => {
                    tcp.checksum() == tcp.calc_checksum_ipv4(from, to).unwrap()
                }
                TransportSlice::Udp(udp) => {
                    let right = udp.to_header().calc_checksum_ipv4_raw(from, to, udp.payload());
                    udp.checksum() == right.unwrap()
                }
                _ => panic!("TCP or UDP"),
            };
            is_right && header.header_checksum == header.calc_header_checksum()
        }
        (IpSlice::Ipv6(v6), Some(transport)) => {
            let (from, to) = (v6.header().source(), v6.header().destination());
            match transport {
                TransportSlice::Tcp(tcp) => {
                    tcp.checksum() == tcp.calc_checksum_ipv6(from, to).unwrap()
                }
                TransportSlice::Udp(udp) => {
                    let right = udp.to_header().calc_checksum_ipv6_raw(from, to, udp.payload());
                    udp.checksum() == right.unwrap()
                }
                _ => panic!("TCP or UDP"),
            }
        }
        (_, None) => panic!("TCP or UDP"),
    }
}

/// An echo request or reply.
pub(crate) fn echo(source: &str, destination: &str, is_request: bool, id: u16) -> Vec<u8> {
    let (mut bytes, builder) = (Vec::new(), ip(source, destination));
    let payload = b"abcdefgh";
    match (source.contains(':'), is_request) {
        (false, true) => builder.icmpv4_echo_request(id, 1).write(&mut bytes, payload),
        (false, false) => builder.icmpv4_echo_reply(id, 1).write(&mut bytes, payload),
        (true, true) => builder.icmpv6_echo_request(id, 1).write(&mut bytes, payload),
        (true, false) => builder.icmpv6_echo_reply(id, 1).write(&mut bytes, payload),
    }
    .unwrap();
    bytes
}

/// A fragment of a packet, with this protocol and payload.
pub(crate) fn fragment(
    source: &str,
    destination: &str,
    protocol: u8,
    (offset, more): (u16, bool),
    payload: &[u8],
) -> Vec<u8> {
    let mut headers = headers(source, destination);
    let offset = IpFragOffset::try_new(offset / 8).unwrap();
    match &mut headers {
        IpHeaders::Ipv4(header, _) => {
            header.more_fragments = more;
            header.fragment_offset = offset;
            header.dont_fragment = false;
            header.protocol = IpNumber(protocol);
            header.set_payload_len(payload.len()).unwrap();
            header.header_checksum = header.calc_header_checksum();
        }
        IpHeaders::Ipv6(header, extensions) => {
            let part = Ipv6FragmentHeader::new(IpNumber(protocol), offset, more, 7);
            extensions.fragment = Some(part);
            header.next_header = IpNumber::IPV6_FRAGMENTATION_HEADER;
            header.set_payload_length(extensions.header_len() + payload.len()).unwrap();
        }
    }
    let mut bytes = Vec::new();
    headers.write(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

/// Makes the checksum of an IPv4 header right again.
pub(crate) fn seal(packet: &mut [u8]) {
    if let Ok((mut header, _)) = Ipv4Header::from_slice(packet) {
        header.header_checksum = header.calc_header_checksum();
        packet[10..12].copy_from_slice(&header.header_checksum.to_be_bytes());
    }
}

use etherparse::TcpHeader;

use super::*;
use crate::samples::{echo, fragment, has_right_checksums, segment, udp};

const SIZE: usize = 1_348;

/// A frame from a device.
fn frame(header: DeviceHeader, packet: &[u8]) -> Vec<u8> {
    [&header.encode(), packet].concat()
}

fn uncut(into: Segments, size: usize, packet: &[u8]) -> Vec<u8> {
    let (payload_bytes, checksum) = (size as u16, Some(ChecksumAt { start: 20, offset: 16 }));
    // What it says of the headers is wrong, as it may be.
    let cut = Some(Cut { into, payload_bytes, header_bytes: 7 });
    frame(DeviceHeader { checksum, cut }, packet)
}

/// All packets of a frame that fit, and what its shape says of them.
fn packets(mut frame: Vec<u8>, room: usize) -> (Vec<Vec<u8>>, Shape) {
    let shape = Shape::read(&mut frame).unwrap();
    let mut packet = SuperPacket::new(&frame[DEVICE_HEADER_BYTES..], shape);
    let mut packets = Vec::new();
    loop {
        let mut frame = BytesMut::from(&b"head"[..]);
        let has_more = packet.next(room, &mut frame);
        packets.push(frame[4..].to_vec());
        if !has_more {
            return (packets, shape);
        }
    }
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn header(sequence: u32) -> TcpHeader {
    let mut header = TcpHeader::new(50_000, 22, sequence, 1_000);
    (header.ack, header.acknowledgment_number) = (true, 77);
    header.set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).unwrap();
    header
}

#[test]
fn segments_are_those_that_the_host_itself_would_have_sent() {
    // Its numbers wrap, both of them.
    let (first, identification) = (u32::MAX - 2_000, u16::MAX - 2);
    for (v6, into) in [(false, Segments::TcpV4), (true, Segments::TcpV6)] {
        for bytes in [SIZE, SIZE + 1, 10 * SIZE, 40 * SIZE + 7] {
            let whole = payload(bytes);
            let all = TcpHeader { fin: true, psh: true, cwr: true, ece: true, ..header(first) };
            let last = whole.chunks(SIZE).count() - 1;
            let expected: Vec<_> = whole
                .chunks(SIZE)
                .enumerate()
                .map(|(nth, part)| {
                    let mut header = all.clone();
                    header.sequence_number = first.wrapping_add((nth * SIZE) as u32);
                    header.cwr = nth == 0;
                    (header.fin, header.psh) = (nth == last, nth == last);
                    segment(v6, header, identification.wrapping_add(nth as u16), part)
                })
                .collect();
            let given = uncut(into, SIZE, &segment(v6, all, identification, &whole));
            let (packets, shape) = packets(given, 1_420);
            assert_eq!(shape.packets, expected.len());
            assert_eq!(shape.packet_bytes_max, expected[0].len());
            assert!(packets == expected, "{bytes}");
            assert!(packets.iter().all(|packet| has_right_checksums(packet)));
        }
    }
}

#[test]
fn segments_are_shorter_than_asked_for_where_the_path_carries_less() {
    let whole = payload(20_000);
    let given = uncut(Segments::TcpV4, SIZE, &segment(false, header(7), 1, &whole));
    let (packets, _) = packets(given, 1_000);
    assert!(packets.iter().all(|packet| packet.len() <= 1_000 && has_right_checksums(packet)));
    let headers = 20 + header(7).header_len();
    let sent: Vec<u8> = packets.iter().flat_map(|packet| packet[headers..].to_vec()).collect();
    assert!(sent == whole);
}

#[test]
fn a_path_that_is_unknown_or_carries_no_headers_changes_no_length() {
    for room in [0, 30, 52] {
        let given = uncut(Segments::TcpV4, SIZE, &segment(false, header(7), 1, &payload(2 * SIZE)));
        assert_eq!(packets(given, room).0.len(), 2);
    }
}

#[test]
fn datagrams_keep_their_length_whatever_the_path_carries() {
    for (from, to) in [("10.1.0.5", "10.2.0.9"), ("2001:db8:1::5", "2001:db8:2::9")] {
        let mut whole = Vec::new();
        let builder = crate::samples::ip(from, to).udp(500, 4_433);
        builder.write(&mut whole, &payload(3 * 1_200 + 10)).unwrap();
        let (packets, shape) = packets(uncut(Segments::Udp, 1_200, &whole), 1_000);
        let bytes: Vec<_> = packets.iter().map(Vec::len).collect();
        let headers = whole.len() - (3 * 1_200 + 10);
        assert_eq!(bytes, [1_200, 1_200, 1_200, 10].map(|payload| payload + headers));
        assert_eq!(shape.packet_bytes_max, 1_200 + headers);
        assert!(packets.iter().all(|packet| has_right_checksums(packet)));
    }
}

#[test]
fn a_checksum_that_was_left_to_do_is_finished() {
    for v6 in [false, true] {
        let packet = segment(v6, header(7), 1, &payload(100));
        let at = if v6 { 40 } else { 20 };
        let mut unfinished = packet.clone();
        let transport_bytes = packet.len() - at;
        let sum = pseudo_header(&packet, TCP, transport_bytes).unwrap();
        set_short(&mut unfinished, at + TCP_CHECKSUM_AT, sum).unwrap();
        let checksum = Some(ChecksumAt { start: at as u16, offset: 16 });
        let mut frame = frame(DeviceHeader { checksum, cut: None }, &unfinished);
        let shape = Shape::read(&mut frame).unwrap();
        assert_eq!((shape.packets, shape.packet_bytes_max), (1, packet.len()));
        assert!(frame[DEVICE_HEADER_BYTES..] == packet);
    }
}

#[test]
fn a_frame_that_asks_for_what_its_packet_cannot_be_is_refused() {
    let tcp = segment(false, header(7), 1, &payload(3_000));
    let udp = udp("10.1.0.5", 500, "10.2.0.9", 4_433);
    let echo = echo("10.1.0.5", "10.2.0.9", true, 1);
    let part = fragment("10.1.0.5", "10.2.0.9", TCP, (0, true), &tcp[20..100]);
    let empty = segment(false, header(7), 1, &[]);
    for (into, packet) in [
        (Segments::Udp, &tcp),
        (Segments::TcpV4, &udp),
        (Segments::TcpV4, &echo),
        (Segments::TcpV4, &part),
        (Segments::TcpV4, &empty),
    ] {
        assert_eq!(Shape::read(&mut uncut(into, 100, packet)), Err(Malformed::Offload));
    }
    for (start, offset) in [(65_000, 0), (0, 65_000), (3_051, 0)] {
        let checksum = Some(ChecksumAt { start, offset });
        let mut frame = frame(DeviceHeader { checksum, cut: None }, &tcp);
        assert_eq!(Shape::read(&mut frame), Err(Malformed::Offload));
    }
    assert_eq!(Shape::read(&mut [0; 9]), Err(Malformed::Headers));
}

#[test]
fn congestion_is_marked_in_all_packets_where_hosts_know_marks() {
    for (v6, at, capable) in [(false, 1, 0x02), (true, 1, 0x20)] {
        let into = if v6 { Segments::TcpV6 } else { Segments::TcpV4 };
        let mut whole = segment(v6, header(7), 1, &payload(3 * SIZE));
        assert!(!SuperPacket::whole(&whole).mark());
        whole[at] |= capable;
        if !v6 {
            v4::set_checksum(&mut whole).unwrap();
        }
        let mut given = uncut(into, SIZE, &whole);
        let shape = Shape::read(&mut given).unwrap();
        let mut packet = SuperPacket::new(&whole, shape);
        assert!(packet.mark() && packet.mark(), "also what was marked before");
        for _ in 0..3 {
            let mut frame = BytesMut::new();
            packet.next(1_400, &mut frame);
            assert_eq!(frame[at] & (3 * capable / 2), 3 * capable / 2);
            assert!(has_right_checksums(&frame));
        }
    }
}

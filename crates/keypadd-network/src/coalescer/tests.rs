use bytes::BytesMut;
use etherparse::TcpHeader;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    packet::Packet,
    samples::{echo, has_right_checksums, segment, udp},
    super_packet::{Shape, SuperPacket},
};

const SIZE: usize = 1_348;

/// What a device was given at once.
fn written(joined: &Joined) -> Vec<u8> {
    joined.parts().iter().flat_map(|part| part.to_vec()).collect()
}

/// The packets that the host's stack has of it.
fn packets(joined: &Joined) -> Vec<Vec<u8>> {
    let mut frame = written(joined);
    let shape = Shape::read(&mut frame).unwrap();
    let mut packet = SuperPacket::new(&frame[DEVICE_HEADER_BYTES..], shape);
    let mut packets = Vec::new();
    loop {
        let mut frame = BytesMut::new();
        let has_more = packet.next(usize::MAX, &mut frame);
        packets.push(frame.to_vec());
        if !has_more {
            return packets;
        }
    }
}

/// What a device is given of packets that arrive together.
fn joined(packets: &[Vec<u8>]) -> Vec<Joined> {
    let (mut coalescer, mut joined) = (Coalescer::default(), Vec::new());
    for packet in packets {
        coalescer.push(Bytes::copy_from_slice(packet), |it| joined.push(it));
    }
    coalescer.flush(|it| joined.push(it));
    assert!(coalescer.runs.is_empty());
    joined
}

fn header(port: u16, sequence: usize) -> TcpHeader {
    let mut header = TcpHeader::new(port, 22, 1_000_u32.wrapping_add(sequence as u32), 500);
    (header.ack, header.acknowledgment_number) = (true, 77);
    header.set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).unwrap();
    header
}

/// Segments of one connection, one after the other.
fn stream(v6: bool, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut sequence = 0;
    let segment = |(nth, size): (usize, &usize)| {
        let bytes: Vec<u8> = (0..*size).map(|at| (sequence + at) as u8).collect();
        let packet = segment(v6, header(50_000, sequence), nth as u16, &bytes);
        sequence += size;
        packet
    };
    sizes.iter().enumerate().map(segment).collect()
}

#[test]
fn segments_that_follow_one_another_are_one_and_cut_the_same_again() {
    for v6 in [false, true] {
        let sent = stream(v6, &[SIZE, SIZE, SIZE, 100]);
        let joined = joined(&sent);
        assert_eq!(joined.len(), 1);
        assert_eq!(joined[0].packets().len(), 4);
        assert!(packets(&joined[0]) == sent);
    }
}

proptest! {
    #[test]
    fn whatever_is_joined_is_cut_into_the_packets_that_arrived_in_their_order(
        v6: bool,
        arrivals in vec((0_u16..3, 0_usize..4, any::<u8>()), 1..60),
    ) {
        let mut sequences = [0; 3];
        let mut sent = vec![Vec::new(); 3];
        let mut all = Vec::new();
        for (connection, size, flags) in arrivals {
            let place = usize::from(connection);
            let size = [0, 1, 100, SIZE][size];
            let mut header = header(connection, sequences[place]);
            // Most are plain data.
            (header.psh, header.fin) = (flags % 8 == 0, flags % 32 == 1);
            (header.urg, header.ece) = (flags % 32 == 2, flags % 32 == 3);
            // Some are lost on the way, some are sent again.
            match flags % 32 {
                4 => header.sequence_number += 1,
                5 => header.sequence_number -= 1,
                _ => {}
            }
            let bytes: Vec<u8> = (0..size).map(|at| (at * 3) as u8).collect();
            let packet = segment(v6, header, sent[place].len() as u16, &bytes);
            sequences[place] += size;
            sent[place].push(packet.clone());
            all.push(packet);
        }
        let mut received = vec![Vec::new(); 3];
        for joined in joined(&all) {
            for packet in packets(&joined) {
                let ports = Packet::parse(&packet).unwrap().ports();
                prop_assert!(has_right_checksums(&packet));
                received[usize::from(ports.source)].push(packet);
            }
        }
        prop_assert!(received == sent);
    }

    #[test]
    fn any_bytes_are_passed_on_as_they_are(packets in vec(vec(any::<u8>(), 0..80), 0..20)) {
        let all: Vec<_> = joined(&packets).iter().flat_map(|it| it.packets().to_vec()).collect();
        prop_assert_eq!(all.len(), packets.len());
    }
}

#[test]
fn a_segment_that_differs_is_not_joined() {
    let second = |change: fn(&mut TcpHeader)| {
        let mut header = header(50_000, SIZE);
        change(&mut header);
        segment(false, header, 1, &[7; SIZE])
    };
    let cases = [
        second(|it| it.sequence_number += 1),
        second(|it| it.sequence_number -= SIZE as u32),
        second(|it| it.acknowledgment_number += 1),
        second(|it| it.window_size += 1),
        second(|it| it.urg = true),
        second(|it| it.fin = true),
        second(|it| it.rst = true),
        second(|it| it.syn = true),
        second(|it| it.ece = true),
        second(|it| it.cwr = true),
        second(|it| it.ack = false),
        second(|it| it.set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 2]).unwrap()),
        second(|it| it.set_options_raw(&[]).unwrap()),
    ];
    for other in cases {
        let sent = [stream(false, &[SIZE]), vec![other]].concat();
        let joined = joined(&sent);
        let got: Vec<_> = joined.iter().map(|it| it.packets()[0].to_vec()).collect();
        assert!(got == sent, "two, in their order");
    }
}

#[test]
fn headers_of_ip_that_differ_keep_segments_apart() {
    let changed = |v6: bool, at: usize, bits: u8| {
        let mut sent = stream(v6, &[SIZE, SIZE]);
        sent[1][at] ^= bits;
        if !v6 {
            v4::set_checksum(&mut sent[1]).unwrap();
        }
        joined(&sent).len()
    };
    // Class of traffic, DF, time to live.
    assert_eq!(
        [(1, 4), (1, 3), (6, 0x40), (8, 1)].map(|(at, bits)| changed(false, at, bits)),
        [2; 4]
    );
    assert_eq!(
        [(0, 1), (1, 0x10), (3, 1), (7, 1)].map(|(at, bits)| changed(true, at, bits)),
        [2; 4]
    );
    // The identification means nothing with DF, and something without.
    assert_eq!(changed(false, 5, 0xf0), 1);
    let mut without = stream(false, &[SIZE, SIZE, SIZE]);
    for packet in &mut without {
        packet[6] = 0;
        v4::set_checksum(packet).unwrap();
    }
    assert_eq!(joined(&without).len(), 1);
    without.swap_remove(1);
    assert_eq!(joined(&without).len(), 2);
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    for nth in 0..3 {
        let mut sent = stream(false, &[SIZE; 3]);
        sent[nth][100] ^= 1;
        let joined = joined(&sent);
        let alone = joined.iter().find(|it| it.packets()[0] == sent[nth]).unwrap();
        assert_eq!(alone.packets().len(), 1);
        assert!(written(alone) == [&[0; DEVICE_HEADER_BYTES][..], &sent[nth]].concat());
    }
}

#[test]
fn what_ends_a_segment_ends_what_is_joined() {
    let mut sent = stream(false, &[SIZE, 100, SIZE]);
    assert_eq!(joined(&sent).len(), 2, "a short one");
    sent = stream(false, &[100, SIZE]);
    assert_eq!(joined(&sent).len(), 2, "a longer one");
    let mut pushed = header(50_000, 0);
    pushed.psh = true;
    sent = stream(false, &[SIZE, SIZE]);
    sent[0] = segment(false, pushed, 0, &[7; SIZE]);
    assert_eq!(joined(&sent).len(), 2, "one with PSH");
}

#[test]
fn an_acknowledgment_comes_after_what_its_host_sent_before_it_and_others_may_overtake() {
    let data = stream(false, &[SIZE, SIZE]);
    let ack = segment(false, header(50_000, 2 * SIZE), 2, &[]);
    let joined_all = joined(&[data.clone(), vec![ack.clone()]].concat());
    assert_eq!(joined_all.iter().map(|it| it.packets().len()).collect::<Vec<_>>(), [2, 1]);
    let other = segment(false, header(50_001, 0), 2, &[]);
    for apart in [other, udp("10.1.0.5", 1, "10.2.0.9", 2), echo("10.1.0.5", "10.2.0.9", true, 1)] {
        let joined = joined(&[vec![data[0].clone(), apart], vec![data[1].clone()]].concat());
        assert_eq!(joined.iter().map(|it| it.packets().len()).collect::<Vec<_>>(), [1, 2]);
    }
}

#[test]
fn as_much_is_joined_as_a_packet_of_ip_holds_and_no_more() {
    let sent = stream(false, &[SIZE; 100]);
    let longest = joined(&sent).iter().map(|it| written(it).len()).max().unwrap();
    assert!((JOINED_BYTES_MAX - SIZE..=DEVICE_HEADER_BYTES + JOINED_BYTES_MAX).contains(&longest));
    let sent = stream(false, &[10; 100]);
    assert_eq!(joined(&sent)[0].packets().len(), SEGMENTS_MAX);
    let connection = |port| segment(false, header(port, 0), 0, &[7; SIZE]);
    let mut coalescer = Coalescer::default();
    for port in 0..100 {
        let mut given = 0;
        coalescer.push(connection(port).into(), |_| given += 1);
        assert_eq!(given, usize::from(usize::from(port) >= CONNECTIONS_MAX));
        assert!(coalescer.runs.len() <= CONNECTIONS_MAX);
    }
}

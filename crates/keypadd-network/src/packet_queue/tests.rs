use std::time::Duration;

use etherparse::TcpHeader;

use super::*;
use crate::{
    codel::TARGET,
    device_header::{Cut, DEVICE_HEADER_BYTES, DeviceHeader, Segments},
    samples::segment,
    super_packet::Shape,
};

const ROOM: usize = 1_400;
const MS: Duration = Duration::from_millis(1);

fn queue() -> (PacketQueue, Instant) {
    (PacketQueue::new(RandomState::new()), Instant::now())
}

/// A packet of a flow, of so many bytes.
fn packet(port: u16, bytes: usize) -> Vec<u8> {
    let mut header = TcpHeader::new(port, 22, 1, 500);
    header.ack = true;
    segment(false, header, 0, &vec![7; bytes - 40])
}

/// A packet that is cut into so many.
fn uncut(port: u16, packets: usize) -> SuperPacket {
    let packet = packet(port, 40 + packets * 1_000);
    let cut = Some(Cut { into: Segments::TcpV4, payload_bytes: 1_000, header_bytes: 40 });
    let header = DeviceHeader { checksum: None, cut };
    let mut frame = [&header.encode()[..], &packet].concat();
    let shape = Shape::read(&mut frame).unwrap();
    SuperPacket::new(&frame[DEVICE_HEADER_BYTES..], shape)
}

/// The port and the length of the next packet.
fn next(queue: &mut PacketQueue, now: Instant) -> Option<(u16, usize)> {
    let mut frame = BytesMut::new();
    let is_there = queue.next(ROOM, now, &mut frame);
    is_there.then(|| (Packet::parse(&frame).unwrap().ports().source, frame.len()))
}

#[test]
fn a_flow_keeps_its_order_and_nothing_is_left() {
    let (mut queue, now) = queue();
    for bytes in 100..200 {
        queue.push(SuperPacket::whole(&packet(1, bytes)), now);
    }
    let sent: Vec<_> = std::iter::from_fn(|| next(&mut queue, now)).collect();
    assert!(sent.into_iter().eq((100..200).map(|bytes| (1, bytes))));
    assert!(queue.is_empty() && queue.bytes == 0);
    assert_eq!(queue.take_told(), Told::default());
}

#[test]
fn a_flow_that_begins_is_sent_before_one_with_a_long_queue() {
    let (mut queue, now) = queue();
    for _ in 0..20 {
        queue.push(uncut(1, 40), now);
    }
    for _ in 0..100 {
        next(&mut queue, now);
        queue.push(SuperPacket::whole(&packet(2, 100)), now);
        let first = (0..2).find_map(|_| next(&mut queue, now).filter(|(port, _)| *port == 2));
        assert_eq!(first, Some((2, 100)), "after a packet of the other, at most");
    }
}

#[test]
fn flows_share_in_bytes_whether_their_packets_are_long_short_or_uncut() {
    let (mut queue, now) = queue();
    let mut sent = [0.0; 3];
    for _ in 0..20 {
        queue.push(uncut(0, 40), now);
        for _ in 0..40 {
            queue.push(SuperPacket::whole(&packet(1, 1_000)), now);
        }
        for _ in 0..400 {
            queue.push(SuperPacket::whole(&packet(2, 100)), now);
        }
    }
    for _ in 0..3_000 {
        let (port, bytes) = next(&mut queue, now).unwrap();
        sent[usize::from(port)] += bytes as f64;
    }
    let [most, least] = [f64::max, f64::min].map(|of| sent.into_iter().reduce(of).unwrap());
    assert!(most / least < 1.05, "{sent:?}");
}

#[test]
fn the_longest_queue_makes_room() {
    let (mut queue, now) = queue();
    for _ in 0..10 {
        queue.push(SuperPacket::whole(&packet(2, 1_000)), now);
    }
    for _ in 0..200 {
        queue.push(uncut(1, 60), now);
        assert!(queue.bytes <= QUEUE_BYTES_MAX);
    }
    let Told { dropped, marked } = queue.take_told();
    assert_eq!((dropped % 60, marked), (0, 0));
    let sent: Vec<_> = std::iter::from_fn(|| next(&mut queue, now)).collect();
    assert_eq!(sent.len() as u64 + dropped, 10 + 200 * 60, "all are sent or counted");
    assert_eq!(sent.iter().filter(|(port, _)| *port == 2).count(), 10);
}

#[test]
fn a_queue_that_stays_long_loses_packets_or_has_them_marked_and_others_do_not() {
    for capable in [false, true] {
        let (mut queue, start) = queue();
        let mut long = packet(1, 1_000);
        if capable {
            long[1] |= 2;
            crate::packet::v4::set_checksum(&mut long).unwrap();
        }
        // Four come for three that are sent, so that they wait longer and longer.
        let (mut pushed, mut sent) = (0_u64, [0_u64; 2]);
        for ms in 0..1_000 {
            let now = start + ms * MS;
            for _ in 0..4 {
                queue.push(SuperPacket::whole(&long), now);
                pushed += 1;
            }
            if ms % 50 == 0 {
                queue.push(SuperPacket::whole(&packet(2, 100)), now);
            }
            for _ in 0..3 {
                let (port, _) = next(&mut queue, now).unwrap();
                sent[usize::from(port) - 1] += 1;
            }
        }
        let Told { dropped, marked } = queue.take_told();
        assert_eq!(sent[1], 20, "each in its millisecond");
        let waiting = queue.queues.iter().map(|queue| queue.waiting.len() as u64).sum::<u64>();
        assert_eq!(sent[0] + dropped + waiting, pushed);
        assert!(if capable { dropped == 0 && marked > 5 } else { marked == 0 && dropped > 5 });
    }
}

#[test]
fn packets_that_wait_for_less_than_the_target_are_left_alone() {
    let (mut queue, start) = queue();
    for ms in 0..1_000 {
        queue.push(uncut(1, 3), start + ms * MS);
        for _ in 0..3 {
            next(&mut queue, start + ms * MS + TARGET / 2).unwrap();
        }
    }
    assert_eq!(queue.take_told(), Told::default());
}

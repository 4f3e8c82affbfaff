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

/// A flow that shares its queue with none of those from other ports below 100.
const ALONE: u16 = 1_000;

/// A queue in which the flows from the first three ports, and [`ALONE`], have queues of their own.
fn queue() -> (PacketQueue, Instant) {
    loop {
        let queue = PacketQueue::new(RandomState::new());
        let place = |port| queue.place(&packet(port, 100));
        let first = [0, 1, 2].map(place);
        let is_alone = (0..100).all(|port| place(port) != place(ALONE));
        if is_alone && first[0] != first[1] && first[1] != first[2] && first[0] != first[2] {
            return (queue, Instant::now());
        }
    }
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
    let is_there = queue.next(Classes::ALL, ROOM, now, &mut frame);
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
    assert!(queue.bytes == [0; 2]);
    assert_eq!(queue.take_signals(), Signals::default());
}

#[test]
fn a_flow_that_begins_is_sent_before_all_others_and_is_then_one_of_them() {
    let (mut queue, now) = queue();
    for port in 1..100 {
        queue.push(uncut(port, 10), now);
    }
    // Now all are among the old ones.
    assert!((0..200).all(|_| next(&mut queue, now).is_some()));
    queue.push(SuperPacket::whole(&packet(ALONE, 100)), now);
    assert_eq!(next(&mut queue, now), Some((ALONE, 100)));
    for _ in 0..3 {
        next(&mut queue, now);
        queue.push(uncut(ALONE, 10), now);
    }
    let first = (0..100).filter_map(|_| next(&mut queue, now)).filter(|(port, _)| *port == ALONE);
    assert!(first.count() < 5, "a flow that goes on has its share and no more");
}

#[test]
fn what_has_waited_for_too_long_is_dropped_and_counted() {
    let (mut queue, now) = queue();
    queue.push(uncut(1, 10), now);
    next(&mut queue, now).unwrap();
    queue.push(uncut(1, 5), now);
    queue.push(uncut(2, 3), now + WAIT_MAX);
    let late = now + WAIT_MAX + MS;
    let sent: Vec<_> = std::iter::from_fn(|| next(&mut queue, late)).collect();
    // A super-packet that was sent in part is sent as a whole.
    assert_eq!(sent.iter().filter(|(port, _)| *port == 1).count(), 9);
    assert_eq!(sent.iter().filter(|(port, _)| *port == 2).count(), 3);
    assert_eq!(queue.take_signals(), Signals { dropped: 5, marked: 0 });
    assert!(!queue.has(Classes::ALL));
}

#[test]
fn a_signal_drops_one_packet_and_not_all_that_it_was_given_with() {
    let (mut queue, start) = queue();
    for _ in 0..20 {
        queue.push(uncut(1, 40), start);
    }
    let mut sent = 0;
    for ms in 0..400 {
        sent += u64::from(next(&mut queue, start + ms * MS).is_some());
        sent += u64::from(next(&mut queue, start + ms * MS).is_some());
    }
    let Signals { dropped, marked } = queue.take_signals();
    assert_eq!((sent, marked), (800 - dropped, 0));
    assert!((1..10).contains(&dropped), "{dropped}");
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
        assert!(queue.bytes.iter().sum::<usize>() <= QUEUE_BYTES_MAX);
    }
    let Signals { dropped, marked } = queue.take_signals();
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
        let Signals { dropped, marked } = queue.take_signals();
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
    assert_eq!(queue.take_signals(), Signals::default());
}

const SPARSE: Classes = Classes { sparse: true, bulk: false };
const BULK: Classes = Classes { sparse: false, bulk: true };

/// The ports of all packets of these classes that wait.
fn all_of(queue: &mut PacketQueue, classes: Classes, now: Instant) -> Vec<u16> {
    let mut ports = Vec::new();
    let mut frame = BytesMut::new();
    while queue.next(classes, ROOM, now, &mut frame) {
        ports.push(Packet::parse(&frame.split()).unwrap().ports().source);
    }
    ports
}

#[test]
fn sparse_flows_and_bulk_ones_are_taken_apart_or_together() {
    let (mut queue, now) = queue();
    assert_eq!(queue.push(SuperPacket::whole(&packet(1, 100)), now), Some(Class::Sparse));
    assert_eq!(queue.push(uncut(0, 20), now), Some(Class::Bulk), "a burst at once");
    assert_eq!(queue.push(uncut(0, 20), now), None, "others of its class wait");
    assert!(queue.has(SPARSE) && queue.has(BULK));
    assert_eq!(all_of(&mut queue, SPARSE, now), [1]);
    assert!(!queue.has(SPARSE));
    assert_eq!(all_of(&mut queue, BULK, now), [0; 40]);
    assert!(!queue.has(Classes::ALL) && !queue.has(Classes::default()));
    assert_eq!(queue.push(SuperPacket::whole(&packet(1, 100)), now), Some(Class::Sparse));
    queue.push(uncut(0, 1), now);
    assert_eq!(all_of(&mut queue, Classes::ALL, now).len(), 2);
}

#[test]
fn a_flow_is_bulk_after_a_burst_and_sparse_again_after_a_pause() {
    let (mut queue, start) = queue();
    // A call is never bulk.
    for nth in 0..1_000 {
        let now = start + nth * 20 * MS;
        queue.push(SuperPacket::whole(&packet(1, 200)), now);
        assert_eq!(all_of(&mut queue, SPARSE, now), [1]);
    }
    // What waits on a slow path is bulk, however slowly it came.
    for nth in 0..200 {
        queue.push(SuperPacket::whole(&packet(0, 100)), start + nth * 20 * MS);
    }
    assert!(!queue.has(SPARSE));
    all_of(&mut queue, BULK, start);
    // What of a flow waits when it becomes bulk goes along, in its order.
    let mut first = None;
    for bytes in 100..300 {
        let told = queue.push(SuperPacket::whole(&packet(2, bytes)), start);
        first = first.or(told);
    }
    assert_eq!(first, Some(Class::Sparse));
    assert_eq!(all_of(&mut queue, SPARSE, start), []);
    let (bulk, mut frame) = (&mut queue, BytesMut::new());
    for bytes in 100..300 {
        assert!(bulk.next(BULK, ROOM, start, &mut frame));
        assert_eq!(frame.split().len(), bytes);
    }
    // However slow it is after that, it is bulk until it pauses.
    for nth in 0..500 {
        let now = start + nth * 10 * MS;
        queue.push(SuperPacket::whole(&packet(2, 100)), now);
        assert_eq!(all_of(&mut queue, BULK, now), [2]);
    }
    let later = start + 4_990 * MS + PAUSE;
    queue.push(SuperPacket::whole(&packet(2, 100)), later);
    assert_eq!(all_of(&mut queue, SPARSE, later), [2]);
}

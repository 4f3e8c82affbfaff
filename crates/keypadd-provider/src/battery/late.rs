//! Tests late packets: recent chunks serve them, and pads of older ones are generated inline.

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS};
use keypadd_pool::{Coverage, Direction};

use super::support::{
    Pads, Receiver, Sender, mask_bytes, material, open, payload, poll_until, seal, with_pads,
};

const HEADER: &[u8] = b"header";
const PAYLOAD_BYTES: usize = 1000;
const SEGMENT: u64 = SEGMENT_PACKETS as u64;

#[test]
fn packets_up_to_two_segments_late_come_from_the_pool_and_older_ones_inline() {
    for suite in with_pads() {
        let material = material(suite, 10);
        let receiver = Receiver::new(suite);
        let opens = receiver.key(0, &material);
        Pads::Warm.provide(&mut receiver.receiving().phases, 0);
        let deliver = |number: u64, expected: Coverage| {
            let before = receiver.meters.packets(Direction::Receive, expected);
            let seals = Sender::new(suite).key(0, &material);
            let sealed = seal(&seals, number, HEADER, &payload(PAYLOAD_BYTES));
            let opened = open(&opens, number, HEADER, &sealed);
            assert!(opened == Some(payload(PAYLOAD_BYTES)), "{suite} {number}");
            let after = receiver.meters.packets(Direction::Receive, expected);
            assert_eq!(after, before + 1, "{suite} {number} {expected:?}");
        };
        let pad_bytes = mask_bytes(suite) + PAYLOAD_BYTES;
        let move_to = |segment: u64| {
            let number = segment * SEGMENT + 20;
            poll_until("the next segment is there", || {
                let phases = &receiver.receiving().phases;
                let lane = phases.lane(0).expect("admitted");
                lane.peek(PacketNumber::new(number), pad_bytes).coverage() == Coverage::Hit
            });
            deliver(number, Coverage::Hit);
        };
        move_to(0);
        move_to(1);
        move_to(2);
        deliver(2 * SEGMENT + 20 - 128 + 1, Coverage::Hit);
        deliver(23, Coverage::Hit);
        deliver(SEGMENT, Coverage::Hit);
        move_to(3);
        deliver(22, Coverage::Miss);
        deliver(SEGMENT + 1, Coverage::Hit);
        deliver(2 * SEGMENT, Coverage::Hit);
        move_to(4);
        deliver(SEGMENT + 2, Coverage::Miss);
        assert_eq!(receiver.meters.replays() + receiver.meters.open_failures(), 0);
    }
}

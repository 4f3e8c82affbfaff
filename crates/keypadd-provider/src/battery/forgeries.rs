//! Tests that forged packets (I4) are rejected, cost no keystream and move no lane.

use keypadd_keystream::{Protection, TAG_BYTES};
use keypadd_pool::{Coverage, Direction};

use super::support::{
    Pads, Receiver, Sender, mask_bytes, material, open, payload, seal, with_tags,
};
use crate::open::OpenKey;

const PACKET_BYTES: usize = 1200;
const HEADER: &[u8] = b"a header of 19 byte";
const NUMBER: u64 = 3;

/// One genuine packet, not yet opened, and its receiver.
struct Target {
    suite: Protection,
    pads: Pads,
    receiver: Receiver,
    key: OpenKey,
    packet: Vec<u8>,
}

impl Target {
    fn new(suite: Protection, pads: Pads) -> Self {
        let material = material(suite, 6);
        let key = Sender::new(suite).key(0, &material);
        let payload = payload(PACKET_BYTES - HEADER.len() - TAG_BYTES);
        let packet = [HEADER, &seal(&key, NUMBER, HEADER, &payload)].concat();
        let receiver = Receiver::new(suite);
        let key = receiver.key(0, &material);
        pads.provide(&mut receiver.receiving().phases, 0);
        Self { suite, pads, receiver, key, packet }
    }

    fn is_accepted(&self, number: u64, packet: &[u8]) -> bool {
        let (header, sealed) = packet.split_at(HEADER.len().min(packet.len()));
        open(&self.key, number, header, sealed).is_some()
    }

    /// Runs `forge`, which returns how many forgeries with a tag it tried, and checks that they
    /// changed nothing: the genuine packet still finds its pad.
    fn withstands(self, forge: impl FnOnce(&Self) -> u64) {
        let (suite, pads, meters) = (self.suite, self.pads, &self.receiver.meters);
        let before = self.receiver.levels();
        let forged = forge(&self);
        assert_eq!(meters.open_failures(), forged, "{suite} {pads:?}");
        // A filler may have added meanwhile; nothing may have gone.
        for (before, after) in before.iter().zip(self.receiver.levels()) {
            assert!(after.packets >= before.packets, "{suite} {pads:?}");
        }
        assert_eq!((meters.keystream_pool_bytes(), meters.keystream_inline_bytes()), (0, 0));

        assert!(self.is_accepted(NUMBER, &self.packet), "{suite} {pads:?}");
        let pad_bytes = mask_bytes(suite) + PACKET_BYTES - HEADER.len() - TAG_BYTES;
        let pooled_bytes = match pads.coverage(suite, pad_bytes) {
            Coverage::Hit => pad_bytes as u64,
            _ => 0,
        };
        assert_eq!(meters.keystream_pool_bytes(), pooled_bytes, "{suite} {pads:?}");
        assert_eq!(meters.packets(Direction::Receive, pads.coverage(suite, pad_bytes)), 1);
        assert_eq!(meters.open_failures(), forged);
    }
}

fn each_target(check: impl Fn(Target)) {
    for suite in with_tags() {
        for pads in [Pads::Off, Pads::Warm, Pads::Dry] {
            check(Target::new(suite, pads));
        }
    }
}

#[test]
fn no_packet_with_one_bit_flipped_is_accepted() {
    each_target(|target| {
        target.withstands(|target| {
            let mut forged = target.packet.clone();
            for bit in 0..8 * PACKET_BYTES {
                forged[bit / 8] ^= 1 << (bit % 8);
                assert!(!target.is_accepted(NUMBER, &forged), "{} bit {bit}", target.suite);
                forged[bit / 8] ^= 1 << (bit % 8);
            }
            8 * PACKET_BYTES as u64
        });
    });
}

#[test]
fn no_truncated_packet_is_accepted() {
    each_target(|target| {
        target.withstands(|target| {
            for bytes in 0..PACKET_BYTES {
                let forged = &target.packet[..bytes];
                assert!(!target.is_accepted(NUMBER, forged), "{} to {bytes}", target.suite);
            }
            // A packet too short for a tag is refused before verification.
            (PACKET_BYTES - HEADER.len() - TAG_BYTES) as u64
        });
    });
}

#[test]
fn no_packet_is_accepted_under_another_number() {
    each_target(|target| {
        target.withstands(|target| {
            let near = (0..300).filter(|&number| number != NUMBER);
            let far = [1 << 20, 1 << 32, 1 << 40, (1 << 62) - 1].map(|above| above + NUMBER % 2);
            let numbers: Vec<u64> = near.chain(far.map(|n| n.min((1 << 62) - 1))).collect();
            for &number in &numbers {
                assert!(
                    !target.is_accepted(number, &target.packet),
                    "{} as {number}",
                    target.suite
                );
            }
            numbers.len() as u64
        });
    });
}

#[test]
fn no_packet_of_another_key_is_accepted() {
    each_target(|target| {
        target.withstands(|target| {
            let stranger = Sender::new(target.suite).key(0, &material(target.suite, 7));
            for number in 0..100 {
                let sealed = seal(&stranger, number, HEADER, &payload(200));
                assert!(!target.is_accepted(number, &[HEADER, &sealed].concat()));
            }
            100
        });
    });
}

//! Tests every source of pads against every other (I2): what one seals, each opens, byte for byte.

use std::collections::HashSet;
use std::env;

use keypadd_keystream::{Protection, SEGMENT_PACKETS};
use keypadd_pool::Coverage;
use proptest::prelude::*;

use super::support::{Pads, Receiver, Sender, mask_bytes, material, open, payload, seal};
use crate::window::WINDOW_PACKETS;

const SOURCES: [Pads; 3] = [Pads::Off, Pads::Warm, Pads::Dry];
const HEADER: &[u8] = b"a header of 19 byte";
const SEGMENT: u64 = SEGMENT_PACKETS as u64;
/// The largest payload that fits in a UDP datagram over IPv4.
const LONGEST: usize = 65_527;
/// Cases unless PROPTEST_CASES is set; a case runs every suite with three senders and three
/// receivers each.
const CASES: u32 = 6;

/// A packet to send.
#[derive(Clone, Copy, Debug)]
struct Packet {
    bytes: usize,
    next: Next,
    /// Sort key for the order of arrival.
    arrival: u8,
}

/// The position of the next packet.
#[derive(Clone, Copy, Debug)]
enum Next {
    After(u64),
    /// At the next segment boundary: the side.
    Border(u64),
}

impl Next {
    fn after(self, number: u64) -> u64 {
        match self {
            Self::After(gap) => number + gap,
            Self::Border(side) => (number + 2).next_multiple_of(SEGMENT) - 1 + side,
        }
    }
}

fn packets() -> impl Strategy<Value = Packet> {
    let bytes = prop_oneof![16 => 1..=9000usize, 8 => 0..=200usize, 1 => 0..=LONGEST];
    let next = prop_oneof![
        2 => Just(Next::After(1)),
        4 => (1u64..150).prop_map(Next::After),
        2 => (0u64..3).prop_map(Next::Border),
    ];
    (bytes, next, any::<u8>()).prop_map(|(bytes, next, arrival)| Packet { bytes, next, arrival })
}

fn config() -> ProptestConfig {
    match env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(CASES),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn all_sources_seal_the_same_bytes_and_open_each_others_packets(
        packets in prop::collection::vec(packets(), 1..30),
        seed in any::<u8>(),
        is_in_order in any::<bool>(),
    ) {
        for suite in Protection::all() {
            run(suite, seed, &packets, is_in_order)?;
        }
    }
}

/// Sends packets, which arrive in any order, and twice.
fn run(
    suite: Protection,
    seed: u8,
    packets: &[Packet],
    is_in_order: bool,
) -> Result<(), TestCaseError> {
    let material = material(suite, seed);
    let senders = SOURCES.map(|pads| {
        let sender = Sender::new(suite);
        let key = sender.key(0, &material);
        pads.provide(&mut sender.sending().phases, 0);
        (pads, sender, key)
    });
    let receivers = SOURCES.map(|pads| {
        let receiver = Receiver::new(suite);
        let key = receiver.key(0, &material);
        pads.provide(&mut receiver.receiving().phases, 0);
        (pads, receiver, key)
    });
    let mut number = 0;
    let mut sent = Vec::new();
    for packet in packets {
        let payload = payload(packet.bytes);
        let [expected, others @ ..] =
            senders.each_ref().map(|(_, _, key)| seal(key, number, HEADER, &payload));
        for sealed in &others {
            prop_assert_eq!(sealed, &expected, "{} {}", suite, number);
        }
        sent.push((packet.arrival, number, payload, expected));
        number = packet.next.after(number);
    }
    if !is_in_order {
        sent.sort_by_key(|(arrival, ..)| *arrival);
    }
    let (mut newest, mut came) = (0, HashSet::new());
    for (_, number, payload, sealed) in sent.iter().chain(&sent) {
        // A replay, or a packet too late to know, does not open.
        newest = newest.max(*number);
        let is_new = newest - number < WINDOW_PACKETS && came.insert(*number);
        for (pads, _, key) in &receivers {
            let opened = open(key, *number, HEADER, sealed);
            let expected = is_new.then_some(payload);
            prop_assert_eq!(opened.as_ref(), expected, "{} {} {:?}", suite, number, pads);
        }
    }
    // The first packet of a warm lane finds its pad, unless it is far too long or others came
    // first; a dry lane never serves one.
    let first_bytes = mask_bytes(suite) + packets.first().map_or(0, |packet| packet.bytes);
    let pooled = senders
        .iter()
        .map(|(pads, end, _)| (pads, &end.meters))
        .chain(receivers.iter().map(|(pads, end, _)| (pads, &end.meters)));
    for (pads, meters) in pooled {
        let served = meters.keystream_pool_bytes() > 0;
        match pads.coverage(suite, first_bytes) {
            Coverage::Miss if *pads == Pads::Warm => {}
            _ if *pads == Pads::Warm && !is_in_order => {}
            coverage => prop_assert_eq!(served, coverage != Coverage::Miss, "{} {:?}", suite, pads),
        }
    }
    Ok(())
}

//! Every source of pads against every other (I2): what one seals, each opens, byte for byte.

use keypadd_keystream::Protection;
use keypadd_pool::Coverage;
use proptest::prelude::*;

use super::support::{Pads, Receiver, Sender, material, open, payload, seal};

const SOURCES: [Pads; 3] = [Pads::Off, Pads::Warm, Pads::Dry];
const HEADER: &[u8] = b"a header of 19 byte";

proptest! {
    // A case is every suite with three senders and three receivers each.
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn sources_seal_the_same_bytes_and_open_each_others(
        packets in prop::collection::vec((1usize..=9000, 1u64..150), 1..30),
        seed in any::<u8>(),
    ) {
        for suite in Protection::all() {
            run(suite, seed, &packets)?;
        }
    }
}

/// Sends packets of the given lengths, each number the given gap above the one before.
fn run(suite: Protection, seed: u8, packets: &[(usize, u64)]) -> Result<(), TestCaseError> {
    let material = material(suite, seed);
    let senders = SOURCES.map(|pads| {
        let sender = Sender::new(suite);
        let key = sender.key(0, &material);
        pads.supply(&mut sender.phases(), 0);
        (pads, sender, key)
    });
    let receivers = SOURCES.map(|pads| {
        let receiver = Receiver::new(suite);
        let key = receiver.key(0, &material);
        pads.supply(&mut receiver.arrivals().phases, 0);
        (pads, receiver, key)
    });
    let mut number = 0;
    for &(bytes, gap) in packets {
        let payload = payload(bytes);
        let [expected, others @ ..] =
            senders.each_ref().map(|(_, _, key)| seal(key, number, HEADER, &payload));
        for sealed in &others {
            prop_assert_eq!(sealed, &expected, "{} {}", suite, number);
        }
        for (pads, _, key) in &receivers {
            let opened = open(key, number, HEADER, &expected);
            prop_assert_eq!(opened.as_ref(), Some(&payload), "{} {} {:?}", suite, number, pads);
        }
        number += gap;
    }
    // The first packet of a warm lane finds its pad, unless it is far too long; a dry lane never
    // serves one.
    let first_bytes = suite.mask_bytes() + packets.first().map_or(0, |(bytes, _)| *bytes);
    let pooled = senders
        .iter()
        .map(|(pads, end, _)| (pads, &end.meters))
        .chain(receivers.iter().map(|(pads, end, _)| (pads, &end.meters)));
    for (pads, meters) in pooled {
        let served = meters.keystream_pool_bytes() > 0;
        match pads.coverage(suite, first_bytes) {
            Coverage::Miss if *pads == Pads::Warm => {}
            coverage => prop_assert_eq!(served, coverage != Coverage::Miss, "{} {:?}", suite, pads),
        }
    }
    Ok(())
}

//! Tests packets sealed by an independent implementation, for every suite and source of pads (I2).

use keypadd_keystream::Protection;
use keypadd_pool::Direction;

use super::support::{Pads, Receiver, Sender, Vector, mask_bytes, open, seal};

const SEALED: &str = include_str!("../../../keypadd-keystream/tests/vectors/sealed_packets.txt");
const SOURCES: [Pads; 4] = [Pads::Off, Pads::Warm, Pads::HeadsOnly, Pads::Dry];

fn suite(vector: &Vector<'_>) -> Protection {
    Protection::all().find(|suite| suite.name() == vector.text("suite")).expect("a suite")
}

/// Runs `check` with each vector and source, and the bytes of pad that the packet takes.
fn each_vector_and_source(check: impl Fn(&Vector<'_>, Pads, usize)) {
    let vectors = Vector::all(SEALED);
    for suite_wanted in Protection::all() {
        assert!(vectors.iter().any(|vector| suite(vector) == suite_wanted));
    }
    for vector in &vectors {
        let pad_bytes = mask_bytes(suite(vector)) + vector.bytes("payload").len();
        for pads in SOURCES {
            check(vector, pads, pad_bytes);
        }
    }
}

#[test]
fn every_source_seals_what_an_independent_implementation_sealed() {
    each_vector_and_source(|vector, pads, pad_bytes| {
        let number = vector.number("packet_number");
        let sender = Sender::new(suite(vector));
        let key = sender.key(0, &vector.material());
        pads.provide(&mut sender.sending().phases, number);
        let sealed = seal(&key, number, &vector.bytes("header"), &vector.bytes("payload"));
        let name = vector.text("suite");
        assert_eq!(hex::encode(sealed), vector.text("sealed"), "{name} {number} {pads:?}");
        let coverage = pads.coverage(suite(vector), pad_bytes);
        let packets = sender.meters.packets(Direction::Send, coverage);
        assert_eq!(packets, 1, "{name} {number} {pads:?}: {coverage:?}");
    });
}

#[test]
fn every_source_opens_what_an_independent_implementation_sealed() {
    each_vector_and_source(|vector, pads, pad_bytes| {
        let number = vector.number("packet_number");
        let receiver = Receiver::new(suite(vector));
        let key = receiver.key(0, &vector.material());
        pads.provide(&mut receiver.receiving().phases, number);
        let payload = open(&key, number, &vector.bytes("header"), &vector.bytes("sealed"));
        let name = vector.text("suite");
        assert_eq!(payload, Some(vector.bytes("payload")), "{name} {number} {pads:?}");
        let coverage = pads.coverage(suite(vector), pad_bytes);
        let packets = receiver.meters.packets(Direction::Receive, coverage);
        assert_eq!(packets, 1, "{name} {number} {pads:?}: {coverage:?}");
    });
}

//! Checks the worked example of RFC 9001, appendix A, with our AES-128-GCM: rustls's key schedule, our
//! key extraction, our packet keys, the suite's header protection.

use keypadd_keystream::{Protection, Suite};
use quinn_proto::crypto::HeaderKey;
use rustls::Side;
use rustls::quic::{DirectionalKeys, Keys, Version};

use super::support::{Receiver, Sender, Vector, open, seal};
use crate::key_extraction::{KeyMaterial, extract};
use crate::suites::tls_suite;

const SUITE: Protection = Suite::AES_128_GCM.protection();
const INITIALS: &str = include_str!("../../tests/vectors/rfc9001.txt");

/// Header protection and packet key of one direction of the Initial space.
struct Direction {
    header: Box<dyn HeaderKey>,
    material: KeyMaterial,
}

impl Direction {
    /// The keys with which `sender` sends, as seen by `side`.
    fn new(sender: Side, side: Side, connection_id: &[u8]) -> Self {
        let suite = tls_suite(SUITE).tls13().and_then(|suite| suite.quic_suite());
        let suite = suite.expect("our suite does QUIC");
        let Keys { local, remote } = suite.keys(connection_id, side, Version::V1);
        let DirectionalKeys { header, packet } = if sender == side { local } else { remote };
        let copied = |kept: &KeyMaterial| KeyMaterial::synthetic(kept.key(), *kept.iv());
        Self { header: Box::new(header), material: extract(&*packet, copied).expect("our key") }
    }
}

/// Runs `check` for each Initial packet, with the keys as its sender and its receiver see them.
fn each_initial(check: impl Fn(&Vector<'_>, Direction, Direction)) {
    let initials = Vector::all(INITIALS);
    assert_eq!(initials.len(), 2);
    for initial in initials {
        let (sender, receiver) = match initial.text("sender") {
            "client" => (Side::Client, Side::Server),
            _ => (Side::Server, Side::Client),
        };
        let connection_id = initial.bytes("connection_id");
        check(
            &initial,
            Direction::new(sender, sender, &connection_id),
            Direction::new(sender, receiver, &connection_id),
        );
    }
}

#[test]
fn a1_keys_and_ivs_can_be_extracted() {
    each_initial(|initial, sender, receiver| {
        for direction in [sender, receiver] {
            assert_eq!(direction.material.key(), initial.bytes("key"));
            assert_eq!(direction.material.iv()[..], initial.bytes("iv"));
        }
    });
}

#[test]
fn a2_and_a3_packets_are_sealed_to_the_last_byte() {
    each_initial(|initial, direction, _| {
        let key = Sender::new(SUITE).key(0, &direction.material);
        let (header, number) = (initial.bytes("header"), initial.number("packet_number"));
        let sealed = seal(&key, number, &header, &initial.bytes("payload"));
        let mut packet = [header, sealed].concat();
        let offset = initial.number("packet_number_offset") as usize;
        direction.header.encrypt(offset, &mut packet);
        assert_eq!(hex::encode(packet), initial.text("protected"));
    });
}

#[test]
fn a2_and_a3_packets_open() {
    each_initial(|initial, _, direction| {
        let key = Receiver::new(SUITE).key(0, &direction.material);
        let mut packet = initial.bytes("protected");
        let offset = initial.number("packet_number_offset") as usize;
        direction.header.decrypt(offset, &mut packet);
        // RFC 9000 section 17.2: the low two bits are the packet number's length minus one.
        let header_bytes = offset + 1 + usize::from(packet[0] & 3);
        let (header, sealed) = packet.split_at(header_bytes);
        assert_eq!(header, initial.bytes("header"));
        let payload = open(&key, initial.number("packet_number"), header, sealed);
        assert_eq!(payload, Some(initial.bytes("payload")));
    });
}

//! Checks the worked examples of RFC 9001, appendix A, with our AES-128-GCM and ChaCha20-Poly1305:
//! rustls's key schedule, our key extraction, our packet keys, the suite's header protection.

use interposer::expand_label;
use keypadd_keystream::{Protection, Suite};
use quinn_proto::crypto::HeaderKey;
use rustls::Side;
use rustls::crypto::cipher::AeadKey;
use rustls::quic::{DirectionalKeys, Keys, Version};

use super::support::{Pads, Receiver, Sender, Vector, open, seal};
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

/// A.5: the suite's header protection key, and what protects packets.
#[test]
fn a5_packet_is_sealed_to_the_last_byte_and_opens() {
    let suite: Protection = Suite::CHACHA20_POLY1305.into();
    let vectors = Vector::all(include_str!("../../tests/vectors/rfc9001_chacha20.txt"));
    let [vector] = &vectors[..] else { panic!("one vector") };
    let secret = vector.bytes("secret");
    for (label, name) in
        [("quic key", "key"), ("quic iv", "iv"), ("quic hp", "hp"), ("quic ku", "next_secret")]
    {
        let expected = vector.bytes(name);
        let derived = expand_label(&secret, label.as_bytes(), expected.len());
        assert_eq!(derived, expected, "{label}");
    }
    let algorithm = tls_suite(suite).tls13().and_then(|suite| suite.quic).expect("QUIC");
    let hp: [u8; 32] = vector.bytes("hp").try_into().expect("32 bytes");
    let header_key: Box<dyn HeaderKey> =
        Box::new(algorithm.header_protection_key(AeadKey::from(hp)));
    let number = vector.number("packet_number");
    let (offset, header) = (vector.number("packet_number_offset") as usize, vector.bytes("header"));
    for pads in [Pads::Off, Pads::Warm, Pads::Dry] {
        let sender = Sender::new(suite);
        let key = sender.key(0, &vector.material());
        pads.provide(&mut sender.sending().phases, number);
        let mut packet =
            [&header[..], &seal(&key, number, &header, &vector.bytes("payload"))].concat();
        header_key.encrypt(offset, &mut packet);
        assert_eq!(hex::encode(&packet), vector.text("protected"), "{pads:?}");

        header_key.decrypt(offset, &mut packet);
        let receiver = Receiver::new(suite);
        let key = receiver.key(0, &vector.material());
        pads.provide(&mut receiver.receiving().phases, number);
        let opened = open(&key, number, &header, &packet[header.len()..]);
        assert_eq!(opened, Some(vector.bytes("payload")), "{pads:?}");
    }
}

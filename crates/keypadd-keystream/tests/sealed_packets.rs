//! Checks against whole packets that `scripts/sealed_packets.py` sealed without any of our code.
#![allow(clippy::unwrap_used)]

mod vectors;

use keypadd_keystream::{
    CipherBackend, GhashPath, InlineKeystream, Mac, PacketNumber, Protection, SuiteKey, TAG_BYTES,
    cpu_features,
};
use std::collections::HashSet;

struct Packet {
    suite: Protection,
    key: Vec<u8>,
    iv: [u8; 12],
    keys: SuiteKey,
    number: PacketNumber,
    header: Vec<u8>,
    payload: Vec<u8>,
    sealed: Vec<u8>,
}

fn packets() -> Vec<Packet> {
    let blocks = vectors::blocks(include_str!("vectors/sealed_packets.txt"));
    let packets = blocks.iter().map(|block| {
        let name: String = block.parsed("suite");
        let suite = Protection::all().find(|suite| suite.name() == name).unwrap();
        let (key, iv) = (block.bytes("key"), block.array("iv"));
        Packet {
            suite,
            keys: SuiteKey::derive(suite, &key, &iv),
            key,
            iv,
            number: PacketNumber::new(block.parsed("packet_number")),
            header: block.bytes("header"),
            payload: block.bytes("payload"),
            sealed: block.bytes("sealed"),
        }
    });
    packets.collect()
}

/// The MAC's mask and the payload XORed with the pad (unchanged for the
/// null cipher).
fn mask_and_apply(keys: &SuiteKey, number: PacketNumber, payload: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mask_bytes = keys.mac.mask_bytes();
    let mut mask = vec![0; mask_bytes];
    let Some(keystream) = keys.keystream.clone() else { return (mask, payload.to_vec()) };
    let mut inline = InlineKeystream::new(keystream);
    inline.write(number, 0, &mut mask);
    let mut data = payload.to_vec();
    inline.apply(number, mask_bytes, &mut data);
    (mask, data)
}

#[test]
fn sealed_packets_match_those_sealed_outside_rust() {
    for packet in packets() {
        let (mask, mut sealed) = mask_and_apply(&packet.keys, packet.number, &packet.payload);
        let tag = packet.keys.mac.tag(packet.number, &packet.header, &sealed, &mask);
        sealed.extend(tag);
        assert!(sealed == packet.sealed, "{}, {:?}", packet.suite, packet.number);
    }
}

/// An end that pools the mask of GCM's tag, as without AES instructions, and one that does not seal
/// the same bytes, with every implementation of GHASH.
#[test]
fn ends_with_and_without_a_pooled_mask_seal_the_same_bytes() {
    let mut mask_bytes = HashSet::new();
    for packet in packets().iter().filter(|packet| packet.suite.mac() == Mac::Ghash) {
        for backend in [CipherBackend::Auto, CipherBackend::Bitslice64] {
            for ghash in GhashPath::available() {
                let engine = backend.engine().unwrap().with_ghash(ghash);
                let keys = SuiteKey::derive_with(packet.suite, &packet.key, &packet.iv, engine);
                mask_bytes.insert(keys.mac.mask_bytes());
                let (mask, mut sealed) = mask_and_apply(&keys, packet.number, &packet.payload);
                sealed.extend(keys.mac.tag(packet.number, &packet.header, &sealed, &mask));
                assert!(sealed == packet.sealed, "{engine:?}, {:?}", packet.number);
                let (ciphertext, tag) = sealed.split_last_chunk::<TAG_BYTES>().unwrap();
                assert!(keys.mac.verify(packet.number, &packet.header, ciphertext, &mask, tag));
            }
        }
    }
    let has_aes = cpu_features().contains(&"aes") && !cfg!(aes_backend = "soft");
    assert_eq!(mask_bytes, if has_aes { HashSet::from([0, 16]) } else { HashSet::from([16]) });
}

#[test]
fn packets_sealed_outside_rust_are_opened() {
    for packet in packets() {
        let (ciphertext, tag) = packet.sealed.split_last_chunk::<TAG_BYTES>().unwrap();
        let (mask, payload) = mask_and_apply(&packet.keys, packet.number, ciphertext);
        assert!(packet.keys.mac.verify(packet.number, &packet.header, ciphertext, &mask, tag));
        assert!(payload == packet.payload, "{}, {:?}", packet.suite, packet.number);
    }
}

#[test]
fn chunks_hold_the_pads_of_packets_sealed_outside_rust() {
    for packet in packets() {
        let Some(keystream) = &packet.keys.keystream else { continue };
        let offset = packet.keys.mac.mask_bytes();
        let mut rows = vec![vec![0; packet.payload.len()]; packet.number.slot() + 1];
        let buffers = rows.iter_mut().map(Vec::as_mut_slice);
        keystream.write_rows(packet.number.segment(), offset, buffers);
        let pad = rows.last().unwrap();
        let sealed = packet.payload.iter().zip(pad).map(|(byte, pad)| byte ^ pad);
        assert!(sealed.eq(packet.sealed[..pad.len()].iter().copied()), "{}", packet.suite);
    }
}

#[test]
fn the_file_covers_every_suite_header_length_and_named_edge() {
    let packets = packets();
    for suite in Protection::all() {
        let of_suite = || packets.iter().filter(|packet| packet.suite == suite);
        for number in [0, 63, 64, 1 << 32, (1 << 62) - 1] {
            assert!(of_suite().any(|packet| packet.number.value() == number));
        }
        for length in [0, 1, 15, 16, 20, 127, 128, 129, 1200, 1452] {
            assert!(of_suite().any(|packet| packet.payload.len() == length));
        }
    }
    for length in 0..=40 {
        assert!(packets.iter().any(|packet| packet.header.len() == length));
    }
    assert!(packets.iter().any(|packet| packet.payload.len() == 9000));
}

//! Checks pads against independent counter modes, against each other and against themselves.
//! PROPTEST_CASES sets the number of cases.
#![allow(clippy::unwrap_used)]

mod independent;

use aes::{Aes128, Aes256};
use des::cipher::{BlockCipherDecrypt, KeyInit};
use des::{Des, TdesEde3};
use independent::{LONGEST, aes_key, keyed, numbers, pad, skipped_bytes, subkey, with_pads};
use keypadd_keystream::{
    Cipher, CipherBackend, InlineKeystream, KeystreamKey, PAYLOAD_BYTES_MAX, PacketNumber,
    Protection, SEGMENT_PACKETS, Suite, SuiteKey,
};
use proptest::prelude::*;
use rc2::Rc2;
use std::collections::HashSet;
use std::sync::Arc;

fn keystream(suite: impl Into<Protection>, key: &[u8], iv: &[u8; 12]) -> Arc<KeystreamKey> {
    SuiteKey::derive(suite, key, iv).keystream.unwrap()
}

/// A range of a pad: mostly packet sizes, sometimes anything that fits in a datagram.
fn ranges() -> impl Strategy<Value = (usize, usize)> {
    let longest = prop_oneof![4 => Just(300), 4 => Just(2_000), 1 => Just(LONGEST)];
    let ends = longest.prop_flat_map(|longest| (0..=longest, 0..=longest));
    ends.prop_map(|(a, b)| (a.min(b), a.max(b)))
}

proptest! {
    #[test]
    fn any_range_of_any_pad_in_any_order_matches_an_independent_implementation(
        (suite, key, iv) in keyed(),
        requests in prop::collection::vec((numbers(), ranges()), 1..6),
    ) {
        let mut inline = InlineKeystream::new(keystream(suite, &key, &iv));
        for (number, (from, to)) in requests {
            let pad = pad(suite, &key, &iv, number, to);
            let number = PacketNumber::new(number);
            let mut out = vec![0xa5; to - from];
            inline.write(number, from, &mut out);
            prop_assert!(out == pad[from..], "write {number:?} {from}..{to}");
            out.fill(0xa5);
            inline.apply(number, from, &mut out);
            prop_assert!(out.iter().zip(&pad[from..]).all(|(byte, pad)| *byte == 0xa5 ^ pad));
        }
    }

    #[test]
    fn chunks_and_single_packets_have_the_same_bytes(
        (suite, key, iv) in keyed(),
        number in numbers(),
        offset in 0usize..200,
        lengths in prop::collection::vec(0usize..400, 0..=SEGMENT_PACKETS),
    ) {
        let keystream = keystream(suite, &key, &iv);
        let segment = PacketNumber::new(number).segment();
        let mut rows: Vec<_> = lengths.iter().map(|&length| vec![0x5a; length]).collect();
        keystream.write_rows(segment, offset, rows.iter_mut().map(Vec::as_mut_slice));
        let mut inline = InlineKeystream::new(keystream);
        for (slot, row) in rows.iter().enumerate().rev() {
            let mut single = vec![0; row.len()];
            let number = PacketNumber::new(segment.first().value() + slot as u64);
            inline.write(number, offset, &mut single);
            prop_assert!(single == *row, "{number:?}");
        }
    }
}

/// Recovers from a counter block the packet number and the position in its pad: if that is
/// possible, no two blocks share a counter. `number` selects the subkey of a 64-bit cipher.
fn read_back(
    suite: Protection,
    key: &[u8],
    iv: &[u8; 12],
    number: u64,
    block: &[u8],
) -> (u64, usize) {
    fn decrypted<C: BlockCipherDecrypt>(cipher: C, block: &[u8]) -> Vec<u8> {
        let mut block = block.try_into().unwrap();
        cipher.decrypt_block(&mut block);
        block.to_vec()
    }
    let of_aes = |counter: Vec<u8>| {
        assert_eq!(counter[..4], iv[..4]);
        let [mask, number] =
            [&iv[4..], &counter[4..12]].map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
        let block = u32::from_be_bytes(counter[12..].try_into().unwrap());
        (mask ^ number, block as usize - 1 - skipped_bytes(suite) / 16)
    };
    let of_64_bits = |counter: Vec<u8>, iv: u64| {
        let counter = iv ^ u64::from_be_bytes(counter.try_into().unwrap());
        assert!(counter >> 13 < 64, "beyond the segment");
        ((number & !63) + (counter >> 13), counter as usize % 8192)
    };
    match suite.cipher() {
        Cipher::Aes128 => {
            let key = aes_key(suite, key, 16);
            of_aes(decrypted(Aes128::new_from_slice(&key).unwrap(), block))
        }
        Cipher::Aes256 => {
            let key = aes_key(suite, key, 32);
            of_aes(decrypted(Aes256::new_from_slice(&key).unwrap(), block))
        }
        Cipher::ChaCha20 => unreachable!("cannot be run backwards"),
        Cipher::Des => {
            let (key, iv) = subkey(key, number, 8);
            of_64_bits(decrypted(Des::new_from_slice(&key).unwrap(), block), iv)
        }
        Cipher::TripleDes => {
            let (key, iv) = subkey(key, number, 24);
            of_64_bits(decrypted(TdesEde3::new_from_slice(&key).unwrap(), block), iv)
        }
        // RC2 is the only one with keystream.
        Cipher::Measured(_) => {
            let (key, iv) = subkey(key, number, 5);
            of_64_bits(decrypted(Rc2::new_with_eff_key_len(&key, 40), block), iv)
        }
    }
}

proptest! {
    #[test]
    fn any_counter_block_determines_its_number_and_position(
        // A block of ChaCha20 does not tell its input; its nonce and counter are compared with the
        // crate's.
        (suite, key, iv) in keyed().prop_filter("a block cipher", |(suite, ..)| {
            suite.cipher() != Cipher::ChaCha20
        }),
        pairs in prop::array::uniform2((numbers(), any::<prop::sample::Index>())),
    ) {
        let mut inline = InlineKeystream::new(keystream(suite, &key, &iv));
        for (number, index) in pairs {
            let bytes = match suite.cipher() {
                Cipher::Aes128 | Cipher::Aes256 => 16,
                _ => 8,
            };
            let place = index.index(PAYLOAD_BYTES_MAX / bytes);
            let mut block = vec![0; bytes];
            inline.write(PacketNumber::new(number), place * bytes, &mut block);
            prop_assert_eq!(read_back(suite, &key, &iv, number, &block), (number, place));
        }
    }
}

/// A block cipher maps different counters to different blocks, so distinct blocks prove distinct
/// counters: here for every block that a subkey can generate.
#[test]
fn no_counter_block_repeats_under_a_subkey() {
    let keystream = keystream(Suite::DES_CTR_HMAC_SHA1, &[3; 32], &[0; 12]);
    let mut chunk = vec![0; SEGMENT_PACKETS * PAYLOAD_BYTES_MAX];
    let segment = PacketNumber::new(1 << 40).segment();
    keystream.write_rows(segment, 0, chunk.chunks_mut(PAYLOAD_BYTES_MAX));
    let blocks: HashSet<&[u8]> = chunk.chunks(8).collect();
    assert_eq!(blocks.len(), chunk.len() / 8);
}

#[test]
fn no_keystream_block_repeats_under_a_key_at_segment_boundaries() {
    for suite in [
        Suite::AES_128_GCM,
        Suite::AES_256_GCM,
        Suite::CHACHA20_POLY1305,
        Suite::AES_256_CTR_HMAC_SHA1,
    ] {
        // An IV of ones lets every carry show that should not be there.
        let key = vec![3; suite.protection().key_bytes()];
        let mut inline = InlineKeystream::new(keystream(suite, &key, &[0xff; 12]));
        let mut seen = HashSet::new();
        let borders = [0, 64, 1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 33, 1 << 48, 1 << 61];
        let near = borders.iter().flat_map(|&border: &u64| [border, border + 1, border + 63]);
        for number in near.chain([(1 << 62) - 2, (1 << 62) - 1]) {
            let mut pad = vec![0; PAYLOAD_BYTES_MAX + 16];
            inline.write(PacketNumber::new(number), 0, &mut pad);
            for block in pad.chunks_exact(16) {
                assert!(seen.insert(<[u8; 16]>::try_from(block).unwrap()), "{suite}, {number}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "exceeds the counter")]
fn a_pad_never_runs_into_the_next_packets() {
    let keystream = keystream(Suite::TRIPLE_DES_CTR_HMAC_SHA1, &[3; 32], &[0; 12]);
    let mut inline = InlineKeystream::new(keystream);
    inline.write(PacketNumber::new(0), PAYLOAD_BYTES_MAX - 7, &mut [0; 8]);
}

#[test]
#[should_panic(expected = "a segment has 64 packets")]
fn a_chunk_never_runs_into_the_next_segment() {
    let keystream = keystream(Suite::AES_256_GCM, &[3; 32], &[0; 12]);
    let segment = PacketNumber::new(0).segment();
    keystream.write_rows(segment, 0, [0; 65].chunks_mut(1));
}

/// Heads and bodies as the pool requests them, and unaligned pieces. A bitslice's pads of GCM begin
/// with the mask.
#[test]
fn every_backend_writes_the_same_chunks() {
    for suite in with_pads() {
        let chunk = |backend: CipherBackend, offset, length: usize| {
            let engine = CipherBackend::engine(backend).ok()?;
            let key = &[5; 32][..suite.key_bytes()];
            let keys = SuiteKey::derive_with(suite, key, &[0xff; 12], engine);
            let (mask_bytes, keystream) = (keys.mac.mask_bytes(), keys.keystream?);
            let mut chunk = vec![0; SEGMENT_PACKETS * length];
            let segment = PacketNumber::new(64 << 20).segment();
            let mut masks = vec![0; SEGMENT_PACKETS * mask_bytes.max(1)];
            keystream.write_rows(segment, 0, masks.chunks_mut(mask_bytes.max(1)));
            let mut mask = vec![0; mask_bytes.max(1)];
            InlineKeystream::new(Arc::clone(&keystream)).write(segment.first(), 0, &mut mask);
            assert_eq!(masks[..mask.len()], mask, "{suite}, {backend}");
            keystream.write_rows(segment, mask_bytes + offset, chunk.chunks_mut(length));
            Some(chunk)
        };
        for (offset, length) in
            [(0, 128), (128, 1344), (0, 1400), (31, 3), (32, 200), (5, 1), (127, 66), (1471, 7)]
        {
            let expected = chunk(CipherBackend::DesCrate, offset, length);
            assert!(expected.is_some());
            for backend in CipherBackend::ALL.into_iter().filter(|backend| backend.is_available()) {
                assert!(chunk(backend, offset, length) == expected, "{suite}, {backend}");
            }
        }
    }
}

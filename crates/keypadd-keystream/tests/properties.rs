//! Pads against independent counter modes, against each other, and against themselves.
#![allow(clippy::unwrap_used)]

use aes::{Aes128, Aes256};
use ctr::Ctr32BE;
use des::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher};
use des::{Des, TdesEde3};
use hkdf::Hkdf;
use keypadd_keystream::{
    Cipher, CipherBackend, InlineKeystream, KeystreamKey, PAYLOAD_BYTES_MAX, PacketNumber,
    Protection, SEGMENT_PACKETS, Suite, SuiteKey,
};
use proptest::prelude::*;
use rc2::Rc2;
use sha2::Sha256;
use std::collections::HashSet;
use std::sync::Arc;

/// The largest payload that fits in a UDP datagram over IPv4.
const LONGEST: usize = 65_527;

/// The first `length` bytes of a pad, the slow way: RustCrypto's `ctr` for AES, one block after
/// the other for DES, with nothing from the crate under test but the suite's properties.
fn expected(suite: Protection, key: &[u8], iv: &[u8; 12], number: u64, length: usize) -> Vec<u8> {
    let expand = |info: &[&[u8]], bytes: usize| {
        let mut out = vec![0; bytes];
        Hkdf::<Sha256>::from_prk(key).unwrap().expand(&info.concat(), &mut out).unwrap();
        out
    };
    let enc = |bytes| match suite.mask_bytes() {
        0 => expand(&[b"keypadd enc"], bytes),
        _ => key.to_vec(),
    };
    let mut counter = [iv.as_slice(), &1u32.to_be_bytes()].concat();
    for (byte, number) in counter[4..12].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    let subkey = |bytes| {
        let segment = (number / 64).to_be_bytes();
        let mut material = expand(&[b"keypadd sub", &segment, &[0]], bytes + 8);
        let iv = u64::from_be_bytes(material.split_off(bytes).try_into().unwrap());
        (material, iv) // parity bits do not change what DES computes
    };
    let mut pad = vec![0; length];
    match suite.cipher() {
        Cipher::Aes128 => Ctr32BE::<Aes128>::new_from_slices(&enc(16), &counter)
            .unwrap()
            .apply_keystream(&mut pad),
        Cipher::Aes256 => Ctr32BE::<Aes256>::new_from_slices(&enc(32), &counter)
            .unwrap()
            .apply_keystream(&mut pad),
        Cipher::Des => {
            let (key, iv) = subkey(8);
            counter_mode_64(&Des::new_from_slice(&key).unwrap(), iv, number, &mut pad);
        }
        Cipher::TripleDes => {
            let (key, iv) = subkey(24);
            counter_mode_64(&TdesEde3::new_from_slice(&key).unwrap(), iv, number, &mut pad);
        }
        Cipher::Rc2_40 => {
            let (key, iv) = subkey(5);
            counter_mode_64(&Rc2::new_with_eff_key_len(&key, 40), iv, number, &mut pad);
        }
        Cipher::Null => unreachable!("has no pad"),
    }
    pad
}

fn counter_mode_64<C>(cipher: &C, iv: u64, number: u64, pad: &mut [u8])
where
    C: BlockCipherEncrypt<BlockSize = des::cipher::consts::U8>,
{
    for (at, out) in pad.chunks_mut(8).enumerate() {
        let counter = number % 64 * 8192 + at as u64;
        let mut block = (iv ^ counter).to_be_bytes().into();
        cipher.encrypt_block(&mut block);
        out.copy_from_slice(&block[..out.len()]);
    }
}

/// Every pair that has pads.
fn with_pads() -> impl Iterator<Item = Protection> {
    Protection::all().filter(|suite| suite.cipher() != Cipher::Null)
}

fn keystream(suite: impl Into<Protection>, key: &[u8], iv: &[u8; 12]) -> Arc<KeystreamKey> {
    SuiteKey::derive(suite, key, iv).keystream.unwrap()
}

/// Any packet number below 2^62, with a liking for the borders of segments and of words.
fn numbers() -> impl Strategy<Value = u64> {
    let borders = [0u64, 64, 1 << 16, 1 << 32, 1 << 33, 1 << 61, (1 << 62) - 2];
    let near = (prop::sample::select(borders.to_vec()), -2i64..=1)
        .prop_map(|(border, step)| border.saturating_add_signed(step));
    prop_oneof![near, 0..1u64 << 62, 0u64..200]
}

/// A range of a pad: mostly packet sizes, sometimes whatever a datagram can hold.
fn ranges() -> impl Strategy<Value = (usize, usize)> {
    let longest = prop_oneof![4 => Just(300), 4 => Just(2_000), 1 => Just(LONGEST)];
    let ends = longest.prop_flat_map(|longest| (0..=longest, 0..=longest));
    ends.prop_map(|(a, b)| (a.min(b), a.max(b)))
}

/// A suite and a key for it.
fn keyed() -> impl Strategy<Value = (Protection, Vec<u8>, [u8; 12])> {
    let suites = prop::sample::select(with_pads().collect::<Vec<_>>());
    (suites, any::<[u8; 32]>(), any::<[u8; 12]>())
        .prop_map(|(suite, key, iv)| (suite, key[..suite.key_bytes()].to_vec(), iv))
}

proptest! {
    #[test]
    fn any_range_of_any_pad_in_any_order_is_what_others_compute(
        (suite, key, iv) in keyed(),
        requests in prop::collection::vec((numbers(), ranges()), 1..6),
    ) {
        let mut inline = InlineKeystream::new(keystream(suite, &key, &iv));
        for (number, (from, to)) in requests {
            let pad = expected(suite, &key, &iv, number, to);
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
    fn chunks_and_single_packets_are_the_same_bytes(
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

/// A block cipher maps different counters to different blocks, so that all blocks being different
/// shows that all counters are: here every block a subkey can ever be asked for.
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
fn no_counter_block_repeats_under_an_aes_key_at_the_borders() {
    for suite in [Suite::AES_128_GCM, Suite::AES_256_GCM, Suite::AES_256_CTR_HMAC_SHA1] {
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
#[should_panic(expected = "can be numbered")]
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

/// Heads and bodies as the pool asks for them, and pieces that fit nothing.
#[test]
fn every_backend_writes_the_same_chunks() {
    for suite in with_pads() {
        let chunk = |backend, offset, length: usize| {
            let engine = CipherBackend::engine(backend).ok()?;
            let key = &[5; 32][..suite.key_bytes()];
            let keys = SuiteKey::derive_with(suite, key, &[0xff; 12], engine);
            let mut chunk = vec![0; SEGMENT_PACKETS * length];
            let segment = PacketNumber::new(64 << 20).segment();
            keys.keystream?.write_rows(segment, offset, chunk.chunks_mut(length));
            Some(chunk)
        };
        for (offset, length) in [(0, 128), (128, 1328), (0, 1400), (5, 1), (127, 66), (1455, 7)] {
            let expected = chunk(CipherBackend::DesCrate, offset, length);
            assert!(expected.is_some());
            for backend in CipherBackend::ALL.into_iter().filter(|backend| backend.is_available()) {
                assert!(chunk(backend, offset, length) == expected, "{suite}, {backend}");
            }
        }
    }
}

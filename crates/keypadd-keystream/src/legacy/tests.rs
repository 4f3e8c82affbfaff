//! Tests DES and triple DES against published vectors, and the choice of their keys.

use super::*;
use crate::number::PacketNumber;
use crate::vectors;
use crate::{Cipher, CipherBackend};
use proptest::prelude::*;
use std::cell::Cell;

const DES_TABLES: &str = include_str!("../../tests/vectors/cavp_des.txt");
const DES: [&str; 2] = [DES_TABLES, include_str!("../../tests/vectors/nessie_des.txt")];
const TRIPLE_DES: [&str; 2] = [
    include_str!("../../tests/vectors/cavp_3des.txt"),
    include_str!("../../tests/vectors/nessie_3des.txt"),
];

/// The first block of a segment's first pad: its counter block is the IV.
fn first_pad_block(backend: CipherBackend, key: &[u8], iv: &[u8]) -> [u8; 8] {
    let mut pad = [0; 8];
    Subkey::new(backend.engine().unwrap(), key, iv).write(0, 0, &mut pad);
    pad
}

/// Every backend that this CPU has.
fn backends() -> impl Iterator<Item = CipherBackend> {
    CipherBackend::ALL.into_iter().filter(|backend| backend.is_available())
}

#[test]
fn nist_and_nessie_blocks_of_des_are_reproduced_as_pads() {
    for backend in backends() {
        for [key, plaintext, ciphertext] in DES.into_iter().flat_map(vectors::rows) {
            assert_eq!(first_pad_block(backend, &key, &plaintext)[..], ciphertext, "{backend}");
        }
    }
}

#[test]
fn nist_and_nessie_blocks_of_triple_des_are_reproduced_as_pads() {
    for backend in backends() {
        for [key, plaintext, ciphertext] in TRIPLE_DES.into_iter().flat_map(vectors::rows) {
            assert_eq!(first_pad_block(backend, &key, &plaintext)[..], ciphertext, "{backend}");
        }
        for [key, plaintext, ciphertext] in vectors::rows(DES_TABLES) {
            let pad = first_pad_block(backend, &key.repeat(3), &plaintext);
            assert_eq!(pad[..], ciphertext, "{backend}");
        }
    }
}

#[test]
fn acvp_messages_of_triple_des_are_reproduced_with_the_first_block_of_a_pad() {
    let rows = vectors::rows(include_str!("../../tests/vectors/acvp_3des_ctr.txt"));
    assert_eq!(rows.len(), 483);
    for backend in backends() {
        for [key, counter, mut message, ciphertext] in rows.clone() {
            for (byte, pad) in message.iter_mut().zip(first_pad_block(backend, &key, &counter)) {
                *byte ^= pad;
            }
            assert_eq!(message, ciphertext, "{backend}");
        }
    }
}

/// The 64 weak, semi-weak and possibly weak keys by their structure, not from the crate's list:
/// every byte follows one of four patterns, the same in both halves of the key, and the
/// choices of a half XOR to zero. Such a key has at most four different round keys.
fn weak_keys() -> Vec<[u8; 8]> {
    const LEFT: [u8; 4] = [0x01, 0x1f, 0xe0, 0xfe];
    const RIGHT: [u8; 4] = [0x01, 0x0e, 0xf1, 0xfe];
    let choices = (0..64).map(|n| [n & 3, n >> 2 & 3, n >> 4, (n ^ n >> 2 ^ n >> 4) & 3]);
    let keys = choices.map(|choice| {
        let (left, right) = (choice.map(|i| LEFT[i]), choice.map(|i| RIGHT[i]));
        [left, right].concat().try_into().unwrap()
    });
    keys.collect()
}

/// Runs the derivation on candidates; the index of the one that it accepts.
fn accepted<const N: usize>(candidates: &[[u8; N]]) -> usize {
    let taken = Cell::new(0);
    let material: Zeroizing<[u8; N]> = first_strong(N, |retry, out| {
        assert_eq!(taken.replace(retry.into()), usize::from(retry.saturating_sub(1)));
        out.copy_from_slice(&candidates[usize::from(retry)]);
    });
    assert!(material.iter().all(|byte| byte.count_ones() % 2 == 1));
    taken.get()
}

const STRONG: [[u8; 8]; 3] = [*b"keypadd0", *b"keypadd2", *b"keypadd4"];

#[test]
fn there_are_sixty_four_weak_keys() {
    let mut keys = weak_keys();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 64);
}

proptest! {
    #[test]
    fn weak_keys_are_skipped_whatever_their_parity_bits(parity in any::<[u8; 8]>()) {
        for mut weak in weak_keys() {
            for (byte, parity) in weak.iter_mut().zip(parity) {
                *byte ^= parity & 1;
            }
            prop_assert_eq!(accepted(&[weak, weak, STRONG[0]]), 2);
            for place in 0..3 {
                let mut keys = STRONG;
                keys[place] = weak;
                let triple: [[u8; 24]; 2] =
                    [keys, STRONG].map(|keys| keys.concat().try_into().unwrap());
                prop_assert_eq!(accepted(&triple), 1);
            }
        }
    }

    #[test]
    fn triple_des_keys_with_two_equal_parts_are_skipped(
        parts in any::<[[u8; 8]; 3]>(),
        parity in any::<[u8; 8]>(),
    ) {
        for (from, to) in [(0, 1), (0, 2), (1, 2)] {
            let mut keys = parts;
            keys[to] = keys[from];
            for (byte, parity) in keys[to].iter_mut().zip(parity) {
                *byte ^= parity & 1; // equal but for parity bits is equal
            }
            let triple: [[u8; 24]; 2] =
                [keys, STRONG].map(|keys| keys.concat().try_into().unwrap());
            prop_assert_eq!(accepted(&triple), 1);
        }
    }

    #[test]
    fn setting_odd_parity_changes_no_key_bit(key in any::<[u8; 8]>()) {
        let mut fixed = key;
        set_odd_parity(&mut fixed);
        for (fixed, byte) in fixed.into_iter().zip(key) {
            prop_assert_eq!(fixed >> 1, byte >> 1);
            prop_assert_eq!(fixed.count_ones() % 2, 1);
        }
    }
}

#[test]
fn segments_have_different_subkeys_and_ivs() {
    let Cipher::Measured(MeasuredCipher { subkey: Some(rc2), .. }) = Cipher::RC2_40 else {
        panic!("it has keystream")
    };
    let measured = LegacyCipher::Measured(*rc2);
    for cipher in [LegacyCipher::Des, LegacyCipher::TripleDes, measured] {
        let engine = CipherBackend::Auto.engine().unwrap();
        let key = LegacyKey::new(cipher, Prk::new(&[7; 32]), engine);
        let ivs = [0, 64, 1 << 32, (1 << 62) - 64].map(|first| {
            let mut subkey = key.subkey(PacketNumber::new(first).segment());
            let iv = std::mem::replace(&mut subkey.iv, 0);
            let mut of_zeros = [0; 8];
            subkey.write(0, 0, &mut of_zeros);
            (iv, of_zeros)
        });
        for (at, one) in ivs.iter().enumerate() {
            assert!(ivs[..at].iter().all(|other| one.0 != other.0 && one.1 != other.1));
        }
    }
}

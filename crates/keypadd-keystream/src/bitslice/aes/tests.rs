//! Checks every path against NIST and NESSIE, and against the `aes` crate at every length around a
//! batch.

use super::*;
use crate::bitslice::tests::{Random, paths};
use crate::vectors;
use ::aes::{Aes128, Aes256};
use cipher::{BlockCipherEncrypt, KeyInit};

const FILES: [&str; 5] = [
    include_str!("../../../tests/vectors/cavp_aes_128.txt"),
    include_str!("../../../tests/vectors/nessie_aes_128.txt"),
    include_str!("../../../tests/vectors/cavp_aes_256.txt"),
    include_str!("../../../tests/vectors/nessie_aes_256.txt"),
    include_str!("../../../tests/vectors/sp800_38a_ecb.txt"),
];

/// Encrypts with the `aes` crate, a block at a time.
fn reference(key: &[u8], block: u128) -> [u8; 16] {
    let mut block = block.to_be_bytes().into();
    match key.len() {
        16 => Aes128::new_from_slice(key).unwrap().encrypt_block(&mut block),
        _ => Aes256::new_from_slice(key).unwrap().encrypt_block(&mut block),
    }
    block.into()
}

#[test]
fn nist_and_nessie_blocks_are_reproduced_as_pads() {
    for [key, plaintext, ciphertext] in FILES.into_iter().flat_map(vectors::rows) {
        let planes = AesPlanes::new(&key);
        let counter = u128::from_be_bytes(plaintext.try_into().unwrap());
        for (name, path) in paths() {
            let mut pad = [0; 16];
            path.write_aes_rows(&planes, counter, 0, &mut [&mut pad]);
            assert_eq!(pad[..], ciphertext, "{name} lanes");
        }
    }
}

#[test]
fn rows_of_every_number_and_length_around_a_batch_match_the_aes_crate() {
    let mut random = Random(197);
    for bytes in [16, 32] {
        let key: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
        let planes = AesPlanes::new(&key);
        // The layout of counters leaves room for the blocks of a pad, and for the slots.
        let counter = (u128::from(random.word()) << 64 | u128::from(random.word())) & !0xffff;
        let block = |slot: usize, at: usize| {
            reference(&key, (counter ^ (slot as u128) << 32) + 1 + at as u128)
        };
        let pads: Vec<Vec<u8>> =
            (0..64).map(|slot| (0..100).flat_map(|at| block(slot, at)).collect()).collect();
        for (name, path) in paths() {
            for count in [0, 1, 7, 8, 9, 63, 64] {
                for length in (0..2 * path.lanes() / 4 + 35).step_by(3).chain([1344, 1400]) {
                    for offset in [0, 1, 15, 16, 128] {
                        // Not all rows are as long as the longest.
                        let mut rows: Vec<Vec<u8>> =
                            (0..count).map(|slot| vec![0; length - length.min(slot % 3)]).collect();
                        let mut slices: Vec<_> = rows.iter_mut().map(Vec::as_mut_slice).collect();
                        path.write_aes_rows(&planes, counter + 1, offset, &mut slices);
                        for (row, pad) in rows.iter().zip(&pads) {
                            let expected = &pad[offset..offset + row.len()];
                            assert!(row == expected, "{name}: {count} rows, {offset}, {length}");
                        }
                    }
                }
            }
        }
    }
}

//! Computes pads with RustCrypto's code only, for the tests of this crate and of the pool.

use aes::{Aes128, Aes256};
use chacha20::ChaCha20;
use ctr::Ctr32BE;
use des::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher, StreamCipherSeek};
use des::{Des, TdesEde3};
use hkdf::Hkdf;
use keypadd_keystream::{Cipher, Mac, Protection, SuiteKey};
use proptest::prelude::*;
use rc2::Rc2;
use sha2::Sha256;

/// The largest payload that fits in a UDP datagram over IPv4.
pub(crate) const LONGEST: usize = 65_527;

fn expand(key: &[u8], info: &[&[u8]], bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    Hkdf::<Sha256>::from_prk(key).unwrap().expand(&info.concat(), &mut out).unwrap();
    out
}

/// The AES key derived from a suite's key.
pub(crate) fn aes_key(suite: Protection, key: &[u8], bytes: usize) -> Vec<u8> {
    if suite.is_of_tls() { key.to_vec() } else { expand(key, &[b"keypadd enc"], bytes) }
}

/// The subkey and the IV of a number's segment, for a cipher with 64-bit blocks.
pub(crate) fn subkey(key: &[u8], number: u64, bytes: usize) -> (Vec<u8>, u64) {
    let segment = (number / 64).to_be_bytes();
    let mut material = expand(key, &[b"keypadd sub", &segment, &[0]], bytes + 8);
    let iv = u64::from_be_bytes(material.split_off(bytes).try_into().unwrap());
    (material, iv) // parity bits do not change what DES computes
}

/// Bytes of GCM's keystream before a pad: the mask, where the MAC's key encrypts it on this CPU.
pub(crate) fn skipped_bytes(suite: Protection) -> usize {
    match suite.mac() {
        Mac::Ghash => {
            let keys = SuiteKey::derive(suite, &[0; 32][..suite.key_bytes()], &[0; 12]);
            16 - keys.mac.mask_bytes()
        }
        _ => 0,
    }
}

/// The first `length` bytes of a pad, computed the slow way: RustCrypto's `ctr` for AES, its
/// `chacha20`, block by block for DES, using nothing of the crate under test but the suite's
/// properties.
pub(crate) fn pad(
    suite: Protection,
    key: &[u8],
    iv: &[u8; 12],
    number: u64,
    length: usize,
) -> Vec<u8> {
    let mut counter = [iv.as_slice(), &1u32.to_be_bytes()].concat();
    for (byte, number) in counter[4..12].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    let skipped = skipped_bytes(suite);
    let mut pad = vec![0; skipped + length];
    match suite.cipher() {
        Cipher::Aes128 => Ctr32BE::<Aes128>::new_from_slices(&aes_key(suite, key, 16), &counter)
            .unwrap()
            .apply_keystream(&mut pad),
        Cipher::Aes256 => Ctr32BE::<Aes256>::new_from_slices(&aes_key(suite, key, 32), &counter)
            .unwrap()
            .apply_keystream(&mut pad),
        Cipher::ChaCha20 => {
            let mut cipher = ChaCha20::new_from_slices(key, &counter[..12]).unwrap();
            let (mask, payload) = pad.split_at_mut(length.min(32));
            cipher.apply_keystream(mask);
            cipher.seek(64_u32);
            cipher.apply_keystream(payload);
        }
        Cipher::Des => {
            let (key, iv) = subkey(key, number, 8);
            counter_mode_64(&Des::new_from_slice(&key).unwrap(), iv, number, &mut pad);
        }
        Cipher::TripleDes => {
            let (key, iv) = subkey(key, number, 24);
            counter_mode_64(&TdesEde3::new_from_slice(&key).unwrap(), iv, number, &mut pad);
        }
        // RC2 is the only one with keystream.
        Cipher::Measured(_) => {
            let (key, iv) = subkey(key, number, 5);
            counter_mode_64(&Rc2::new_with_eff_key_len(&key, 40), iv, number, &mut pad);
        }
    }
    pad.split_off(skipped)
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

/// Every suite that has pads.
pub(crate) fn with_pads() -> impl Iterator<Item = Protection> {
    Protection::all().filter(|suite| !suite.cipher().is_null())
}

/// Any packet number below 2^62, biased towards segment and word boundaries.
pub(crate) fn numbers() -> impl Strategy<Value = u64> {
    let borders = [0u64, 64, 1 << 16, 1 << 32, 1 << 33, 1 << 61, (1 << 62) - 2];
    let near = (prop::sample::select(borders.to_vec()), -2i64..=1)
        .prop_map(|(border, step)| border.saturating_add_signed(step));
    prop_oneof![near, 0..1u64 << 62, 0u64..200]
}

/// A suite and a key for it.
pub(crate) fn keyed() -> impl Strategy<Value = (Protection, Vec<u8>, [u8; 12])> {
    let suites = prop::sample::select(with_pads().collect::<Vec<_>>());
    (suites, any::<[u8; 32]>(), any::<[u8; 12]>())
        .prop_map(|(suite, key, iv)| (suite, key[..suite.key_bytes()].to_vec(), iv))
}

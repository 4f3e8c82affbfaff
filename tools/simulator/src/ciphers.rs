//! Implements packet protection independently, from `docs/protocol.md` and RFC 9001, on RustCrypto's
//! `ctr`, `aes-gcm`, `chacha20poly1305`, `des`, `hmac` and `hkdf`, for the auditor to check the
//! wire against.
//!
//! Knows keys, numbers and bytes; nothing of pools. Uses no code of `keypadd-keystream` but suite
//! names.

use std::collections::BTreeMap;

use aes::{Aes128, Aes256};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20::ChaCha20;
use chacha20poly1305::ChaCha20Poly1305;
use cipher::array::Array;
use cipher::{BlockCipherEncrypt, KeyIvInit, StreamCipher, StreamCipherSeek};
use ctr::Ctr32BE;
use des::{Des, TdesEde3};
use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use keypadd_keystream::{Cipher, Mac, Protection, Suite};
use sha1::Sha1;
use sha2::Sha256;

/// One key of one direction and phase.
pub(crate) struct PacketCipher {
    suite: Protection,
    /// TLS's key; in TLS's own suites also the cipher key.
    secret: Vec<u8>,
    iv: [u8; 12],
    encryption: Vec<u8>,
    mac: Vec<u8>,
    /// The subkeys of a cipher with 64-bit blocks, by segment.
    subkeys: BTreeMap<u64, Subkey>,
}

/// The key of one segment, and the IV that is XORed into its counters.
struct Subkey {
    key: Vec<u8>,
    iv: u64,
    engine: Engine,
}

enum Engine {
    Des(Box<Des>),
    TripleDes(Box<TdesEde3>),
}

/// Identifies one block of keystream by its inputs: the cipher key and the counter block.
pub(crate) struct BlockName<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) counter: [u8; 16],
}

impl PacketCipher {
    pub(crate) fn new(suite: Suite, secret: &[u8], iv: [u8; 12]) -> Self {
        let suite = suite.protection();
        let expand = |info: &[u8], bytes: usize| {
            let mut out = vec![0; bytes];
            let prk = Hkdf::<Sha256>::from_prk(secret).expect("32 bytes");
            prk.expand(info, &mut out).expect("short");
            out
        };
        let (encryption, mac) = match (suite.cipher(), suite.mac()) {
            (_, Mac::Ghash | Mac::Poly1305) => (secret.to_vec(), Vec::new()),
            (cipher, mac) => {
                let encryption = match cipher {
                    Cipher::Aes128 => expand(b"keypadd enc", 16),
                    Cipher::Aes256 => expand(b"keypadd enc", 32),
                    Cipher::Des | Cipher::TripleDes => Vec::new(),
                    Cipher::ChaCha20 | Cipher::Measured(_) => {
                        unreachable!("no such suite")
                    }
                };
                let bytes = if mac == Mac::HmacSha1 { 20 } else { 32 };
                (encryption, expand(b"keypadd mac", bytes))
            }
        };
        Self { suite, secret: secret.to_vec(), iv, encryption, mac, subkeys: BTreeMap::new() }
    }

    /// XORs the keystream of packet `number` over `data`, its whole payload.
    pub(crate) fn xor_keystream(&mut self, number: u64, data: &mut [u8]) {
        if let Cipher::Des | Cipher::TripleDes = self.suite.cipher() {
            let subkey = self.subkey(number / 64);
            for (index, chunk) in data.chunks_mut(8).enumerate() {
                let mut block = Array::from(short_counter(subkey.iv, number, index as u64));
                match &subkey.engine {
                    Engine::Des(des) => des.encrypt_block(&mut block),
                    Engine::TripleDes(des) => des.encrypt_block(&mut block),
                }
                chunk.iter_mut().zip(block).for_each(|(byte, pad)| *byte ^= pad);
            }
            return;
        }
        if self.suite.cipher() == Cipher::ChaCha20 {
            // The payload starts with block 1.
            chacha20(&self.secret, 1, &self.nonce(number), data);
            return;
        }
        let first = self.long_counter(number, u32::from(self.suite.mac() == Mac::Ghash));
        match self.encryption.len() {
            16 => Ctr32BE::<Aes128>::new_from_slices(&self.encryption, &first)
                .expect("lengths fit")
                .apply_keystream(data),
            _ => Ctr32BE::<Aes256>::new_from_slices(&self.encryption, &first)
                .expect("lengths fit")
                .apply_keystream(data),
        }
    }

    /// The tag over a ciphertext.
    pub(crate) fn tag(&mut self, number: u64, header: &[u8], ciphertext: &[u8]) -> [u8; 16] {
        let hmac_input =
            [&number.to_be_bytes()[..], &(header.len() as u64).to_be_bytes(), header, ciphertext];
        match self.suite.mac() {
            Mac::HmacSha1 => {
                let mut hmac = Hmac::<Sha1>::new_from_slice(&self.mac).expect("any length");
                hmac_input.iter().for_each(|part| hmac.update(part));
                first_16(&hmac.finalize().into_bytes())
            }
            Mac::HmacSha256 => {
                let mut hmac = Hmac::<Sha256>::new_from_slice(&self.mac).expect("any length");
                hmac_input.iter().for_each(|part| hmac.update(part));
                first_16(&hmac.finalize().into_bytes())
            }
            Mac::Measured(_) => unreachable!("no such suite"),
            Mac::Ghash | Mac::Poly1305 => {
                // The AEAD needs a plaintext: the one that encrypts to this ciphertext.
                let mut data = ciphertext.to_vec();
                self.xor_keystream(number, &mut data);
                let nonce = Array::from(self.nonce(number));
                let tag = match self.secret.len() {
                    _ if self.suite.mac() == Mac::Poly1305 => {
                        ChaCha20Poly1305::new_from_slice(&self.secret)
                            .expect("32 bytes")
                            .encrypt_inout_detached(&nonce, header, data.as_mut_slice().into())
                    }
                    16 => Aes128Gcm::new_from_slice(&self.secret)
                        .expect("16 bytes")
                        .encrypt_inout_detached(&nonce, header, data.as_mut_slice().into()),
                    _ => Aes256Gcm::new_from_slice(&self.secret)
                        .expect("32 bytes")
                        .encrypt_inout_detached(&nonce, header, data.as_mut_slice().into()),
                };
                assert_eq!(data, ciphertext, "the keystream and the AEAD disagree");
                first_16(&tag.expect("short"))
            }
        }
    }

    /// Every block of keystream that packet `number` uses, the MAC's mask included.
    pub(crate) fn each_block(
        &mut self,
        number: u64,
        payload_bytes: usize,
        mut visit: impl FnMut(BlockName<'_>),
    ) {
        if let Cipher::Des | Cipher::TripleDes = self.suite.cipher() {
            let subkey = self.subkey(number / 64);
            for index in 0..payload_bytes.div_ceil(8) as u64 {
                let mut counter = [0; 16];
                counter[..8].copy_from_slice(&short_counter(subkey.iv, number, index));
                visit(BlockName { key: &subkey.key, counter });
            }
            return;
        }
        let (mask, block_bytes) = match self.suite.mac() {
            Mac::Poly1305 => (1, 64),
            Mac::Ghash => (1, 16),
            _ => (0, 16),
        };
        for index in 0..payload_bytes.div_ceil(block_bytes) as u32 + mask {
            visit(BlockName { key: &self.encryption, counter: self.long_counter(number, index) });
        }
    }

    /// RFC 9001 section 5.3.
    fn nonce(&self, number: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    fn long_counter(&self, number: u64, index: u32) -> [u8; 16] {
        let mut counter = [0; 16];
        counter[..12].copy_from_slice(&self.nonce(number));
        counter[12..].copy_from_slice(&(1 + index).to_be_bytes());
        counter
    }

    fn subkey(&mut self, segment: u64) -> &Subkey {
        // Old segments are rarely needed again; bound the memory of their subkeys.
        while self.subkeys.len() > 64 {
            self.subkeys.pop_first();
        }
        let (suite, secret) = (self.suite, &self.secret);
        self.subkeys.entry(segment).or_insert_with(|| Subkey::derive(suite, secret, segment))
    }
}

impl Subkey {
    fn derive(suite: Protection, secret: &[u8], segment: u64) -> Self {
        let key_bytes = if suite.cipher() == Cipher::Des { 8 } else { 24 };
        let prk = Hkdf::<Sha256>::from_prk(secret).expect("32 bytes");
        for retry in 0..=u8::MAX {
            let info = [b"keypadd sub".as_slice(), &segment.to_be_bytes(), &[retry]].concat();
            let mut okm = vec![0; key_bytes + 8];
            prk.expand(&info, &mut okm).expect("short");
            let iv = u64::from_be_bytes(okm.split_off(key_bytes).try_into().expect("8 bytes"));
            for byte in &mut okm {
                *byte = (*byte & 0xfe) | u8::from((*byte >> 1).count_ones() % 2 == 0);
            }
            if okm.chunks(8).any(|key| des::weak_key_test(key).is_err())
                || (key_bytes == 24 && (okm[..8] == okm[8..16] || okm[8..16] == okm[16..]))
                || (key_bytes == 24 && okm[..8] == okm[16..])
            {
                continue;
            }
            let engine = match suite.cipher() {
                Cipher::Des => Engine::Des(Box::new(Des::new_from_slice(&okm).expect("8 bytes"))),
                _ => {
                    let engine = TdesEde3::new_from_slice(&okm).expect("24 bytes");
                    Engine::TripleDes(Box::new(engine))
                }
            };
            return Self { key: okm, iv, engine };
        }
        unreachable!("256 weak keys in a row")
    }
}

fn short_counter(iv: u64, number: u64, index: u64) -> [u8; 8] {
    (iv ^ ((number & 63) << 13 | index)).to_be_bytes()
}

fn first_16(bytes: &[u8]) -> [u8; 16] {
    bytes[..16].try_into().expect("at least 16 bytes")
}

/// XORs the keystream of ChaCha20 (RFC 8439 section 2.4) from a block on over `data`.
fn chacha20(key: &[u8], block: u32, nonce: &[u8; 12], data: &mut [u8]) {
    let mut cipher = ChaCha20::new_from_slices(key, nonce).expect("lengths fit");
    cipher.seek(u64::from(block) * 64);
    cipher.apply_keystream(data);
}

/// The mask of header protection: keystream at the sample (RFC 9001 section 5.4.4), or one AES
/// block of it (section 5.4.3).
pub(crate) fn header_mask(suite: Suite, key: &[u8], sample: &[u8]) -> [u8; 16] {
    if suite == Suite::CHACHA20_POLY1305 {
        let (block, nonce) = sample.split_first_chunk().expect("16 bytes");
        let mut mask = [0; 16];
        let nonce = nonce.try_into().expect("the other 12");
        chacha20(key, u32::from_le_bytes(*block), nonce, &mut mask);
        return mask;
    }
    let mut block = Array::from(first_16(sample));
    match key.len() {
        16 => Aes128::new_from_slice(key).expect("16 bytes").encrypt_block(&mut block),
        _ => Aes256::new_from_slice(key).expect("32 bytes").encrypt_block(&mut block),
    }
    block.into()
}

//! AES in counter mode, for GCM and for RFC 3686's layout, which are one and the same.
//!
//! Block `j` of packet `pn` is `E(iv xor pn || be32(1 + j))`: in GCM with a 96-bit nonce block 0 is
//! the mask of the tag and the payload starts with block 1 (SP 800-38D 7.1); without GCM the
//! payload starts with block 0, whose counter is 1 (RFC 3686 4).

use crate::counter;
use crate::number::PacketNumber;
use aes::{Aes128Enc, Aes256Enc};
use cipher::array::Array;
use cipher::consts::U16;
use cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::Zeroize;

/// An AES key schedule of either length.
pub(crate) enum Aes {
    Aes128(Aes128Enc),
    Aes256(Aes256Enc),
}

impl Aes {
    pub(crate) fn new_128(key: &[u8; 16]) -> Self {
        Self::Aes128(Aes128Enc::new(key.into()))
    }

    pub(crate) fn new_256(key: &[u8; 32]) -> Self {
        Self::Aes256(Aes256Enc::new(key.into()))
    }

    pub(crate) fn encrypt_block(&self, block: &mut Array<u8, U16>) {
        match self {
            Self::Aes128(aes) => aes.encrypt_block(block),
            Self::Aes256(aes) => aes.encrypt_block(block),
        }
    }
}

/// The keystream of one AES key and one IV.
pub(crate) struct AesCtr {
    aes: Aes,
    /// The 96-bit IV in the upper bits of a counter block, the counter's 32 bits zero.
    iv: u128,
}

impl AesCtr {
    pub(crate) fn new(aes: Aes, iv: &[u8; 12]) -> Self {
        let mut block = [0; 16];
        block[..12].copy_from_slice(iv);
        Self { aes, iv: u128::from_be_bytes(block) }
    }

    pub(crate) fn write(&self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        // The packet number as 96 bits is XORed on the IV (RFC 9001 5.3); counters start at 1.
        let first = (self.iv ^ (u128::from(packet.value()) << 32)) | 1;
        // No carry into the nonce: a pad's length keeps the counter far below 2^32.
        let counter = |block: u64| (first + u128::from(block)).to_be_bytes().into();
        match &self.aes {
            Aes::Aes128(aes) => counter::write_range(aes, offset, out, counter),
            Aes::Aes256(aes) => counter::write_range(aes, offset, out, counter),
        }
    }
}

impl Drop for AesCtr {
    fn drop(&mut self) {
        self.iv.zeroize(); // the key schedule wipes itself
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    const ECB_128: [&str; 2] = [
        include_str!("../tests/vectors/cavp_aes_128.txt"),
        include_str!("../tests/vectors/nessie_aes_128.txt"),
    ];
    const ECB_256: [&str; 2] = [
        include_str!("../tests/vectors/cavp_aes_256.txt"),
        include_str!("../tests/vectors/nessie_aes_256.txt"),
    ];

    fn aes(key: &[u8]) -> Aes {
        match key.try_into() {
            Ok(key) => Aes::new_128(key),
            Err(_) => Aes::new_256(key.try_into().unwrap()),
        }
    }

    /// The keystream from a whole counter block on, by the way packets take: the block's first 96
    /// bits are the IV, its last 32 the place in the pad, which starts at 1.
    fn keystream(key: &[u8], counter: &[u8; 16], bytes: usize) -> Option<Vec<u8>> {
        let (iv, count) = counter.split_first_chunk().unwrap();
        let block = u32::from_be_bytes(count.try_into().unwrap()).checked_sub(1)?;
        let mut out = vec![0; bytes];
        AesCtr::new(aes(key), iv).write(PacketNumber::new(0), block as usize * 16, &mut out);
        Some(out)
    }

    #[test]
    fn nist_and_nessie_blocks_are_encrypted_as_published() {
        let sp800_38a = include_str!("../tests/vectors/sp800_38a_ecb.txt");
        let mut as_counters = 0;
        for text in [&ECB_128[..], &ECB_256[..], &[sp800_38a]].concat() {
            for [key, plaintext, ciphertext] in vectors::rows(text) {
                let plaintext: [u8; 16] = plaintext.try_into().unwrap();
                let mut block = plaintext.into();
                aes(&key).encrypt_block(&mut block);
                assert_eq!(block[..], ciphertext[..]);
                if let Some(pad) = keystream(&key, &plaintext, 16) {
                    assert_eq!(pad, ciphertext);
                    as_counters += 1;
                }
            }
        }
        assert!(as_counters > 1900, "{as_counters} blocks could be reached as counters");
    }

    #[test]
    fn sp_800_38a_and_rfc_3686_keystreams_are_reproduced() {
        let sp800_38a = include_str!("../tests/vectors/sp800_38a_ctr.txt");
        let rfc3686 = include_str!("../tests/vectors/rfc3686.txt");
        for text in [sp800_38a, rfc3686] {
            for case in vectors::blocks(text) {
                let mut message = case.bytes("plaintext");
                let pad = keystream(&case.bytes("key"), &case.array("counter"), message.len());
                for (byte, pad) in message.iter_mut().zip(pad.unwrap()) {
                    *byte ^= pad;
                }
                assert_eq!(message, case.bytes("ciphertext"));
            }
        }
    }
}

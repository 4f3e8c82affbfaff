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
        Self {
            aes,
            iv: u128::from_be_bytes(block),
        }
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

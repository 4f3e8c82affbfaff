//! Runs AES in counter mode, in the layout that GCM and RFC 3686 share.
//!
//! Block `j` of packet `pn` is `E(iv xor pn || be32(1 + j))`: in GCM with a 96-bit nonce block 0 is
//! the mask of the tag and the payload starts with block 1 (SP 800-38D 7.1); without GCM the
//! payload starts with block 0, whose counter is 1 (RFC 3686 4).

use crate::backend::{CipherEngine, has_aes};
use crate::bitslice::{AesPlanes, Path};
use crate::counter;
use crate::number::{PacketNumber, SEGMENT_PACKETS, Segment};
use aes::{Aes128Enc, Aes256Enc};
use cipher::array::Array;
use cipher::consts::U16;
use cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::{Zeroize, zeroize_stack};

/// Upper bound on the stack that a wide AES uses below [`AesCtr::write`]: 3.6 KiB in optimized
/// builds, mostly round keys 64 bytes wide. It is wiped because a value built on the stack later
/// may carry leftovers along when it moves to the heap.
const AES_STACK_BYTES: usize = if cfg!(debug_assertions) { 8192 } else { 4096 };
/// Upper bound on that below [`AesCtr::write_rows`], which has a batch of blocks besides: 5.2 KiB.
const ROWS_STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 6144 };

/// An AES key schedule of either length.
pub(crate) enum Aes {
    Aes128(Aes128Enc),
    Aes256(Aes256Enc),
}

impl Aes {
    /// AES-128 with 16 bytes of key, AES-256 with 32.
    pub(crate) fn new(key: &[u8]) -> Self {
        match key.len() {
            16 => Self::Aes128(Aes128Enc::new_from_slice(key).expect("16 bytes")),
            _ => Self::Aes256(Aes256Enc::new_from_slice(key).expect("32 bytes")),
        }
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
    /// Generates chunks on CPUs without AES instructions.
    bitslice: Option<(Path, AesPlanes)>,
    /// The 96-bit IV in the upper bits of a counter block; the 32 counter bits are zero.
    iv: u128,
}

impl AesCtr {
    /// AES-128 with 16 bytes of key, AES-256 with 32; the IV comes from TLS.
    pub(crate) fn new(key: &[u8], iv: &[u8; 12], engine: CipherEngine) -> Self {
        let mut block = [0; 16];
        block[..12].copy_from_slice(iv);
        let bitslice = engine.aes_path().map(|path| (path, AesPlanes::new(key)));
        Self { aes: Aes::new(key), bitslice, iv: u128::from_be_bytes(block) }
    }

    pub(crate) fn uses_aes_instructions(&self) -> bool {
        self.bitslice.is_none() && has_aes()
    }

    /// The counter of a packet's block 0: the number as 96 bits is XORed into the IV (RFC 9001
    /// 5.3); counters start at 1.
    fn first_counter(&self, packet: PacketNumber) -> u128 {
        (self.iv ^ (u128::from(packet.value()) << 32)) | 1
    }

    /// Writes the pads of a segment's packets in slots 0, 1 and so on, from byte `offset` on. Never
    /// inlined, so that the wipe below reaches everything that encryption left on the stack.
    #[inline(never)]
    pub(crate) fn write_rows(&self, segment: Segment, offset: usize, rows: &mut [&mut [u8]]) {
        match &self.bitslice {
            // A batch covers all slots and costs as much as half of them one by one.
            Some((path, key)) if rows.len() > SEGMENT_PACKETS / 2 => {
                path.write_aes_rows(key, self.first_counter(segment.packet(0)), offset, rows);
            }
            _ => self.encrypt_rows(segment, offset, rows),
        }
        zeroize_stack::<ROWS_STACK_BYTES>();
    }

    /// Writes part of one packet's pad. Never inlined, like [`Self::write_rows`].
    #[inline(never)]
    pub(crate) fn write(&self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        self.encrypt_counters(packet, offset, out);
        zeroize_stack::<AES_STACK_BYTES>();
    }

    /// A packet's block 0, the mask of GCM's tag. The caller wipes its stack.
    #[inline]
    pub(crate) fn block_0(&self, packet: PacketNumber) -> [u8; 16] {
        self.encrypted(self.first_counter(packet).to_be_bytes())
    }

    /// One block, by itself: a wide AES takes twenty times as long to spread its round keys.
    #[inline]
    pub(crate) fn encrypted(&self, block: [u8; 16]) -> [u8; 16] {
        let mut block = block.into();
        self.aes.encrypt_block(&mut block);
        block.into()
    }

    /// Has its own stack frame, so that the caller can wipe what a wide AES leaves there.
    #[inline(never)]
    fn encrypt_rows(&self, segment: Segment, offset: usize, rows: &mut [&mut [u8]]) {
        let counter = |slot: usize, block: u64| {
            counter_block(self.first_counter(segment.packet(slot)), block)
        };
        match &self.aes {
            Aes::Aes128(aes) => counter::write_rows(aes, offset, rows, counter),
            Aes::Aes256(aes) => counter::write_rows(aes, offset, rows, counter),
        }
    }

    /// Has its own stack frame, like [`Self::encrypt_rows`].
    #[inline(never)]
    fn encrypt_counters(&self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        let first = self.first_counter(packet);
        let counter = |block: u64| counter_block(first, block);
        match &self.aes {
            Aes::Aes128(aes) => counter::write_range(aes, offset, out, counter),
            Aes::Aes256(aes) => counter::write_range(aes, offset, out, counter),
        }
    }
}

/// The counter block this many after a packet's first. Cannot carry into the nonce: pads are short
/// enough to keep the counter far below 2^32.
#[inline(always)]
fn counter_block(first: u128, block: u64) -> Array<u8, U16> {
    let nonce_end_and_counter = first as u64 + block;
    (first >> 64 << 64 | u128::from(nonce_end_and_counter)).to_be_bytes().into()
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

    /// The keystream from a whole counter block on, through the packet path: the block's first 96
    /// bits are the IV, its last 32 the block's position in the pad, counted from 1.
    fn keystream(key: &[u8], counter: &[u8; 16], bytes: usize) -> Option<Vec<u8>> {
        let (iv, count) = counter.split_first_chunk().unwrap();
        let block = u32::from_be_bytes(count.try_into().unwrap()).checked_sub(1)?;
        let mut out = vec![0; bytes];
        AesCtr::new(key, iv, CipherEngine::default()).write(
            PacketNumber::new(0),
            block as usize * 16,
            &mut out,
        );
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
                Aes::new(&key).encrypt_block(&mut block);
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
    fn sp_800_38a_rfc_3686_and_acvp_keystreams_are_reproduced() {
        let sp800_38a = include_str!("../tests/vectors/sp800_38a_ctr.txt");
        let rfc3686 = include_str!("../tests/vectors/rfc3686.txt");
        let acvp = include_str!("../tests/vectors/acvp_aes_ctr.txt");
        assert_eq!(vectors::blocks(acvp).len(), 65);
        for text in [sp800_38a, rfc3686, acvp] {
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

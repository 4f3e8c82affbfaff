//! Generates ChaCha20 keystream in the layout of ChaCha20-Poly1305 (RFC 8439 2.8).
//!
//! The nonce of packet `pn` is `iv xor pn` (RFC 9001 5.3). The first half of block 0 is Poly1305's
//! key, and the mask of the pad; its second half is unused. The payload starts with block 1.

use crate::counter::{copy_overlap, wipe};
use crate::number::{PacketNumber, Segment};
use crate::prefetch::prefetch;
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R20};
use cipher::array::{Array, typenum::Unsigned};
use cipher::consts::U64;
use cipher::{
    BlockSizeUser, KeyIvInit, ParBlocks, StreamCipherBackend, StreamCipherClosure, StreamCipherCore,
};
use zeroize::{Zeroize, ZeroizeOnDrop, zeroize_stack};

/// Bytes of a block.
const BLOCK_BYTES: usize = 64;

/// Bytes of block 0 that belong to the pad.
const MASK_BYTES: usize = 32;

/// Upper bound on the stack used below [`ChaCha::write`]: the states and blocks of up to 16 blocks
/// generated at a time, and their copies.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 4096 };

/// The keystream of one ChaCha20 key and one IV. Boxed, because a value that moves leaves a copy
/// behind.
pub(crate) struct ChaCha(Box<Secret>);

#[derive(Zeroize, ZeroizeOnDrop)]
struct Secret {
    key: [u8; 32],
    iv: [u8; 12],
}

impl ChaCha {
    /// Key and IV as TLS provides them.
    pub(crate) fn new(key: &[u8; 32], iv: &[u8; 12]) -> Self {
        Self(Box::new(Secret { key: *key, iv: *iv }))
    }

    /// Writes the pads of a segment's packets in slots 0, 1 and so on, from byte `offset` on. Never
    /// inlined, so that the wipe below reaches everything that generation left on the stack.
    #[inline(never)]
    pub(crate) fn write_rows(&self, segment: Segment, offset: usize, rows: &mut [&mut [u8]]) {
        for slot in 0..rows.len() {
            // The memory of a pool is in no cache, or in that of the core that used it last.
            if let Some(next) = rows.get(slot + 1) {
                prefetch(next);
            }
            self.generate(segment.packet(slot), offset, rows[slot]);
        }
        zeroize_stack::<STACK_BYTES>();
    }

    /// Writes part of one packet's pad. Never inlined, like [`Self::write_rows`].
    #[inline(never)]
    pub(crate) fn write(&self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        self.generate(packet, offset, out);
        zeroize_stack::<STACK_BYTES>();
    }

    /// Has its own stack frame, so that the caller can wipe it.
    #[inline(never)]
    fn generate(&self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        let Secret { key, iv } = &*self.0;
        let mut nonce = *iv;
        for (byte, number) in nonce[4..].iter_mut().zip(packet.value().to_be_bytes()) {
            *byte ^= number;
        }
        let mut core = ChaChaCore::<R20, Ietf>::new(key.into(), &nonce.into());
        // All blocks but the first lie half a block earlier in the pad than in the keystream.
        let first = if offset < MASK_BYTES { 0 } else { (offset + MASK_BYTES) / BLOCK_BYTES };
        core.set_block_pos(first as u32);
        core.process_with_backend(Range { first, offset, out });
    }
}

/// The whole range as one job for the backend, which generates as many blocks at a time as it
/// likes.
struct Range<'a> {
    /// The block that contains byte `offset` of the pad.
    first: usize,
    offset: usize,
    out: &'a mut [u8],
}

impl BlockSizeUser for Range<'_> {
    type BlockSize = U64;
}

impl StreamCipherClosure for Range<'_> {
    #[inline(always)]
    fn call<B: StreamCipherBackend<BlockSize = U64>>(self, backend: &mut B) {
        let Self { first: mut block, offset, out } = self;
        let end = offset + out.len();
        let mut group = ParBlocks::<B>::default();
        loop {
            let at = (block * BLOCK_BYTES).saturating_sub(MASK_BYTES);
            if at >= end {
                break;
            }
            backend.gen_par_ks_blocks(&mut group);
            let bytes = Array::slice_as_flattened(&group);
            if block == 0 {
                let (mask, payload) = (&bytes[..MASK_BYTES], &bytes[BLOCK_BYTES..]);
                copy_overlap(mask, 0, offset, out);
                if end > MASK_BYTES {
                    copy_overlap(payload, MASK_BYTES, offset, out);
                }
            } else {
                copy_overlap(bytes, at, offset, out);
            }
            block += B::ParBlocksSize::USIZE;
        }
        wipe(Array::slice_as_flattened_mut(&mut group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn rfc_8439_keystreams_are_reproduced_from_any_byte_on() {
        let cases = vectors::blocks(include_str!("../tests/vectors/rfc8439_keystream.txt"));
        assert_eq!(cases.len(), 2);
        for case in cases {
            let chacha = ChaCha::new(&case.array("key"), &case.array("nonce"));
            let (plaintext, offset) = (case.bytes("plaintext"), case.parsed::<usize>("offset"));
            for from in 0..plaintext.len() {
                let mut pad = vec![0xa5; plaintext.len() - from];
                chacha.write(PacketNumber::new(0), offset + from, &mut pad);
                let sealed: Vec<u8> =
                    plaintext[from..].iter().zip(pad).map(|(byte, pad)| byte ^ pad).collect();
                assert_eq!(sealed, case.bytes("ciphertext")[from..], "from {from}");
            }
        }
    }
}

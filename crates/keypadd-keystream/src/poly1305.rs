//! Computes Poly1305 of a packet (RFC 8439 2.5, 2.8), which takes a new key with every packet.
//!
//! The `poly1305` crate takes over a microsecond to set up a key on x86-64, longer than sealing a
//! packet, so this is Horner's rule in 64-bit words, one block at a time, and where a packet is
//! long and the CPU has the instructions, eight. Constant-time: no branch and no address depends on
//! key or data. Knows neither keystream nor packet numbers.

#[cfg(target_arch = "x86_64")]
mod ifma;

/// Bytes of a one-time key.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes of a block.
const BLOCK_BYTES: usize = 16;

type Block = [u8; BLOCK_BYTES];

/// The shortest ciphertext that is worth the powers of the multiplier.
const VECTOR_BYTES_MIN: usize = 384;

/// How long messages are absorbed; a value proves that this CPU has the instructions.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    /// A block at a time.
    Words,
    #[cfg(target_arch = "x86_64")]
    Ifma(ifma::HasIfma),
}

impl Path {
    #[cfg(target_arch = "x86_64")]
    fn ifma() -> Option<Self> {
        ifma::HasIfma::detect().map(Self::Ifma)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ifma() -> Option<Self> {
        None
    }

    /// The fastest on this CPU.
    pub(crate) fn fastest() -> Self {
        Self::ifma().unwrap_or(Self::Words)
    }

    /// The tag of `header || ciphertext`, both zero-padded to whole blocks, and their lengths (RFC
    /// 8439 2.8). Has its own stack frame, so that the caller can wipe it, and its own registers.
    #[inline(never)]
    pub(crate) fn tag(self, key: &[u8; KEY_BYTES], header: &[u8], ciphertext: &[u8]) -> [u8; 16] {
        let path = if ciphertext.len() < VECTOR_BYTES_MIN { Self::Words } else { self };
        path.tag_of_any_length(key, header, ciphertext)
    }

    #[inline(always)]
    fn tag_of_any_length(
        self,
        key: &[u8; KEY_BYTES],
        header: &[u8],
        ciphertext: &[u8],
    ) -> [u8; 16] {
        let mut lengths = [0; BLOCK_BYTES];
        lengths[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(ciphertext.len() as u64).to_le_bytes());
        let (multiplier, pad) = key.split_first_chunk().expect("16 of 32 bytes");
        let mut state = Accumulator::new(multiplier);
        state.absorb(header);
        self.absorb(&mut state, ciphertext);
        state.absorb(&lengths);
        state.finish(pad.try_into().expect("the other 16"))
    }

    /// Absorbs a message, zero-padded to whole blocks.
    #[inline(always)]
    fn absorb(self, state: &mut Accumulator, message: &[u8]) {
        match self {
            Self::Words => state.absorb(message),
            #[cfg(target_arch = "x86_64")]
            Self::Ifma(proof) => {
                let (blocks, rest) = message.as_chunks();
                let (first, groups) = blocks.as_rchunks();
                first.iter().for_each(|block| state.absorb_block(block));
                proof.absorb(state, groups);
                state.absorb(rest);
            }
        }
    }
}

/// The accumulator and the multiplier, in 64-bit words.
struct Accumulator {
    /// Below 2^130 plus a little.
    h: [u64; 3],
    /// Clamped.
    r: [u64; 2],
}

impl Accumulator {
    /// Clamps the multiplier (RFC 8439 2.5.1).
    fn new(r: &[u8; 16]) -> Self {
        let [low, high] = words(r);
        Self { h: [0; 3], r: [low & 0x0fff_fffc_0fff_ffff, high & 0x0fff_fffc_0fff_fffc] }
    }

    /// Absorbs a message, zero-padded to whole blocks.
    #[inline(always)]
    fn absorb(&mut self, message: &[u8]) {
        let (blocks, rest) = message.as_chunks();
        for block in blocks {
            self.absorb_block(block);
        }
        if !rest.is_empty() {
            let mut block = [0; BLOCK_BYTES];
            block[..rest.len()].copy_from_slice(rest);
            self.absorb_block(&block);
        }
    }

    /// Absorbs a whole block, with 2^128 added.
    #[inline(always)]
    fn absorb_block(&mut self, block: &Block) {
        self.absorb_number(words(block), 1);
    }

    /// `h = (h + number) * r`, partly reduced; `top` is the number's multiple of 2^128.
    #[inline(always)]
    fn absorb_number(&mut self, [low, high]: [u64; 2], top: u64) {
        let [r0, r1] = self.r;
        let (h0, carry) = self.h[0].overflowing_add(low);
        let (h1, carried) = self.h[1].overflowing_add(high);
        let (h1, again) = h1.overflowing_add(u64::from(carry));
        let h2 = self.h[2] + top + u64::from(carried | again);

        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        // 2^130 = 5, and the clamped r1 is a multiple of 4: r1 * 2^128 = r1 / 4 * 5.
        let r1_folded = r1 + (r1 >> 2);
        let d0 = product(h0, r0) + product(h1, r1_folded);
        let d1 = product(h0, r1) + product(h1, r0) + u128::from(h2 * r1_folded) + (d0 >> 64);
        let d2 = h2 * r0 + (d1 >> 64) as u64;
        self.h = [d0 as u64, d1 as u64, d2];
        self.fold();
    }

    /// Brings what is above 2^130 back down, five times.
    #[inline(always)]
    fn fold(&mut self) {
        let [h0, h1, h2] = self.h;
        let (h0, carry) = h0.overflowing_add((h2 >> 2) * 5);
        let (h1, carry) = h1.overflowing_add(u64::from(carry));
        self.h = [h0, h1, (h2 & 3) + u64::from(carry)];
    }

    /// `h mod 2^130 - 5`, plus the pad modulo 2^128.
    #[inline(always)]
    fn finish(self, pad: &[u8; 16]) -> [u8; 16] {
        let [h0, h1, h2] = self.h;
        let h = u128::from(h1) << 64 | u128::from(h0);
        let (less, carry) = h.overflowing_add(5);
        // All ones if h is at least 2^130 - 5.
        let is_over = 0_u128.wrapping_sub(u128::from((h2 + u64::from(carry)) >> 2));
        let h = (h & !is_over) | (less & is_over);
        h.wrapping_add(u128::from_le_bytes(*pad)).to_le_bytes()
    }
}

/// The little-endian words of a block.
#[inline(always)]
fn words(block: &[u8; 16]) -> [u64; 2] {
    let block = u128::from_le_bytes(*block);
    [block as u64, (block >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;
    use poly1305::Poly1305;
    use poly1305::universal_hash::{KeyInit, UniversalHash};
    use proptest::prelude::*;

    /// Every path that this CPU has.
    fn paths() -> Vec<(&'static str, Path)> {
        let paths = [("words", Some(Path::Words)), ("IFMA", Path::ifma())];
        paths.into_iter().filter_map(|(name, path)| Some((name, path?))).collect()
    }

    /// As [`Path::tag`], by the `poly1305` crate.
    fn independent(key: &[u8; KEY_BYTES], header: &[u8], ciphertext: &[u8]) -> [u8; 16] {
        let lengths = [header.len(), ciphertext.len()].map(|bytes| (bytes as u64).to_le_bytes());
        let mut state = Poly1305::new(&(*key).into());
        state.update_padded(header);
        state.update_padded(ciphertext);
        state.update_padded(&lengths.concat());
        state.finalize().into()
    }

    /// Compares every path with the `poly1305` crate.
    fn check(key: &[u8; KEY_BYTES], header: &[u8], ciphertext: &[u8]) {
        let expected = independent(key, header, ciphertext);
        let lengths = [header.len(), ciphertext.len()];
        for (name, path) in paths() {
            let tag = path.tag_of_any_length(key, header, ciphertext);
            assert_eq!(tag, expected, "{name}, {lengths:?} bytes, key {key:02x?}");
            assert_eq!(path.tag(key, header, ciphertext), expected, "{name}, {lengths:?} bytes");
        }
    }

    proptest! {
        #[test]
        fn tags_are_those_of_an_independent_poly1305(
            key in any::<[u8; 32]>(),
            header in prop::collection::vec(any::<u8>(), 0..50),
            ciphertext in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            check(&key, &header, &ciphertext);
        }
    }

    #[test]
    fn tags_of_every_length_are_those_of_an_independent_poly1305() {
        let key = std::array::from_fn(|at| (at * 7 + 3) as u8);
        let bytes: Vec<u8> = (0..650_usize).map(|at| ((at * at) >> 3) as u8).collect();
        for length in 0..bytes.len() {
            check(&key, &bytes[..length % 47], &bytes[..length]);
        }
    }

    /// Words of ones and multipliers at their limits expose wrong carries.
    #[test]
    fn extreme_words_carry_as_they_must() {
        for multiplier in [0x00, 0x01, 0x0f, 0xfc, 0xff] {
            for byte in [0x00, 0x01, 0x7f, 0xfb, 0xff] {
                for bytes in [0, 1, 15, 16, 17, 127, 128, 256, 383, 384, 512, 513, 1400, 9000] {
                    let mut key = [multiplier; KEY_BYTES];
                    key[16..].fill(byte);
                    check(&key, &vec![byte; bytes % 47], &vec![byte; bytes]);
                }
            }
        }
    }

    /// Tests the bare function: its messages are not padded, so their last block ends with a one.
    #[test]
    fn rfc_8439_tags_are_reproduced() {
        let text = include_str!("../tests/vectors/rfc8439_poly1305.txt");
        let cases = vectors::blocks(text);
        assert_eq!(cases.len(), 12);
        for case in cases {
            let (key, message): ([u8; KEY_BYTES], _) = (case.array("key"), case.bytes("message"));
            let (multiplier, pad) = key.split_first_chunk().unwrap();
            let whole = message.len() - message.len() % BLOCK_BYTES;
            let (blocks, rest) = message.split_at(whole);
            for (name, path) in paths() {
                let mut state = Accumulator::new(multiplier);
                path.absorb(&mut state, blocks);
                if !rest.is_empty() {
                    let mut block = [0; BLOCK_BYTES];
                    block[..rest.len()].copy_from_slice(rest);
                    block[rest.len()] = 1;
                    state.absorb_number(words(&block), 0);
                }
                assert_eq!(state.finish(pad.try_into().unwrap())[..], case.bytes("tag"), "{name}");
            }
        }
    }
}

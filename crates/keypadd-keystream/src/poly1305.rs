//! Computes Poly1305 of a packet (RFC 8439 2.5, 2.8), which takes a new key with every packet.
//!
//! The `poly1305` crate takes over a microsecond for a key on x86-64, longer than sealing a packet
//! does. This is Horner's rule twice: one block at a time in 64-bit words, and over [`Lanes`], as many
//! blocks at a time as a vector has words, for packets that are long enough to repay the powers of the
//! key that this needs. Constant-time: no branch and no address depends on key or data. Knows neither
//! keystream nor packet numbers.

use crate::bitslice::{Job, Lanes, Path};
use zeroize::zeroize_stack;

/// Bytes of a one-time key.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes of a block.
const BLOCK_BYTES: usize = 16;

/// Bits of a limb of the vector arithmetic: a product of limbs, five times that and sums of those stay
/// below 2^64.
const LIMB_BITS: u32 = 26;
const LIMB_MASK: u64 = (1 << LIMB_BITS) - 1;

/// Words of a vector from which it is faster than 64-bit multiplication.
const WORDS_MIN: usize = 4;

/// Bytes of ciphertext from which a vector of so many words repays its powers.
const WIDE_BYTES_MIN: usize = 512;

/// Upper bound on the stack that a vector job uses.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 32 << 10 } else { 4096 };

/// The tag of `header || ciphertext`, both zero-padded to whole blocks, and their lengths (RFC 8439
/// 2.8). `path` is the widest vector to use.
pub(crate) fn tag(
    path: Option<Path>,
    key: &[u8; KEY_BYTES],
    header: &[u8],
    ciphertext: &[u8],
) -> [u8; 16] {
    let mut lengths = [0; BLOCK_BYTES];
    lengths[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
    lengths[8..].copy_from_slice(&(ciphertext.len() as u64).to_le_bytes());
    let (multiplier, pad) = key.split_first_chunk().expect("16 of 32 bytes");
    let mut state = State::new(multiplier);
    state.absorb(header);
    let rest = match path.filter(|path| path.words() >= WORDS_MIN) {
        Some(path) if ciphertext.len() >= WIDE_BYTES_MIN => state.absorb_wide(path, ciphertext),
        _ => ciphertext,
    };
    state.absorb(rest);
    state.absorb(&lengths);
    state.finish(pad.try_into().expect("the other 16"))
}

/// The accumulator and the multiplier, in 64-bit words.
struct State {
    /// Below 2^130 plus a little.
    h: [u64; 3],
    /// Clamped.
    r: [u64; 2],
}

impl State {
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
    fn absorb_block(&mut self, block: &[u8; BLOCK_BYTES]) {
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

    /// Absorbs as many whole blocks as fill vectors; returns the rest of the message.
    fn absorb_wide<'a>(&mut self, path: Path, message: &'a [u8]) -> &'a [u8] {
        let whole = message.len() - message.len() % (path.words() * BLOCK_BYTES);
        let (message, rest) = message.split_at(whole);
        if message.is_empty() {
            return rest;
        }
        path.run_in_frame(Wide { state: self, message });
        zeroize_stack::<STACK_BYTES>();
        rest
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

    /// The accumulator in limbs.
    fn limbs(&self) -> [u64; 5] {
        let [h0, h1, h2] = self.h;
        let mut limbs = limbs(h0, h1);
        limbs[4] |= h2 << 24;
        limbs
    }

    /// Sets the accumulator from limbs below 2^32.
    fn set_limbs(&mut self, limbs: [u64; 5]) {
        let [l0, l1, l2, l3, l4] = limbs.map(u128::from);
        let low = l0 + (l1 << 26) + (l2 << 52);
        let high = (low >> 64) + (l3 << 14) + (l4 << 40);
        self.h = [low as u64, high as u64, (high >> 64) as u64];
        self.fold();
    }
}

/// The little-endian words of a block.
#[inline(always)]
fn words(block: &[u8; 16]) -> [u64; 2] {
    let block = u128::from_le_bytes(*block);
    [block as u64, (block >> 64) as u64]
}

/// The limbs of a number of 128 bits.
#[inline(always)]
fn limbs(low: u64, high: u64) -> [u64; 5] {
    [
        low & LIMB_MASK,
        (low >> 26) & LIMB_MASK,
        (low >> 52 | high << 12) & LIMB_MASK,
        (high >> 14) & LIMB_MASK,
        high >> 40,
    ]
}

/// Blocks that fill whole vectors, at least one. Word `i` of a vector of `W` sums up blocks `i`, `i + W` and so on, each
/// step multiplied by `r^W`; in the end it is multiplied by `r^(W - i)`, and the words are added.
struct Wide<'a> {
    state: &'a mut State,
    message: &'a [u8],
}

impl Job for Wide<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, proof: L::Proof) {
        let Self { state, message } = self;
        let [r0, r1] = state.r;
        let r = Factor::new(proof, limbs(r0, r1).map(|limb| L::splat(proof, limb)));
        let one = [1, 0, 0, 0, 0].map(|limb| L::splat(proof, limb));

        // r^(W - i) in word i: the bits of W - 1 - i choose among r^1, r^2, r^4.
        let (mut last, mut step) = (r.limbs, r);
        for bit in 0..L::WORDS.ilog2() {
            let has_bit = L::from_fn(proof, |word| {
                0_u64.wrapping_sub((L::WORDS - 1 - word) as u64 >> bit & 1)
            });
            let chosen = each(|limb| L::select(has_bit, step.limbs[limb], one[limb]));
            last = Factor::new(proof, chosen).times(proof, last);
            step = Factor::new(proof, step.times(proof, step.limbs));
        }

        let first = state.limbs();
        let mut sums = each(|limb| L::from_fn(proof, |word| first[limb] * u64::from(word == 0)));
        let mut groups = message.chunks_exact(L::WORDS * BLOCK_BYTES);
        let first = groups.next().expect("a message that is not empty");
        sums = plus(sums, load(proof, first));
        for group in groups {
            sums = plus(step.times(proof, sums), load(proof, group));
        }
        let sums = Factor::new(proof, last).times(proof, sums);
        state.set_limbs(each(|limb| sum_words(sums[limb])));
    }
}

/// A multiplier in every word, with five times its upper limbs.
#[derive(Clone, Copy)]
struct Factor<L> {
    limbs: [L; 5],
    /// Five times limbs 1 to 4.
    folded: [L; 4],
}

impl<L: Lanes> Factor<L> {
    #[inline(always)]
    fn new(_: L::Proof, limbs: [L; 5]) -> Self {
        let [_, l1, l2, l3, l4] = limbs;
        Self { limbs, folded: [l1, l2, l3, l4].map(|limb| limb.add(limb.shift_left::<2>())) }
    }

    /// The product, with limbs below 2^26 and a little.
    #[inline(always)]
    fn times(&self, proof: L::Proof, [h0, h1, h2, h3, h4]: [L; 5]) -> [L; 5] {
        let ([r0, r1, r2, r3, r4], [s1, s2, s3, s4]) = (self.limbs, self.folded);
        let sum = |factors: [L; 5]| {
            let [f0, f1, f2, f3, f4] = factors;
            let low = h0.multiply_low(f0).add(h1.multiply_low(f1));
            low.add(h2.multiply_low(f2).add(h3.multiply_low(f3))).add(h4.multiply_low(f4))
        };
        let d0 = sum([r0, s4, s3, s2, s1]);
        let d1 = sum([r1, r0, s4, s3, s2]);
        let d2 = sum([r2, r1, r0, s4, s3]);
        let d3 = sum([r3, r2, r1, r0, s4]);
        let d4 = sum([r4, r3, r2, r1, r0]);
        carried(proof, [d0, d1, d2, d3, d4])
    }
}

/// Carries what limbs have above 26 bits, in two chains that run side by side.
#[inline(always)]
fn carried<L: Lanes>(proof: L::Proof, [d0, d1, d2, d3, d4]: [L; 5]) -> [L; 5] {
    let mask = L::splat(proof, LIMB_MASK);
    let (low, over) = (|limb: L| limb.and(mask), |limb: L| limb.shift_right::<LIMB_BITS>());
    let (d1, d4) = (d1.add(over(d0)), d4.add(over(d3)));
    let (d0, d3) = (low(d0), low(d3));
    let above = over(d4);
    let (d2, d0) = (d2.add(over(d1)), d0.add(above).add(above.shift_left::<2>()));
    let (d1, d4) = (low(d1), low(d4));
    let (d3, d1) = (d3.add(over(d2)), d1.add(over(d0)));
    let (d2, d0) = (low(d2), low(d0));
    [d0, d1, d2, low(d3), d4.add(over(d3))]
}

/// A block in every word, with 2^128 added.
#[inline(always)]
fn load<L: Lanes>(proof: L::Proof, group: &[u8]) -> [L; 5] {
    let half = |at: usize| {
        L::from_fn(proof, |word| {
            let from = word * BLOCK_BYTES + at;
            u64::from_le_bytes(group[from..from + 8].try_into().expect("8 bytes"))
        })
    };
    let (low, high, mask) = (half(0), half(8), L::splat(proof, LIMB_MASK));
    [
        low.and(mask),
        low.shift_right::<26>().and(mask),
        low.shift_right::<52>().or(high.shift_left::<12>()).and(mask),
        high.shift_right::<14>().and(mask),
        high.shift_right::<40>().or(L::splat(proof, 1 << 24)),
    ]
}

#[inline(always)]
fn plus<L: Lanes>(one: [L; 5], other: [L; 5]) -> [L; 5] {
    each(|limb| one[limb].add(other[limb]))
}

/// All words added.
#[inline(always)]
fn sum_words<L: Lanes>(limb: L) -> u64 {
    let mut bytes = [0; 64];
    limb.store(&mut bytes[..8 * L::WORDS]);
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).sum()
}

/// Five limbs.
#[inline(always)]
fn each<T>(limb: impl Fn(usize) -> T) -> [T; 5] {
    [limb(0), limb(1), limb(2), limb(3), limb(4)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::CipherBackend;
    use crate::vectors;
    use poly1305::Poly1305;
    use poly1305::universal_hash::{KeyInit, UniversalHash};
    use proptest::prelude::*;

    fn paths() -> Vec<Option<Path>> {
        let engines = CipherBackend::ALL.into_iter().filter_map(|backend| backend.engine().ok());
        engines.map(|engine| engine.path()).collect()
    }

    /// As [`tag`], by the `poly1305` crate.
    fn independent(key: &[u8; KEY_BYTES], header: &[u8], ciphertext: &[u8]) -> [u8; 16] {
        let lengths = [header.len(), ciphertext.len()].map(|bytes| (bytes as u64).to_le_bytes());
        let mut state = Poly1305::new(&(*key).into());
        state.update_padded(header);
        state.update_padded(ciphertext);
        state.update_padded(&lengths.concat());
        state.finalize().into()
    }

    /// Absorbs a message by vectors of every width as far as they go.
    fn check(key: &[u8; KEY_BYTES], header: &[u8], ciphertext: &[u8]) {
        let expected = independent(key, header, ciphertext);
        for path in paths() {
            assert_eq!(tag(path, key, header, ciphertext), expected);
            let Some(path) = path else { continue };
            // Whatever the length and the width.
            let (multiplier, pad) = key.split_first_chunk().unwrap();
            let lengths =
                [header.len(), ciphertext.len()].map(|bytes| (bytes as u64).to_le_bytes());
            let mut state = State::new(multiplier);
            state.absorb(header);
            let rest = state.absorb_wide(path, ciphertext);
            state.absorb(rest);
            state.absorb(&lengths.concat());
            assert_eq!(state.finish(pad.try_into().unwrap()), expected, "{} words", path.words());
        }
    }

    proptest! {
        #[test]
        fn every_width_equals_an_independent_poly1305(
            key in any::<[u8; 32]>(),
            header in prop::collection::vec(any::<u8>(), 0..50),
            ciphertext in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            check(&key, &header, &ciphertext);
        }
    }

    /// Carries show with words of ones and multipliers at their limits.
    #[test]
    fn extreme_words_carry_as_they_must() {
        for multiplier in [0x00, 0x01, 0x0f, 0xfc, 0xff] {
            for byte in [0x00, 0x01, 0x7f, 0xfb, 0xff] {
                for bytes in [0, 1, 15, 16, 17, 127, 128, 512, 513, 1400, 9000] {
                    let mut key = [multiplier; KEY_BYTES];
                    key[16..].fill(byte);
                    check(&key, &vec![byte; bytes % 47], &vec![byte; bytes]);
                }
            }
        }
    }

    /// Of the bare function: its messages are not padded, so their last block ends with a one.
    #[test]
    fn rfc_8439_tags_are_reproduced() {
        let text = include_str!("../tests/vectors/rfc8439_poly1305.txt");
        let cases = vectors::blocks(text);
        assert_eq!(cases.len(), 12);
        for case in cases {
            let (key, message): ([u8; KEY_BYTES], _) = (case.array("key"), case.bytes("message"));
            let (multiplier, pad) = key.split_first_chunk().unwrap();
            let (blocks, rest) = message.as_chunks::<BLOCK_BYTES>();
            let mut state = State::new(multiplier);
            blocks.iter().for_each(|block| state.absorb_block(block));
            if !rest.is_empty() {
                let mut block = [0; BLOCK_BYTES];
                block[..rest.len()].copy_from_slice(rest);
                block[rest.len()] = 1;
                state.absorb_number(words(&block), 0);
            }
            assert_eq!(state.finish(pad.try_into().unwrap())[..], case.bytes("tag"));
        }
    }
}

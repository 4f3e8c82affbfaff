//! Hashes with vectors of blocks, whatever their width: which powers of H meet which blocks, and
//! when products are reduced.
//!
//! GHASH is computed as POLYVAL (RFC 8452, appendix A): with the bytes of every block reversed, and
//! H multiplied by x, the two are the same, and products need no shift by one bit. Elements are
//! 128-bit numbers, bit `i` being the coefficient of x^i, modulo x^128 + x^127 + x^126 + x^121 + 1;
//! a product is divided by x^128 while it is reduced (Montgomery's way).
//!
//! With `n` blocks left, the next is multiplied by H^n. So the blocks are cut into groups of
//! [`GROUP_BLOCKS`], a short one first: within a group, products are only added up, and reduced
//! once.

use super::{BLOCK_BYTES, Block, blocks, lengths};
use std::hint::black_box;
use zeroize::optimization_barrier;

/// Blocks in a group.
pub(super) const GROUP_BLOCKS: usize = 16;

/// The widest vector, in blocks.
const BLOCKS_MAX: usize = 4;

/// x^127 + x^126 + x^121, of the modulus, divided by x^64: the low half of the word that reductions
/// multiply with.
pub(super) const MODULUS: u64 = 0xc200_0000_0000_0000;

/// A vector of blocks. A value proves that the CPU has the instructions for it.
pub(super) trait Vector: Copy {
    /// Blocks in a vector.
    const BLOCKS: usize;

    /// Proves that the CPU has the instructions.
    type Proof: Copy;

    /// A block in the first place, as a number, and zeros elsewhere.
    fn single(proof: Self::Proof, block: u128) -> Self;

    /// As many bytes as the vector has, their blocks as numbers.
    fn load(proof: Self::Proof, bytes: &[u8]) -> Self;

    /// At most as many bytes as the vector has, and at least one, zero-padded; their blocks as
    /// numbers.
    fn load_part(proof: Self::Proof, bytes: &[u8]) -> Self;

    /// Numbers, as many as the vector has blocks.
    fn load_numbers(proof: Self::Proof, numbers: &[u128]) -> Self;

    fn xor(self, other: Self) -> Self;

    /// Block by block, the product with a power whose halves are added up in `folded`.
    fn times(self, power: Self, folded: Self) -> Products<Self>;

    /// The sum of all blocks' products, reduced, in the first place, and zeros elsewhere.
    fn reduced(products: Products<Self>) -> Self;

    /// The block in the first place.
    fn first(self) -> u128;
}

/// Products of 255 bits, in pieces of 128: `low + (middle + low + high) * x^64 + high * x^128`
/// (Karatsuba).
#[derive(Clone, Copy)]
pub(super) struct Products<V> {
    pub(super) low: V,
    pub(super) middle: V,
    pub(super) high: V,
}

impl<V: Vector> Products<V> {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self {
            low: self.low.xor(other.low),
            middle: self.middle.xor(other.middle),
            high: self.high.xor(other.high),
        }
    }
}

/// H^16 to H^1. In memory of its own; wiped when dropped, all of it: any H^(2^k) gives H by
/// squaring.
pub(crate) struct Powers(Box<Table>);

/// Aligned as the widest vector. Zeros follow the last power, for vectors that begin before it.
#[repr(C, align(64))]
struct Table {
    powers: [u128; GROUP_BLOCKS + BLOCKS_MAX],
    /// Both halves of a power, added up, in each half.
    folded: [u128; GROUP_BLOCKS + BLOCKS_MAX],
}

impl Powers {
    /// Called in code compiled for the vector's instructions.
    #[inline(always)]
    pub(super) fn new<V: Vector>(proof: V::Proof, h: &Block) -> Self {
        let zeros = [0; GROUP_BLOCKS + BLOCKS_MAX];
        let mut table = Box::new(Table { powers: zeros, folded: zeros });
        let at = |exponent: usize| GROUP_BLOCKS - exponent;
        table.powers[at(1)] = times_x(u128::from_be_bytes(*h));
        for exponent in 1..=GROUP_BLOCKS {
            if exponent > 1 {
                let half = exponent / 2;
                let one = V::single(proof, table.powers[at(half)]);
                let other = V::single(proof, table.powers[at(exponent - half)]);
                let folded = V::single(proof, table.folded[at(exponent - half)]);
                table.powers[at(exponent)] = V::reduced(one.times(other, folded)).first();
            }
            let power = table.powers[at(exponent)];
            table.folded[at(exponent)] = power ^ power.rotate_left(64);
        }
        Self(table)
    }

    /// The powers for blocks from this place of a group on.
    #[inline(always)]
    fn from<V: Vector>(&self, proof: V::Proof, place: usize) -> [V; 2] {
        let Table { powers, folded } = &*self.0;
        let of = place..place + V::BLOCKS;
        let power = V::load_numbers(proof, &powers[of.clone()]);
        [power, V::load_numbers(proof, &folded[of])]
    }
}

impl Drop for Powers {
    fn drop(&mut self) {
        let zeros = [0; GROUP_BLOCKS + BLOCKS_MAX];
        *self.0 = Table { powers: zeros, folded: zeros };
        optimization_barrier(&*self.0);
    }
}

/// The product of an element and x. Without a branch: the element is secret.
fn times_x(element: u128) -> u128 {
    let carry = 0_u128.wrapping_sub(element >> 127);
    element << 1 ^ (u128::from(MODULUS) << 64 | 1) & carry
}

/// The tag of header and ciphertext, as [`super::Key::tag`] computes it. Called in code compiled
/// for the vector's instructions.
#[inline(always)]
pub(super) fn tag<V: Vector>(
    proof: V::Proof,
    powers: &Powers,
    header: &[u8],
    ciphertext: &[u8],
    mask: &Block,
) -> Block {
    let zero = V::single(proof, 0);
    let place = blocks(header, ciphertext).wrapping_neg() % GROUP_BLOCKS;
    let sum = Products { low: zero, middle: zero, high: zero };
    let mut hash = Hash { proof, powers, place, pending: zero, sum };
    hash.absorb(header);
    hash.absorb(ciphertext);
    hash.multiply(V::single(proof, lengths(header, ciphertext)), 1);
    hash.reduce();
    (hash.pending.first() ^ u128::from_be_bytes(*mask)).to_be_bytes()
}

/// GHASH in progress.
struct Hash<'p, V: Vector> {
    proof: V::Proof,
    powers: &'p Powers,
    /// The next block's place in its group.
    place: usize,
    /// The hash of all groups so far, which is to be added to the next block; zero within a group.
    pending: V,
    /// The products of the group so far.
    sum: Products<V>,
}

impl<V: Vector> Hash<'_, V> {
    /// Absorbs bytes, zero-padded to whole blocks.
    #[inline(always)]
    fn absorb(&mut self, part: &[u8]) {
        let group_bytes = GROUP_BLOCKS * BLOCK_BYTES;
        let room = group_bytes - self.place * BLOCK_BYTES;
        let (begun, rest) = part.split_at(if self.place == 0 { 0 } else { part.len().min(room) });
        self.absorb_in_group(begun);
        let groups = rest.chunks_exact(group_bytes);
        let rest = groups.remainder();
        for group in groups {
            self.absorb_group(group);
        }
        self.absorb_in_group(rest);
    }

    /// Absorbs bytes that do not reach into the next group.
    #[inline(always)]
    fn absorb_in_group(&mut self, part: &[u8]) {
        let vectors = part.chunks_exact(V::BLOCKS * BLOCK_BYTES);
        let rest = vectors.remainder();
        for bytes in vectors {
            self.multiply(V::load(self.proof, bytes), V::BLOCKS);
        }
        if !rest.is_empty() {
            self.multiply(V::load_part(self.proof, rest), rest.len().div_ceil(BLOCK_BYTES));
        }
        if self.place == GROUP_BLOCKS {
            self.reduce();
        }
    }

    /// Absorbs a whole group. The first vector, which waits for the group before, comes last.
    #[inline(always)]
    fn absorb_group(&mut self, group: &[u8]) {
        // Else the compiler loads all powers before the first group, and spills most of them to the
        // stack.
        let powers = black_box(self.powers);
        let (first, others) = group.split_at(V::BLOCKS * BLOCK_BYTES);
        let vectors = others.chunks_exact(V::BLOCKS * BLOCK_BYTES);
        let mut sum = self.sum;
        for (place, bytes) in (V::BLOCKS..).step_by(V::BLOCKS).zip(vectors) {
            let [power, folded] = powers.from::<V>(self.proof, place);
            sum = sum.plus(V::load(self.proof, bytes).times(power, folded));
        }
        let [power, folded] = powers.from::<V>(self.proof, 0);
        let first = V::load(self.proof, first).xor(self.pending);
        self.pending = V::reduced(sum.plus(first.times(power, folded)));
    }

    /// Multiplies the next blocks, which do not reach into the next group; the vector may have
    /// fewer blocks than its width.
    #[inline(always)]
    fn multiply(&mut self, vector: V, blocks: usize) {
        let [power, folded] = self.powers.from::<V>(self.proof, self.place);
        self.sum = self.sum.plus(vector.xor(self.pending).times(power, folded));
        self.pending = V::single(self.proof, 0);
        self.place += blocks;
    }

    /// Ends a group.
    #[inline(always)]
    fn reduce(&mut self) {
        let zero = V::single(self.proof, 0);
        self.pending = V::reduced(self.sum);
        self.sum = Products { low: zero, middle: zero, high: zero };
        self.place = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::GhashPath;
    use super::super::clmul_128::{HasPclmul, padded};
    use super::*;

    /// The product of two elements divided by x^128, bit by bit.
    fn product(one: u128, other: u128) -> u128 {
        // Dividing by x is multiplying by its inverse: the modulus without its last term, over x.
        let halved = |element: u128| {
            let odd = 0_u128.wrapping_sub(element & 1);
            let modulus = u128::from(MODULUS) << 64;
            element >> 1 ^ (modulus >> 1 | 1 << 127) & odd
        };
        (0..128).fold(0, |sum, bit| halved(sum ^ if other >> bit & 1 == 1 { one } else { 0 }))
    }

    #[test]
    fn powers_are_products_of_powers() {
        let Some(proof) = HasPclmul::detect() else {
            assert_eq!(GhashPath::available().count(), 1, "what multiplies without carries?");
            return;
        };
        for h in [[0x42; 16], [0xff; 16], [0; 16], std::array::from_fn(|at| (at * 91 + 7) as u8)] {
            let powers = proof.powers(&h);
            let table = &powers.0;
            let power = |exponent: usize| table.powers[GROUP_BLOCKS - exponent];
            for one in 1..GROUP_BLOCKS {
                for other in 1..=GROUP_BLOCKS - one {
                    let expected = product(power(one), power(other));
                    assert_eq!(power(one + other), expected, "H^{one} times H^{other}");
                }
            }
            for (power, folded) in table.powers.iter().zip(&table.folded) {
                let sum = (power ^ power >> 64) as u64;
                assert_eq!(*folded, u128::from(sum) << 64 | u128::from(sum));
            }
            assert_eq!(table.powers[GROUP_BLOCKS..], [0; BLOCKS_MAX]);
        }
    }

    #[test]
    fn a_last_piece_is_padded_with_zeros() {
        for length in 0..=BLOCK_BYTES {
            let bytes: Vec<u8> = (1..=length as u8).collect();
            let mut block = [0; BLOCK_BYTES];
            block[..length].copy_from_slice(&bytes);
            assert_eq!(padded(&bytes), u128::from_le_bytes(block));
        }
    }
}

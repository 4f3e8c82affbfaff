//! Encrypts AES blocks on bit planes (FIPS 197), for fillers on CPUs without AES instructions.
//!
//! A plane holds one bit of every block of a batch; ShiftRows and the doubling in MixColumns only
//! select planes, and the S-box is a circuit, in the key schedule too: no table is indexed by data
//! or key.

use super::aes_s_box::{AFFINE, s_box};
use super::counters;
use super::lanes::{Job, Lanes};
use super::transpose;
use crate::counter;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

const BLOCK_BYTES: usize = 16;

/// The bits of one byte of the blocks, the lowest first.
type Planes<L> = [L; 8];

/// The round keys, a word of zeros or ones per bit. They include the constant that the S-boxes of
/// the round before leave out.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct AesPlanes {
    rounds: Box<[[Planes<u64>; BLOCK_BYTES]]>,
}

impl AesPlanes {
    /// For AES-128 with 16 bytes of key, for AES-256 with 32.
    pub(crate) fn new(key: &[u8]) -> Self {
        assert!(key.len() == 16 || key.len() == 32, "keys of AES have 16 or 32 bytes");
        let words = key_expansion(key);
        let plane = |byte: u8, bit: usize| 0u64.wrapping_sub(u64::from(byte >> bit & 1));
        let rounds = words.as_chunks::<4>().0.iter().enumerate().map(|(round, words)| {
            // MixColumns maps a column of four equal bytes to itself.
            let left_out = if round == 0 { 0 } else { AFFINE };
            let byte = |at: usize| words[at / 4][at % 4] ^ left_out;
            std::array::from_fn(|at| std::array::from_fn(|bit| plane(byte(at), bit)))
        });
        Self { rounds: rounds.collect() }
    }
}

/// KeyExpansion (FIPS 197 5.2).
fn key_expansion(key: &[u8]) -> Zeroizing<Vec<[u8; 4]>> {
    let in_key = key.len() / 4;
    let count = 4 * (in_key + 7);
    // At its full capacity: memory that a growing vector leaves behind is not wiped.
    let mut words = Zeroizing::new(Vec::with_capacity(count));
    words.extend(key.as_chunks::<4>().0);
    let mut constant = 1u8;
    for at in in_key..count {
        let mut word: [u8; 4] = words[at - 1];
        if at % in_key == 0 {
            word.rotate_left(1);
            word = substituted(word);
            word[0] ^= constant;
            constant = (constant << 1) ^ ((constant >> 7) * 0x1b);
        } else if in_key > 6 && at % in_key == 4 {
            word = substituted(word);
        }
        for (byte, before) in word.iter_mut().zip(words[at - in_key]) {
            *byte ^= before;
        }
        words.push(word);
    }
    words
}

/// SubWord: the four bytes are four lanes.
fn substituted(word: [u8; 4]) -> [u8; 4] {
    let lane = |bit: usize, at: usize| u64::from(word[at] >> bit & 1) << at;
    let planes = s_box::<u64>(std::array::from_fn(|bit| (0..4).map(|at| lane(bit, at)).sum()));
    std::array::from_fn(|at| {
        let bits = planes.iter().enumerate();
        bits.fold(AFFINE, |byte, (bit, plane)| byte ^ ((plane >> at & 1) as u8) << bit)
    })
}

/// The planes of a batch.
struct State<L>([Planes<L>; BLOCK_BYTES]);

impl<L: Lanes> State<L> {
    /// AddRoundKey.
    #[inline(always)]
    fn add(&mut self, proof: L::Proof, key: &[Planes<u64>; BLOCK_BYTES]) {
        for (planes, key) in self.0.iter_mut().zip(key) {
            for (plane, key) in planes.iter_mut().zip(key) {
                *plane = plane.xor(L::splat(proof, *key));
            }
        }
    }

    /// Encrypts. Alternates between two states, so that none is copied.
    #[inline(always)]
    fn encrypt(&mut self, proof: L::Proof, key: &AesPlanes) {
        let mut other = Self([[L::splat(proof, 0); 8]; BLOCK_BYTES]);
        let [first, middle @ .., last] = &*key.rounds else { return };
        self.add(proof, first);
        let (mut from, mut to) = (&mut *self, &mut other);
        for key in middle {
            for column in 0..4 {
                let mut bytes = from.substituted_column(proof, column);
                mix(&mut bytes);
                to.set_column(proof, column, &bytes, key);
            }
            (from, to) = (to, from);
        }
        for column in 0..4 {
            let bytes = from.substituted_column(proof, column);
            to.set_column(proof, column, &bytes, last);
        }
        // The number of rounds, 10 or 14, is even, so the last one wrote to this state.
        other.wipe(proof);
    }

    /// A column, with AddRoundKey.
    #[inline(always)]
    fn set_column(
        &mut self,
        proof: L::Proof,
        column: usize,
        bytes: &[Planes<L>; 4],
        key: &[Planes<u64>; BLOCK_BYTES],
    ) {
        for (row, byte) in bytes.iter().enumerate() {
            let at = 4 * column + row;
            for (bit, plane) in byte.iter().enumerate() {
                self.0[at][bit] = plane.xor(L::splat(proof, key[at][bit]));
            }
        }
    }

    /// SubBytes and ShiftRows: the four bytes of a new column.
    #[inline(always)]
    fn substituted_column(&self, proof: L::Proof, column: usize) -> [Planes<L>; 4] {
        let mut bytes = [[L::splat(proof, 0); 8]; 4];
        for (row, byte) in bytes.iter_mut().enumerate() {
            *byte = s_box(self.0[4 * ((column + row) % 4) + row]);
        }
        bytes
    }

    /// Passes the blocks of the first `rows` lanes of all words to `emit`, in word order.
    #[inline(always)]
    fn for_each_row(&self, proof: L::Proof, rows: usize, mut emit: impl FnMut(usize, &[u8])) {
        let zero = L::splat(proof, 0);
        // Bit 8b + t of half a block as a little-endian number is bit t of its byte b.
        let mut halves = [[[zero; 8]; 8]; 2];
        for (bytes, far) in self.0.chunks_exact(8).zip(&mut halves) {
            for (t, far) in far.iter_mut().enumerate() {
                for (place, byte) in far.iter_mut().zip(bytes) {
                    *place = byte[t];
                }
                transpose::swap_far(proof, far);
            }
        }
        let mut blocks = [0; BLOCK_BYTES * 8];
        for (eight, first) in (0..rows).step_by(8).enumerate() {
            let mut near = [[zero; 8]; 2];
            for (near, far) in near.iter_mut().zip(&halves) {
                for (word, far) in near.iter_mut().zip(far) {
                    *word = far[eight % 8];
                }
                transpose::swap_near(proof, near);
            }
            for (at, row) in (first..rows).take(8).enumerate() {
                for (half, near) in near.iter().enumerate() {
                    let mut words = [0; 64];
                    near[at].store(&mut words[..8 * L::WORDS]);
                    let words = words.chunks_exact(8).take(L::WORDS);
                    for (block, word) in blocks.chunks_exact_mut(BLOCK_BYTES).zip(words) {
                        block[8 * half..8 * half + 8].copy_from_slice(word);
                    }
                }
                emit(row, &blocks[..BLOCK_BYTES * L::WORDS]);
            }
        }
        halves.fill([[zero; 8]; 8]);
        zeroize::optimization_barrier(&halves);
        counter::wipe(&mut blocks);
    }

    #[inline(always)]
    fn wipe(&mut self, proof: L::Proof) {
        self.0.fill([L::splat(proof, 0); 8]);
        zeroize::optimization_barrier(self);
    }
}

/// MixColumns on one column: twice each byte, three times the next, and the two after it.
#[inline(always)]
fn mix<L: Lanes>(bytes: &mut [Planes<L>; 4]) {
    let old = *bytes;
    let mut sums = old;
    for (row, sum) in sums.iter_mut().enumerate() {
        for (sum, next) in sum.iter_mut().zip(old[(row + 1) % 4]) {
            *sum = sum.xor(next);
        }
    }
    for (row, byte) in bytes.iter_mut().enumerate() {
        let (sum, next, after) = (sums[row], old[(row + 1) % 4], sums[(row + 2) % 4]);
        for (bit, plane) in byte.iter_mut().enumerate() {
            // Doubling moves bits up; the highest goes into bits 0, 1, 3 and 4 (FIPS 197 4.2).
            let doubled = match bit {
                0 => sum[7],
                1 | 3 | 4 => sum[bit - 1].xor(sum[7]),
                _ => sum[bit - 1],
            };
            *plane = doubled.xor(next[bit]).xor(after[bit]);
        }
    }
}

/// Pads of up to 64 packets, in order from slot 0.
pub(super) struct AesRows<'a, 'b> {
    pub(super) key: &'a AesPlanes,
    /// Block 0 of slot 0.
    pub(super) counter: u128,
    pub(super) offset: usize,
    pub(super) rows: &'a mut [&'b mut [u8]],
}

impl Job for AesRows<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self, proof: L::Proof) {
        let Self { key, counter, offset, rows } = self;
        let (first, skip) = (offset / BLOCK_BYTES, offset % BLOCK_BYTES);
        let bytes = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        for done in (0..(skip + bytes).div_ceil(BLOCK_BYTES)).step_by(L::WORDS) {
            let mut state = State([[L::splat(proof, 0); 8]; BLOCK_BYTES]);
            for (at, planes) in state.0.iter_mut().enumerate() {
                for (bit, plane) in planes.iter_mut().enumerate() {
                    let bit = (8 * (BLOCK_BYTES - 1 - at) + bit) as u32;
                    *plane = counters::of_aes_rows(proof, counter, (first + done) as u32, bit);
                }
            }
            state.encrypt(proof, key);
            state.for_each_row(proof, rows.len(), |row, blocks| {
                counter::copy_overlap(blocks, done * BLOCK_BYTES, skip, rows[row]);
            });
            state.wipe(proof);
        }
    }
}

#[cfg(test)]
mod tests;

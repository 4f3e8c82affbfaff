//! Encrypts DES and triple DES blocks on bit planes (FIPS 46-3, SP 800-67r2).
//!
//! A plane holds one bit of every block of a batch, so permutations only select planes, and S-boxes
//! are circuits: no table is indexed by data or key. Eli Biham, "A Fast New DES Implementation in
//! Software", 1997.

use super::lanes::Lanes;
use super::transpose;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The round keys of one to three DES keys.
///
/// Round keys are bits of the halves C and D of the key, rotated. Each half is stored twice, so a
/// rotation is an offset to read from; every bit is a word of zeros or ones.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct KeyPlanes {
    keys: [[u64; PLANES]; 3],
    /// Number of keys used: 1 for DES, 3 for triple DES.
    count: usize,
}

const HALF: usize = 28;
const PLANES: usize = 4 * HALF;
/// What a round reads from its rotation's offset on: both halves and what is between.
const WINDOW: usize = 3 * HALF;

/// How far the halves have been rotated in each round (FIPS 46-3, appendix 1); 28 is a full turn.
const ROTATIONS: [usize; 16] = [1, 2, 4, 6, 8, 10, 12, 14, 15, 17, 19, 21, 23, 25, 27, 0];

#[rustfmt::skip]
const PC1: [u8; 2 * HALF] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18,
    10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44, 36,
    63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22,
    14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12, 4,
];

#[rustfmt::skip]
const PC2: [usize; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10,
    23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2,
    41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48,
    44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];

#[rustfmt::skip]
const P: [usize; 32] = [
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10,
    2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
];

#[rustfmt::skip]
const IP: [[u32; 32]; 2] = [
    [
        58, 50, 42, 34, 26, 18, 10, 2, 60, 52, 44, 36, 28, 20, 12, 4,
        62, 54, 46, 38, 30, 22, 14, 6, 64, 56, 48, 40, 32, 24, 16, 8,
    ],
    [
        57, 49, 41, 33, 25, 17, 9, 1, 59, 51, 43, 35, 27, 19, 11, 3,
        61, 53, 45, 37, 29, 21, 13, 5, 63, 55, 47, 39, 31, 23, 15, 7,
    ],
];

/// Where output bit `i` of the S-boxes goes, both counted from 0: the inverse of P.
const SPREAD: [usize; 32] = {
    let mut spread = [0; 32];
    let mut to = 0;
    while to < 32 {
        spread[P[to] - 1] = to;
        to += 1;
    }
    spread
};

impl KeyPlanes {
    /// DES for 8 bytes of key, triple DES for 24. Parity bits are ignored.
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut planes = Self { keys: [[0; PLANES]; 3], count: key.len() / 8 };
        assert!(key.len() == 8 || key.len() == 24, "keys of DES have 8 bytes");
        for (planes, key) in planes.keys.iter_mut().zip(key.chunks_exact(8)) {
            let mut key = u64::from_be_bytes(key.try_into().expect("8 bytes"));
            for (at, bit) in PC1.into_iter().enumerate() {
                let plane = 0u64.wrapping_sub(key >> (64 - bit) & 1);
                let (half, bit) = (at / HALF, at % HALF);
                planes[2 * half * HALF + bit] = plane;
                planes[(2 * half + 1) * HALF + bit] = plane;
            }
            key.zeroize();
        }
        planes
    }

    /// What a round reads. Triple DES encrypts, decrypts, then encrypts; decryption uses the round
    /// keys in reverse.
    fn window(&self, key: usize, round: usize) -> &[u64; WINDOW] {
        let round = if key == 1 { 15 - round } else { round };
        self.keys[key][ROTATIONS[round]..].first_chunk().expect("a rotation is below 28")
    }
}

/// The planes of a batch: bits 1 to 32 of the block and bits 33 to 64, after IP.
///
/// Arrays are filled in loops, not by array methods: those might not be inlined, and would then not
/// be compiled for the enabled instructions.
pub(super) struct Halves<L> {
    halves: [[L; 32]; 2],
}

impl<L: Lanes> Halves<L> {
    /// A batch of which `plane(v)` holds bit `v` of the blocks, counted from the lowest bit of the
    /// block as a big-endian number.
    #[inline(always)]
    pub(super) fn new(proof: L::Proof, plane: impl Fn(u32) -> L) -> Self {
        let mut halves = [[L::splat(proof, 0); 32]; 2];
        for (half, bits) in halves.iter_mut().zip(&IP) {
            for (place, bit) in half.iter_mut().zip(bits) {
                *place = plane(64 - bit);
            }
        }
        Self { halves }
    }

    /// Encrypts. Inside triple DES the final permutation of one DES and the initial permutation of
    /// the next cancel out, except that the halves are swapped.
    #[inline(always)]
    pub(super) fn encrypt(&mut self, proof: L::Proof, key: &KeyPlanes) {
        let [mut left, mut right] = self.halves.each_mut();
        for des in 0..key.count {
            for round_number in 0..16 {
                round(proof, left, right, key.window(des, round_number));
                (left, right) = (right, left);
            }
            (left, right) = (right, left);
        }
    }

    /// Calls `emit(i, words)` for the first `rows` rows, with lane `i` of all words as blocks in
    /// word order, for `store` to write.
    #[inline(always)]
    pub(super) fn for_each_row(
        &self,
        proof: L::Proof,
        rows: usize,
        mut emit: impl FnMut(usize, L),
    ) {
        // The halves are swapped, so R16 comes first (FIPS 46-3). With FP after it,
        // bit 8b + t of a block as a little-endian number is in this half, at this place.
        let zero = L::splat(proof, 0);
        let mut planes = [[zero; 8]; 8];
        for (t, planes) in planes.iter_mut().enumerate() {
            let half = &self.halves[1 - t % 2];
            for (b, plane) in planes.iter_mut().enumerate() {
                *plane = half[31 - 8 * (t / 2) - b];
            }
            transpose::swap_far(proof, planes);
        }
        for (eight, first) in (0..rows).step_by(8).enumerate() {
            let mut words = [zero; 8];
            for (word, planes) in words.iter_mut().zip(&planes) {
                *word = planes[eight % 8];
            }
            transpose::swap_near(proof, &mut words);
            for (word, row) in words.iter().zip(first..rows) {
                emit(row, *word);
            }
        }
        planes.fill([zero; 8]);
        zeroize::optimization_barrier(&planes);
    }

    /// Overwrites the planes in a way that the compiler cannot remove.
    #[inline(always)]
    pub(super) fn wipe(&mut self, proof: L::Proof) {
        self.halves.fill([L::splat(proof, 0); 32]);
        zeroize::optimization_barrier(self);
    }
}

/// One round: the round function of `right` is XORed on `left`.
#[inline(always)]
fn round<L: Lanes>(proof: L::Proof, left: &mut [L; 32], right: &[L; 32], key: &[u64; WINDOW]) {
    s_box::<1, L>(proof, left, right, key);
    s_box::<2, L>(proof, left, right, key);
    s_box::<3, L>(proof, left, right, key);
    s_box::<4, L>(proof, left, right, key);
    s_box::<5, L>(proof, left, right, key);
    s_box::<6, L>(proof, left, right, key);
    s_box::<7, L>(proof, left, right, key);
    s_box::<8, L>(proof, left, right, key);
}

/// One S-box with its share of the expansion E, of PC-2 and of P.
#[inline(always)]
fn s_box<const NUMBER: usize, L: Lanes>(
    proof: L::Proof,
    left: &mut [L; 32],
    right: &[L; 32],
    key: &[u64; WINDOW],
) {
    let mut inputs = [right[0]; 6];
    for (at, input) in inputs.iter_mut().enumerate() {
        // E: each four bits, with a neighbor on both sides.
        let bit = (4 * (NUMBER - 1) + at + 31) % 32;
        let key_bit = PC2[6 * (NUMBER - 1) + at] - 1;
        // D begins after both copies of C.
        let key_bit = if key_bit < HALF { key_bit } else { key_bit + HALF };
        *input = right[bit].xor(L::splat(proof, key[key_bit]));
    }
    for (at, output) in L::s_box::<NUMBER>(inputs).iter().enumerate() {
        let to = SPREAD[4 * (NUMBER - 1) + at];
        left[to] = left[to].xor(*output);
    }
}

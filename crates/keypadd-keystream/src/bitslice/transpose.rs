//! Transposes bit planes into blocks: every word of 64 vectors is a 64 by 64 bit matrix.
//!
//! Six steps swap ever smaller squares (Henry Warren, "Hacker's Delight", 7-3). The first three are
//! between vectors eight apart, the last three between neighbors, so that eight vectors at a time
//! stay in registers.

use super::lanes::Lanes;

/// The steps of 32, 16 and 8 on vectors that are eight apart.
#[inline(always)]
pub(super) fn swap_far<L: Lanes>(proof: L::Proof, rows: &mut [L; 8]) {
    for (one, other) in [(0, 4), (1, 5), (2, 6), (3, 7)] {
        swap::<32, L>(proof, rows, one, other);
    }
    for (one, other) in [(0, 2), (1, 3), (4, 6), (5, 7)] {
        swap::<16, L>(proof, rows, one, other);
    }
    for (one, other) in [(0, 1), (2, 3), (4, 5), (6, 7)] {
        swap::<8, L>(proof, rows, one, other);
    }
}

/// The steps of 4, 2 and 1 on eight neighbors.
#[inline(always)]
pub(super) fn swap_near<L: Lanes>(proof: L::Proof, rows: &mut [L; 8]) {
    for (one, other) in [(0, 4), (1, 5), (2, 6), (3, 7)] {
        swap::<4, L>(proof, rows, one, other);
    }
    for (one, other) in [(0, 2), (1, 3), (4, 6), (5, 7)] {
        swap::<2, L>(proof, rows, one, other);
    }
    for (one, other) in [(0, 1), (2, 3), (4, 5), (6, 7)] {
        swap::<1, L>(proof, rows, one, other);
    }
}

/// Swaps the high bits of each `2 * BITS` in `one` with the low bits in `other`.
#[inline(always)]
fn swap<const BITS: u32, L: Lanes>(proof: L::Proof, rows: &mut [L; 8], one: usize, other: usize) {
    let low = L::splat(proof, low_bits(BITS));
    let (a, b) = (rows[one], rows[other]);
    rows[one] = L::select(low, a, b.shift_left::<BITS>());
    rows[other] = L::select(low, a.shift_right::<BITS>(), b);
}

/// The lower `bits` of each `2 * bits`, set.
const fn low_bits(bits: u32) -> u64 {
    u64::MAX / ((1 << bits) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn transposing_swaps_bit_and_row(matrix in prop::collection::vec(any::<u64>(), 64)) {
            let mut far: [[u64; 8]; 8] =
                std::array::from_fn(|t| std::array::from_fn(|b| matrix[8 * b + t]));
            for rows in &mut far {
                swap_far((), rows);
            }
            for row in 0..64 {
                let mut rows = far.map(|far| far[row / 8]);
                swap_near((), &mut rows);
                let bits = matrix.iter().enumerate().map(|(bit, of)| (of >> row & 1) << bit);
                prop_assert_eq!(rows[row % 8], bits.sum::<u64>());
            }
        }
    }
}

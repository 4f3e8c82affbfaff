//! What the bitsliced cipher asks of a vector: so many independent 64-bit words, and logic on them.
//!
//! The cipher is written once over [`Lanes`]. Here is the form of one word that every CPU has; the
//! others are in `simd`. Knows no cipher but for the choice of S-box circuits that suit a vector.

use super::circuits_two;

/// A vector of bits, one for each block that is encrypted at a time: 64 blocks a word.
///
/// All methods are for code that [`Lanes::run`] has entered: only there do they become single
/// instructions. A value proves that its `Proof` exists, for there is no way to one without it.
pub(super) trait Lanes: Copy {
    /// Words of 64 bits in a vector.
    const WORDS: usize;

    /// Shows that the CPU has the instructions.
    type Proof: Copy;

    /// Does a job with the instructions of this vector.
    fn run<J: Job>(proof: Self::Proof, job: J);

    /// The same word throughout.
    fn splat(proof: Self::Proof, word: u64) -> Self;

    /// The words `word(0)`, `word(1)` and so on.
    fn from_fn(proof: Self::Proof, word: impl Fn(usize) -> u64) -> Self;

    /// Writes the words in order, each little-endian, over `8 * WORDS` bytes.
    fn store(self, out: &mut [u8]);

    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// The bits that are in `self` and not in `other`.
    fn and_not(self, other: Self) -> Self;
    fn not(self) -> Self;
    /// Every word shifted towards its high bits.
    fn shift_left<const BITS: u32>(self) -> Self;
    /// Every word shifted towards its low bits.
    fn shift_right<const BITS: u32>(self) -> Self;

    /// S-box `NUMBER` (1 to 8) by the circuits that suit the instructions.
    #[inline(always)]
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4] {
        circuits_two::s_box::<NUMBER, Self>(inputs)
    }

    /// In every word: bits of `self` where `mask` is set, of `other` elsewhere.
    #[inline(always)]
    fn select(mask: Self, one: Self, other: Self) -> Self {
        mask.and(one).or(other.and_not(mask))
    }
}

/// Vectors that have every function of three inputs as one instruction.
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) trait Ternary: Lanes {
    /// Bit `4a + 2b + c` of `TABLE`, for every bit of the vectors.
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self;
}

/// Something to do with vectors of any width.
pub(super) trait Job {
    /// Implementations are `#[inline(always)]`, so that they are compiled for the instructions
    /// that [`Lanes::run`] enables.
    fn run<L: Lanes>(self, proof: L::Proof);
}

/// One word, for CPUs of which nothing else is known.
impl Lanes for u64 {
    const WORDS: usize = 1;
    type Proof = ();

    fn run<J: Job>(proof: (), job: J) {
        job.run::<Self>(proof);
    }

    #[inline(always)]
    fn splat((): (), word: u64) -> Self {
        word
    }

    #[inline(always)]
    fn from_fn((): (), word: impl Fn(usize) -> Self) -> Self {
        word(0)
    }

    #[inline(always)]
    fn store(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_le_bytes());
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self & other
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self | other
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        self & !other
    }

    #[inline(always)]
    fn not(self) -> Self {
        !self
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        self << BITS
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self) -> Self {
        self >> BITS
    }
}

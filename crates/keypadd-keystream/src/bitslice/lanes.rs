//! Defines what a bitsliced cipher needs of a vector: independent 64-bit words, and logic on them.
//!
//! Ciphers are written once over [`Lanes`]; `word.rs` and `simd.rs` implement it.

/// A vector of bits, one per block encrypted at a time: 64 blocks per word.
///
/// Call the methods only from code that [`Lanes::run`] has entered: only there do they compile to
/// single instructions. A value can only be made from a `Proof`, so it proves that one exists.
pub(super) trait Lanes: Copy {
    /// Words of 64 bits in a vector.
    const WORDS: usize;

    /// Proves that the CPU has the instructions.
    type Proof: Copy;

    /// Runs a job compiled for this vector's instructions.
    fn run<J: Job>(proof: Self::Proof, job: J);

    /// A vector whose words are all `word`.
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

    /// DES S-box `NUMBER` (1 to 8), by the circuits that suit the instructions.
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4];

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

/// Work that runs on vectors of any width.
pub(super) trait Job {
    /// Implementations are `#[inline(always)]`, so that they are compiled for the instructions
    /// that [`Lanes::run`] enables.
    fn run<L: Lanes>(self, proof: L::Proof);
}

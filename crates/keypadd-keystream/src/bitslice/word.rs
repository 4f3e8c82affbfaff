//! Implements [`Lanes`] on one 64-bit word, which every CPU has.

use super::circuits_two;
use super::lanes::{Job, Lanes};

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

    #[inline(always)]
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4] {
        circuits_two::s_box::<NUMBER, Self>(inputs)
    }
}

//! Implements [`Lanes`] on vectors of 128, 256 and 512 bits.
//!
//! Every unsafe block is an intrinsic without memory access, one load or store through an array of
//! the same length, or a call into code compiled for more instructions. Each is sound because the
//! type's proof shows that the CPU has the instructions.

#![allow(unsafe_code)]

use super::circuits_two;
#[cfg(target_arch = "aarch64")]
use super::instructions::HasNeon;
use super::lanes::{Job, Lanes};
#[cfg(target_arch = "x86_64")]
use super::{
    circuits_ternary,
    instructions::{HasAvx2, HasAvx512, HasSse2},
    lanes::Ternary,
};

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64;

/// 128 lanes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Sse2(x86_64::__m128i);

#[cfg(target_arch = "x86_64")]
impl Lanes for Sse2 {
    const WORDS: usize = 2;
    type Proof = HasSse2;

    fn run<J: Job>(proof: HasSse2, job: J) {
        job.run::<Self>(proof); // nothing to enable
    }

    #[inline(always)]
    fn splat(_: HasSse2, word: u64) -> Self {
        // SAFETY: the proof says that there is SSE2.
        Self(unsafe { x86_64::_mm_set1_epi64x(word.cast_signed()) })
    }

    #[inline(always)]
    fn from_fn(_: HasSse2, word: impl Fn(usize) -> u64) -> Self {
        let words: [u64; 2] = std::array::from_fn(word);
        // SAFETY: the proof says that there is SSE2; the array is as long as the load.
        Self(unsafe { x86_64::_mm_loadu_si128(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, out: &mut [u8]) {
        let out: &mut [u8; 16] = out.try_into().expect("one vector");
        // SAFETY: the value proves SSE2; the array is as long as the store.
        unsafe { x86_64::_mm_storeu_si128(out.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_and_si128(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_or_si128(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_xor_si128(self.0, other.0) })
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_andnot_si128(other.0, self.0) })
    }

    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_xor_si128(self.0, x86_64::_mm_set1_epi8(-1)) })
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_sll_epi64(self.0, x86_64::_mm_cvtsi32_si128(BITS as i32)) })
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves SSE2.
        Self(unsafe { x86_64::_mm_srl_epi64(self.0, x86_64::_mm_cvtsi32_si128(BITS as i32)) })
    }

    #[inline(always)]
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4] {
        circuits_two::s_box::<NUMBER, Self>(inputs)
    }
}

/// 256 lanes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(x86_64::__m256i);

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    const WORDS: usize = 4;
    type Proof = HasAvx2;

    fn run<J: Job>(proof: HasAvx2, job: J) {
        #[target_feature(enable = "avx2")]
        fn enabled<J: Job>(proof: HasAvx2, job: J) {
            job.run::<Avx2>(proof);
        }
        // SAFETY: the proof says that there is AVX2.
        unsafe { enabled(proof, job) }
    }

    #[inline(always)]
    fn splat(_: HasAvx2, word: u64) -> Self {
        // SAFETY: the proof says that there is AVX2.
        Self(unsafe { x86_64::_mm256_set1_epi64x(word.cast_signed()) })
    }

    #[inline(always)]
    fn from_fn(_: HasAvx2, word: impl Fn(usize) -> u64) -> Self {
        let words: [u64; 4] = std::array::from_fn(word);
        // SAFETY: the proof says that there is AVX2; the array is as long as the load.
        Self(unsafe { x86_64::_mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, out: &mut [u8]) {
        let out: &mut [u8; 32] = out.try_into().expect("one vector");
        // SAFETY: the value proves AVX2; the array is as long as the store.
        unsafe { x86_64::_mm256_storeu_si256(out.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_and_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_or_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_andnot_si256(other.0, self.0) })
    }

    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_xor_si256(self.0, x86_64::_mm256_set1_epi8(-1)) })
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_sll_epi64(self.0, x86_64::_mm_cvtsi32_si128(BITS as i32)) })
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves AVX2.
        Self(unsafe { x86_64::_mm256_srl_epi64(self.0, x86_64::_mm_cvtsi32_si128(BITS as i32)) })
    }

    #[inline(always)]
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4] {
        circuits_two::s_box::<NUMBER, Self>(inputs)
    }
}

/// 512 lanes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(x86_64::__m512i);

#[cfg(target_arch = "x86_64")]
impl Ternary for Avx512 {
    #[inline(always)]
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: the values prove AVX-512.
        Self(unsafe { x86_64::_mm512_ternarylogic_epi64::<TABLE>(a.0, b.0, c.0) })
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    const WORDS: usize = 8;
    type Proof = HasAvx512;

    fn run<J: Job>(proof: HasAvx512, job: J) {
        #[target_feature(enable = "avx512f")]
        fn enabled<J: Job>(proof: HasAvx512, job: J) {
            job.run::<Avx512>(proof);
        }
        // SAFETY: the proof says that there is AVX-512.
        unsafe { enabled(proof, job) }
    }

    #[inline(always)]
    fn splat(_: HasAvx512, word: u64) -> Self {
        // SAFETY: the proof says that there is AVX-512.
        Self(unsafe { x86_64::_mm512_set1_epi64(word.cast_signed()) })
    }

    #[inline(always)]
    fn from_fn(_: HasAvx512, word: impl Fn(usize) -> u64) -> Self {
        let words: [u64; 8] = std::array::from_fn(word);
        // SAFETY: the proof says that there is AVX-512; the array is as long as the load.
        Self(unsafe { x86_64::_mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, out: &mut [u8]) {
        let out: &mut [u8; 64] = out.try_into().expect("one vector");
        // SAFETY: the value proves AVX-512; the array is as long as the store.
        unsafe { x86_64::_mm512_storeu_si512(out.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the value proves AVX-512.
        Self(unsafe { x86_64::_mm512_and_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: the value proves AVX-512.
        Self(unsafe { x86_64::_mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the value proves AVX-512.
        Self(unsafe { x86_64::_mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        // SAFETY: the value proves AVX-512.
        Self(unsafe { x86_64::_mm512_andnot_si512(other.0, self.0) })
    }

    #[inline(always)]
    fn not(self) -> Self {
        Self::ternary::<0b0000_1111>(self, self, self)
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves AVX-512.
        Self(unsafe { x86_64::_mm512_slli_epi64::<BITS>(self.0) })
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves AVX-512.
        Self(unsafe { x86_64::_mm512_srli_epi64::<BITS>(self.0) })
    }

    #[inline(always)]
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4] {
        circuits_ternary::s_box::<NUMBER, Self>(inputs)
    }

    #[inline(always)]
    fn select(mask: Self, one: Self, other: Self) -> Self {
        Self::ternary::<0b1100_1010>(mask, one, other)
    }
}

/// 128 lanes.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub(super) struct Neon(aarch64::uint64x2_t);

#[cfg(target_arch = "aarch64")]
impl Lanes for Neon {
    const WORDS: usize = 2;
    type Proof = HasNeon;

    fn run<J: Job>(proof: HasNeon, job: J) {
        job.run::<Self>(proof); // nothing to enable
    }

    #[inline(always)]
    fn splat(_: HasNeon, word: u64) -> Self {
        // SAFETY: the proof says that there is NEON.
        Self(unsafe { aarch64::vdupq_n_u64(word) })
    }

    #[inline(always)]
    fn from_fn(_: HasNeon, word: impl Fn(usize) -> u64) -> Self {
        let words: [u64; 2] = std::array::from_fn(word);
        // SAFETY: the proof says that there is NEON; the array is as long as the load.
        Self(unsafe { aarch64::vld1q_u64(words.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, out: &mut [u8]) {
        let out: &mut [u8; 16] = out.try_into().expect("one vector");
        // SAFETY: the value proves NEON; the array is as long as the store.
        unsafe { aarch64::vst1q_u8(out.as_mut_ptr(), aarch64::vreinterpretq_u8_u64(self.0)) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::vandq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::vorrq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::veorq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn and_not(self, other: Self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::vbicq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::veorq_u64(self.0, aarch64::vdupq_n_u64(!0)) })
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::vshlq_u64(self.0, aarch64::vdupq_n_s64(i64::from(BITS))) })
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: the value proves NEON.
        Self(unsafe { aarch64::vshlq_u64(self.0, aarch64::vdupq_n_s64(-i64::from(BITS))) })
    }

    #[inline(always)]
    fn s_box<const NUMBER: usize>(inputs: [Self; 6]) -> [Self; 4] {
        circuits_two::s_box::<NUMBER, Self>(inputs)
    }
}

//! Hashes two blocks at a time with VPCLMULQDQ on 256 bits.

#![allow(unsafe_code)]

use super::Block;
use super::clmul_128::{HasPclmul, One, padded};
use super::kernel::{self, Powers, Products, Vector};
use std::arch::x86_64::{
    __m256i, _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_set_epi8, _mm256_set_m128i, _mm256_shuffle_epi8,
    _mm256_shuffle_epi32, _mm256_xor_si256, _mm256_zextsi128_si256,
};

/// Proves that the CPU has VPCLMULQDQ, AVX2, and what [`HasPclmul`] proves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HasVpclmul256(HasPclmul);

impl HasVpclmul256 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2");
        HasPclmul::detect().filter(|_| has).map(Self)
    }

    pub(super) fn narrow(self) -> HasPclmul {
        self.0
    }

    pub(super) fn tag(self, powers: &Powers, header: &[u8], text: &[u8], mask: &Block) -> Block {
        // SAFETY: the value proves that there are these instructions.
        unsafe { tag(self, powers, header, text, mask) }
    }
}

#[target_feature(enable = "vpclmulqdq,avx2,pclmulqdq,ssse3")]
fn tag(proof: HasVpclmul256, powers: &Powers, header: &[u8], text: &[u8], mask: &Block) -> Block {
    kernel::tag::<Two>(proof, powers, header, text, mask)
}

/// Two blocks.
#[derive(Clone, Copy)]
struct Two(__m256i);

impl Vector for Two {
    const BLOCKS: usize = 2;
    type Proof = HasVpclmul256;

    #[inline(always)]
    fn single(proof: HasVpclmul256, block: u128) -> Self {
        Self::from(One::single(proof.0, block))
    }

    #[inline(always)]
    fn load(_: HasVpclmul256, bytes: &[u8]) -> Self {
        let bytes: &[u8; 32] = bytes.try_into().expect("a vector");
        // SAFETY: the proof says that there is AVX2; the array is as long as the load.
        Self(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }).reversed()
    }

    #[inline(always)]
    fn load_part(proof: HasVpclmul256, bytes: &[u8]) -> Self {
        match bytes.split_first_chunk::<16>() {
            Some((block, rest)) => {
                let (first, second) = (u128::from_le_bytes(*block), padded(rest));
                Self::of_both(One::single(proof.0, first), One::single(proof.0, second)).reversed()
            }
            None => Self::single(proof, padded(bytes)).reversed(),
        }
    }

    #[inline(always)]
    fn load_numbers(_: HasVpclmul256, numbers: &[u128]) -> Self {
        let numbers: &[u128; 2] = numbers.try_into().expect("a vector");
        // SAFETY: the proof says that there is AVX2; the array is as long as the load.
        Self(unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the values prove that there is AVX2.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn times(self, power: Self, folded: Self) -> Products<Self> {
        let (blocks, power) = (self.0, power.0);
        // SAFETY: the values prove that there are VPCLMULQDQ and AVX2.
        unsafe {
            let halves = _mm256_xor_si256(blocks, _mm256_shuffle_epi32::<0b01_00_11_10>(blocks));
            Products {
                low: Self(_mm256_clmulepi64_epi128::<0x00>(blocks, power)),
                middle: Self(_mm256_clmulepi64_epi128::<0x00>(halves, folded.0)),
                high: Self(_mm256_clmulepi64_epi128::<0x11>(blocks, power)),
            }
        }
    }

    #[inline(always)]
    fn reduced(products: Products<Self>) -> Self {
        let Products { low, middle, high } = products;
        let (low, middle, high) = (low.total(), middle.total(), high.total());
        Self::from(One::reduced(Products { low, middle, high }))
    }

    #[inline(always)]
    fn first(self) -> u128 {
        // SAFETY: the value proves that there is AVX2.
        One(unsafe { _mm256_castsi256_si128(self.0) }).first()
    }
}

impl Two {
    #[inline(always)]
    fn of_both(One(first): One, One(second): One) -> Self {
        // SAFETY: only called with a proof that there is AVX2.
        Self(unsafe { _mm256_set_m128i(second, first) })
    }

    /// A block in the first place.
    #[inline(always)]
    fn from(One(block): One) -> Self {
        // SAFETY: only called with a proof that there is AVX2.
        Self(unsafe { _mm256_zextsi128_si256(block) })
    }

    /// The bytes of each block in reverse order.
    #[inline(always)]
    fn reversed(self) -> Self {
        // SAFETY: the value proves that there is AVX2.
        Self(unsafe {
            let order = _mm256_set_epi8(
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, //
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
            );
            _mm256_shuffle_epi8(self.0, order)
        })
    }

    /// The sum of the blocks.
    #[inline(always)]
    fn total(self) -> One {
        // SAFETY: the value proves that there is AVX2.
        let (first, second) =
            unsafe { (_mm256_castsi256_si128(self.0), _mm256_extracti128_si256::<1>(self.0)) };
        One(first).xor(One(second))
    }
}

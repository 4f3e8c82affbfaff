//! Hashes four blocks at a time with VPCLMULQDQ on 512 bits.

#![allow(unsafe_code)]

use super::Block;
use super::clmul_128::{HasPclmul, One};
use super::kernel::{self, Powers, Products, Vector};
use std::arch::x86_64::{
    __m512i, _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256,
    _mm512_broadcast_i32x4, _mm512_castsi512_si128, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_loadu_si512,
    _mm512_maskz_loadu_epi8, _mm512_shuffle_epi8, _mm512_shuffle_epi32, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};
use std::arch::x86_64::{_MM_PERM_BADC, _mm_set_epi8};

/// Bytes of a vector.
const VECTOR_BYTES: usize = 64;

/// Proves that the CPU has VPCLMULQDQ, AVX-512F, AVX-512BW, and what [`HasPclmul`] proves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HasVpclmul512(HasPclmul);

impl HasVpclmul512 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw");
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

#[target_feature(enable = "vpclmulqdq,avx512f,avx512bw,pclmulqdq,ssse3")]
fn tag(proof: HasVpclmul512, powers: &Powers, header: &[u8], text: &[u8], mask: &Block) -> Block {
    kernel::tag::<Four>(proof, powers, header, text, mask)
}

/// Four blocks.
#[derive(Clone, Copy)]
struct Four(__m512i);

impl Vector for Four {
    const BLOCKS: usize = 4;
    type Proof = HasVpclmul512;

    #[inline(always)]
    fn single(proof: HasVpclmul512, block: u128) -> Self {
        Self::from(One::single(proof.0, block))
    }

    #[inline(always)]
    fn load(_: HasVpclmul512, bytes: &[u8]) -> Self {
        let bytes: &[u8; VECTOR_BYTES] = bytes.try_into().expect("a vector");
        // SAFETY: the proof says that there is AVX-512F; the array is as long as the load.
        Self(unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }).reversed()
    }

    #[inline(always)]
    fn load_part(_: HasVpclmul512, bytes: &[u8]) -> Self {
        assert!((1..=VECTOR_BYTES).contains(&bytes.len()), "part of a vector");
        let mask = u64::MAX >> (VECTOR_BYTES - bytes.len());
        // SAFETY: the proof says that there are AVX-512F and AVX-512BW; the mask ends with the
        // bytes.
        let part = Self(unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) });
        part.reversed()
    }

    #[inline(always)]
    fn load_numbers(_: HasVpclmul512, numbers: &[u128]) -> Self {
        let numbers: &[u128; 4] = numbers.try_into().expect("a vector");
        // SAFETY: the proof says that there is AVX-512F; the array is as long as the load.
        Self(unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: the values prove that there is AVX-512F.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn times(self, power: Self, folded: Self) -> Products<Self> {
        let (blocks, power) = (self.0, power.0);
        // SAFETY: the values prove that there are VPCLMULQDQ and AVX-512F.
        unsafe {
            let halves = _mm512_xor_si512(blocks, _mm512_shuffle_epi32::<_MM_PERM_BADC>(blocks));
            Products {
                low: Self(_mm512_clmulepi64_epi128::<0x00>(blocks, power)),
                middle: Self(_mm512_clmulepi64_epi128::<0x00>(halves, folded.0)),
                high: Self(_mm512_clmulepi64_epi128::<0x11>(blocks, power)),
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
        // SAFETY: the value proves that there is AVX-512F.
        One(unsafe { _mm512_castsi512_si128(self.0) }).first()
    }
}

impl Four {
    /// A block in the first place.
    #[inline(always)]
    fn from(One(block): One) -> Self {
        // SAFETY: only called with a proof that there is AVX-512F.
        Self(unsafe { _mm512_zextsi128_si512(block) })
    }

    /// The bytes of each block in reverse order.
    #[inline(always)]
    fn reversed(self) -> Self {
        // SAFETY: the value proves that there are AVX-512F and AVX-512BW.
        Self(unsafe {
            let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_shuffle_epi8(self.0, _mm512_broadcast_i32x4(order))
        })
    }

    /// The sum of the blocks.
    #[inline(always)]
    fn total(self) -> One {
        // SAFETY: the value proves that there is AVX-512F, which includes AVX2.
        One(unsafe {
            let two = _mm256_xor_si256(
                _mm512_castsi512_si256(self.0),
                _mm512_extracti64x4_epi64::<1>(self.0),
            );
            _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256::<1>(two))
        })
    }
}

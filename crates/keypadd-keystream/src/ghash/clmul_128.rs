//! Hashes block by block with PCLMULQDQ, which every x86-64 with AES instructions has.

#![allow(unsafe_code)]

use super::Block;
use super::kernel::{self, MODULUS, Powers, Products, Vector};
use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_set_epi8,
    _mm_set_epi64x, _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_unpackhi_epi64, _mm_xor_si128,
};

/// Proves that the CPU has PCLMULQDQ and SSSE3.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HasPclmul(());

impl HasPclmul {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("ssse3");
        has.then_some(Self(()))
    }

    /// Expands H.
    pub(super) fn powers(self, h: &Block) -> Powers {
        // SAFETY: the value proves that there are PCLMULQDQ and SSSE3.
        unsafe { powers(self, h) }
    }

    pub(super) fn tag(self, powers: &Powers, header: &[u8], text: &[u8], mask: &Block) -> Block {
        // SAFETY: the value proves that there are PCLMULQDQ and SSSE3.
        unsafe { tag(self, powers, header, text, mask) }
    }
}

#[target_feature(enable = "pclmulqdq,ssse3")]
fn powers(proof: HasPclmul, h: &Block) -> Powers {
    Powers::new::<One>(proof, h)
}

#[target_feature(enable = "pclmulqdq,ssse3")]
fn tag(proof: HasPclmul, powers: &Powers, header: &[u8], text: &[u8], mask: &Block) -> Block {
    kernel::tag::<One>(proof, powers, header, text, mask)
}

/// One block.
#[derive(Clone, Copy)]
pub(super) struct One(pub(super) __m128i);

impl Vector for One {
    const BLOCKS: usize = 1;
    type Proof = HasPclmul;

    #[inline(always)]
    fn single(_: HasPclmul, block: u128) -> Self {
        let [low, high] = [block as u64, (block >> 64) as u64].map(u64::cast_signed);
        // SAFETY: every x86-64 has SSE2.
        Self(unsafe { _mm_set_epi64x(high, low) })
    }

    #[inline(always)]
    fn load(proof: HasPclmul, bytes: &[u8]) -> Self {
        let block: Block = bytes.try_into().expect("one block");
        Self::single(proof, u128::from_le_bytes(block)).reversed()
    }

    #[inline(always)]
    fn load_part(proof: HasPclmul, bytes: &[u8]) -> Self {
        Self::single(proof, padded(bytes)).reversed()
    }

    #[inline(always)]
    fn load_numbers(proof: HasPclmul, numbers: &[u128]) -> Self {
        Self::single(proof, numbers[0])
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: every x86-64 has SSE2.
        Self(unsafe { _mm_xor_si128(self.0, other.0) })
    }

    #[inline(always)]
    fn times(self, power: Self, folded: Self) -> Products<Self> {
        let (block, power) = (self.0, power.0);
        // SAFETY: the values prove that there is PCLMULQDQ.
        unsafe {
            let halves = _mm_xor_si128(block, _mm_shuffle_epi32::<0b01_00_11_10>(block));
            Products {
                low: Self(_mm_clmulepi64_si128::<0x00>(block, power)),
                middle: Self(_mm_clmulepi64_si128::<0x00>(halves, folded.0)),
                high: Self(_mm_clmulepi64_si128::<0x11>(block, power)),
            }
        }
    }

    #[inline(always)]
    fn reduced(products: Products<Self>) -> Self {
        let Products { low, middle, high } = products;
        let middle = middle.xor(low).xor(high);
        let middle = middle.xor(low.folded_up());
        high.xor(middle.folded_up())
    }

    #[inline(always)]
    fn first(self) -> u128 {
        // SAFETY: every x86-64 has SSE2.
        let (low, high) = unsafe {
            let high = _mm_unpackhi_epi64(self.0, self.0);
            (_mm_cvtsi128_si64(self.0), _mm_cvtsi128_si64(high))
        };
        u128::from(high.cast_unsigned()) << 64 | u128::from(low.cast_unsigned())
    }
}

impl One {
    /// The bytes in reverse order.
    #[inline(always)]
    fn reversed(self) -> Self {
        // SAFETY: the value proves that there is SSSE3.
        Self(unsafe {
            let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm_shuffle_epi8(self.0, order)
        })
    }

    /// What 128 bits of a product add to those that lie 64 bits higher, so that their low 64 bits
    /// vanish: a multiple of the modulus is added (one step of Montgomery's reduction).
    #[inline(always)]
    fn folded_up(self) -> Self {
        // SAFETY: the value proves that there is PCLMULQDQ.
        unsafe {
            let modulus = _mm_cvtsi64_si128(MODULUS.cast_signed());
            let swapped = _mm_shuffle_epi32::<0b01_00_11_10>(self.0);
            Self(_mm_xor_si128(swapped, _mm_clmulepi64_si128::<0x00>(self.0, modulus)))
        }
    }
}

/// At most one block, zero-padded, as a little-endian number.
#[inline(always)]
pub(super) fn padded(bytes: &[u8]) -> u128 {
    /// Two pieces that overlap, the second of which ends the bytes.
    #[inline(always)]
    fn overlapping(first: u64, last: u64, last_at: usize) -> u128 {
        u128::from(first) | u128::from(last) << (8 * last_at)
    }
    let length = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        overlapping(u64::from_le_bytes(*first), u64::from_le_bytes(*last), length - 8)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let [first, last] = [first, last].map(|piece| u64::from(u32::from_le_bytes(*piece)));
        overlapping(first, last, length - 4)
    } else if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
        let middle = overlapping(u64::from(*first), u64::from(bytes[length / 2]), length / 2);
        middle | u128::from(*last) << (8 * (length - 1))
    } else {
        0
    }
}

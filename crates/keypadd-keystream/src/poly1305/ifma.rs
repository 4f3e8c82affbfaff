//! Absorbs eight blocks at a time with AVX-512 IFMA, which multiplies numbers of 52 bits.
//!
//! Lane `i` of a vector sums blocks `i`, `8 + i`, `16 + i` and so on, each multiplied by `r^8` for
//! every group after its own; in the end the lanes are multiplied by `r^8` to `r` and added up. Two
//! groups at a time, so that only one of two products waits for the one before.
//!
//! The only unsafe block is the call into code compiled for these instructions.

#![allow(unsafe_code)]

use super::{Accumulator, Block, words};
use std::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_madd52hi_epu64, _mm512_madd52lo_epu64,
    _mm512_mask_blend_epi64, _mm512_maskz_set1_epi64, _mm512_or_si512, _mm512_permutex2var_epi64,
    _mm512_permutexvar_epi64, _mm512_reduce_add_epi64, _mm512_set_epi64, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
};

/// Blocks absorbed at a time.
pub(super) const LANES: usize = 8;

/// The low 44 and 42 bits.
const MASK_44: i64 = (1 << 44) - 1;
const MASK_42: i64 = (1 << 42) - 1;

/// Proves that the CPU has AVX-512F and AVX-512 IFMA.
#[derive(Clone, Copy)]
pub(crate) struct HasIfma(());

impl HasIfma {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma");
        has.then_some(Self(()))
    }

    /// Absorbs whole blocks, with 2^128 added to each.
    pub(super) fn absorb(self, state: &mut Accumulator, groups: &[[Block; LANES]]) {
        // SAFETY: the value proves that there are AVX-512F and AVX-512 IFMA.
        unsafe { absorb(state, groups) }
    }
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn absorb(state: &mut Accumulator, groups: &[[Block; LANES]]) {
    let Some((first, groups)) = groups.split_first() else { return };
    let [r0, r1] = state.r.map(u64::cast_signed);
    let r = Numbers::new(_mm512_set1_epi64(r0), _mm512_set1_epi64(r1), _mm512_setzero_si512());
    let r2 = r.times(&Factor::new(r));
    let r4 = r2.times(&Factor::new(r2));
    // The lanes need exponents 8 down to 1. Each mask selects the lanes where the exponent minus
    // one contains 1, 2 or 4.
    let powers = r.or(0b0101_0101, r2);
    let powers = powers.times(&Factor::new(Numbers::one().or(0b0011_0011, r2)));
    let powers = powers.times(&Factor::new(Numbers::one().or(0b0000_1111, r4)));
    let r8 = powers.first_in_all_lanes();
    let by_r8 = Factor::new(r8);
    let by_r16 = Factor::new(r8.times(&by_r8));

    let [h0, h1, h2] = state.h.map(u64::cast_signed);
    let h = Numbers::new(
        _mm512_maskz_set1_epi64(1, h0),
        _mm512_maskz_set1_epi64(1, h1),
        _mm512_maskz_set1_epi64(1, h2),
    );
    let mut sums = h.plus(Numbers::of_blocks(first));
    let (single, pairs) = groups.as_rchunks();
    for group in single {
        sums = sums.times(&by_r8).plus(Numbers::of_blocks(group));
    }
    for [earlier, later] in pairs {
        let products = Products::none().and(Numbers::of_blocks(earlier), &by_r8).and(sums, &by_r16);
        sums = products.carried().plus(Numbers::of_blocks(later));
    }
    state.h = sums.times(&Factor::new(powers)).total();
    state.fold();
}

/// Eight numbers in limbs of 44, 44 and 42 bits and, before a multiplication, a little more.
#[derive(Clone, Copy)]
struct Numbers([__m512i; 3]);

impl Numbers {
    /// Of words of 64 bits.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(low: __m512i, high: __m512i, top: __m512i) -> Self {
        let mask = _mm512_set1_epi64(MASK_44);
        let middle = _mm512_or_si512(_mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high));
        Self([
            _mm512_and_si512(low, mask),
            _mm512_and_si512(middle, mask),
            _mm512_or_si512(_mm512_srli_epi64::<24>(high), _mm512_slli_epi64::<40>(top)),
        ])
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn one() -> Self {
        Self([_mm512_set1_epi64(1), _mm512_setzero_si512(), _mm512_setzero_si512()])
    }

    /// Blocks in order, with 2^128 added to each.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of_blocks(blocks: &[Block; LANES]) -> Self {
        let [a, b, c, d, e, f, g, h] = blocks.map(|block| words(&block).map(u64::cast_signed));
        let first = _mm512_set_epi64(d[1], d[0], c[1], c[0], b[1], b[0], a[1], a[0]);
        let second = _mm512_set_epi64(h[1], h[0], g[1], g[0], f[1], f[0], e[1], e[0]);
        let even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
        let odd = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
        Self::new(
            _mm512_permutex2var_epi64(first, even, second),
            _mm512_permutex2var_epi64(first, odd, second),
            _mm512_set1_epi64(1),
        )
    }

    /// Takes the limbs of `other` in the lanes of the mask.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn or(self, mask: u8, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([
            _mm512_mask_blend_epi64(mask, a, d),
            _mm512_mask_blend_epi64(mask, b, e),
            _mm512_mask_blend_epi64(mask, c, f),
        ])
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn first_in_all_lanes(self) -> Self {
        let [a, b, c] = self.0;
        let first = _mm512_setzero_si512();
        Self([
            _mm512_permutexvar_epi64(first, a),
            _mm512_permutexvar_epi64(first, b),
            _mm512_permutexvar_epi64(first, c),
        ])
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn plus(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([_mm512_add_epi64(a, d), _mm512_add_epi64(b, e), _mm512_add_epi64(c, f)])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn times(self, factor: &Factor) -> Self {
        Products::none().and(self, factor).carried()
    }

    /// The sum of all lanes, in words of 64 bits; the last has some bits too many.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn total(self) -> [u64; 3] {
        let [low, middle, high] = self.0;
        let sum = |limbs| u128::from(_mm512_reduce_add_epi64(limbs).cast_unsigned());
        let low = sum(low) + (sum(middle) << 44);
        let high = sum(high) + (low >> 88);
        let words = low & ((1 << 88) - 1) | high << 88;
        [words as u64, (words >> 64) as u64, (high >> 40) as u64]
    }
}

/// What numbers are multiplied by.
struct Factor {
    limbs: [__m512i; 3],
    /// The upper limbs for products from 2^132 on, which is 4 * 2^130, as 2^130 is 5.
    folded: [__m512i; 2],
}

impl Factor {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(Numbers(limbs): Numbers) -> Self {
        let [_, middle, high] = limbs;
        Self { limbs, folded: [four_times_five(middle), four_times_five(high)] }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn four_times_five(limbs: __m512i) -> __m512i {
    _mm512_slli_epi64::<2>(five_times(limbs))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn five_times(limbs: __m512i) -> __m512i {
    _mm512_add_epi64(limbs, _mm512_slli_epi64::<2>(limbs))
}

/// Sums of products by limb: of their low 52 bits, and of the bits above. With two products of
/// limbs of 46 bits and folded ones of 49 they stay below 2^55.
struct Products {
    low: [__m512i; 3],
    high: [__m512i; 3],
}

impl Products {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn none() -> Self {
        let zeros = [_mm512_setzero_si512(); 3];
        Self { low: zeros, high: zeros }
    }

    /// Adds a product.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn and(self, Numbers([a, b, c]): Numbers, factor: &Factor) -> Self {
        let Factor { limbs: [r, s, t], folded: [s_folded, t_folded] } = *factor;
        self.and_limb(c, [s_folded, t_folded, r])
            .and_limb(b, [t_folded, r, s])
            .and_limb(a, [r, s, t])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn and_limb(self, limb: __m512i, [r, s, t]: [__m512i; 3]) -> Self {
        let Self { low: [a, b, c], high: [d, e, f] } = self;
        Self {
            low: [
                _mm512_madd52lo_epu64(a, limb, r),
                _mm512_madd52lo_epu64(b, limb, s),
                _mm512_madd52lo_epu64(c, limb, t),
            ],
            high: [
                _mm512_madd52hi_epu64(d, limb, r),
                _mm512_madd52hi_epu64(e, limb, s),
                _mm512_madd52hi_epu64(f, limb, t),
            ],
        }
    }

    /// Carries from limb to limb and, five times, from the highest to the lowest.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn carried(self) -> Numbers {
        let Self { low: [a, b, c], high: [d, e, f] } = self;
        let (mask_44, mask_42) = (_mm512_set1_epi64(MASK_44), _mm512_set1_epi64(MASK_42));
        let carry = _mm512_add_epi64(_mm512_srli_epi64::<44>(a), _mm512_slli_epi64::<8>(d));
        let b = _mm512_add_epi64(b, carry);
        let carry = _mm512_add_epi64(_mm512_srli_epi64::<44>(b), _mm512_slli_epi64::<8>(e));
        let c = _mm512_add_epi64(c, carry);
        let carry = _mm512_add_epi64(_mm512_srli_epi64::<42>(c), _mm512_slli_epi64::<10>(f));
        let a = _mm512_add_epi64(_mm512_and_si512(a, mask_44), five_times(carry));
        let b = _mm512_add_epi64(_mm512_and_si512(b, mask_44), _mm512_srli_epi64::<44>(a));
        Numbers([_mm512_and_si512(a, mask_44), b, _mm512_and_si512(c, mask_42)])
    }
}

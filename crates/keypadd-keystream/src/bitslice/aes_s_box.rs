//! Computes the AES S-box (FIPS 197 5.1.1) as a circuit of 115 two-input gates.
//!
//! Joan Boyar and René Peralta, "A new combinational logic minimization technique with applications
//! to cryptology", 2010: inversion in GF(2^8) by a tower of fields between two linear layers. Its
//! four negations are left out; the caller applies them (see [`AFFINE`]).

use super::lanes::Lanes;

/// What the S-box maps 0 to, and what its affine part adds to every output.
pub(super) const AFFINE: u8 = 0x63;

/// The S-box without [`AFFINE`] on bit planes of bytes, the lowest bit first.
#[inline(always)]
#[rustfmt::skip]
pub(super) fn s_box<L: Lanes>([u7, u6, u5, u4, u3, u2, u1, u0]: [L; 8]) -> [L; 8] {
    // To the tower of fields; numbers are those of the paper.
    let (y14, y13, y9, y8) = (u3.xor(u5), u0.xor(u6), u0.xor(u3), u0.xor(u5));
    let t0 = u1.xor(u2);
    let y1 = t0.xor(u7);
    let (y4, y12, y2, y5) = (y1.xor(u3), y13.xor(y14), y1.xor(u0), y1.xor(u6));
    let (y3, t1) = (y5.xor(y8), u4.xor(y12));
    let (y15, y20) = (t1.xor(u5), t1.xor(u1));
    let (y6, y10, y11) = (y15.xor(u7), y15.xor(t0), y20.xor(y9));
    let (y7, y17, y19, y16) = (u7.xor(y11), y10.xor(y11), y10.xor(y8), t0.xor(y11));
    let (y21, y18) = (y13.xor(y16), u0.xor(y16));

    // The inverse.
    let (t2, t3, t5, t7) = (y12.and(y15), y3.and(y6), y4.and(u7), y13.and(y16));
    let (t4, t6, t8, t10) = (t3.xor(t2), t5.xor(t2), y5.and(y1), y2.and(y7));
    let (t9, t11, t12, t13) = (t8.xor(t7), t10.xor(t7), y9.and(y11), y14.and(y17));
    let (t14, t15) = (t13.xor(t12), y8.and(y10));
    let (t16, t17) = (t15.xor(t12), t4.xor(t14));
    let (t18, t19, t20) = (t6.xor(t16), t9.xor(t14), t11.xor(t16));
    let (t21, t22, t23, t24) = (t17.xor(y20), t18.xor(y19), t19.xor(y21), t20.xor(y18));
    let (t25, t26) = (t21.xor(t22), t21.and(t23));
    let t27 = t24.xor(t26);
    let t29 = t25.and(t27).xor(t22);
    let t32 = t22.xor(t26).and(t23.xor(t24));
    let t33 = t32.xor(t24);
    let t36 = t24.and(t27.xor(t33));
    let t37 = t36.xor(t23.xor(t33));
    let t40 = t25.xor(t29.and(t27.xor(t36)));
    let (t41, t42, t43, t44) = (t40.xor(t37), t29.xor(t33), t29.xor(t40), t33.xor(t37));
    let t45 = t42.xor(t41);

    // And back.
    let (z0, z1, z2) = (t44.and(y15), t37.and(y6), t33.and(u7));
    let (z3, z4, z5) = (t43.and(y16), t40.and(y1), t29.and(y7));
    let (z6, z7, z8) = (t42.and(y11), t45.and(y17), t41.and(y10));
    let (z9, z10, z11) = (t44.and(y12), t37.and(y3), t33.and(y4));
    let (z12, z13, z14) = (t43.and(y13), t40.and(y5), t29.and(y2));
    let (z15, z16, z17) = (t42.and(y9), t45.and(y14), t41.and(y8));
    let (t46, t48, t50, t53) = (z15.xor(z16), z5.xor(z13), z2.xor(z12), z0.xor(z3));
    let (t54, t57, t58) = (z6.xor(z7), t50.xor(t53), z4.xor(t46));
    let (t59, t60, t61) = (z3.xor(t54), t46.xor(t57), z14.xor(t57));
    let (t62, t63, t64) = (z7.xor(z8).xor(t58), z9.xor(z10).xor(t58), z4.xor(t59));
    let (t65, t66) = (t61.xor(t62), z1.xor(t63));
    let (s0, s6, s7) = (t59.xor(t63), z12.xor(t48).xor(t62), t48.xor(t60));
    let (s3, s4, s5) = (t53.xor(t66), z2.xor(z5).xor(t66), z10.xor(z11).xor(t65));
    let (s1, s2) = (t64.xor(s3), z16.xor(z17).xor(t64.xor(t65)));
    [s7, s6, s5, s4, s3, s2, s1, s0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product in GF(2^8) (FIPS 197 4.2).
    fn product(a: u8, b: u8) -> u8 {
        let double = |a: u8| (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1b };
        let powers = std::iter::successors(Some(a), |a| Some(double(*a)));
        powers
            .zip(0..8)
            .fold(0, |sum, (power, bit)| sum ^ if b >> bit & 1 == 1 { power } else { 0 })
    }

    #[test]
    fn the_circuit_matches_the_standard_for_every_byte() {
        for first in (0..=255).step_by(64) {
            let byte = |lane: u8| first + lane;
            let planes: [u64; 8] = std::array::from_fn(|bit| {
                (0..64).map(|lane| u64::from(byte(lane) >> bit & 1) << lane).sum()
            });
            let outputs = s_box(planes);
            for lane in 0..64 {
                let input = byte(lane);
                let inverse = (0..=255).find(|other| product(input, *other) == 1).unwrap_or(0);
                let rotated = [0, 1, 2, 3, 4].map(|by| inverse.rotate_left(by));
                let expected = rotated.into_iter().fold(AFFINE, |sum, rotated| sum ^ rotated);
                let bits = outputs.iter().enumerate();
                let output: u8 = bits.map(|(bit, plane)| ((plane >> lane & 1) as u8) << bit).sum();
                assert_eq!(output ^ AFFINE, expected, "{input:02x}");
            }
        }
    }
}

//! The S-boxes of DES as circuits of gates of any function of three inputs.
//!
//! Written by `cargo run --release -p des-circuits -- write ternary`; not to be edited.
//! Gates: 29, 26, 27, 31, 31, 27, 29, 30 for S1 to S8, 230 in all.

use super::lanes::Ternary;

/// S-box `NUMBER` (1 to 8); inputs and outputs in the order of FIPS 46-3.
#[inline(always)]
pub(super) fn s_box<const NUMBER: usize, L: Ternary>(inputs: [L; 6]) -> [L; 4] {
    match NUMBER {
        1 => s1(inputs),
        2 => s2(inputs),
        3 => s3(inputs),
        4 => s4(inputs),
        5 => s5(inputs),
        6 => s6(inputs),
        7 => s7(inputs),
        _ => s8(inputs),
    }
}

#[inline(always)]
fn s1<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let (x1, x2) = (L::ternary::<0x94>(f, e, d), L::ternary::<0xda>(a, e, d));
    let x3 = L::ternary::<0xc9>(f, e, a);
    let x4 = L::ternary::<0x63>(x2, x1, x3);
    let (x5, x6) = (L::ternary::<0x7d>(f, x3, x4), L::ternary::<0x91>(x4, x1, c));
    let x7 = L::ternary::<0x63>(x5, a, x6);
    let x8 = L::ternary::<0xe8>(x7, x2, d);
    let x9 = L::ternary::<0x2d>(x8, x6, c);
    let x10 = L::ternary::<0x64>(x5, x3, x9);
    let x11 = L::ternary::<0xca>(d, x10, x9);
    let x12 = L::ternary::<0x1b>(x11, x10, a);
    let x13 = L::ternary::<0xac>(e, x8, x12);
    let x14 = L::ternary::<0xc8>(x13, b, x5);
    let (x15, x16) = (L::ternary::<0xb4>(x1, x2, x14), L::ternary::<0x3c>(x4, x14, x13));
    let (x17, x18) = (L::ternary::<0xca>(c, x15, x16), L::ternary::<0x6a>(x2, e, c));
    let (x19, x20) = (L::ternary::<0x9c>(x18, x7, b), L::ternary::<0x8d>(x18, x2, b));
    let x21 = L::ternary::<0x83>(d, x16, b);
    let x22 = L::ternary::<0xac>(c, x20, x21);
    let (x23, x24) = (L::ternary::<0xca>(f, x19, x22), L::ternary::<0x27>(x8, x12, c));
    let x25 = L::ternary::<0x79>(x24, x20, x7);
    let (x26, x27) = (L::ternary::<0xc6>(b, x11, x25), L::ternary::<0x92>(x13, x23, x3));
    let x28 = L::ternary::<0x36>(x6, c, x27);
    let x29 = L::ternary::<0x6c>(b, x13, x28);
    [x17, x23, x26, x29]
}

#[inline(always)]
fn s2<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let (x1, x2) = (L::ternary::<0xf8>(d, f, e), L::ternary::<0x6f>(f, d, c));
    let x3 = L::ternary::<0x69>(a, x2, c);
    let (x4, x5) = (L::ternary::<0x92>(f, x3, x2), L::ternary::<0x8b>(d, a, x2));
    let x6 = L::ternary::<0x6c>(e, x4, x5);
    let x7 = L::ternary::<0x65>(x6, f, e);
    let x8 = L::ternary::<0xc6>(a, x1, x7);
    let (x9, x10) = (L::ternary::<0x6c>(x8, x6, b), L::ternary::<0xd2>(x8, c, x2));
    let (x11, x12) = (L::ternary::<0x6c>(e, x3, x10), L::ternary::<0x4b>(d, e, x10));
    let x13 = L::ternary::<0x36>(f, c, x12);
    let x14 = L::ternary::<0xc6>(b, x11, x13);
    let (x15, x16) = (L::ternary::<0xc5>(b, x4, x14), L::ternary::<0x2d>(x8, b, a));
    let (x17, x18) = (L::ternary::<0xca>(e, x15, x16), L::ternary::<0x3b>(x9, b, a));
    let x19 = L::ternary::<0x90>(e, x15, x13);
    let x20 = L::ternary::<0x78>(x18, d, x19);
    let x21 = L::ternary::<0x6c>(f, x17, x20);
    let x22 = L::ternary::<0x29>(x21, x4, d);
    let (x23, x24) = (L::ternary::<0x63>(x13, b, x22), L::ternary::<0xc4>(x15, x10, x8));
    let x25 = L::ternary::<0x8b>(x13, x5, x24);
    let x26 = L::ternary::<0xc6>(e, x23, x25);
    [x9, x14, x26, x21]
}

#[inline(always)]
fn s3<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = L::ternary::<0xac>(d, c, b);
    let (x2, x3) = (L::ternary::<0x09>(e, f, x1), L::ternary::<0x69>(f, e, d));
    let x4 = L::ternary::<0xbe>(f, b, x1);
    let (x5, x6) = (L::ternary::<0x9a>(x2, x3, x4), L::ternary::<0xce>(f, b, e));
    let (x7, x8) = (L::ternary::<0x83>(x5, a, x6), L::ternary::<0x6c>(c, x3, x6));
    let (x9, x10) = (L::ternary::<0xc9>(x7, x8, a), L::ternary::<0x87>(x4, d, x3));
    let x11 = L::ternary::<0x2d>(x3, d, b);
    let x12 = L::ternary::<0x38>(x11, x10, e);
    let x13 = L::ternary::<0xac>(c, x10, x12);
    let x14 = L::ternary::<0x69>(x13, d, c);
    let x15 = L::ternary::<0x76>(x8, b, x14);
    let x16 = L::ternary::<0x1b>(x13, x11, x15);
    let x17 = L::ternary::<0xca>(a, x13, x16);
    let x18 = L::ternary::<0x92>(e, b, x17);
    let (x19, x20) = (L::ternary::<0x6c>(a, x14, x18), L::ternary::<0x74>(b, x13, x15));
    let x21 = L::ternary::<0xd8>(d, a, x20);
    let x22 = L::ternary::<0x6c>(f, x19, x21);
    let x23 = L::ternary::<0xe7>(x22, x5, a);
    let (x24, x25) = (L::ternary::<0x6c>(c, x7, x23), L::ternary::<0xed>(x7, x10, x19));
    let x26 = L::ternary::<0xd1>(x25, x6, x11);
    let x27 = L::ternary::<0x6c>(e, x24, x26);
    [x9, x17, x27, x22]
}

#[inline(always)]
fn s4<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = L::ternary::<0x69>(b, f, d);
    let (x2, x3) = (L::ternary::<0x32>(b, x1, d), L::ternary::<0x8e>(f, b, a));
    let x4 = L::ternary::<0xb8>(f, d, x3);
    let (x5, x6) = (L::ternary::<0xe9>(x3, a, x4), L::ternary::<0x94>(x4, d, b));
    let x7 = L::ternary::<0x5a>(x6, f, a);
    let (x8, x9) = (L::ternary::<0x25>(x5, x1, x7), L::ternary::<0x69>(x5, d, a));
    let x10 = L::ternary::<0x6c>(e, x8, x9);
    let x11 = L::ternary::<0x5a>(x2, x10, a);
    let (x12, x13) = (L::ternary::<0x6c>(e, x11, x4), L::ternary::<0x6c>(e, x7, x5));
    let (x14, x15) = (L::ternary::<0xca>(c, x12, x13), L::ternary::<0xf4>(x1, x11, x8));
    let x16 = L::ternary::<0xca>(x6, f, x12);
    let (x17, x18) = (L::ternary::<0x6c>(c, x15, x16), L::ternary::<0x92>(d, c, a));
    let x19 = L::ternary::<0xbe>(x6, c, x18);
    let (x20, x21) = (L::ternary::<0xc6>(e, x17, x19), L::ternary::<0x8b>(x18, x14, x4));
    let x22 = L::ternary::<0xab>(x17, x1, x3);
    let (x23, x24) = (L::ternary::<0xc6>(b, x21, x22), L::ternary::<0x9d>(x1, x12, x10));
    let (x25, x26) = (L::ternary::<0xde>(x24, b, x20), L::ternary::<0x9d>(x24, x12, x14));
    let x27 = L::ternary::<0xac>(b, x24, x26);
    let x28 = L::ternary::<0xc6>(c, x10, x27);
    let x29 = L::ternary::<0x8c>(x28, x5, x16);
    let x30 = L::ternary::<0xe0>(x25, x9, x29);
    let x31 = L::ternary::<0xc6>(e, x23, x30);
    [x14, x20, x31, x28]
}

#[inline(always)]
fn s5<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let (x1, x2) = (L::ternary::<0xf1>(e, d, f), L::ternary::<0x26>(f, e, d));
    let (x3, x4) = (L::ternary::<0xca>(a, x1, x2), L::ternary::<0x68>(f, c, a));
    let x5 = L::ternary::<0x36>(x4, d, a);
    let x6 = L::ternary::<0x7a>(f, x1, x5);
    let x7 = L::ternary::<0xca>(x3, x6, f);
    let (x8, x9) = (L::ternary::<0xc6>(c, x3, x7), L::ternary::<0xa7>(x7, c, a));
    let (x10, x11) = (L::ternary::<0x58>(c, a, x2), L::ternary::<0xe1>(x9, d, b));
    let (x12, x13) = (L::ternary::<0x10>(d, x4, x8), L::ternary::<0xf6>(x4, x5, a));
    let x14 = L::ternary::<0x86>(x12, x13, x10);
    let x15 = L::ternary::<0x41>(x14, x3, d);
    let (x16, x17) = (L::ternary::<0xeb>(x3, f, x15), L::ternary::<0x6e>(x3, d, x1));
    let (x18, x19) = (L::ternary::<0xc6>(c, x16, x17), L::ternary::<0x6c>(e, x5, x10));
    let x20 = L::ternary::<0xe3>(x3, c, x16);
    let x21 = L::ternary::<0xdb>(x13, e, x20);
    let x22 = L::ternary::<0xc6>(b, x19, x21);
    let x23 = L::ternary::<0xb5>(x6, x22, x20);
    let x24 = L::ternary::<0x5e>(x10, x18, x23);
    let x25 = L::ternary::<0x6c>(b, x14, x24);
    let x26 = L::ternary::<0x1a>(x10, x11, x25);
    let x27 = L::ternary::<0x78>(x9, x26, f);
    let (x28, x29) = (L::ternary::<0x6c>(b, x8, x27), L::ternary::<0x6c>(b, x18, x13));
    let x30 = L::ternary::<0xca>(c, x23, x11);
    let x31 = L::ternary::<0xac>(e, x25, x30);
    [x28, x29, x22, x31]
}

#[inline(always)]
fn s6<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = L::ternary::<0x69>(e, d, a);
    let x2 = L::ternary::<0x59>(x1, e, b);
    let x3 = L::ternary::<0xca>(c, x1, x2);
    let (x4, x5) = (L::ternary::<0xef>(x3, x2, a), L::ternary::<0xe1>(c, b, a));
    let x6 = L::ternary::<0x8e>(x2, x1, x5);
    let x7 = L::ternary::<0xc6>(e, x4, x6);
    let (x8, x9) = (L::ternary::<0x6c>(f, x3, x7), L::ternary::<0x69>(x7, f, b));
    let x10 = L::ternary::<0x38>(e, x5, x8);
    let (x11, x12) = (L::ternary::<0x6c>(a, x9, x10), L::ternary::<0x60>(x2, e, x5));
    let (x13, x14) = (L::ternary::<0x07>(x12, x3, x10), L::ternary::<0x58>(x3, e, x7));
    let x15 = L::ternary::<0xc6>(f, x13, x14);
    let (x16, x17) = (L::ternary::<0x6c>(d, x11, x15), L::ternary::<0x1e>(x2, d, a));
    let x18 = L::ternary::<0x2d>(x1, x17, d);
    let x19 = L::ternary::<0xb4>(x18, x16, x5);
    let (x20, x21) = (L::ternary::<0xc6>(d, x19, x12), L::ternary::<0xe2>(x18, c, a));
    let x22 = L::ternary::<0xd7>(x21, x15, x13);
    let (x23, x24) = (L::ternary::<0xc6>(f, x20, x22), L::ternary::<0xac>(c, x18, x17));
    let x25 = L::ternary::<0xb8>(e, x8, d);
    let x26 = L::ternary::<0xe8>(x9, a, x25);
    let x27 = L::ternary::<0x6c>(f, x24, x26);
    [x8, x16, x23, x27]
}

#[inline(always)]
fn s7<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = L::ternary::<0xb6>(f, c, a);
    let (x2, x3) = (L::ternary::<0xc6>(d, x1, a), L::ternary::<0x74>(f, d, a));
    let x4 = L::ternary::<0x6f>(x1, c, x3);
    let (x5, x6) = (L::ternary::<0x6c>(e, x2, x4), L::ternary::<0x9f>(e, d, c));
    let x7 = L::ternary::<0x51>(c, x2, x3);
    let x8 = L::ternary::<0x2c>(x7, d, x1);
    let x9 = L::ternary::<0xca>(a, x6, x8);
    let (x10, x11) = (L::ternary::<0x6c>(b, x5, x9), L::ternary::<0x24>(f, d, c));
    let (x12, x13) = (L::ternary::<0x90>(x1, a, x11), L::ternary::<0xc6>(x7, x9, b));
    let x14 = L::ternary::<0x63>(x13, x1, x7);
    let (x15, x16) = (L::ternary::<0xc6>(b, x12, x14), L::ternary::<0xdb>(x6, x1, x13));
    let x17 = L::ternary::<0x6c>(e, x15, x16);
    let (x18, x19) = (L::ternary::<0x48>(x17, x9, x5), L::ternary::<0x1e>(x12, x11, e));
    let (x20, x21) = (L::ternary::<0xc6>(f, x18, x19), L::ternary::<0x69>(e, d, a));
    let x22 = L::ternary::<0x28>(x21, x11, d);
    let x23 = L::ternary::<0xdb>(x13, x3, x22);
    let (x24, x25) = (L::ternary::<0x6c>(b, x20, x23), L::ternary::<0x63>(d, b, e));
    let (x26, x27) = (L::ternary::<0xc6>(c, x21, x25), L::ternary::<0x9e>(x10, x24, x13));
    let x28 = L::ternary::<0x3a>(x25, b, x27);
    let x29 = L::ternary::<0x6c>(f, x26, x28);
    [x10, x17, x24, x29]
}

#[inline(always)]
fn s8<L: Ternary>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let (x1, x2) = (L::ternary::<0xe3>(f, e, b), L::ternary::<0xe8>(f, d, b));
    let (x3, x4) = (L::ternary::<0xd8>(x1, x2, c), L::ternary::<0xc9>(f, c, x1));
    let x5 = L::ternary::<0x3a>(x2, e, x4);
    let (x6, x7) = (L::ternary::<0xc6>(d, x3, x5), L::ternary::<0xc1>(f, d, b));
    let x8 = L::ternary::<0x6c>(e, x2, x7);
    let (x9, x10) = (L::ternary::<0x6c>(c, x8, x1), L::ternary::<0x57>(x3, x5, a));
    let x11 = L::ternary::<0x6c>(x6, x9, x10);
    let x12 = L::ternary::<0x56>(x11, e, d);
    let (x13, x14) = (L::ternary::<0xc6>(f, x12, x10), L::ternary::<0x9b>(c, x10, x7));
    let x15 = L::ternary::<0x3d>(c, x10, x2);
    let x16 = L::ternary::<0x6c>(e, x14, x15);
    let (x17, x18) = (L::ternary::<0xca>(b, x13, x16), L::ternary::<0x64>(x6, c, b));
    let x19 = L::ternary::<0x4a>(x18, a, x3);
    let x20 = L::ternary::<0x0b>(d, x19, x16);
    let x21 = L::ternary::<0x3c>(x20, b, x19);
    let (x22, x23) = (L::ternary::<0xac>(e, x18, x21), L::ternary::<0x1e>(x18, x7, x20));
    let (x24, x25) = (L::ternary::<0xac>(a, x22, x23), L::ternary::<0xe9>(x11, x7, a));
    let (x26, x27) = (L::ternary::<0xca>(x2, a, x25), L::ternary::<0xea>(x9, x4, x23));
    let (x28, x29) = (L::ternary::<0x6c>(d, x26, x27), L::ternary::<0xf6>(d, x19, b));
    let x30 = L::ternary::<0x6c>(e, x28, x29);
    [x11, x17, x24, x30]
}

//! The S-boxes of DES as circuits of gates of two inputs: and, or, xor, and-not.
//!
//! Written by `cargo run --release -p des-circuits -- write two`; not to be edited.
//! Gates: 60, 57, 56, 64, 62, 61, 57, 55 for S1 to S8, 472 in all.

use super::lanes::Lanes;

/// S-box `NUMBER` (1 to 8); inputs and outputs in the order of FIPS 46-3.
#[inline(always)]
pub(super) fn s_box<const NUMBER: usize, L: Lanes>(inputs: [L; 6]) -> [L; 4] {
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
fn s1<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = c.or(b);
    let (x2, x3) = (x1.xor(f), e.not());
    let x4 = x2.xor(x3);
    let x5 = x4.and_not(c);
    let (x6, x7) = (x5.xor(b), x3.and_not(f));
    let x8 = x6.xor(x7);
    let x9 = x8.and(d);
    let (x10, x11) = (x4.xor(x9), e.and(d));
    let x12 = x11.or(b);
    let x13 = x12.and_not(x9);
    let x14 = x13.or(x5);
    let (x15, x16) = (x14.and_not(x9), x13.and_not(x10));
    let x17 = f.or(x16);
    let x18 = x17.or(d);
    let x19 = x15.xor(x18);
    let x20 = x19.or(c);
    let x21 = x12.xor(x20);
    let x22 = x21.and(a);
    let (x23, x24, x25) = (x10.xor(x22), x21.xor(d), c.xor(x3));
    let (x26, x27) = (x16.xor(x25), e.xor(d));
    let x28 = x26.and(x27);
    let x29 = x4.xor(x28);
    let x30 = e.and(x29);
    let (x31, x32) = (x24.xor(x30), x24.xor(x8));
    let (x33, x34) = (x32.and_not(x16), x27.or(x6));
    let x35 = c.or(x34);
    let x36 = x33.xor(x35);
    let x37 = x36.and_not(a);
    let (x38, x39) = (x31.xor(x37), x34.and(x1));
    let (x40, x41) = (x39.xor(x30), x39.xor(x36));
    let x42 = x41.or(x8);
    let x43 = x42.and(a);
    let (x44, x45, x46) = (x40.xor(x43), x25.and(x19), x14.and_not(a));
    let x47 = x45.xor(x46);
    let x48 = x47.and(d);
    let x49 = x44.xor(x48);
    let x50 = x49.xor(x38);
    let (x51, x52) = (x50.xor(x23), x35.and_not(b));
    let (x53, x54) = (x51.xor(x52), x48.and(x38));
    let x55 = x54.xor(x21);
    let x56 = x55.xor(x23);
    let x57 = x56.and(f);
    let x58 = x55.xor(x57);
    let x59 = x58.and_not(x3);
    let x60 = x53.xor(x59);
    [x23, x38, x60, x49]
}

#[inline(always)]
fn s2<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = f.or(c);
    let x2 = x1.and_not(b);
    let (x3, x4) = (x2.xor(d), f.and(c));
    let (x5, x6) = (x3.xor(x4), d.not());
    let x7 = x6.or(b);
    let x8 = x7.and_not(e);
    let (x9, x10) = (x5.xor(x8), f.and_not(b));
    let x11 = x9.and_not(x10);
    let x12 = x11.xor(e);
    let (x13, x14) = (x12.or(b), e.and(x4));
    let x15 = x14.xor(x1);
    let x16 = x13.xor(x15);
    let x17 = a.and(x16);
    let (x18, x19, x20, x21) = (x9.xor(x17), b.and_not(x4), x16.xor(d), x10.xor(x16));
    let x22 = x3.and_not(e);
    let x23 = x21.xor(x22);
    let x24 = x23.and_not(f);
    let x25 = x24.xor(c);
    let x26 = x20.or(x25);
    let x27 = x26.and_not(d);
    let (x28, x29) = (x19.xor(x27), x20.or(f));
    let x30 = x29.and_not(a);
    let (x31, x32) = (x28.xor(x30), a.xor(d));
    let (x33, x34) = (x32.and_not(x29), x11.or(c));
    let x35 = x33.xor(x34);
    let x36 = x35.and_not(e);
    let (x37, x38) = (x31.xor(x36), e.xor(b));
    let x39 = x6.and(x38);
    let x40 = x15.xor(x39);
    let (x41, x42, x43) = (x40.xor(x7), x38.and(x18), x40.xor(x21));
    let x44 = x43.and_not(f);
    let x45 = x42.xor(x44);
    let x46 = x45.and(a);
    let x47 = x23.xor(x46);
    let x48 = x47.or(x22);
    let x49 = x48.xor(d);
    let x50 = x49.and_not(c);
    let (x51, x52) = (x41.xor(x50), x43.xor(f));
    let x53 = x52.and_not(x20);
    let x54 = x53.and_not(x32);
    let x55 = x25.xor(x54);
    let x56 = x55.or(a);
    let x57 = x51.xor(x56);
    [x18, x37, x57, x47]
}

#[inline(always)]
fn s3<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = f.xor(e);
    let (x2, x3) = (x1.xor(d), f.and(e));
    let x4 = e.xor(x3);
    let x5 = b.or(x4);
    let x6 = x5.and(c);
    let (x7, x8) = (x2.xor(x6), f.not());
    let x9 = x8.xor(b);
    let x10 = x9.and_not(x4);
    let x11 = x10.and(d);
    let (x12, x13) = (x9.xor(x11), x3.xor(b));
    let x14 = x13.or(d);
    let x15 = c.and_not(x14);
    let x16 = x12.xor(x15);
    let x17 = x16.or(a);
    let (x18, x19) = (x7.xor(x17), e.and(c));
    let x20 = c.xor(x19);
    let (x21, x22) = (x20.xor(x9), x2.and_not(e));
    let x23 = x22.xor(x13);
    let x24 = x23.xor(x19);
    let x25 = x1.xor(x24);
    let x26 = x25.and_not(x8);
    let x27 = x26.xor(x2);
    let x28 = x27.xor(x8);
    let x29 = x28.and(d);
    let (x30, x31) = (x21.xor(x29), x17.or(x27));
    let x32 = x31.and_not(c);
    let x33 = c.xor(x32);
    let x34 = x33.xor(a);
    let (x35, x36) = (x30.xor(x34), x7.or(b));
    let (x37, x38) = (x36.xor(x24), x32.or(f));
    let x39 = x38.xor(x12);
    let x40 = x39.or(a);
    let (x41, x42, x43) = (x37.xor(x40), x32.or(x18), x38.and(x35));
    let x44 = x41.and(x25);
    let x45 = x43.xor(x44);
    let x46 = x5.and(x45);
    let x47 = x42.xor(x46);
    let x48 = x47.or(e);
    let (x49, x50) = (x41.xor(x48), x21.and_not(x5));
    let (x51, x52) = (x50.xor(x22), f.and_not(x6));
    let x53 = x52.or(d);
    let x54 = x51.xor(x53);
    let x55 = x54.and(a);
    let x56 = x24.xor(x55);
    [x18, x35, x49, x56]
}

#[inline(always)]
fn s4<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = f.xor(d);
    let (x2, x3) = (x1.or(b), b.and_not(d));
    let x4 = f.and_not(x3);
    let x5 = x4.or(c);
    let (x6, x7) = (x2.xor(x5), c.and_not(f));
    let x8 = x7.and(b);
    let (x9, x10) = (x8.xor(c), x2.and_not(d));
    let x11 = x9.xor(x10);
    let x12 = x11.or(e);
    let (x13, x14) = (x6.xor(x12), x6.and(x2));
    let x15 = x14.xor(b);
    let x16 = x15.and_not(c);
    let (x17, x18, x19) = (a.xor(x16), x9.xor(x2), x7.or(d));
    let x20 = x18.xor(x19);
    let x21 = x20.and(e);
    let x22 = x17.xor(x21);
    let x23 = x22.and(a);
    let x24 = x13.xor(x23);
    let x25 = x24.xor(x1);
    let (x26, x27) = (x25.xor(b), d.and_not(a));
    let (x28, x29) = (x26.xor(x27), a.and_not(b));
    let x30 = x29.xor(x3);
    let x31 = x30.or(c);
    let (x32, x33) = (x28.xor(x31), x31.and_not(x25));
    let (x34, x35) = (x33.xor(c), x25.not());
    let x36 = x35.and_not(d);
    let x37 = x34.xor(x36);
    let x38 = x37.and_not(e);
    let (x39, x40, x41) = (x32.xor(x38), x22.xor(x4), x17.xor(x2));
    let (x42, x43) = (x41.xor(b), x32.or(x24));
    let x44 = x43.xor(c);
    let x45 = x44.or(d);
    let (x46, x47, x48) = (x42.xor(x45), x5.xor(x38), x27.xor(x11));
    let x49 = x48.and(x24);
    let x50 = x49.or(b);
    let x51 = x47.xor(x50);
    let x52 = x51.and_not(e);
    let x53 = x46.xor(x52);
    let x54 = x53.xor(x48);
    let x55 = x54.xor(x1);
    let x56 = x55.and_not(e);
    let (x57, x58, x59) = (x40.xor(x56), x54.or(x24), x53.or(x22));
    let x60 = x59.xor(x8);
    let x61 = x60.or(x40);
    let x62 = x58.xor(x61);
    let x63 = x62.and(c);
    let x64 = x57.xor(x63);
    [x24, x39, x64, x53]
}

#[inline(always)]
fn s5<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = f.and(c);
    let (x2, x3) = (x1.xor(d), f.and(d));
    let x4 = x3.or(b);
    let (x5, x6) = (x2.xor(x4), f.xor(b));
    let (x7, x8) = (x6.and(x2), f.or(d));
    let x9 = x8.and_not(c);
    let x10 = x7.xor(x9);
    let x11 = x10.or(e);
    let (x12, x13, x14) = (x5.xor(x11), x5.and_not(c), x10.or(x5));
    let x15 = x14.and(e);
    let (x16, x17) = (x13.xor(x15), f.and_not(e));
    let x18 = x17.or(c);
    let x19 = x11.xor(x18);
    let x20 = x19.or(b);
    let x21 = x16.xor(x20);
    let x22 = x21.and(a);
    let (x23, x24) = (x12.xor(x22), x9.or(a));
    let (x25, x26) = (x24.xor(x6), a.and_not(c));
    let x27 = x26.or(e);
    let (x28, x29) = (x25.xor(x27), x18.xor(a));
    let x30 = b.or(x28);
    let (x31, x32) = (x29.xor(x30), x23.xor(x9));
    let x33 = x32.or(x26);
    let x34 = x33.and(e);
    let x35 = x31.xor(x34);
    let x36 = x35.and_not(d);
    let (x37, x38) = (x28.xor(x36), x6.xor(x3));
    let (x39, x40) = (x38.xor(c), x28.xor(x7));
    let x41 = x40.xor(x4);
    let x42 = x41.and(b);
    let x43 = x42.or(e);
    let (x44, x45, x46) = (x39.xor(x43), x7.not(), x13.or(x2));
    let x47 = x46.xor(c);
    let x48 = x47.and_not(x10);
    let x49 = x34.and_not(x48);
    let x50 = x45.xor(x49);
    let x51 = x50.and_not(f);
    let x52 = x19.xor(x51);
    let x53 = x52.and_not(a);
    let (x54, x55) = (x44.xor(x53), x46.and(f));
    let x56 = x21.and_not(x55);
    let x57 = x56.or(a);
    let (x58, x59) = (x47.xor(x57), x48.or(a));
    let x60 = x41.xor(x59);
    let x61 = x60.or(e);
    let x62 = x58.xor(x61);
    [x23, x37, x54, x62]
}

#[inline(always)]
fn s6<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = f.or(d);
    let (x2, x3) = (x1.xor(e), f.and(d));
    let x4 = x3.and_not(b);
    let (x5, x6, x7) = (x2.xor(x4), b.and_not(x3), x1.not());
    let x8 = x7.or(e);
    let x9 = x6.xor(x8);
    let x10 = c.or(x9);
    let (x11, x12) = (x5.xor(x10), c.and_not(x6));
    let (x13, x14) = (x12.and(b), x11.or(b));
    let x15 = x14.and(f);
    let x16 = c.xor(x15);
    let x17 = x16.or(e);
    let x18 = x13.xor(x17);
    let x19 = x18.and(a);
    let (x20, x21) = (x11.xor(x19), x15.xor(b));
    let x22 = x20.and(d);
    let x23 = x22.or(e);
    let (x24, x25) = (x21.xor(x23), x22.and(x17));
    let x26 = x1.xor(x25);
    let x27 = x7.xor(x26);
    let x28 = x27.and_not(a);
    let (x29, x30) = (x24.xor(x28), x9.xor(a));
    let (x31, x32) = (x23.and_not(x30), x16.xor(x2));
    let x33 = x32.and(x30);
    let x34 = x33.or(b);
    let x35 = x31.xor(x34);
    let x36 = x35.and(c);
    let (x37, x38) = (x29.xor(x36), x9.xor(c));
    let x39 = x37.or(e);
    let x40 = x39.xor(x1);
    let x41 = x40.and_not(b);
    let (x42, x43, x44, x45) = (x38.xor(x41), x37.xor(x2), x6.and_not(x33), x31.or(x20));
    let x46 = x45.and(x35);
    let x47 = x46.and(a);
    let x48 = x44.xor(x47);
    let (x49, x50) = (x43.and_not(x48), x15.xor(a));
    let x51 = x50.or(b);
    let x52 = x49.xor(x51);
    let x53 = x52.and(a);
    let (x54, x55, x56) = (x42.xor(x53), x26.xor(b), x18.and(d));
    let x57 = x56.xor(x2);
    let x58 = x57.or(a);
    let (x59, x60) = (x55.xor(x58), x48.or(c));
    let x61 = x59.xor(x60);
    [x20, x37, x54, x61]
}

#[inline(always)]
fn s7<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let x1 = f.xor(c);
    let x2 = c.and(x1);
    let x3 = x2.or(d);
    let x4 = x3.and(b);
    let (x5, x6) = (x1.xor(x4), x2.and(d));
    let x7 = x6.xor(e);
    let x8 = e.and(x7);
    let x9 = x5.xor(x8);
    let (x10, x11) = (x9.xor(x7), x8.and_not(c));
    let x12 = x11.or(b);
    let (x13, x14) = (x10.xor(x12), b.not());
    let x15 = x14.or(c);
    let x16 = x4.and_not(x15);
    let x17 = x16.xor(b);
    let x18 = x17.xor(f);
    let x19 = x18.and(x8);
    let x20 = x2.xor(x19);
    let x21 = x20.or(d);
    let x22 = x13.xor(x21);
    let x23 = x22.and(a);
    let (x24, x25) = (x9.xor(x23), f.and_not(x18));
    let (x26, x27, x28) = (x9.xor(x25), x5.xor(x15), x13.and_not(x8));
    let x29 = x27.xor(x20);
    let x30 = x15.and(x29);
    let x31 = x28.xor(x30);
    let x32 = x31.and(d);
    let x33 = x27.xor(x32);
    let x34 = x33.and_not(a);
    let (x35, x36) = (x26.xor(x34), x32.xor(x17));
    let x37 = x36.and_not(x5);
    let x38 = x37.or(d);
    let (x39, x40) = (x37.xor(x38), x17.xor(x10));
    let x41 = x40.xor(a);
    let (x42, x43) = (x39.xor(x41), x24.or(x4));
    let x44 = x43.and(c);
    let (x45, x46) = (x42.xor(x44), x8.and_not(d));
    let (x47, x48) = (x41.xor(x46), x36.and(x26));
    let x49 = x48.and(a);
    let x50 = x37.xor(x49);
    let x51 = x50.and(f);
    let x52 = x47.xor(x51);
    let x53 = x52.or(x10);
    let x54 = x53.xor(x48);
    let x55 = x54.xor(x38);
    let x56 = x55.or(e);
    let x57 = x45.xor(x56);
    [x24, x35, x57, x52]
}

#[inline(always)]
fn s8<L: Lanes>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {
    let (x1, x2) = (e.xor(a), f.xor(e));
    let x3 = a.and(x2);
    let x4 = x3.xor(e);
    let x5 = x3.and_not(x4);
    let x6 = x5.or(c);
    let (x7, x8) = (x1.xor(x6), x4.and(x2));
    let x9 = x8.or(d);
    let x10 = x7.xor(x9);
    let x11 = x10.or(f);
    let (x12, x13, x14) = (x11.and(d), f.and_not(x9), x7.not());
    let x15 = x14.or(x10);
    let x16 = x15.or(c);
    let x17 = x13.xor(x16);
    let x18 = x17.and_not(e);
    let x19 = x12.xor(x18);
    let x20 = x19.or(b);
    let (x21, x22, x23) = (x10.xor(x20), f.xor(c), x6.and(e));
    let (x24, x25) = (x22.xor(x23), x14.or(a));
    let x26 = x25.and_not(b);
    let (x27, x28) = (x24.xor(x26), x17.and_not(x4));
    let x29 = x28.and_not(b);
    let x30 = x4.xor(x29);
    let x31 = x30.and(d);
    let (x32, x33) = (x27.xor(x31), x22.xor(x9));
    let x34 = x18.xor(x32);
    let x35 = x34.xor(x13);
    let x36 = x35.or(a);
    let (x37, x38, x39) = (x33.xor(x36), x9.and_not(a), x24.and_not(x12));
    let x40 = x39.xor(a);
    let x41 = x40.or(c);
    let x42 = x38.xor(x41);
    let x43 = x42.and(b);
    let (x44, x45) = (x37.xor(x43), x29.or(x2));
    let (x46, x47) = (x45.xor(a), x32.and(x25));
    let x48 = x47.or(d);
    let (x49, x50, x51) = (x46.xor(x48), x21.or(d), x33.and_not(x22));
    let x52 = x51.or(b);
    let x53 = x50.xor(x52);
    let x54 = x53.or(c);
    let x55 = x49.xor(x54);
    [x21, x32, x44, x55]
}

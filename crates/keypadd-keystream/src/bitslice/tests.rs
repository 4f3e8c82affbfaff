//! Checks every path against the published tables, the `des` crate, and itself at every length.
//!
//! Tests that take minutes are ignored; run them with
//! `cargo test --release -p keypadd-keystream --lib -- --ignored`.

use super::lanes::Ternary;
use super::*;
use crate::{CipherBackend, vectors};
use ::des::{Des, TdesEde3};
use cipher::{BlockCipherEncrypt, KeyInit};

/// Lets one word emulate ternary logic, so that the ternary circuits are checked on every machine.
impl Ternary for u64 {
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self {
        let lane =
            |at: u32| TABLE as Self >> (4 * (a >> at & 1) + 2 * (b >> at & 1) + (c >> at & 1));
        (0..64).map(|at| (lane(at) & 1) << at).sum()
    }
}

#[test]
fn circuits_compute_the_published_s_boxes_for_every_input() {
    let text = include_str!("../../tests/vectors/fips46_3_s_boxes.txt");
    let boxes = vectors::rows::<4>(text);
    check_s_box::<1>(&boxes[0]);
    check_s_box::<2>(&boxes[1]);
    check_s_box::<3>(&boxes[2]);
    check_s_box::<4>(&boxes[3]);
    check_s_box::<5>(&boxes[4]);
    check_s_box::<6>(&boxes[5]);
    check_s_box::<7>(&boxes[6]);
    check_s_box::<8>(&boxes[7]);
}

/// Lane `x` has input `x`; the first of the six bits is the highest.
fn check_s_box<const NUMBER: usize>(published: &[Vec<u8>; 4]) {
    let inputs: [u64; 6] =
        std::array::from_fn(|bit| (0..64).map(|x: u64| (x >> (5 - bit) & 1) << x).sum());
    let two = circuits_two::s_box::<NUMBER, u64>(inputs);
    let ternary = circuits_ternary::s_box::<NUMBER, u64>(inputs);
    for x in 0..64 {
        let (row, column) = ((x >> 4 & 2) | (x & 1), x >> 1 & 15);
        let digits = published[row][column / 2];
        let expected = if column % 2 == 0 { digits >> 4 } else { digits & 15 };
        for outputs in [two, ternary] {
            let value = outputs.iter().fold(0, |value, bit| value << 1 | (bit >> x & 1) as u8);
            assert_eq!(value, expected, "S{NUMBER} of {x:06b}");
        }
    }
}

/// Every path that this CPU has.
pub(super) fn paths() -> Vec<(&'static str, Path)> {
    let paths = [
        ("64", Some(Path::Lanes64)),
        ("128", Path::lanes_128()),
        ("256", Path::lanes_256()),
        ("512", Path::lanes_512()),
    ];
    paths.into_iter().filter_map(|(name, path)| Some((name, path?))).collect()
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A key of DES (8 bytes) or triple DES (24).
    fn key(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes / 8).flat_map(|_| self.word().to_be_bytes()).collect()
    }
}

/// Encrypts with the `des` crate, a block at a time.
fn reference(key: &[u8]) -> impl Fn(u64) -> u64 {
    let one = (key.len() == 8).then(|| Des::new_from_slice(key).unwrap());
    let three = (key.len() == 24).then(|| TdesEde3::new_from_slice(key).unwrap());
    move |block| {
        let mut block = block.to_be_bytes().into();
        match (&one, &three) {
            (Some(des), _) => des.encrypt_block(&mut block),
            (_, Some(des)) => des.encrypt_block(&mut block),
            _ => unreachable!(),
        }
        u64::from_be_bytes(block.into())
    }
}

/// Encrypts a batch of arbitrary blocks in place.
struct Blocks<'a> {
    key: &'a KeyPlanes,
    blocks: &'a mut [u64],
}

impl Job for Blocks<'_> {
    fn run<L: Lanes>(self, proof: L::Proof) {
        let blocks = self.blocks;
        let lane = |block: u64, bit: u32, lane: usize| (block >> bit & 1) << lane;
        let word = |bit: u32, word: usize| {
            let lanes = blocks[64 * word..][..64].iter().enumerate();
            lanes.map(|(at, block)| lane(*block, bit, at)).sum()
        };
        let mut state = Halves::<L>::new(proof, |bit| L::from_fn(proof, |at| word(bit, at)));
        state.encrypt(proof, self.key);
        state.for_each_row(proof, 64, |row, words| {
            let mut bytes = [0; 64];
            words.store(&mut bytes[..8 * L::WORDS]);
            for (word, block) in bytes[..8 * L::WORDS].chunks_exact(8).enumerate() {
                blocks[64 * word + row] = u64::from_be_bytes(block.try_into().unwrap());
            }
        });
    }
}

/// Compares all paths on random blocks, 512 per random key.
fn compare_random_blocks(batches: usize) {
    let mut random = Random(46);
    for _ in 0..batches {
        for bytes in [8, 24] {
            let key = random.key(bytes);
            let planes = KeyPlanes::new(&key);
            let plain: Vec<u64> = (0..512).map(|_| random.word()).collect();
            let expected: Vec<u64> = plain.iter().copied().map(reference(&key)).collect();
            for (name, path) in paths() {
                let mut blocks = plain.clone();
                for blocks in blocks.chunks_mut(path.lanes()) {
                    path.run(Blocks { key: &planes, blocks });
                }
                assert!(blocks == expected, "{name} lanes, key {key:02x?}");
            }
        }
    }
}

#[test]
fn random_blocks_match_the_des_crate() {
    compare_random_blocks(100);
}

#[test]
#[ignore = "a minute in a release build"]
fn ten_million_random_blocks_match_the_des_crate() {
    compare_random_blocks(10_000_000_usize.div_ceil(512));
}

/// One block through the packet path: the first counter block of slot 0 is the IV.
fn one_block(path: Path, key: &KeyPlanes, block: u64) -> u64 {
    let mut out = [0; 8];
    path.write_packet(key, block, 0, 0, &mut out);
    u64::from_be_bytes(out)
}

#[test]
fn ten_thousand_chained_blocks_match_the_des_crate() {
    for bytes in [8, 24] {
        let key = Random(bytes as u64).key(bytes);
        let (planes, reference) = (KeyPlanes::new(&key), reference(&key));
        let last = (0..10_000).fold(0, |block, _| reference(block));
        for (name, path) in paths() {
            let ours = (0..10_000).fold(0, |block, _| one_block(path, &planes, block));
            assert_eq!(ours, last, "{name} lanes, {bytes} bytes of key");
        }
    }
}

/// The Monte Carlo test of SP 800-20 for encryption (TECB), with NIST's published example: 400
/// times 10^4 chained blocks; the last three of a round are XORed into the keys.
#[test]
#[ignore = "half a minute in a release build"]
fn the_nist_monte_carlo_test_ends_as_published() {
    for (name, path) in paths() {
        let mut keys = [0x9ec2_372c_8637_9df4, 0xad7a_c446_4f73_805d, 0x20c4_f875_6452_7c91_u64];
        let mut block = 0xb624_d6bd_4178_3ab1;
        for _ in 0..400 {
            let planes = KeyPlanes::new(&keys.map(u64::to_be_bytes).concat());
            for count in 0..10_000 {
                block = one_block(path, &planes, block);
                if let Some(from_last) = 9_999_usize.checked_sub(count).filter(|last| *last < 3) {
                    keys[from_last] ^= block;
                }
            }
        }
        assert_eq!(block, 0xeafd_97b1_90b1_67fe, "{name} lanes");
    }
}

/// A whole pad by the `des` crate.
fn reference_pad(key: &[u8], iv: u64, slot: usize, blocks: u64) -> Vec<u8> {
    let encrypt = reference(key);
    (0..blocks).flat_map(|block| encrypt(iv ^ (slot as u64) << 13 ^ block).to_be_bytes()).collect()
}

#[test]
fn packets_of_every_length_around_a_batch_match_the_des_crate() {
    let mut random = Random(7);
    for bytes in [8, 24] {
        let (key, iv, slot) = (random.key(bytes), random.word(), 41);
        let planes = KeyPlanes::new(&key);
        let pad = reference_pad(&key, iv, slot, 8192);
        for (name, path) in paths() {
            // From the start, across a carry into bit 6 and into bit 10, and up to the end.
            let batch = 8 * path.lanes();
            for first in [0, 8 * 61, 8 * 1021, pad.len() - 2 * batch - 16] {
                for blocks in 0..=2 * path.lanes() + 1 {
                    let at_border = blocks < 4 || (blocks + 2) % path.lanes() < 4;
                    if !at_border && blocks % 7 != 0 {
                        continue;
                    }
                    for (skip, cut) in [(0, 0), (3, 0), (0, 5), (7, 6)] {
                        let (from, to) = (first + skip, first + 8 * blocks + cut);
                        let mut out = vec![0x5a; to.saturating_sub(from)];
                        path.write_packet(&planes, iv, slot, from, &mut out);
                        assert!(out == pad[from..from + out.len()], "{name} lanes, {from}..{to}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_of_every_number_and_length_around_a_batch_match_the_des_crate() {
    let mut random = Random(8);
    for bytes in [8, 24] {
        let (key, iv) = (random.key(bytes), random.word());
        let planes = KeyPlanes::new(&key);
        let pads: Vec<_> = (0..64).map(|slot| reference_pad(&key, iv, slot, 200)).collect();
        for (name, path) in paths() {
            for count in [0, 1, 2, 7, 8, 9, 33, 63, 64] {
                for length in (0..=2 * path.lanes() / 8 + 17).chain([1344, 1400]) {
                    for offset in [0, 1, 7, 8, 128] {
                        // Not all rows are as long as the longest.
                        let mut rows: Vec<Vec<u8>> =
                            (0..count).map(|slot| vec![0; length - length.min(slot % 3)]).collect();
                        let mut slices: Vec<_> = rows.iter_mut().map(Vec::as_mut_slice).collect();
                        path.write_rows(&planes, iv, offset, &mut slices);
                        for (row, pad) in rows.iter().zip(&pads) {
                            let expected = &pad[offset..offset + row.len()];
                            assert!(row == expected, "{name}: {count} rows, {offset}, {length}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn backend_names_state_their_lanes() {
    for (name, path) in paths() {
        let backend: CipherBackend = format!("bitslice-{name}").parse().unwrap();
        assert!(backend.is_available());
        assert_eq!(path.lanes().to_string(), name);
    }
}

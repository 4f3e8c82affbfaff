//! Tests every path of GHASH against the crate `ghash`: all lengths, and the ends of pages.

use super::*;
use proptest::prelude::*;

/// GHASH by the crate, block by block, without a mask.
fn independent(h: &Block, header: &[u8], ciphertext: &[u8]) -> Block {
    let mut state = GHash::new(&(*h).into());
    state.update_padded(header);
    state.update_padded(ciphertext);
    state.update_padded(&lengths(header, ciphertext).to_be_bytes());
    state.finalize().into()
}

/// A key for every implementation that this CPU can run.
fn keys(h: &Block) -> Vec<(GhashPath, Key)> {
    GhashPath::available().map(|path| (path, Key::new(path, h))).collect()
}

/// Compares every path with the crate.
fn check(keys: &[(GhashPath, Key)], h: &Block, header: &[u8], ciphertext: &[u8]) {
    let expected = independent(h, header, ciphertext);
    for (path, key) in keys {
        let tag = key.tag(header, ciphertext, &[0; BLOCK_BYTES]);
        let lengths = [header.len(), ciphertext.len()];
        assert_eq!(tag, expected, "{path:?}, {lengths:?} bytes, H {h:02x?}");
    }
}

/// Bytes without a pattern.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// What the kernel says that the CPU has, independently of how paths are detected: a path that is
/// not tested is named, and one that is missed fails.
#[test]
fn every_path_that_the_cpu_can_run_is_tested() {
    let paths: Vec<_> = GhashPath::available().map(GhashPath::name).collect();
    println!("GHASH by {}", paths.join(", "));
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<_> =
            info.lines().find(|line| line.starts_with("flags")).unwrap().split(' ').collect();
        for (name, needs) in [
            ("pclmulqdq-128", &["pclmulqdq", "ssse3"][..]),
            ("vpclmulqdq-256", &["vpclmulqdq", "avx2", "pclmulqdq", "ssse3"]),
            ("vpclmulqdq-512", &["vpclmulqdq", "avx512f", "avx512bw", "pclmulqdq", "ssse3"]),
        ] {
            let can = needs.iter().all(|need| flags.contains(need));
            assert_eq!(paths.contains(&name), can, "{name}: {needs:?}");
        }
    }
}

#[test]
fn tags_of_every_length_are_those_of_the_crate() {
    const HEADER_MAX: usize = 80;
    const CIPHERTEXT_MAX: usize = 2100;
    let (h, data) = (std::array::from_fn(|at| (at * 37 + 11) as u8), bytes(HEADER_MAX + 65_536));
    let keys = keys(&h);
    // Bytes of the ciphertext begin at any offset, because headers do.
    let parts =
        |header: usize, ciphertext: usize| (&data[..header], &data[header..header + ciphertext]);
    for header in 0..=HEADER_MAX {
        for ciphertext in 0..=CIPHERTEXT_MAX {
            let (header, ciphertext) = parts(header, ciphertext);
            check(&keys, &h, header, ciphertext);
        }
        for ciphertext in [9_188, 65_536] {
            let (header, ciphertext) = parts(header, ciphertext);
            check(&keys, &h, header, ciphertext);
        }
    }
}

/// Elements at the limits of multiplication by x, in both halves of the words, with blocks of ones.
#[test]
fn extreme_keys_and_blocks_carry_as_they_must() {
    let bit = |at: u32| (1_u128 << at).to_be_bytes();
    let ones = u128::MAX.to_be_bytes();
    let keys_of = [0, 1, 62, 63, 64, 65, 126, 127].map(bit);
    let all = keys_of.into_iter().chain([[0; BLOCK_BYTES], ones, (u128::MAX >> 1).to_be_bytes()]);
    for h in all.chain([(u128::MAX << 1).to_be_bytes(), (u128::from(u64::MAX)).to_be_bytes()]) {
        let keys = keys(&h);
        for byte in [0x00, 0x01, 0x80, 0xff] {
            for length in [0, 1, 15, 16, 17, 63, 64, 65, 240, 255, 256, 257, 511, 512, 1400, 9188] {
                check(&keys, &h, &vec![byte; length % 41], &vec![byte; length]);
            }
        }
    }
}

/// One block in every place of two groups, among zeros: each place has its own power.
#[test]
fn a_block_in_each_place_meets_its_power() {
    let h = std::array::from_fn(|at| (at * 73 + 5) as u8);
    let keys = keys(&h);
    for blocks in 1..=40 {
        for place in 0..blocks {
            let mut message = vec![0; blocks * BLOCK_BYTES];
            message[place * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&[0xa5; BLOCK_BYTES]);
            check(&keys, &h, &[], &message);
            check(&keys, &h, &message, &[]);
        }
    }
}

proptest! {
    #[test]
    fn tags_are_those_of_the_crate(
        h in any::<Block>(),
        header in prop::collection::vec(any::<u8>(), 0..200),
        ciphertext in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        check(&keys(&h), &h, &header, &ciphertext);
    }

    /// The hash is linear in the message, and the mask is added to it.
    #[test]
    fn tags_of_equal_lengths_add_up(
        h in any::<Block>(),
        masks in any::<[Block; 2]>(),
        (one, other) in (1..2000_usize).prop_flat_map(|length| {
            let message = || prop::collection::vec(any::<u8>(), length);
            (message(), message())
        }),
    ) {
        let both: Vec<u8> = one.iter().zip(&other).map(|(one, other)| one ^ other).collect();
        let [first, second] = masks.map(u128::from_ne_bytes);
        for (path, key) in keys(&h) {
            let tag = |message: &[u8], mask: u128| {
                u128::from_ne_bytes(key.tag(b"", message, &mask.to_ne_bytes()))
            };
            // The lengths are added as well: three times is once.
            let sum = tag(&one, first) ^ tag(&other, second) ^ tag(&both, first ^ second);
            prop_assert_eq!(sum, tag(&vec![0; one.len()], 0), "{:?}", path);
        }
    }
}

/// Messages that begin or end at a page that may not be read: no path reads beyond them.
#[cfg(target_os = "linux")]
#[test]
fn no_byte_beyond_the_message_is_read() {
    let h = [0x42; BLOCK_BYTES];
    let keys = keys(&h);
    let mut pages = guarded::Pages::new();
    let page = pages.bytes();
    page.copy_from_slice(&bytes(page.len()));
    for length in (0..=600).chain([1023, 1024, 1400, 2048, 4000]) {
        let (first, last) = (&page[..length], &page[page.len() - length..]);
        let (short, long) = (length.min(80), &page[page.len() - length..]);
        check(&keys, &h, &first[..short], last);
        check(&keys, &h, &last[length - short..], first);
        check(&keys, &h, long, long);
    }
}

/// A page between two that may not be touched.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod guarded {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use std::ffi::c_void;
    use std::{ptr, slice};

    const PAGE_BYTES: usize = 4096;

    pub(super) struct Pages(*mut c_void);

    impl Pages {
        pub(super) fn new() -> Self {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, at an address of the kernel's choice; its ends are not used.
            unsafe {
                let start =
                    mmap_anonymous(ptr::null_mut(), 3 * PAGE_BYTES, flags, MapFlags::PRIVATE);
                let start = start.unwrap();
                mprotect(start, PAGE_BYTES, MprotectFlags::empty()).unwrap();
                mprotect(start.byte_add(2 * PAGE_BYTES), PAGE_BYTES, MprotectFlags::empty())
                    .unwrap();
                Self(start)
            }
        }

        pub(super) fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the page in the middle is mapped, and borrowed with this value.
            unsafe { slice::from_raw_parts_mut(self.0.byte_add(PAGE_BYTES).cast(), PAGE_BYTES) }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, and no longer borrowed.
            unsafe { munmap(self.0, 3 * PAGE_BYTES).unwrap() }
        }
    }
}

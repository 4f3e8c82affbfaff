//! Checks where a private key's seed is in memory: in pages that are locked, left out of core dumps
//! and not inherited by children. Runs in a process of its own, because it reads all of its memory
//! (proc(5)). Skipped where mappings do not show what they were advised to be, as under qemu's user
//! mode.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use base64ct::{Base64, Encoding};
use keypadd_provider::PrivateKey;
use memmap2::{Advice, MmapMut};
use zeroize::{Zeroizing, zeroize_stack};

/// Where a seed begins in its PKCS#8 document (RFC 8410, section 7).
const SEED_AT: usize = 16;

/// More than the stack that reading a key here takes.
const STACK_BYTES: usize = 64 << 10;

/// The seed of a key, inverted byte by byte, so that the search does not find this copy. Its
/// callers wipe the stack.
#[inline(never)]
fn inverted(key: &PrivateKey) -> [u8; 32] {
    let text = key.to_pem();
    let line = text.lines().nth(1).expect("one line of base64");
    let mut der = Zeroizing::new([0; 48]);
    Base64::decode(line, &mut *der).expect("base64");
    std::array::from_fn(|at| !der[SEED_AT + at])
}

/// The flags (proc(5), VmFlags) of each writable mapping that holds this.
fn flags_of_mappings_with(inverted: &[u8; 32]) -> Vec<String> {
    let memory = File::open("/proc/self/mem").expect("own memory is readable");
    let mut found = Vec::new();
    let mut holds = false;
    for line in fs::read_to_string("/proc/self/smaps").expect("proc is mounted").lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("VmFlags:"), _) if holds => found.push(line.to_owned()),
            (Some(range), Some(rights)) if rights.len() == 4 && range.contains('-') => {
                let (from, to) = range.split_once('-').expect("two ends");
                let end = |end| u64::from_str_radix(end, 16).expect("an address");
                let (from, to) = (end(from), end(to));
                let mut bytes = Zeroizing::new(vec![0; (to - from) as usize]);
                let is_read =
                    rights.starts_with("rw") && memory.read_exact_at(&mut bytes, from).is_ok();
                let is_seed =
                    |window: &[u8]| window.iter().zip(inverted).all(|(byte, seed)| *byte == !seed);
                holds = is_read && bytes.windows(inverted.len()).any(is_seed);
            }
            _ => {}
        }
    }
    found
}

fn has_flag(flags: &str, flag: &str) -> bool {
    flags.split_whitespace().any(|one| one == flag)
}

/// Whether a mapping shows that it is neither dumped nor inherited.
fn shows_advice() -> bool {
    let page = MmapMut::map_anon(4096).expect("memory");
    for advice in [Advice::DontDump, Advice::DontFork] {
        page.advise(advice).expect("advice");
    }
    let smaps = fs::read_to_string("/proc/self/smaps").expect("proc is mounted");
    let mut flags = smaps.lines().filter(|line| line.starts_with("VmFlags:"));
    flags.any(|flags| has_flag(flags, "dd") && has_flag(flags, "dc"))
}

#[test]
fn the_seed_of_a_key_is_in_memory_that_is_locked_not_dumped_and_not_inherited() {
    if !shows_advice() {
        eprintln!("skipped: /proc/self/smaps does not show what madvise(2) was told");
        return;
    }
    let key = PrivateKey::generate().expect("randomness");
    let again = PrivateKey::from_pem(&key.to_pem()).expect("a key");
    key.client_resolver().expect("a key");
    key.reset_keys(b"host");
    for key in [key, again] {
        let inverted = inverted(&key);
        zeroize_stack::<STACK_BYTES>();
        let found = flags_of_mappings_with(&inverted);
        assert!(!found.is_empty(), "the search finds nothing");
        for flags in &found {
            let has = |flag: &&str| has_flag(flags, flag);
            assert!(["dd", "dc", "lo"].iter().all(has), "{found:?}");
        }
    }
}

//! Checks that key exchanges leave none of their secrets on the stack: what is drawn, what follows
//! from it, and what both sides agree on. Reads the stack of its own thread (proc(5),
//! `/proc/self/mem`).

#![allow(clippy::unwrap_used)]
#![allow(deprecated, reason = "only the former encoding of keys has the vector that a seed gives")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::thread;

use ml_kem::{DecapsulationKey768, ExpandedKeyEncoding, Seed};
use rustls::crypto::SharedSecret;

use super::KeyExchange;

/// Bytes of a trace to search for: too many to match by coincidence.
const TRACE_BYTES: usize = 12;

/// Where a trace begins in a secret: X25519 changes bits in the first byte.
const TRACE_AT: usize = 8;

/// More stack than what reads the stack uses.
const ROOM_BYTES: usize = 64 << 10;

const THREAD_STACK_BYTES: usize = 8 << 20;

/// A secret, inverted byte by byte, so that the search does not find it here.
struct Inverted(Vec<u8>);

impl Inverted {
    fn of(secret: &[u8]) -> Self {
        Self(secret.iter().map(|byte| !byte).collect())
    }

    /// The bytes to search for.
    fn trace(&self, at: usize) -> [u8; TRACE_BYTES] {
        std::array::from_fn(|nth| !self.0[at + nth])
    }
}

thread_local! {
    /// What this thread has drawn.
    static DRAWN: RefCell<Vec<Inverted>> = const { RefCell::new(Vec::new()) };
}

/// Notes a secret that has been drawn.
pub(super) fn note(secret: &[u8]) {
    DRAWN.with_borrow_mut(|drawn| drawn.push(Inverted::of(secret)));
}

/// Runs this deeper in the stack than what reads it.
#[inline(never)]
fn deep<T>(run: impl FnOnce() -> T) -> T {
    let mut room = [0_u8; ROOM_BYTES];
    black_box(&mut room);
    let result = run();
    black_box(&mut room);
    result
}

/// The mapping that holds this thread's stack.
fn stack() -> Vec<u8> {
    let local = 0_u8;
    let here = std::ptr::from_ref(&local) as u64;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut ranges = maps.lines().filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let end = |end| u64::from_str_radix(end, 16).ok();
        Some(end(from)?..end(to)?)
    });
    let range = ranges.find(|range| range.contains(&here)).unwrap();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, range.start).unwrap();
    bytes
}

fn seed_of(inverted: &Inverted) -> Seed {
    Seed::from_fn(|at| !inverted.0[at])
}

/// Six coefficients of ML-KEM's secret vector, of 12 bits each (FIPS 203, algorithms 5 and 16), as
/// the library keeps them.
fn coefficients(seed: &Inverted) -> [u8; TRACE_BYTES] {
    let seed = seed_of(seed);
    let expanded = DecapsulationKey768::from_seed(seed).to_expanded_bytes();
    let pairs = expanded[300..309].chunks_exact(3).flat_map(|three| {
        let bits = u32::from_le_bytes([three[0], three[1], three[2], 0]);
        [bits & 0xfff, bits >> 12].map(|it| (it as u16).to_ne_bytes())
    });
    let bytes: Vec<u8> = pairs.flatten().collect();
    bytes.try_into().unwrap()
}

/// The kinds of secrets that a stack holds, of those drawn and of what was agreed on.
fn found(stack: &[u8], drawn: &[Inverted], agreed: &Inverted) -> BTreeSet<&'static str> {
    let mut traces = Vec::new();
    for secret in drawn {
        traces.push(("drawn", secret.trace(TRACE_AT)));
        // ML-KEM's seed is two secrets.
        if secret.0.len() == 64 {
            traces.push(("implicit rejection", secret.trace(32 + TRACE_AT)));
            traces.push(("coefficients", coefficients(secret)));
        }
    }
    let halves = (0..agreed.0.len()).step_by(32);
    traces.extend(halves.map(|half| ("agreed", agreed.trace(half + TRACE_AT))));
    let is_found = |trace: &[u8; TRACE_BYTES]| stack.windows(TRACE_BYTES).any(|it| it == trace);
    traces.iter().filter(|(_, trace)| is_found(trace)).map(|(what, _)| *what).collect()
}

/// Runs this in a thread whose stack is searched.
fn on_a_stack(run: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(THREAD_STACK_BYTES);
    thread.spawn(run).unwrap().join().unwrap();
}

/// Both sides of an exchange.
fn exchange(kex: KeyExchange) -> SharedSecret {
    let group = kex.group();
    let client = group.start().unwrap();
    let server = group.start_and_complete(client.pub_key()).unwrap();
    client.complete(&server.pub_key).unwrap()
}

#[test]
fn key_exchanges_leave_none_of_their_secrets_on_the_stack() {
    for kex in [KeyExchange::X25519, KeyExchange::X25519MlKem768] {
        on_a_stack(move || {
            let agreed = deep(|| Inverted::of(exchange(kex).secret_bytes()));
            let stack = stack();
            let drawn = DRAWN.take();
            assert_eq!(drawn.len(), if kex == KeyExchange::X25519 { 2 } else { 4 });
            assert_eq!(found(&stack, &drawn, &agreed), BTreeSet::new(), "{kex}");
        });
    }
}

#[test]
fn the_search_finds_what_libraries_leave_on_a_stack_that_is_not_wiped() {
    on_a_stack(|| {
        let seed = Inverted::of(&[7; 64]);
        deep(|| drop(black_box(DecapsulationKey768::from_seed(seed_of(&seed)))));
        let (stack, agreed) = (stack(), Inverted(Vec::new()));
        assert!(found(&stack, &[seed], &agreed).contains("coefficients"));
    });
}

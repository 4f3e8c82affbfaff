//! Mutates seeds the way a fuzzer does. Knows no target.

use fastrand::Rng;

/// Maximum changes per input.
const CHANGES_MAX: usize = 8;
/// Maximum bytes added by one change.
const ADDED_MAX: usize = 64;
/// As in `fuzz/run`.
const INPUT_BYTES_MAX: usize = 4096;
/// Boundary values of lengths, types and signs.
const EDGES: [u8; 8] = [0, 1, 4, 0x3f, 0x7f, 0x80, 0xfe, 0xff];

/// Returns a mutated copy of one of the seeds.
pub(crate) fn mutate(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[rng.usize(..seeds.len())].clone();
    for _ in 0..rng.usize(1..=CHANGES_MAX) {
        change(rng, &mut input, seeds);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn change(rng: &mut Rng, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = rng.usize(..=input.len());
    let some = at..rng.usize(at..=input.len().min(at + ADDED_MAX));
    match rng.u8(..8) {
        0 => input.truncate(at),
        1 => drop(input.drain(some)),
        2 => {
            let again = input[some].to_vec();
            drop(input.splice(at..at, again));
        }
        3 => {
            let added: Vec<u8> = (0..rng.usize(..ADDED_MAX)).map(|_| rng.u8(..)).collect();
            drop(input.splice(at..at, added));
        }
        // Splice in the end of another seed.
        4 => {
            let other = &seeds[rng.usize(..seeds.len())];
            input.truncate(at);
            input.extend(&other[rng.usize(..=other.len())..]);
        }
        change => {
            let edge = EDGES[rng.usize(..EDGES.len())];
            let Some(byte) = input.get_mut(at) else { return };
            *byte = match change {
                5 => *byte ^ 1 << rng.u8(..8),
                6 => rng.u8(..),
                _ => edge,
            };
        }
    }
}

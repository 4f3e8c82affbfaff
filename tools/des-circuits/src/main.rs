//! Searches for small boolean circuits of the DES S-boxes and writes them as Rust.
//!
//!     cargo run --release -p des-circuits -- write two > crates/keypadd-keystream/src/bitslice/circuits_two.rs
//!     cargo run --release -p des-circuits -- write ternary > crates/keypadd-keystream/src/bitslice/circuits_ternary.rs
//!     cargo run --release -p des-circuits -- find two 1 1000
//!
//! `write` rebuilds the circuits of the seeds listed in `best.rs`; `find` tries seeds and prints
//! each improvement. Built from the published tables (FIPS 46-3) and the literature named in
//! `kwan.rs` and `search.rs`; no circuit and no code is taken from elsewhere.

mod best;
mod circuit;
mod emit;
mod kwan;
mod matching;
mod random;
mod search;
mod tables;

use circuit::GateSet;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let set = match words.get(1) {
        Some(&"two") => GateSet::Two,
        Some(&"ternary") => GateSet::Ternary,
        _ => return usage(),
    };
    match words[..] {
        ["write", _] => {
            print!("{}", emit::file(set, &best::circuits(set)));
            ExitCode::SUCCESS
        }
        ["find", _, first, last] => match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => {
                find(set, first, last);
                ExitCode::SUCCESS
            }
            _ => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: des-circuits write two|ternary\n       des-circuits find two|ternary FIRST-SEED LAST-SEED"
    );
    ExitCode::from(2)
}

/// Tries seeds, each with the limit set by the circuits found so far.
fn find(set: GateSet, first: u64, last: u64) {
    let mut built = [100; 8];
    let mut best = [usize::MAX; 8];
    for seed in first..=last {
        for number in 1..=8 {
            let limit = built[number - 1];
            let Some(circuit) = search::search(set, number, seed, limit) else { continue };
            let gates = circuit.gates.len();
            built[number - 1] = limit.min(gates + SLACK);
            if gates < best[number - 1] {
                best[number - 1] = gates;
                println!("S{number}: {gates} gates, seed {seed}, limit {limit}");
            }
        }
        if seed % 20 == 0 {
            println!("after seed {seed}: {best:?}, {} in all", best.iter().sum::<usize>());
        }
    }
}

/// Gates above the best allowed before the walk starts.
const SLACK: usize = 1;

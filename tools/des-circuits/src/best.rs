//! Lists the seeds whose circuits are used.

use crate::circuit::{Circuit, GateSet};
use crate::search;

/// Seed and limit for S1 to S8, as `find` printed them.
const TWO: [(u64, usize); 8] = [(1, 100); 8];

const TERNARY: [(u64, usize); 8] = [(1, 100); 8];

/// Rebuilds the circuits of S1 to S8.
pub(crate) fn circuits(set: GateSet) -> Vec<Circuit> {
    let seeds = match set {
        GateSet::Two => TWO,
        GateSet::Ternary => TERNARY,
    };
    (1..)
        .zip(seeds)
        .map(|(number, (seed, limit))| {
            search::search(set, number, seed, limit).expect("this seed has been found")
        })
        .collect()
}

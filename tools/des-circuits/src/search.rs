//! Searches: builds a circuit, then walks among circuits of equal size.
//!
//! The walk is resubstitution with observability don't-cares (Mishchenko, Brayton, Jiang, Jang,
//! "Scalable Don't-Care-Based Logic Optimization and Resubstitution", 2011): pick a gate, find the
//! inputs for which an output depends on it, and replace it by any gate over others that is right
//! there. That never enlarges a circuit, and now and then frees gates.

use crate::circuit::{Circuit, FIRST_GATE, Gate, GateSet, Replacement};
use crate::kwan;
use crate::matching::{self, Want};
use crate::random::Random;
use crate::tables;

/// Replacements considered per gate.
const WEIGHED: usize = 12;

/// The circuit of one seed, or `None` if the initial one would exceed `limit` gates. Deterministic.
pub(crate) fn search(set: GateSet, number: usize, seed: u64, limit: usize) -> Option<Circuit> {
    let mut random = Random::new(seed);
    let targets = tables::targets(number);
    let mut circuit = kwan::circuit(set, &targets, limit, &mut random)?;
    let steps = match set {
        GateSet::Two => 3_000,
        GateSet::Ternary => 800,
    };
    for _ in 0..steps {
        if let Some(next) = stepped(set, &circuit, &mut random) {
            circuit = next;
        }
    }
    assert!(circuit.computes(&targets), "S-box {number}, seed {seed}");
    Some(circuit)
}

/// One step of the walk: another circuit, no larger; `None` if no replacement fits.
fn stepped(set: GateSet, circuit: &Circuit, random: &mut Random) -> Option<Circuit> {
    let node = FIRST_GATE + random.below(circuit.gates.len());
    let (want, above) = observed(circuit, node);
    let mut nodes = matching::useful(set, circuit.tables.len(), |other| !above[other]);
    random.shuffle(&mut nodes);
    if let Some(other) = matching::node(want, &circuit.tables, &nodes) {
        return Some(circuit.replaced(node, Replacement::Node(other.into())));
    }
    let old = *circuit.gate(node)?;
    let mut choices: Vec<Gate> = Vec::new();
    matching::each_gate(set, want, &circuit.tables, &nodes, |gate| {
        if !gate.same_inputs(&old) {
            choices.push(gate);
        }
        choices.len() == WEIGHED
    });
    random.shuffle(&mut choices);
    choices
        .into_iter()
        .map(|gate| circuit.replaced(node, Replacement::Gate(gate)))
        .min_by_key(|next| next.gates.len())
}

/// The inputs for which outputs depend on a node, and the nodes that depend on it (itself
/// included).
fn observed(circuit: &Circuit, node: usize) -> (Want, Vec<bool>) {
    let mut above = vec![false; circuit.tables.len()];
    let mut flipped = circuit.tables.clone();
    above[node] = true;
    flipped[node] = !flipped[node];
    for (at, gate) in circuit.gates.iter().enumerate().skip(node + 1 - FIRST_GATE) {
        if gate.args.iter().any(|&arg| above[usize::from(arg)]) {
            above[at + FIRST_GATE] = true;
            flipped[at + FIRST_GATE] = gate.table(&flipped);
        }
    }
    let noticed = |output: usize| circuit.tables[output] ^ flipped[output];
    let mask = circuit.outputs.iter().fold(0, |mask, &output| mask | noticed(output));
    (Want { table: circuit.tables[node], mask }, above)
}

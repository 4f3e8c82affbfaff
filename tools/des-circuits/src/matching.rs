//! Finds the gates over existing nodes that compute a given function.
//!
//! A want has a mask: only inputs in the mask matter (the literature's don't-cares).

use crate::circuit::{Gate, GateSet, ONES, Op};

/// A function wanted for the inputs in `mask`.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub(crate) table: u64,
    pub(crate) mask: u64,
}

impl Want {
    fn met_by(self, table: u64) -> bool {
        (self.table ^ table) & self.mask == 0
    }

    pub(crate) fn within(self, mask: u64) -> Self {
        Self { table: self.table, mask: self.mask & mask }
    }

    pub(crate) fn xor(self, table: u64) -> Self {
        Self { table: self.table ^ table, mask: self.mask }
    }
}

/// Finds a node that already matches.
pub(crate) fn node(want: Want, tables: &[u64], nodes: &[u8]) -> Option<u8> {
    nodes.iter().copied().find(|&node| want.met_by(tables[usize::from(node)]))
}

/// Finds one gate that matches.
pub(crate) fn one_gate(set: GateSet, want: Want, tables: &[u64], nodes: &[u8]) -> Option<Gate> {
    let mut first = None;
    each_gate(set, want, tables, nodes, |gate| {
        first = Some(gate);
        true
    });
    first
}

/// Calls `found` with each matching gate until it returns true.
pub(crate) fn each_gate(
    set: GateSet,
    want: Want,
    tables: &[u64],
    nodes: &[u8],
    found: impl FnMut(Gate) -> bool,
) {
    match set {
        GateSet::Two => each_of_two(want, tables, nodes, found),
        GateSet::Ternary => each_of_three(want, tables, nodes, found),
    };
}

fn each_of_two(
    want: Want,
    tables: &[u64],
    nodes: &[u8],
    mut found: impl FnMut(Gate) -> bool,
) -> bool {
    let Want { table, mask } = want;
    for (at, &first) in nodes.iter().enumerate() {
        let a = tables[usize::from(first)];
        // Whether `a` covers all wanted ones, has no others, or has none of them.
        let covers = table & !a & mask == 0;
        let inside = a & !table & mask == 0;
        let beside = a & table & mask == 0;
        let wanted = (table ^ a) & mask;
        for &second in &nodes[..at] {
            let b = tables[usize::from(second)];
            let op = if b & mask == wanted {
                Op::Xor
            } else if covers && want.met_by(a & b) {
                Op::And
            } else if inside && want.met_by(a | b) {
                Op::Or
            } else if covers && want.met_by(a & !b) {
                Op::AndNot
            } else if beside && want.met_by(b & !a) {
                if found(Gate::two(Op::AndNot, second, first)) {
                    return true;
                }
                continue;
            } else {
                continue;
            };
            if found(Gate::two(op, first, second)) {
                return true;
            }
        }
    }
    false
}

fn each_of_three(
    want: Want,
    tables: &[u64],
    nodes: &[u8],
    mut found: impl FnMut(Gate) -> bool,
) -> bool {
    let (ones, zeros) = (want.table & want.mask, !want.table & want.mask);
    for (at, &first) in nodes.iter().enumerate() {
        let a = tables[usize::from(first)];
        for (below, &second) in nodes[..at].iter().enumerate() {
            let b = tables[usize::from(second)];
            let quarters = [!a & !b, !a & b, a & !b, a & b].map(|cell| (ones & cell, zeros & cell));
            for &third in &nodes[..below] {
                let c = tables[usize::from(third)];
                // A table exists if no cell holds both a wanted one and a wanted zero.
                let split = |(ones, zeros): &(u64, u64)| {
                    ((ones & !c == 0) | (zeros & !c == 0)) & ((ones & c == 0) | (zeros & c == 0))
                };
                if !quarters.iter().all(split) {
                    continue;
                }
                let mut table = 0;
                for (quarter, (ones, _)) in quarters.iter().enumerate() {
                    table |= u8::from(ones & !c != 0) << (2 * quarter);
                    table |= u8::from(ones & c != 0) << (2 * quarter + 1);
                }
                if found(Gate::three(table, first, second, third)) {
                    return true;
                }
            }
        }
    }
    false
}

/// Finds two gates that match; the second takes the first as its argument `at`.
pub(crate) fn two_gates(
    set: GateSet,
    want: Want,
    tables: &[u64],
    nodes: &[u8],
) -> Option<[Gate; 2]> {
    match set {
        GateSet::Two => two_of_two(want, tables, nodes),
        GateSet::Ternary => two_of_three(want, tables, nodes),
    }
}

fn two_of_two(want: Want, tables: &[u64], nodes: &[u8]) -> Option<[Gate; 2]> {
    let Want { table, mask } = want;
    let made = tables.len() as u8;
    for &node in nodes {
        let c = tables[usize::from(node)];
        let covers = table & !c & mask == 0;
        let inside = c & !table & mask == 0;
        let beside = c & table & mask == 0;
        let negated = Want { table: !table, mask };
        let joins = [
            (true, Gate::two(Op::Xor, made, node), want.xor(c)),
            (covers, Gate::two(Op::And, made, node), want.within(c)),
            (covers, Gate::two(Op::AndNot, node, made), negated.within(c)),
            (inside, Gate::two(Op::Or, made, node), want.within(!c)),
            (beside, Gate::two(Op::AndNot, made, node), want.within(!c)),
        ];
        for (possible, join, want) in joins {
            if possible && let Some(gate) = one_gate(GateSet::Two, want, tables, nodes) {
                return Some([gate, join]);
            }
        }
    }
    None
}

/// The second gate's other inputs cut the truth table into quarters; where a quarter is not
/// constant, the first gate must supply it, straight or negated. Tries only pairs that leave at
/// most two quarters open; the others hardly ever succeed.
fn two_of_three(want: Want, tables: &[u64], nodes: &[u8]) -> Option<[Gate; 2]> {
    let (ones, zeros) = (want.table & want.mask, !want.table & want.mask);
    let made = tables.len() as u8;
    for (at, &first) in nodes.iter().enumerate() {
        let a = tables[usize::from(first)];
        for &second in &nodes[..at] {
            let b = tables[usize::from(second)];
            let cells = [!a & !b, !a & b, a & !b, a & b];
            let open = cells.map(|cell| ones & cell != 0 && zeros & cell != 0);
            let count = open.iter().filter(|open| **open).count();
            if !(1..=2).contains(&count) {
                continue;
            }
            let last = open.iter().rposition(|open| *open)?;
            for negate in [false, true].into_iter().take(count) {
                let mut wanted = Want { table: want.table, mask: 0 };
                let mut table = 0;
                for (cell, inputs) in cells.into_iter().enumerate() {
                    let two_bits = if !open[cell] {
                        if ones & inputs != 0 { 0b11 } else { 0b00 }
                    } else {
                        wanted.mask |= inputs & want.mask;
                        let flip = negate && cell == last;
                        wanted.table ^= if flip { inputs } else { 0 };
                        if flip { 0b01 } else { 0b10 }
                    };
                    table |= two_bits << (2 * cell);
                }
                if let Some(gate) = one_gate(GateSet::Ternary, wanted, tables, nodes) {
                    return Some([gate, Gate::three(table, first, second, made)]);
                }
            }
        }
    }
    None
}

/// The nodes of a circuit that a gate of the set may use, out of those `allowed`.
pub(crate) fn useful(set: GateSet, count: usize, allowed: impl Fn(usize) -> bool) -> Vec<u8> {
    (0..count)
        .filter(|&node| allowed(node) && (set == GateSet::Two || node != ONES))
        .map(|node| node as u8)
        .collect()
}

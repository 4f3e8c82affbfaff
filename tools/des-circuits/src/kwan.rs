//! Builds circuits output by output.
//!
//! Matthew Kwan, "Reducing the Gate Count of Bitslice DES" (IACR ePrint 2000/051): use a node, one
//! gate or two gates over existing nodes if they are right for every input that matters; else split
//! on an input bit, build one side, build what turns it into the other side, and join them. Tries
//! all bits and ways to join and keeps the smallest result. The order of outputs and of attempts is
//! random, so every seed gives another circuit.

use crate::circuit::{Circuit, Gate, GateSet, Op};
use crate::matching::{self, Want};
use crate::random::Random;

/// Splits tried per output; after that the first one that works is kept.
const SPLITS: usize = 4_000;

/// Builds a circuit for an S-box; `None` once it is clear that it would exceed `limit` gates.
pub(crate) fn circuit(
    set: GateSet,
    targets: &[u64; 4],
    limit: usize,
    random: &mut Random,
) -> Option<Circuit> {
    let mut builder = Builder { set, circuit: Circuit::new(), splits: 0, random };
    let mut order = [0, 1, 2, 3];
    builder.random.shuffle(&mut order);
    for output in order {
        builder.splits = 0;
        let want = Want { table: targets[output], mask: !0 };
        let node = builder.build(want, 0b11_1111, limit)?;
        builder.circuit.outputs[output] = node;
    }
    Some(builder.circuit.swept())
}

struct Builder<'a> {
    set: GateSet,
    circuit: Circuit,
    splits: usize,
    random: &'a mut Random,
}

impl Builder<'_> {
    /// Adds gates, up to `limit` in total, until a node is what is wanted, and returns that node.
    /// Adds nothing on failure.
    fn build(&mut self, want: Want, bits: u8, limit: usize) -> Option<usize> {
        let nodes = matching::useful(self.set, self.circuit.tables.len(), |_| true);
        let tables = &self.circuit.tables;
        if let Some(node) = matching::node(want, tables, &nodes) {
            return Some(node.into());
        }
        let room = limit.saturating_sub(self.circuit.gates.len());
        if room == 0 {
            return None;
        }
        if let Some(gate) = matching::one_gate(self.set, want, tables, &nodes) {
            return Some(self.circuit.push(gate));
        }
        if room == 1 {
            return None;
        }
        if let Some([first, second]) = matching::two_gates(self.set, want, tables, &nodes) {
            self.circuit.push(first);
            return Some(self.circuit.push(second));
        }
        if room == 2 { None } else { self.split(want, bits, limit) }
    }

    /// Finds the smallest split on one of `bits`.
    fn split(&mut self, want: Want, bits: u8, mut limit: usize) -> Option<usize> {
        let mut ways: Vec<(u8, Join)> = Vec::new();
        for bit in (0..6).filter(|bit| bits >> bit & 1 == 1) {
            ways.extend(Join::of(self.set).iter().map(|join| (bit, *join)));
        }
        self.random.shuffle(&mut ways);
        let start = self.circuit.gates.len();
        let mut best: Option<(Vec<Gate>, usize)> = None;
        for (bit, join) in ways {
            if best.is_some() && self.splits > SPLITS {
                break;
            }
            self.splits += 1;
            if let Some(node) = self.joined(want, bit, bits & !(1 << bit), join, limit) {
                limit = self.circuit.gates.len() - 1;
                best = Some((self.circuit.gates[start..].to_vec(), node));
            }
            self.circuit.truncate(start);
        }
        let (gates, node) = best?;
        for gate in gates {
            self.circuit.push(gate);
        }
        Some(node)
    }

    fn joined(&mut self, want: Want, bit: u8, bits: u8, join: Join, limit: usize) -> Option<usize> {
        let selector = self.circuit.tables[usize::from(bit)];
        let (here, negated) = match join {
            Join::And | Join::Table(CHANGED_IF | OTHER_IF) => (!selector, 0),
            Join::AndNot | Join::Table(_) => (selector, 0),
            Join::Or => (selector, !0),
        };
        let limit = limit.checked_sub(join.gates())?;
        // Where the bit masks the second part, the first alone must be right.
        let kept = self.build(want.xor(negated).within(here), bits, limit)?;
        let rest = match join {
            Join::Table(OTHER_IF | OTHER_UNLESS) => want,
            _ => want.xor(self.circuit.tables[kept]),
        };
        let change = self.build(rest.within(!here), bits, limit)?;
        let [kept, change] = [kept as u8, change as u8];
        let gated = match join {
            Join::And => Gate::two(Op::And, change, bit),
            Join::AndNot => Gate::two(Op::AndNot, change, bit),
            Join::Or => Gate::two(Op::Or, change, bit),
            Join::Table(table) => {
                return Some(self.circuit.push(Gate::three(table, bit, kept, change)));
            }
        };
        let gated = self.circuit.push(gated) as u8;
        Some(self.circuit.push(Gate::two(Op::Xor, kept, gated)))
    }
}

/// `kept`, with `change` XORed on it if the bit is set, as a table over (bit, kept, change).
const CHANGED_IF: u8 = 0b0110_1100;
/// The same if the bit is not set.
const CHANGED_UNLESS: u8 = 0b1100_0110;
/// `kept`, or `change` in its place if the bit is set.
const OTHER_IF: u8 = 0b1010_1100;
/// The same if the bit is not set.
const OTHER_UNLESS: u8 = 0b1100_1010;

/// How two parts are joined by a bit.
#[derive(Clone, Copy)]
enum Join {
    /// `kept ^ (change & bit)`
    And,
    /// `kept ^ (change & !bit)`
    AndNot,
    /// `kept ^ (change | bit)`
    Or,
    /// One ternary gate over (bit, kept, change).
    Table(u8),
}

impl Join {
    fn of(set: GateSet) -> &'static [Self] {
        match set {
            GateSet::Two => &[Self::And, Self::AndNot, Self::Or],
            GateSet::Ternary => &[
                Self::Table(CHANGED_IF),
                Self::Table(CHANGED_UNLESS),
                Self::Table(OTHER_IF),
                Self::Table(OTHER_UNLESS),
            ],
        }
    }

    fn gates(self) -> usize {
        match self {
            Self::Table(_) => 1,
            _ => 2,
        }
    }
}

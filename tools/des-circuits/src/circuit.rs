//! Represents circuits of up to 256 nodes over six inputs, with the truth table of every node.

use crate::tables;

/// Nodes before the first gate: six inputs and the constant one.
pub(crate) const FIRST_GATE: usize = 7;

/// The constant-one node; with it, two-input gates express NOT.
pub(crate) const ONES: usize = 6;

/// A gate's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    And,
    Or,
    Xor,
    /// The first input and not the second.
    AndNot,
    /// Any function of three inputs: bit `4a + 2b + c` of the table.
    Table(u8),
}

/// The gates that a circuit may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateSet {
    /// And, or, xor, and-not of two inputs: SSE2, AVX2, NEON.
    Two,
    /// Every function of three inputs: AVX-512.
    Ternary,
}

/// A gate; two-input gates ignore the last argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) op: Op,
    pub(crate) args: [u8; 3],
}

impl Gate {
    pub(crate) fn two(op: Op, a: u8, b: u8) -> Self {
        Self { op, args: [a, b, a] }
    }

    pub(crate) fn three(table: u8, a: u8, b: u8, c: u8) -> Self {
        Self { op: Op::Table(table), args: [a, b, c] }
    }

    /// Whether the other gate differs only in input order or in its table.
    pub(crate) fn same_inputs(&self, other: &Self) -> bool {
        let sorted = |gate: &Self| {
            let mut args = gate.args;
            match gate.op {
                Op::Table(_) => args.sort_unstable(),
                _ => args[..2].sort_unstable(),
            }
            args
        };
        let same_op =
            self.op == other.op || matches!((self.op, other.op), (Op::Table(_), Op::Table(_)));
        same_op
            && sorted(self)[..2] == sorted(other)[..2]
            && (!matches!(self.op, Op::Table(_)) || sorted(self) == sorted(other))
    }

    /// Computes the truth table from those of all earlier nodes.
    pub(crate) fn table(&self, tables: &[u64]) -> u64 {
        let [a, b, c] = self.args.map(|arg| tables[usize::from(arg)]);
        match self.op {
            Op::And => a & b,
            Op::Or => a | b,
            Op::Xor => a ^ b,
            Op::AndNot => a & !b,
            Op::Table(table) => {
                let spread = |bit: u8| 0u64.wrapping_sub(u64::from(table >> bit & 1));
                let low = |at| (!c & spread(at)) | (c & spread(at + 1));
                let mid = |at| (!b & low(at)) | (b & low(at + 2));
                (!a & mid(0)) | (a & mid(4))
            }
        }
    }
}

/// A circuit: gates in topological order, arguments first.
#[derive(Clone, Debug)]
pub(crate) struct Circuit {
    pub(crate) gates: Vec<Gate>,
    /// Truth tables of the inputs, the constant, and every gate.
    pub(crate) tables: Vec<u64>,
    pub(crate) outputs: [usize; 4],
}

impl Circuit {
    /// An empty circuit; outputs are set once they exist.
    pub(crate) fn new() -> Self {
        let mut tables: Vec<_> = (0..6).map(tables::input).collect();
        tables.push(!0);
        Self { gates: Vec::new(), tables, outputs: [0; 4] }
    }

    pub(crate) fn gate(&self, node: usize) -> Option<&Gate> {
        node.checked_sub(FIRST_GATE).map(|at| &self.gates[at])
    }

    pub(crate) fn push(&mut self, gate: Gate) -> usize {
        self.tables.push(gate.table(&self.tables));
        self.gates.push(gate);
        self.tables.len() - 1
    }

    /// Removes gates from the end, so that `gates` are left.
    pub(crate) fn truncate(&mut self, gates: usize) {
        self.gates.truncate(gates);
        self.tables.truncate(FIRST_GATE + gates);
    }

    /// Like [`Self::push`], unless a node with the same truth table exists.
    pub(crate) fn push_new(&mut self, gate: Gate) -> usize {
        let table = gate.table(&self.tables);
        match self.tables.iter().position(|have| *have == table) {
            Some(node) => node,
            None => self.push(gate),
        }
    }

    /// Whether the outputs match the S-box.
    pub(crate) fn computes(&self, targets: &[u64; 4]) -> bool {
        (0..4).all(|bit| self.tables[self.outputs[bit]] == targets[bit])
    }

    /// Removes nodes that the outputs do not need, and merges nodes with equal truth tables.
    pub(crate) fn swept(&self) -> Self {
        self.replaced(usize::MAX, Replacement::Node(0))
    }

    /// The circuit with `node` computed another way, swept. The replacement must not depend on
    /// `node`, and where it differs from it, no output may change.
    pub(crate) fn replaced(&self, node: usize, replacement: Replacement) -> Self {
        let mut sweep =
            Sweep { of: self, node, replacement, moved: [None; 256], made: Self::new() };
        sweep.made.outputs = self.outputs.map(|output| sweep.visit(output));
        sweep.made
    }
}

/// The replacement of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Replacement {
    Node(usize),
    Gate(Gate),
}

struct Sweep<'a> {
    of: &'a Circuit,
    node: usize,
    replacement: Replacement,
    /// New positions of the old circuit's nodes.
    moved: [Option<u8>; 256],
    made: Circuit,
}

impl Sweep<'_> {
    fn visit(&mut self, node: usize) -> usize {
        if let Some(moved) = self.moved[node] {
            return moved.into();
        }
        let moved = match (node == self.node, self.replacement) {
            (true, Replacement::Node(other)) => self.visit(other),
            (true, Replacement::Gate(gate)) => self.build(gate),
            (false, _) => match self.of.gate(node) {
                Some(gate) => self.build(*gate),
                None => node,
            },
        };
        self.moved[node] = Some(moved as u8);
        moved
    }

    fn build(&mut self, gate: Gate) -> usize {
        let args = gate.args.map(|arg| self.visit(arg.into()) as u8);
        self.made.push_new(Gate { op: gate.op, args })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_three_inputs_is_read_like_a_number() {
        let mut circuit = Circuit::new();
        for table in 0..=u8::MAX {
            let node = circuit.push(Gate::three(table, 0, 1, 2));
            for input in 0..8 {
                let value = circuit.tables[node] >> (input << 3) & 1;
                assert_eq!(value, u64::from(table >> input & 1));
            }
            circuit.truncate(0);
        }
    }
}

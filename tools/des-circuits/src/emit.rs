//! Writes circuits as a Rust module.

use crate::circuit::{Circuit, FIRST_GATE, Gate, GateSet, ONES, Op};
use std::fmt::Write;

/// The longest line of a module.
const LINE_CHARS: usize = 100;

/// The module for the circuits of all eight S-boxes.
pub(crate) fn file(set: GateSet, circuits: &[Circuit]) -> String {
    let (name, what, bound) = match set {
        GateSet::Two => ("two", "gates of two inputs: and, or, xor, and-not", "Lanes"),
        GateSet::Ternary => ("ternary", "gates of any function of three inputs", "Ternary"),
    };
    let counts: Vec<String> =
        circuits.iter().map(|circuit| circuit.gates.len().to_string()).collect();
    let total: usize = circuits.iter().map(|circuit| circuit.gates.len()).sum();
    let mut out = format!(
        "//! The S-boxes of DES as circuits of {what}.\n\
         //!\n\
         //! Written by `cargo run --release -p des-circuits -- write {name}`; not to be edited.\n\
         //! Gates: {} for S1 to S8, {total} in all.\n\n\
         use super::lanes::{bound};\n\n\
         /// S-box `NUMBER` (1 to 8); inputs and outputs in the order of FIPS 46-3.\n\
         #[inline(always)]\n\
         pub(super) fn s_box<const NUMBER: usize, L: {bound}>(inputs: [L; 6]) -> [L; 4] {{\n    \
             match NUMBER {{\n",
        counts.join(", "),
    );
    for number in 1..8 {
        let _ = writeln!(out, "        {number} => s{number}(inputs),");
    }
    out += "        _ => s8(inputs),\n    }\n}\n";
    for (number, circuit) in (1..).zip(circuits) {
        let _ = write!(
            out,
            "\n#[inline(always)]\nfn s{number}<L: {bound}>([a, b, c, d, e, f]: [L; 6]) -> [L; 4] {{\n"
        );
        out += &statements(&circuit.gates);
        let _ = writeln!(out, "    [{}]\n}}", circuit.outputs.map(node).join(", "));
    }
    out
}

/// The gates in order; neighbors that do not need each other share a line, where they fit.
fn statements(gates: &[Gate]) -> String {
    let (mut all, mut from) = (String::new(), 0);
    while from < gates.len() {
        let needs_none =
            |gate: &&Gate| gate.args.iter().all(|&arg| usize::from(arg) < FIRST_GATE + from);
        let free = gates[from..].iter().take_while(needs_none).count();
        let fits = |count: &usize| statement(gates, from, *count).len() <= LINE_CHARS;
        let count = (2..=free).rev().find(fits).unwrap_or(1);
        all = all + &statement(gates, from, count) + "\n";
        from += count;
    }
    all
}

fn statement(gates: &[Gate], from: usize, count: usize) -> String {
    let nodes: Vec<String> = (from..from + count).map(|at| node(FIRST_GATE + at)).collect();
    let gates: Vec<String> = gates[from..from + count].iter().map(expression).collect();
    match count {
        1 => format!("    let {} = {};", nodes[0], gates[0]),
        _ => format!("    let ({}) = ({});", nodes.join(", "), gates.join(", ")),
    }
}

fn node(node: usize) -> String {
    match node {
        0..6 => char::from(b'a' + node as u8).to_string(),
        _ => format!("x{}", node + 1 - FIRST_GATE),
    }
}

fn expression(gate: &Gate) -> String {
    let args = gate.args.map(usize::from);
    let [a, b, c] = args.map(node);
    let method = match gate.op {
        Op::Table(table) => return format!("L::ternary::<{table:#04x}>({a}, {b}, {c})"),
        // The constant stands for NOT and for nothing else: all other gates over it are trivial.
        Op::Xor | Op::AndNot if args[0] == ONES => return format!("{b}.not()"),
        Op::Xor if args[1] == ONES => return format!("{a}.not()"),
        Op::And => "and",
        Op::Or => "or",
        Op::Xor => "xor",
        Op::AndNot => "and_not",
    };
    assert!(args[0] != ONES && args[1] != ONES, "a trivial gate");
    format!("{a}.{method}({b})")
}

//! Runs the program from outside. That a test asks for it makes `cargo test` build it, which tests/cli needs.

#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn help_names_every_workload() {
    let output = Command::new(env!("CARGO_BIN_EXE_keypadd-bench")).arg("--help").output().unwrap();
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for workload in ["terminal", "bulk", "mixed", "files", "exhaustion", "kex", "reproduce"] {
        assert!(help.contains(&format!("\n  {workload} ")), "{workload}: {help}");
    }
}

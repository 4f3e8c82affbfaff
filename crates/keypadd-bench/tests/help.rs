//! Runs the program from outside. Also makes `cargo test` build the binary that tests/cli needs.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn help_names_every_workload() {
    let output = Command::new(env!("CARGO_BIN_EXE_keypadd-bench")).arg("--help").output().unwrap();
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for workload in [
        "terminal",
        "bulk",
        "mixed",
        "voice",
        "files",
        "exhaustion",
        "kex",
        "paths",
        "reproduce",
        "suites",
    ] {
        assert!(help.contains(&format!("\n  {workload} ")), "{workload}: {help}");
    }
}

#[test]
fn paths_without_root_are_refused_in_one_line() {
    let program = env!("CARGO_BIN_EXE_keypadd-bench");
    // In a user namespace without a mapping, root is `nobody`.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let (program, before) =
        if is_root { ("unshare", vec!["--user", program]) } else { (program, vec![]) };
    let output = Command::new(program).args(before).arg("paths").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("paths: needs root, for network namespaces"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}

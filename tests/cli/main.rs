//! Tests the command line of the shipped binary from outside: output and exit codes.
//!
//! Cases are data in `cmd/*.trycmd` and `refusals/*.trycmd` (`TRYCMD=overwrite cargo test --test
//! cli` rewrites the expected output); the latter need a peer or a server. This file creates the
//! files that the former name, and holds the tests that need two processes.

#![allow(clippy::unwrap_used)]

mod bench;
#[path = "../daemons/mod.rs"]
mod daemons;
mod demo;
mod descriptors;
mod diagnosing;
mod dictating;
mod draining;
mod ending;
mod endpoints;
mod ends;
mod examples;
mod forwarding;
mod forwards_at_run_time;
mod generated;
mod hardening;
mod hosts;
mod inheriting;
mod limits;
mod live;
mod logs;
mod measuring;
mod naming;
mod pairing;
mod peers;
mod pooling;
mod proxied;
mod refusing;
mod reloading;
mod replacing;
mod running;
mod secrets;
mod sharing;
mod starved;
mod staying;
mod surfaces;
mod taking_over;
mod watching;

use std::fs;
use std::path::Path;

use daemons::{PRIVATE_KEY, PUBLIC_KEY, write_file};

#[test]
fn every_case_prints_and_exits_as_recorded() {
    let desk = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cases");
    if desk.exists() {
        fs::remove_dir_all(&desk).unwrap();
    }
    fs::create_dir(&desk).unwrap();
    let seed_line = PRIVATE_KEY.lines().nth(1).unwrap();
    for (name, text, mode) in [
        ("good.key", PRIVATE_KEY, 0o600),
        ("world.key", PRIVATE_KEY, 0o644),
        ("group.key", PRIVATE_KEY, 0o620),
        ("public.key", PUBLIC_KEY, 0o600),
        ("prose.key", "not a key at all\n", 0o600),
        ("cut.key", &PRIVATE_KEY.replace(seed_line, &seed_line[..44]), 0o600),
        ("empty.key", "", 0o600),
    ] {
        write_file(&desk.join(name), text, mode);
    }
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/config")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        write_file(&desk.join(path.file_name().unwrap()), &text, 0o644);
    }
    write_file(&desk.join("writable.toml"), "", 0o666);
    fs::create_dir(desk.join("notes")).unwrap();
    write_file(&desk.join("notes/today.txt"), "", 0o644);
    // The cases use relative names, so that texts are the same on every machine. This is the
    // working directory of every test in the process, so it outlives this one.
    std::env::set_current_dir(&desk).unwrap();
    trycmd::TestCases::new()
        .env("KEYPADD_KEY", "good.key")
        .env("COLUMNS", "100")
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/cmd/*.trycmd"))
        .run();
}

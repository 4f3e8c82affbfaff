//! The command line from outside, on the binary that ships: what it prints and how it ends.
//!
//! `cmd/*.trycmd` are cases as data (`TRYCMD=overwrite cargo test --test cli` rewrites what they
//! expect). Here are the files that they name and the claims that need two processes.

#![allow(clippy::unwrap_used)]

mod live;
mod secrets;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A key whose seed is known: RFC 8032, section 7.1, test 1 in PKCS#8 (RFC 8410).
const PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
    -----END PRIVATE KEY-----\n";

/// Its public half.
const PUBLIC_KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

#[test]
fn every_case_prints_and_ends_as_written() {
    let desk = tempfile::tempdir().unwrap();
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
        write_file(&desk.path().join(name), text, mode);
    }
    // The cases name these files alone, so that the texts are the same on every machine.
    std::env::set_current_dir(desk.path()).unwrap();
    trycmd::TestCases::new()
        .env("KEYPADD_KEY", "good.key")
        .env("COLUMNS", "100")
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/cmd/*.trycmd"))
        .run();
}

/// A file with exactly this mode, whatever the umask.
fn write_file(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

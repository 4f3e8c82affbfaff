//! Tests the auditor: it detects each planted bug and names it correctly, and finds nothing without
//! one (T-1m).

use std::fs;
use std::path::{Path, PathBuf};

use keypadd_keystream::Suite;
use simulator::{Bug, Finding, Outcome, run_loops_with_bug, run_with_bug};

/// One suite of each kind of counter and MAC.
const SUITES: [Suite; 4] = [
    Suite::AES_128_GCM,
    Suite::CHACHA20_POLY1305,
    Suite::AES_256_CTR_HMAC_SHA256,
    Suite::DES_CTR_HMAC_SHA1,
];

/// Whether a finding names the bug correctly.
fn is_named(bug: Bug, finding: &Finding) -> bool {
    match (bug, finding) {
        (Bug::WipedPad | Bug::RefillRace, Finding::WrongKeystream(_)) => true,
        (Bug::CursorStuck, Finding::PadTwice(_)) => true,
        (Bug::WipedPad, Finding::Plaintext(_)) => true,
        (_, Finding::WrongKeystream(_)) => bug != Bug::CursorStuck,
        _ => false,
    }
}

#[test]
fn every_bug_put_in_on_purpose_is_found_and_named() {
    for (through, run) in
        [("quinn", run_with_bug as fn(_, _, _) -> _), ("loops", run_loops_with_bug)]
    {
        for suite in SUITES {
            let Outcome { findings, .. } = run(suite, 0, None);
            assert_eq!(findings, [], "{through}, {suite} without a bug");
            for bug in Bug::ALL {
                // A connection may break before the bug hits a packet whose keystream was seen.
                let found: Vec<_> =
                    (0..3).flat_map(|seed| run(suite, seed, Some(bug)).findings).collect();
                let named = found.iter().any(|found| is_named(bug, found));
                assert!(named, "{through}, {suite}, {bug:?}: {found:?}");
            }
        }
    }
}

/// Checks that `mutants.sh`'s patches still apply; building each is too much for `cargo test`.
#[test]
fn every_mutant_still_applies_to_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mutants = files(&root.join("mutants"), "patch");
    assert_eq!(mutants.len(), 7, "{mutants:?}");
    for mutant in mutants {
        let patch = fs::read_to_string(&mutant).expect("a patch");
        let hunks = texts_before(&patch);
        assert!(!hunks.is_empty(), "{}", mutant.display());
        for (file, text) in hunks {
            let source = fs::read_to_string(root.join("../..").join(file)).expect("a source file");
            assert_eq!(source.matches(&text).count(), 1, "{}: {file}", mutant.display());
        }
    }
}

/// The texts that a patch expects, by file.
fn texts_before(patch: &str) -> Vec<(&str, String)> {
    let (mut file, mut found) = ("", Vec::new());
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("--- a/") {
            file = name;
        } else if line.starts_with("@@") {
            found.push((file, String::new()));
        } else if let Some((_, text)) = found.last_mut().filter(|_| !line.starts_with('+')) {
            text.push_str(line.get(1..).unwrap_or_default());
            text.push('\n');
        }
    }
    found
}

/// Checks that only the auditor uses the test hooks that reveal keys.
#[test]
fn the_program_and_the_tunnel_never_name_the_test_hooks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = 0;
    for part in ["src", "crates/keypadd-daemon/src", "crates/keypadd-tunnel/src"] {
        for path in files(&root.join(part), "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            for name in [
                "TestHooks",
                "client_config_with",
                "server_config_with",
                "with_filler",
                "KeyLog",
                "SteppedLoop",
            ] {
                assert!(!text.contains(name), "{} names {name}", path.display());
            }
            sources += 1;
        }
    }
    assert!(sources > 40, "the sources were not found");
}

/// Checks that no daemon lets a session for measurements carry a network.
#[test]
fn the_program_opens_no_network_for_measurements() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for path in files(&root.join("crates/keypadd-daemon/src"), "rs") {
        let text = fs::read_to_string(&path).expect("a source file");
        assert!(!text.contains("for_measurements"), "{}", path.display());
    }
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

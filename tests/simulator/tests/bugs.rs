//! The auditor is tested: with a bug put in on purpose it says so, with the right words, and
//! without one it says nothing (T-1m).

use std::fs;
use std::path::{Path, PathBuf};

use keypadd_keystream::Suite;
use simulator::{Bug, Finding, run, run_with_bug};

/// One suite of each kind of counter and MAC.
const SUITES: [Suite; 3] =
    [Suite::AES_128_GCM, Suite::AES_256_CTR_HMAC_SHA256, Suite::DES_CTR_HMAC_SHA1];

/// What the auditor has to call a bug.
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
    for suite in SUITES {
        assert_eq!(run(suite, 0).findings, [], "{suite} without a bug");
        for bug in Bug::ALL {
            let findings = run_with_bug(suite, 0, Some(bug)).findings;
            assert!(
                findings.iter().any(|found| is_named(bug, found)),
                "{suite}, {bug:?}: {findings:?}"
            );
        }
    }
}

/// The seams through which the auditor gets keys are for the auditor alone.
#[test]
fn the_program_and_the_tunnel_never_name_the_auditors_seams() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut files = 0;
    for part in ["keypadd", "keypadd-tunnel/src"] {
        for path in sources(&root.join(part)) {
            let text = fs::read_to_string(&path).expect("a source file");
            for name in
                ["Seams", "client_config_with", "server_config_with", "with_filler", "KeyLog"]
            {
                assert!(!text.contains(name), "{} names {name}", path.display());
            }
            files += 1;
        }
    }
    assert!(files > 40, "the sources were not found");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

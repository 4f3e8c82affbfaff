//! What the fuzzer starts from and what it has found: texts of users and bytes of peers.

use std::fs;
use std::path::PathBuf;

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "public for the fuzz targets")]
mod claims;

/// Tries every seed of a fuzz target.
fn try_seeds(target: &str, holds: impl Fn(&[u8])) {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "fuzz/seeds", target].iter().collect();
    let seeds: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert!(!seeds.is_empty(), "no seeds for {target}");
    for seed in seeds {
        holds(&fs::read(seed.unwrap().path()).unwrap());
    }
}

/// Tries those that are text: the fuzzer leaves out the others too.
fn try_texts(target: &str, holds: impl Fn(&str)) {
    try_seeds(target, |seed| {
        if let Ok(text) = str::from_utf8(seed) {
            holds(text);
        }
    });
}

#[test]
fn every_seed_of_the_fuzz_targets_holds() {
    try_texts("config", claims::config::holds);
    try_texts("forwards", claims::forwards::holds);
    try_texts("permits", claims::permits::holds);
    try_seeds("frames", claims::frames::holds);
    try_seeds("headers", claims::headers::holds);
    try_seeds("socks", claims::socks::holds);
}

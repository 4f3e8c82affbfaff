//! Runs a slice of the long proof for every suite, and checks that a seed repeats its run.

use keypadd_keystream::{Class, Suite};
use simulator::{Counts, run};

/// Seeds of each suite; the long proof has 10,000.
const SEEDS: u64 = 4;

fn slice(class: Class) {
    let mut all = Counts::default();
    for suite in Suite::ALL.into_iter().filter(|suite| suite.class() == class) {
        for seed in 0..SEEDS {
            let outcome = run(suite, seed);
            assert!(outcome.findings.is_empty(), "{suite}, seed {seed}: {:?}", outcome.findings);
            all.add(&outcome.counts);
        }
    }
    println!("{all}");
    assert!(all.scarce().is_empty(), "too few: {:?} of {all}", all.scarce());
}

#[test]
fn no_keystream_of_a_standard_suite_is_used_twice_and_all_of_it_is_right() {
    slice(Class::Standard);
}

#[test]
fn no_keystream_of_a_legacy_suite_is_used_twice_and_all_of_it_is_right() {
    slice(Class::Legacy);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..3 {
        let [first, second] = [(); 2].map(|()| run(Suite::AES_256_GCM, seed));
        assert_eq!(first.counts, second.counts, "seed {seed}");
        assert_eq!(first.transcript, second.transcript, "seed {seed}");
        assert_ne!(first.transcript, run(Suite::AES_256_GCM, seed + 1).transcript);
    }
}

//! Compares sealing with precomputed pads, and with a dry pool, to sealing without a pool, in
//! alternating slices, so that other load affects all three alike. `cargo bench --bench ladder --
//! paired` prints each ratio with its interval, and whether it meets the goal of
//! docs/benchmarks/README.md.

use keypadd_keystream::{Cipher, Protection};
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;

use crate::ends::Measured;
use crate::packets::seal_burst;
use crate::sources::{Connections, Source, is_trial};

/// A keystroke and a full packet.
const SIZES: [usize; 2] = [128, 1400];
/// No pool comes first: the baseline of the other two.
const SOURCES: [Source; 3] = [Source::Off, Source::Hot, Source::Miss];
/// Slices per source.
const TURNS: usize = 120;
/// Maximum packets per slice.
const PACKETS_MAX: u64 = 1000;
/// Above this ratio, a packet is slower than without a pool.
const DEAREST: f64 = 1.03;

/// Compares all suites that have pads and prints the results.
pub(crate) fn paired() {
    let turns = if is_trial() { 1 } else { TURNS };
    for suite in Protection::all().filter(|suite| suite.cipher() != Cipher::Null) {
        for size in SIZES {
            let mut arms = SOURCES.map(|source| Connections::new(source, suite, Measured::Sealing));
            let mut took = SOURCES.map(|_| Vec::new());
            for turn in 0..turns {
                for place in 0..SOURCES.len() {
                    let nth = (turn + place) % SOURCES.len();
                    took[nth].push(nanos_of_a_packet(&mut arms[nth], SOURCES[nth], suite, size));
                }
            }
            let [off, rest @ ..] = &took;
            for (source, took) in SOURCES[1..].iter().zip(rest) {
                let ratio = ratio(took, off);
                let verdict = Rule::AtMost(DEAREST).judge("", "time of off", ratio.as_ref());
                let [taken, without] =
                    [took, off].map(|took| mean(took).expect("at least one slice").value);
                println!(
                    "{suite}, {size} bytes, {}: {:.0} ns, off {:.0} ns: {}; at most {DEAREST}: {:?}",
                    source.name(),
                    taken,
                    without,
                    verdict.because,
                    verdict.outcome,
                );
            }
        }
    }
}

/// Seals packets with this source's coverage; returns the time per packet.
fn nanos_of_a_packet(
    connections: &mut Connections,
    source: Source,
    suite: Protection,
    size: usize,
) -> f64 {
    let coverage = source.coverage(suite, size).expect("short enough for a pad");
    let (ends, available) = connections.next(size);
    let before = ends.found(coverage);
    let (time, done) = seal_burst(ends, size, available.min(PACKETS_MAX));
    let found = ends.found(coverage) - before;
    assert!(found * 100 >= done * 95, "{suite}: {found} of {done} are {coverage:?}");
    time.as_nanos() as f64 / done as f64
}

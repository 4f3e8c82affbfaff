//! Sealing with pads at hand, and with a pool that is dry, against sealing without a pool: turn by turn,
//! so that what the machine does meanwhile does it to all three. `cargo bench --bench ladder -- paired`
//! says each ratio with its interval, and whether it is within what docs/DESIGN.md asks for.

use keypadd_keystream::{Cipher, Protection};
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;

use crate::ends::Measured;
use crate::packets::seal_burst;
use crate::sources::{Source, Supply, is_trial};

/// A keystroke and a full packet.
const SIZES: [usize; 2] = [128, 1400];
/// Without a pool first: what the other two are compared with.
const SOURCES: [Source; 3] = [Source::Off, Source::Hot, Source::Miss];
/// How often each has its turn.
const TURNS: usize = 120;
/// Packets of a turn at most.
const PACKETS_MAX: u64 = 1000;
/// Beyond this a packet is dearer than without a pool.
const DEAREST: f64 = 1.03;

/// Compares all suites that have pads, and says how.
pub(crate) fn paired() {
    let turns = if is_trial() { 1 } else { TURNS };
    for suite in Protection::all().filter(|suite| suite.cipher() != Cipher::Null) {
        for size in SIZES {
            let mut supplies = SOURCES.map(|source| Supply::new(source, suite, Measured::Sealing));
            let mut took = SOURCES.map(|_| Vec::new());
            for turn in 0..turns {
                for place in 0..SOURCES.len() {
                    let nth = (turn + place) % SOURCES.len();
                    took[nth].push(nanos_of_a_packet(
                        &mut supplies[nth],
                        SOURCES[nth],
                        suite,
                        size,
                    ));
                }
            }
            let [off, rest @ ..] = &took;
            for (source, took) in SOURCES[1..].iter().zip(rest) {
                let ratio = ratio(took, off);
                let verdict = Rule::AtMost(DEAREST).judge("", "time of off", ratio.as_ref());
                let [taken, without] =
                    [took, off].map(|took| mean(took).expect("a turn at least").value);
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

/// Seals packets that find what this source gives; what one of them takes.
fn nanos_of_a_packet(supply: &mut Supply, source: Source, suite: Protection, size: usize) -> f64 {
    let coverage = source.coverage(suite, size).expect("short enough for a pad");
    let (ends, at_hand) = supply.next(size);
    let before = ends.found(coverage);
    let (time, done) = seal_burst(ends, size, at_hand.min(PACKETS_MAX));
    let found = ends.found(coverage) - before;
    assert!(found * 100 >= done * 95, "{suite}: {found} of {done} are {coverage:?}");
    time.as_nanos() as f64 / done as f64
}

//! Compares packets with precomputed pads, and with a dry pool, to packets without a pool, in
//! alternating slices, so that other load affects all alike: `cargo bench --bench ladder -- paired
//! [SUITE...]`.
//!
//! Sealing first, then opening. Hot pads are in this core's caches, the others come from 64 MiB that
//! another core filled. For AES-GCM, hits are also made with each narrower GHASH that the CPU has,
//! which stands for an older CPU; without a pool ring takes the widest instructions all the same.
//! Prints CPU time, each ratio with its interval and median, and whether it meets its goal
//! (docs/benchmarks/README.md).

use std::time::Duration;

use keypadd_keystream::{CipherEngine, GhashPath, Mac, Protection, cpu_features};
use keypadd_measure::statistics::{median, ratio};
use keypadd_measure::verdict::Rule;

use crate::ends::Measured;
use crate::packets::{open_burst, seal_burst};
use crate::sources::{Connections, Source, is_trial};

/// From a keystroke to a full packet.
const SIZES: [usize; 5] = [64, 128, 256, 512, 1400];
/// Slices per arm.
const TURNS: usize = 60;
/// Maximum packets per slice.
const PACKETS_MAX: u64 = 1000;

/// Compares the suites that the command line names, or all that have pads, and prints the results.
pub(crate) fn paired() {
    let is_named = |suite: &Protection| std::env::args().any(|word| word == suite.name());
    let with_pads = || Protection::all().filter(|suite| !suite.cipher().is_null());
    let are_named = with_pads().any(|suite| is_named(&suite));
    for suite in with_pads().filter(|suite| !are_named || is_named(suite)) {
        for measured in [Measured::Sealing, Measured::Opening] {
            for size in SIZES {
                compare(suite, measured, size);
            }
        }
    }
}

/// One way to get pads, and the time of a packet in each slice.
struct Arm {
    name: String,
    source: Source,
    goal: Option<f64>,
    connections: Connections,
    nanos: Vec<f64>,
}

impl Arm {
    fn new(suite: Protection, measured: Measured, source: Source, size: usize) -> Self {
        Self {
            name: source.name().to_owned(),
            source,
            goal: goal(suite, source, size),
            connections: Connections::new(source, suite, measured),
            nanos: Vec::new(),
        }
    }

    /// Hot pads, with this GHASH.
    fn with_ghash(suite: Protection, measured: Measured, path: GhashPath, size: usize) -> Self {
        let engine = CipherEngine::default().with_ghash(path);
        Self {
            name: format!("{}, {}", Source::Hot.name(), path.name()),
            goal: goal_with(path).filter(|_| size == 1400),
            connections: Connections::with_engine(Source::Hot, suite, measured, engine),
            ..Self::new(suite, measured, Source::Hot, size)
        }
    }
}

fn compare(suite: Protection, measured: Measured, size: usize) {
    let turns = if is_trial() { 1 } else { TURNS };
    let sources = [Source::Off, Source::Hot, Source::Near, Source::Miss].into_iter();
    let mut arms: Vec<_> = sources
        .filter(|source| source.coverage(suite, size).is_some())
        .map(|source| Arm::new(suite, measured, source, size))
        .collect();
    if suite.mac() == Mac::Ghash {
        let narrower = GhashPath::available().filter(|path| *path != GhashPath::fastest());
        arms.extend(narrower.map(|path| Arm::with_ghash(suite, measured, path, size)));
    }
    let count = arms.len();
    for turn in 0..turns {
        for place in 0..count {
            let arm = &mut arms[(turn + place) % count];
            let nanos = nanos_of_a_packet(&mut arm.connections, arm.source, suite, measured, size);
            arm.nanos.push(nanos);
        }
    }
    let [off, others @ ..] = &arms[..] else { unreachable!("the first has no pool") };
    let middle = |samples: &[f64]| median(samples).expect("at least one slice");
    for arm in others {
        let ratio = ratio(&arm.nanos, &off.nanos);
        let rule = Rule::AtMost(arm.goal.unwrap_or(f64::INFINITY));
        let verdict = rule.judge("", "time of off", ratio.as_ref());
        let ratios: Vec<_> = arm.nanos.iter().zip(&off.nanos).map(|(arm, off)| arm / off).collect();
        let goal = arm.goal.map(|goal| format!("; at most {goal}: {:?}", verdict.outcome));
        println!(
            "{suite}, {} {size} bytes, {}: {:.0} ns, off {:.0} ns: {}, median {:.3}{}",
            measured.name(),
            arm.name,
            middle(&arm.nanos),
            middle(&off.nanos),
            verdict.because,
            middle(&ratios),
            goal.unwrap_or_default(),
        );
    }
}

/// The most that a packet may take of the time without a pool.
fn goal(suite: Protection, source: Source, size: usize) -> Option<f64> {
    let has_ifma = cpu_features().contains(&"avx512ifma");
    match (source, suite.mac()) {
        (Source::Miss, _) => Some(1.03),
        (Source::Hot, Mac::Ghash) if size >= 1400 => Some(0.55),
        (Source::Hot | Source::Near, Mac::Ghash) if size > 128 => Some(0.7),
        (Source::Hot | Source::Near, Mac::Ghash) => Some(0.8),
        (Source::Hot | Source::Near, Mac::Poly1305) if has_ifma => Some(0.4),
        (Source::Hot | Source::Near, Mac::Poly1305) => Some(0.6),
        _ => None,
    }
}

/// The most that a full packet may take of the time without a pool if GHASH is narrower than the CPU allows.
fn goal_with(path: GhashPath) -> Option<f64> {
    match path.name() {
        "vpclmulqdq-256" => Some(0.65),
        "pclmulqdq-128" => Some(0.85),
        _ => None,
    }
}

/// Seals or opens packets with this source's coverage; returns the CPU time per packet.
fn nanos_of_a_packet(
    connections: &mut Connections,
    source: Source,
    suite: Protection,
    measured: Measured,
    size: usize,
) -> f64 {
    let coverage = source.coverage(suite, size).expect("short enough for a pad");
    let (ends, available) = connections.some(size, PACKETS_MAX);
    let before = ends.found(coverage);
    let burst = match measured {
        Measured::Sealing => seal_burst,
        Measured::Opening => open_burst,
    };
    let (time, done): (Duration, u64) = burst(ends, size, available);
    let found = ends.found(coverage) - before;
    assert!(found * 100 >= done * 95, "{suite}: {found} of {done} are {coverage:?}");
    time.as_nanos() as f64 / done as f64
}

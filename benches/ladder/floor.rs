//! Measures what a hit costs beyond its floor: the XOR of a pad and the MAC of the same bytes,
//! which any packet needs. `cargo bench --bench ladder -- floor` alternates between sealing from a
//! pool and the floor, and prints for each suite the difference in nanoseconds, the ratio, and
//! whether that meets the goal.
//!
//! The floor's tag is computed by the same code (`MacKey::tag`): in a GCM suite it is masked GHASH,
//! and the mask's 16 bytes are XORed from the pad like the payload's; a null MAC is 16 zeros, so
//! its floor is only an XOR. The floor's pads lie in order in memory that this core has just
//! written, at most 1.5 MiB, about as hot as those of a hot pool of 1 MiB, which has fewer packets
//! per slice. Pads from another core are compared with the same floor, so fetching them counts
//! against the pool.

use std::hint::black_box;

use keypadd_keystream::{Mac, MacKey, PacketNumber, Protection, TAG_BYTES};
use keypadd_measure::results::Estimate;
use keypadd_measure::statistics::{difference, mean, ratio};
use keypadd_measure::verdict::Rule;

use crate::ends::{HEADER_BYTES, Measured};
use crate::packets::{cpu_time, seal_burst};
use crate::sources::{Connections, Source, is_trial};
use crate::{key, xor_over};

/// Slices per arm.
const TURNS: usize = 120;
/// Maximum packets per slice, and packets of its untimed start, which warms up code and branches.
const PACKETS_MAX: u64 = 1000;
const FIRST_PACKETS: u64 = 64;
/// The goal for a hit relative to its floor in an HMAC suite, from this payload on.
const DEAREST: f64 = 1.10;
const DEAREST_FROM_BYTES: usize = 1400;

/// Payloads of a keystroke and of a full packet, and the goals for a hit in nanoseconds above its
/// floor, with hot pads and with pads from 64 MiB filled by another core.
const AIMS: [(usize, [f64; 2]); 2] = [(128, [40.0, 60.0]), (1400, [60.0, 150.0])];
const SOURCES: [Source; 2] = [Source::Hot, Source::Near];

/// Compares all suites that have pads and prints the results.
pub(crate) fn floor() {
    let turns = if is_trial() { 1 } else { TURNS };
    for suite in Protection::all().filter(|suite| !suite.cipher().is_null()) {
        let mut floor = Floor { mac: key(suite).mac };
        for (size, aims) in AIMS {
            let mut arms: Vec<(Source, Connections)> = (SOURCES.into_iter())
                .filter(|source| source.coverage(suite, size).is_some())
                .map(|source| (source, Connections::new(source, suite, Measured::Sealing)))
                .collect();
            let mut hits = vec![Vec::new(); arms.len()];
            let mut floors = Vec::new();
            for turn in 0..turns {
                for place in 0..=arms.len() {
                    match (turn + place) % (arms.len() + 1) {
                        0 => floors.push(floor.nanos_of_a_packet(size)),
                        nth => {
                            let (source, connections) = &mut arms[nth - 1];
                            hits[nth - 1].push(nanos_of_a_hit(connections, *source, suite, size));
                        }
                    }
                }
            }
            for (((source, _), hits), aim) in arms.iter().zip(&hits).zip(aims) {
                say(suite, size, *source, hits, &floors, aim);
            }
        }
    }
}

/// One line: the times, the comparison and the verdicts.
fn say(suite: Protection, size: usize, source: Source, hits: &[f64], floors: &[f64], aim: f64) {
    let judged = |figure: &str, most: f64, estimate: Option<Estimate>| {
        let verdict = Rule::AtMost(most).judge("", figure, estimate.as_ref());
        (verdict.because, verdict.outcome)
    };
    let (above, outcome) = judged("ns above it", aim, difference(hits, floors));
    let (times, of_it) = judged("times of it", DEAREST, ratio(hits, floors));
    let has_hmac = !suite.is_of_tls() && suite.mac() != Mac::NULL;
    let of_it = if has_hmac && size >= DEAREST_FROM_BYTES {
        format!("; at most {DEAREST}: {of_it:?}")
    } else {
        String::new()
    };
    let [taken, floor] = [hits, floors].map(|took| mean(took).expect("at least one slice").value);
    println!(
        "{suite}, {size} bytes, {}: {:.0} ns, floor {:.0} ns: {above}; at most {aim}: {outcome:?}; \
         {times}{of_it}",
        source.name(),
        taken,
        floor,
    );
}

/// Seals packets whose pads are available; returns the time per packet.
fn nanos_of_a_hit(
    connections: &mut Connections,
    source: Source,
    suite: Protection,
    size: usize,
) -> f64 {
    let coverage = source.coverage(suite, size).expect("short enough for a pad");
    let (ends, available) = connections.some(size, FIRST_PACKETS + PACKETS_MAX);
    let before = ends.found(coverage);
    let (_, first) = seal_burst(ends, size, FIRST_PACKETS.min(available / 2));
    let count = available - first;
    let start = cpu_time();
    seal_burst(ends, size, count);
    let took = cpu_time() - start;
    let found = ends.found(coverage) - before;
    assert!(found * 100 >= available * 95, "{suite}: {found} of {available} are {coverage:?}");
    took.as_nanos() as f64 / count as f64
}

/// The minimum work of sealing a packet.
struct Floor {
    mac: MacKey,
}

impl Floor {
    /// XORs pads into packets and computes their tags; returns the time per packet.
    fn nanos_of_a_packet(&mut self, size: usize) -> f64 {
        let pad_bytes = self.mac.mask_bytes() + size;
        let pads = vec![5; (FIRST_PACKETS + PACKETS_MAX) as usize * pad_bytes];
        let (first, rest) = pads.split_at(FIRST_PACKETS as usize * pad_bytes);
        self.burst(first, size);
        let start = cpu_time();
        self.burst(rest, size);
        (cpu_time() - start).as_nanos() as f64 / PACKETS_MAX as f64
    }

    fn burst(&mut self, pads: &[u8], size: usize) {
        let mut packet = vec![0; HEADER_BYTES + size + TAG_BYTES];
        for (number, pad) in (0..).zip(pads.chunks_exact(self.mac.mask_bytes() + size)) {
            let (header, sealed) = packet.split_at_mut(HEADER_BYTES);
            let (payload, tag) = sealed.split_at_mut(size);
            let (for_mask, for_payload) = pad.split_at(self.mac.mask_bytes());
            xor_over(payload, for_payload);
            tag.copy_from_slice(&self.mac.tag(
                PacketNumber::new(number),
                header,
                payload,
                for_mask,
            ));
            black_box(&mut packet);
        }
    }
}

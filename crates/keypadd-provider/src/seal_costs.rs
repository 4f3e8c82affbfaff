//! Times seals by the source of their pads, for measurements; `calibration.rs` has the brief
//! version.
//!
//! All arms use the shipped sealing key, on one thread, and alternate. Pads are hot if a filler has
//! just written them, and cold if it has since written a pool larger than the caches.

use std::time::Duration;

use keypadd_keystream::{CipherEngine, Protection, SEGMENT_PACKETS};
use keypadd_pool::{Filler, Pool, PoolSettings, Step};

use crate::calibration::{Arm, SealTimes, TIMED_BYTES, TURN_PACKETS, TURNS, median, worth_pooling};

/// Segments of packets that each arm seals at each length. The first long packets of
/// ChaCha20-Poly1305 take up to twice as long if ring's code ran before them, until the CPU has
/// been busy with both for some milliseconds. With 48 segments, the median shows sustained traffic.
const SEGMENTS: u64 = 48;

/// A pool that stays in the caches.
const HOT_BYTES: usize = 1 << 20;

/// The time of a seal at one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealCosts {
    /// Payload bytes.
    pub bytes: usize,
    /// Without a pool.
    pub inline: Duration,
    /// With a pad that the filler has just written.
    pub hot: Duration,
    /// With a pad from a full pool; `None` if the pool did not hold that many.
    pub cold: Option<Duration>,
    /// With a pool that has no pad.
    pub miss: Duration,
}

impl SealCosts {
    /// Whether a full pool of this suite is worthwhile, as `--pool auto` asks.
    pub fn worth_pooling(costs: &[Self]) -> bool {
        let times = costs.iter().map(|costs| SealTimes {
            bytes: costs.bytes,
            pooled: costs.cold.unwrap_or(costs.hot),
            inline: costs.inline,
        });
        worth_pooling(&times.collect::<Vec<_>>())
    }
}

/// Times seals of one suite, with a pool of this size for cold pads; `None` for a suite without
/// pads, or if there is no memory for the pool. Fills the pool first, which takes as long as its
/// cipher needs.
pub fn seal_costs(
    protection: Protection,
    engine: CipherEngine,
    pool_bytes: usize,
) -> Option<[SealCosts; 3]> {
    if protection.cipher().is_null() {
        return None;
    }
    let [inline, hot, miss] = [(); 3].map(|()| Arm::new(protection, engine, 0));
    let cold = Arm::new(protection, engine, 1);
    let pool = |budget_bytes| Pool::with_filler(PoolSettings { budget_bytes }).ok();
    let (pool_of_hot, mut filler_of_hot) = pool(HOT_BYTES)?;
    let (pool_of_cold, mut filler_of_cold) = pool(pool_bytes)?;
    // Never filled.
    let (pool_of_miss, _filler) = pool(HOT_BYTES)?;
    hot.use_pool(pool_of_hot);
    cold.use_pool(pool_of_cold);
    miss.use_pool(pool_of_miss);
    fill(&mut filler_of_cold);
    let mut number = 0;
    Some(TIMED_BYTES.map(|bytes| {
        let arms = [&inline, &hot, &cold, &miss];
        let mut turns = [(); 4].map(|()| Vec::new());
        let hits = cold.hits();
        for _ in 0..SEGMENTS {
            fill(&mut filler_of_hot);
            for _ in 0..TURNS {
                for (arm, turns) in arms.iter().zip(&mut turns) {
                    turns.push(arm.turn(number, bytes));
                }
                number += TURN_PACKETS;
            }
            number = number.next_multiple_of(SEGMENT_PACKETS as u64);
        }
        let packets = SEGMENTS * TURNS * TURN_PACKETS;
        debug_assert_eq!(hot.hits() % packets, 0);
        let is_full = cold.hits() - hits == packets;
        let [inline, hot, cold, miss] = turns.map(median);
        SealCosts { bytes, inline, hot, cold: is_full.then_some(cold), miss }
    }))
}

fn fill(filler: &mut Filler) {
    while filler.step(Duration::ZERO) == Step::Worked {}
}

#[cfg(test)]
mod tests {
    use keypadd_keystream::{CipherBackend, Suite};

    use super::*;

    #[test]
    fn a_full_pool_serves_every_packet_and_a_slow_cipher_shows_in_every_arm() {
        let des_crate = CipherBackend::DesCrate.engine().expect("it is everywhere");
        for (suite, engine) in [
            (Suite::CHACHA20_POLY1305, CipherEngine::default()),
            (Suite::DES_CTR_HMAC_SHA1, des_crate),
        ] {
            let costs = seal_costs(suite.into(), engine, 24 << 20).expect("it has pads");
            assert!(costs.iter().all(|costs| costs.cold.is_some()), "{suite}: {costs:?}");
            if suite == Suite::DES_CTR_HMAC_SHA1 {
                // Tens of times the work: no load can reverse this.
                let SealCosts { inline, hot, miss, .. } = costs[2];
                assert!(hot < inline && hot < miss, "{costs:?}");
                assert!(SealCosts::worth_pooling(&costs));
            }
        }
        let null = keypadd_keystream::MeasureSuite::NULL.into();
        assert_eq!(seal_costs(null, CipherEngine::default(), 8 << 20), None);
    }
}

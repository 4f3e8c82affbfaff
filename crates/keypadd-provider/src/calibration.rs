//! Calibrates on this machine whether a pool is worthwhile: times pooled against inline seals.
//!
//! Both arms use the shipped sealing key and alternate, so that both see the same load; inline, the
//! suites of TLS are ring's. The decision depends on the timings only.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keypadd_keystream::{CipherEngine, Protection, SEGMENT_PACKETS, TAG_BYTES};
use keypadd_pool::{Coverage, Direction, Pool, PoolSettings, Step};
use quinn_proto::crypto::PacketKey;

use crate::fault::FaultLatch;
use crate::key_extraction::KeyMaterial;
use crate::limits::KeyLimits;
use crate::meters::Meters;
use crate::phases::NewestPhase;
use crate::protection::KeyProtection;
use crate::seal::{Outbound, SealKey};

/// Payloads to time, in bytes: a keystroke, a line, a full packet.
pub const TIMED_BYTES: [usize; 3] = [64, 256, 1400];

/// A pool is used if a pooled seal is this many times as fast as an inline one.
pub const POOL_WINS: f64 = 1.10;

/// A pool in use is kept while pooled seals are this many times as fast for the packets in use.
/// Less than [`POOL_WINS`], so that a mix of lengths between the two changes nothing.
const HOLDS: f64 = 1.0;

const HEADER: &[u8] = b"a header of 19 byte";
/// Packets that an arm seals in a turn: reading the clock costs as much as sealing a short one.
pub(crate) const TURN_PACKETS: u64 = 7;
/// Turns of each arm: all of its packets lie in one segment, whose pads are precomputed.
pub(crate) const TURNS: u64 = SEGMENT_PACKETS as u64 / TURN_PACKETS;
/// Turns that time the opening of a packet.
const OPENING_TURNS: u64 = 5;
/// Room for the chunks of a first phase.
const POOL_BYTES: usize = 1 << 20;

/// The time of a seal at one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealTimes {
    /// Payload bytes.
    pub bytes: usize,
    /// With a precomputed pad.
    pub pooled: Duration,
    /// Without a pool.
    pub inline: Duration,
}

impl SealTimes {
    /// The speed-up of a pooled seal.
    pub fn gain(&self) -> f64 {
        self.inline.as_secs_f64() / self.pooled.as_secs_f64().max(1e-9)
    }
}

/// Whether a pool is worthwhile before any packet is known: at least 10 % faster at one length, and
/// at no length slower by as much.
pub fn worth_pooling(times: &[SealTimes]) -> bool {
    let gains = || times.iter().map(SealTimes::gain);
    gains().any(|gain| gain >= POOL_WINS) && gains().all(|gain| gain > 1.0 / POOL_WINS)
}

/// Whether a pool is worthwhile for this many packets of each length; `is_used` if it is in use
/// now.
pub fn worth_pooling_mix(times: &[SealTimes; 3], packets: [u64; 3], is_used: bool) -> bool {
    let sum = |of: fn(&SealTimes) -> Duration| -> f64 {
        times.iter().zip(packets).map(|(times, n)| of(times).as_secs_f64() * n as f64).sum()
    };
    let least = if is_used { HOLDS } else { POOL_WINS };
    sum(|times| times.inline) >= least * sum(|times| times.pooled)
}

/// Times seals of one suite, for a few milliseconds; `None` for a suite without pads, or if there
/// is no memory for a small pool.
pub fn seal_times(protection: Protection, engine: CipherEngine) -> Option<[SealTimes; 3]> {
    if protection.cipher().is_null() {
        return None;
    }
    let pooled = Arm::new(protection, engine, 0);
    let inline = Arm::new(protection, engine, 0);
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: POOL_BYTES }).ok()?;
    pooled.use_pool(pool);
    let mut number = 0;
    let times = TIMED_BYTES.map(|bytes| {
        while filler.step(Duration::ZERO) == Step::Worked {}
        let mut turns = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (arm, turns) in [&pooled, &inline].into_iter().zip(&mut turns) {
                turns.push(arm.turn(number, bytes));
            }
            number += TURN_PACKETS;
        }
        number = number.next_multiple_of(SEGMENT_PACKETS as u64);
        let [pooled, inline] = turns.map(median);
        SealTimes { bytes, pooled, inline }
    });
    debug_assert_eq!(pooled.hits(), TIMED_BYTES.len() as u64 * TURNS * TURN_PACKETS);
    Some(times)
}

/// CPU time that opening a KiB takes on this machine with one suite and implementation of its
/// cipher, without a pool. Times a full packet, once in a process for each of the two: opening does
/// what sealing does, so this times seals, for less than a millisecond with a fast cipher and five
/// with the slowest. A pace is added as it is declared: it may be set later.
pub fn opening_cost(protection: Protection, engine: CipherEngine) -> Duration {
    static KNOWN: Mutex<Vec<(Protection, CipherEngine, Duration)>> = Mutex::new(Vec::new());
    let paced = engine.pacing().longest(1 << 10);
    let engine = protection.cipher().engine(engine).unpaced();
    let is_this =
        |known: &&(Protection, CipherEngine, Duration)| (known.0, known.1) == (protection, engine);
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., cost)) = all.iter().find(is_this) {
        return *cost + paced;
    }
    let arm = Arm::new(protection, engine, 0);
    let [.., bytes] = TIMED_BYTES;
    let turns = (0..OPENING_TURNS).map(|turn| arm.turn(turn * TURN_PACKETS, bytes));
    let cost = median(turns.collect()) * (1 << 10) / bytes as u32;
    all.push((protection, engine, cost));
    cost + paced
}

/// The time of a packet in the median turn.
pub(crate) fn median(mut turns: Vec<Duration>) -> Duration {
    turns.sort_unstable();
    turns[turns.len() / 2] / TURN_PACKETS as u32
}

/// A sealing key whose packets are discarded.
pub(crate) struct Arm {
    meters: Arc<Meters>,
    outbound: Arc<Outbound>,
    key: SealKey,
}

impl Arm {
    /// A key of this phase: a pool fills little for phase 0, and all of its memory for phase 1.
    pub(crate) fn new(protection: Protection, engine: CipherEngine, phase: u64) -> Self {
        let limits = KeyLimits::of(protection);
        let meters = Arc::new(Meters::default());
        let fault = Arc::new(FaultLatch::default());
        let outbound =
            Arc::new(Outbound::new(limits, NewestPhase::default(), fault, Arc::clone(&meters)));
        let material = KeyMaterial::synthetic(&vec![0x35; protection.key_bytes()], [0xa5; 12]);
        let (key_protection, keystream) = KeyProtection::derive(protection, &material, engine);
        if let Ok(mut sending) = outbound.sending.lock() {
            (0..=phase).for_each(|phase| sending.phases.add(phase, keystream.clone()));
        }
        let key = SealKey::new(Arc::clone(&outbound), phase, key_protection, limits);
        Self { meters, outbound, key }
    }

    pub(crate) fn use_pool(&self, pool: Pool) {
        if let Ok(mut sending) = self.outbound.sending.lock() {
            sending.phases.use_pool(Some(pool));
        }
    }

    /// Packets that found their pad in a pool.
    pub(crate) fn hits(&self) -> u64 {
        self.meters.packets(Direction::Send, Coverage::Hit)
    }

    /// Seals a turn's packets.
    pub(crate) fn turn(&self, from: u64, bytes: usize) -> Duration {
        let mut packet = [HEADER, &vec![0x55; bytes + TAG_BYTES]].concat();
        let began = Instant::now();
        for number in from..from + TURN_PACKETS {
            self.key.encrypt(number, &mut packet, HEADER.len());
        }
        began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use keypadd_keystream::Pace;

    use super::*;

    fn times(figures: [(u64, u64); 3]) -> Vec<SealTimes> {
        TIMED_BYTES
            .into_iter()
            .zip(figures)
            .map(|(bytes, (pooled, inline))| SealTimes {
                bytes,
                pooled: Duration::from_nanos(pooled),
                inline: Duration::from_nanos(inline),
            })
            .collect()
    }

    #[test]
    fn a_pool_that_is_a_tenth_faster_at_some_length_is_worthwhile() {
        assert!(worth_pooling(&times([(210, 7_000), (400, 20_000), (900, 118_000)])));
        assert!(worth_pooling(&times([(100, 110), (100, 100), (100, 100)])));
        assert!(!worth_pooling(&times([(100, 109), (100, 109), (100, 109)])));
        assert!(!worth_pooling(&times([(210, 210), (300, 280), (450, 300)])));
        assert!(!worth_pooling(&[]));
    }

    #[test]
    fn a_pool_that_is_a_tenth_slower_at_some_length_is_not_worthwhile() {
        assert!(worth_pooling(&times([(100, 150), (100, 100), (109, 100)])));
        assert!(!worth_pooling(&times([(100, 150), (100, 100), (111, 100)])));
    }

    #[test]
    fn the_lengths_in_use_decide_and_between_the_bounds_nothing_changes() {
        let times = times([(100, 200), (100, 100), (100, 80)]).try_into().expect("three");
        for (packets, from_off, from_on) in [
            ([1000, 0, 0], true, true),
            ([0, 0, 1000], false, false),
            ([0, 1000, 0], false, true),
            ([300, 0, 1000], false, true),
            ([100, 0, 1000], false, false),
            ([1000, 1000, 1000], true, true),
        ] {
            assert_eq!(worth_pooling_mix(&times, packets, false), from_off, "{packets:?}");
            assert_eq!(worth_pooling_mix(&times, packets, true), from_on, "{packets:?}");
        }
    }

    #[test]
    fn opening_is_timed_once_for_each_suite_and_implementation() {
        let all: Vec<_> = Protection::all().collect();
        let cost = |protection: &Protection| opening_cost(*protection, CipherEngine::default());
        let costs: Vec<_> = all.iter().map(cost).collect();
        assert_eq!(costs, all.iter().map(cost).collect::<Vec<_>>(), "the timings are kept");
        // A hundred times the work: no load can reverse this.
        let des_crate =
            keypadd_keystream::CipherBackend::DesCrate.engine().expect("it is everywhere");
        let slow =
            opening_cost(keypadd_keystream::Suite::TRIPLE_DES_CTR_HMAC_SHA1.into(), des_crate);
        assert!(slow > cost(&keypadd_keystream::Suite::AES_128_GCM.into()), "{slow:?}");
    }

    #[test]
    fn a_pace_is_part_of_what_opening_costs_and_is_not_timed() {
        struct Slow(Arc<AtomicUsize>);
        impl Pace for Slow {
            fn paced(&self, _: usize, make: &mut dyn FnMut()) {
                self.0.fetch_add(1, Relaxed);
                make();
            }

            fn longest(&self, bytes: usize) -> Duration {
                Duration::from_secs(bytes as u64)
            }
        }
        let pieces = Arc::new(AtomicUsize::new(0));
        let suite = keypadd_keystream::Suite::AES_128_GCM.into();
        let engine = CipherEngine::default();
        let paced = opening_cost(suite, engine.at_pace(Slow(Arc::clone(&pieces))));
        assert_eq!(paced, opening_cost(suite, engine) + Duration::from_secs(1 << 10));
        assert_eq!(pieces.load(Relaxed), 0);
    }

    #[test]
    fn every_suite_with_pads_is_timed_and_a_cipher_without_hardware_gains() {
        for protection in Protection::all() {
            let times = seal_times(protection, CipherEngine::default());
            assert_eq!(times.is_none(), protection.cipher().is_null(), "{protection}");
            for times in times.iter().flatten() {
                assert!(times.pooled > Duration::ZERO && times.inline > Duration::ZERO);
            }
        }
        // A hundred times the work: no load can reverse this.
        let des_crate =
            keypadd_keystream::CipherBackend::DesCrate.engine().expect("it is everywhere");
        let slow = keypadd_keystream::Suite::TRIPLE_DES_CTR_HMAC_SHA1.into();
        assert!(worth_pooling(&seal_times(slow, des_crate).expect("it has pads")));
    }
}

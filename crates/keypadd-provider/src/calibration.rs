//! Calibrates on this machine whether a pool is worthwhile: times pooled against inline seals.
//!
//! Both arms use the shipped sealing key and alternate, so that both see the same load; inline GCM is
//! ring's. The decision depends on the timings only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::{Cipher, CipherEngine, Protection, SEGMENT_PACKETS, TAG_BYTES};
use keypadd_pool::{Coverage, Direction, Pool, PoolSettings, Step};
use quinn_proto::crypto::PacketKey;

use crate::fault::FaultLatch;
use crate::key_extraction::KeyMaterial;
use crate::limits::Limits;
use crate::meters::Meters;
use crate::phases::Ahead;
use crate::protection::KeyProtection;
use crate::seal::{Outbound, SealKey};

/// Payloads to time, in bytes: a keystroke, a line, a full packet.
pub const TIMED_BYTES: [usize; 3] = [64, 256, 1400];

/// A pool is used if a pooled seal is this many times as fast as an inline one.
const WINS: f64 = 1.10;

const HEADER: &[u8] = b"a header of 19 byte";
/// Packets that an arm seals in a turn: reading the clock costs as much as sealing a short one.
const TURN_PACKETS: u64 = 7;
/// Turns of each arm: all of its packets lie in one segment, whose pads are precomputed.
const TURNS: u64 = SEGMENT_PACKETS as u64 / TURN_PACKETS;
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

/// Whether a pool is worthwhile: at least 10 % faster at one length, and at none as much slower. Sessions
/// usually mix all lengths, and nobody knows the mix beforehand.
pub fn worth_pooling(times: &[SealTimes]) -> bool {
    let gains = || times.iter().map(SealTimes::gain);
    gains().any(|gain| gain >= WINS) && gains().all(|gain| gain > 1.0 / WINS)
}

/// Times seals of one suite, for a few milliseconds; `None` for a suite without pads, or if there is no
/// memory for a small pool.
pub fn seal_times(protection: Protection, engine: CipherEngine) -> Option<[SealTimes; 3]> {
    if protection.cipher() == Cipher::Null {
        return None;
    }
    let pooled = Arm::new(protection, engine);
    let inline = Arm::new(protection, engine);
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: POOL_BYTES }).ok()?;
    pooled.outbound.sending.lock().ok()?.phases.use_pool(Some(pool));
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
    let hits = pooled.meters.packets(Direction::Send, Coverage::Hit);
    debug_assert_eq!(hits, TIMED_BYTES.len() as u64 * TURNS * TURN_PACKETS);
    Some(times)
}

fn median(mut turns: Vec<Duration>) -> Duration {
    turns.sort_unstable();
    turns[turns.len() / 2] / TURN_PACKETS as u32
}

/// A sealing key whose packets are discarded.
struct Arm {
    meters: Arc<Meters>,
    outbound: Arc<Outbound>,
    key: SealKey,
}

impl Arm {
    fn new(protection: Protection, engine: CipherEngine) -> Self {
        let limits = Limits::of(protection);
        let meters = Arc::new(Meters::default());
        let fault = Arc::new(FaultLatch::default());
        let outbound =
            Arc::new(Outbound::new(limits, Ahead::default(), fault, Arc::clone(&meters)));
        let material = KeyMaterial::synthetic(&vec![0x35; protection.key_bytes()], [0xa5; 12]);
        let (key_protection, keystream) = KeyProtection::derive(protection, &material, engine);
        if let Ok(mut sending) = outbound.sending.lock() {
            sending.phases.add(0, keystream);
        }
        let key = SealKey::new(Arc::clone(&outbound), 0, key_protection, limits);
        Self { meters, outbound, key }
    }

    fn turn(&self, from: u64, bytes: usize) -> Duration {
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
    fn every_suite_with_pads_is_timed_and_a_cipher_without_hardware_gains() {
        for protection in Protection::all() {
            let times = seal_times(protection, CipherEngine::default());
            assert_eq!(times.is_none(), protection.cipher() == Cipher::Null, "{protection}");
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

//! Slows keystream generation to the rate of a slower cipher, for `--emulate-cipher-rate`.
//!
//! Whoever makes keystream is kept busy until its thread has spent as much CPU as so many bytes would
//! have cost. Time in which the thread does not run does not count, so that load elsewhere slows it as
//! it would slow a slow cipher. The bytes are those of the cipher that is really there. Knows no packets.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use keypadd_keystream::Pace;
use rustix::time::{ClockId, clock_gettime};

/// Readings of the clock of which the middle one is what one costs.
const READINGS: usize = 501;

thread_local! {
    /// What this thread has spent more than it was to spend: the end of a wait falls between two
    /// readings of the clock. The next piece is cheaper by that.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A rate at which keystream is made, in bytes for each second of a thread's CPU; never faster than the
/// cipher is. For [`CipherEngine::at_pace`](keypadd_keystream::CipherEngine::at_pace).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherRate {
    bytes_per_second: NonZeroU64,
    /// What a reading of the clock costs.
    reading: Duration,
}

impl CipherRate {
    /// So many bytes a second.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        let mut readings = [(); READINGS].map(|()| {
            let began = thread_cpu();
            thread_cpu().saturating_sub(began)
        });
        readings.sort_unstable();
        Self { bytes_per_second, reading: readings[READINGS / 2] }
    }

    /// Bytes for each second of CPU.
    pub fn bytes_per_second(self) -> NonZeroU64 {
        self.bytes_per_second
    }

    fn time_of(self, bytes: usize) -> Duration {
        let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl Pace for CipherRate {
    fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
        let began = thread_cpu();
        make();
        let due = self.time_of(bytes).saturating_sub(AHEAD.get());
        let spent = || thread_cpu().saturating_sub(began) + self.reading;
        if spent() >= due {
            // The cipher itself is slower than that: nobody owes it anything.
            AHEAD.set(Duration::ZERO);
            return;
        }
        let ended = loop {
            let spent = spent();
            if spent >= due {
                break spent;
            }
            std::hint::spin_loop();
        };
        AHEAD.set(ended.saturating_sub(due));
    }
}

/// A [`CipherRate`] that can be set and lifted while ends run, so that they come up, and their pools fill,
/// at full speed. Clones are one and the same.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// 0 while there is none.
    bytes_per_second: Arc<AtomicU64>,
    reading: Duration,
}

/// Lifted.
impl Default for Throttle {
    fn default() -> Self {
        let CipherRate { reading, .. } = CipherRate::new(NonZeroU64::MIN);
        Self { bytes_per_second: Arc::default(), reading }
    }
}

impl Throttle {
    /// From now on so many bytes for each second of CPU; as fast as it goes with `None`.
    pub fn set(&self, bytes_per_second: Option<NonZeroU64>) {
        self.bytes_per_second.store(bytes_per_second.map_or(0, NonZeroU64::get), Relaxed);
    }
}

impl Pace for Throttle {
    fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
        match NonZeroU64::new(self.bytes_per_second.load(Relaxed)) {
            Some(bytes_per_second) => {
                CipherRate { bytes_per_second, reading: self.reading }.paced(bytes, make);
            }
            None => make(),
        }
    }
}

/// CPU that this thread has spent.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use keypadd_keystream::{
        CipherEngine, InlineKeystream, KeystreamKey, PacketNumber, Protection, SEGMENT_PACKETS,
        Suite, SuiteKey,
    };
    use std::sync::Arc;

    fn rate(bytes_per_second: u64) -> CipherRate {
        CipherRate::new(NonZeroU64::new(bytes_per_second).unwrap())
    }

    fn keystream(suite: impl Into<Protection>, engine: CipherEngine) -> Arc<KeystreamKey> {
        let suite = suite.into();
        let keys = SuiteKey::derive_with(suite, &[3; 32][..suite.key_bytes()], &[4; 12], engine);
        keys.keystream.unwrap()
    }

    /// Bytes for each second of CPU that `make` spends, which makes so many bytes in all.
    fn measured(bytes: usize, make: impl FnOnce()) -> f64 {
        let began = thread_cpu();
        make();
        bytes as f64 / thread_cpu().saturating_sub(began).as_secs_f64()
    }

    #[test]
    fn keystream_is_made_at_the_rate_in_pieces_of_every_size() {
        for bytes_per_second in [1_000_000, 20_000_000] {
            let engine = CipherEngine::default().at_pace(rate(bytes_per_second));
            let key = keystream(Suite::AES_128_GCM, engine);
            // A tenth of a second of CPU each.
            let total = bytes_per_second as usize / 10;
            for bytes in [128, 500, 1400] {
                let mut inline = InlineKeystream::new(Arc::clone(&key));
                let (pieces, mut piece) = (total / bytes, vec![0; bytes]);
                let seen = measured(pieces * bytes, || {
                    for number in 0..pieces as u64 {
                        inline.write(PacketNumber::new(number), 0, &mut piece);
                    }
                });
                let ratio = seen / bytes_per_second as f64;
                // Never faster; slower as far as others have the core, which a virtual machine counts too.
                assert!((0.5..1.02).contains(&ratio), "{bytes} bytes: {ratio} of the rate");
            }
            let mut chunk = vec![0; SEGMENT_PACKETS * 128];
            let chunks = total.div_ceil(chunk.len());
            let seen = measured(chunks * chunk.len(), || {
                for number in 0..chunks as u64 {
                    let segment = PacketNumber::new(number * SEGMENT_PACKETS as u64).segment();
                    key.write_rows(segment, 0, chunk.chunks_mut(128));
                }
            });
            let ratio = seen / bytes_per_second as f64;
            assert!((0.5..1.02).contains(&ratio), "chunks: {ratio} of the rate");
        }
    }

    #[test]
    fn a_throttle_slows_from_when_it_is_set_until_it_is_lifted() {
        let throttle = Throttle::default();
        let engine = CipherEngine::default().at_pace(throttle.clone());
        let mut inline = InlineKeystream::new(keystream(Suite::AES_128_GCM, engine));
        let mut number = 0;
        let mut make = || {
            number += 1;
            measured(1 << 10, || inline.write(PacketNumber::new(number), 0, &mut [0; 1 << 10]))
        };
        assert!(make() > 1e6);
        throttle.set(NonZeroU64::new(100_000));
        // Ten milliseconds of CPU.
        let slow = make();
        assert!((50_000.0..102_000.0).contains(&slow), "{slow}");
        throttle.set(None);
        // The piece after a slow one owes nothing.
        assert!(make() > 1e6);
    }

    #[test]
    fn the_bytes_are_those_of_the_real_cipher() {
        let paced = CipherEngine::default().at_pace(rate(50_000_000));
        for suite in Protection::all().filter(|it| it.cipher() != keypadd_keystream::Cipher::Null) {
            let [slow, fast] = [paced, CipherEngine::default()].map(|engine| {
                let key = keystream(suite, engine);
                let mut pads = vec![0; SEGMENT_PACKETS * 100];
                key.write_rows(PacketNumber::new(0).segment(), 0, pads.chunks_mut(100));
                let mut data = [7; 2000];
                InlineKeystream::new(key).apply(PacketNumber::new(5), 3, &mut data);
                pads.extend(data);
                pads
            });
            assert!(slow == fast, "{suite}");
        }
    }

    #[test]
    fn a_rate_that_the_cipher_does_not_reach_costs_the_next_piece_nothing() {
        let rate = rate(1 << 40);
        rate.paced(1, &mut || {
            let began = thread_cpu();
            while thread_cpu().saturating_sub(began) < Duration::from_millis(2) {}
        });
        assert_eq!(AHEAD.get(), Duration::ZERO);
    }
}

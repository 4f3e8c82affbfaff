//! Throttles keystream generation to a slower cipher's rate (`--emulate-cipher-rate`).
//!
//! Spins after each piece until the thread has used the CPU time that the slower cipher would take.
//! Counts thread CPU time, so other load slows it as it would a slow cipher. The bytes are
//! unchanged. Knows no packets.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use keypadd_keystream::Pace;
use rustix::time::{ClockId, clock_gettime};

/// Clock readings; the median is the cost of one.
const READINGS: usize = 501;

thread_local! {
    /// CPU time that this thread has overspent: a wait ends between two clock readings. Deducted
    /// from the next piece.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A keystream rate in bytes per second of a thread's CPU time; never faster than the cipher is.
/// For [`CipherEngine::at_pace`](keypadd_keystream::CipherEngine::at_pace).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherRate {
    bytes_per_second: NonZeroU64,
    /// Cost of one clock reading.
    reading: Duration,
}

impl CipherRate {
    /// This many bytes per CPU second.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Self::by(bytes_per_second, thread_cpu)
    }

    /// Like [`Self::new`], for a clock that need not be the thread's.
    fn by(bytes_per_second: NonZeroU64, clock: impl Fn() -> Duration) -> Self {
        let mut readings = [(); READINGS].map(|()| {
            let began = clock();
            clock().saturating_sub(began)
        });
        readings.sort_unstable();
        Self { bytes_per_second, reading: readings[READINGS / 2] }
    }

    /// Bytes per CPU second.
    pub fn bytes_per_second(self) -> NonZeroU64 {
        self.bytes_per_second
    }

    fn time_of(self, bytes: usize) -> Duration {
        let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Runs `make`, and returns once `clock` has advanced by the time that this many bytes take, or
    /// the rate is lifted.
    fn pace_by(
        self,
        clock: impl Fn() -> Duration,
        bytes: usize,
        make: &mut dyn FnMut(),
        is_lifted: impl Fn() -> bool,
    ) {
        let began = clock();
        make();
        let due = self.time_of(bytes).saturating_sub(AHEAD.get());
        let spent = || clock().saturating_sub(began) + self.reading;
        let mut now = spent();
        if now >= due {
            // The cipher itself is slower than the rate: carry no debt over.
            AHEAD.set(Duration::ZERO);
            return;
        }
        while now < due && !is_lifted() {
            std::hint::spin_loop();
            now = spent();
        }
        AHEAD.set(now.saturating_sub(due));
    }
}

impl Pace for CipherRate {
    fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
        self.pace_by(thread_cpu, bytes, make, || false);
    }

    fn longest(&self, bytes: usize) -> Duration {
        self.time_of(bytes)
    }
}

/// A [`CipherRate`] that can be set and lifted while ends run, so that they start, and their pools
/// fill, at full speed. Clones share it.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// 0 for none.
    bytes_per_second: Arc<AtomicU64>,
    /// The slowest rate that will be set; 0 for none.
    slowest: Arc<AtomicU64>,
    reading: Duration,
}

/// No limit.
impl Default for Throttle {
    fn default() -> Self {
        let CipherRate { reading, .. } = CipherRate::new(NonZeroU64::MIN);
        Self { bytes_per_second: Arc::default(), slowest: Arc::default(), reading }
    }
}

impl Throttle {
    /// Declares the slowest rate that will be set: an end that starts from now on takes packets
    /// that cost as much for usual, and for no attack.
    pub fn declare(&self, slowest: NonZeroU64) {
        self.slowest.store(slowest.get(), Relaxed);
    }

    /// Sets the rate in bytes per CPU second; `None` lifts it.
    pub fn set(&self, bytes_per_second: Option<NonZeroU64>) {
        self.bytes_per_second.store(bytes_per_second.map_or(0, NonZeroU64::get), Relaxed);
    }

    /// The rate in force.
    fn rate(&self) -> Option<CipherRate> {
        self.rate_of(&self.bytes_per_second)
    }

    fn rate_of(&self, bytes_per_second: &AtomicU64) -> Option<CipherRate> {
        let bytes_per_second = NonZeroU64::new(bytes_per_second.load(Relaxed))?;
        Some(CipherRate { bytes_per_second, reading: self.reading })
    }
}

impl Pace for Throttle {
    fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
        match self.rate() {
            // A filler's piece may take a second: lifted, the rate holds up no filler that is to fill
            // a pool, nor spins beside what is measured next.
            Some(rate) => rate.pace_by(thread_cpu, bytes, make, || self.rate().is_none()),
            None => make(),
        }
    }

    fn longest(&self, bytes: usize) -> Duration {
        self.rate_of(&self.slowest).map_or(Duration::ZERO, |rate| rate.time_of(bytes))
    }
}

/// CPU time used by this thread.
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

    /// Cost of one reading of the stepped clock.
    const STEP: Duration = Duration::from_nanos(50);

    thread_local! {
        /// A clock advanced only by readings and [`Stepped`] ciphers.
        static STEPPED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    fn step(by: Duration) -> Duration {
        STEPPED.set(STEPPED.get() + by);
        STEPPED.get()
    }

    fn stepped() -> Duration {
        step(STEP)
    }

    fn rate(bytes_per_second: u64) -> CipherRate {
        CipherRate::new(NonZeroU64::new(bytes_per_second).unwrap())
    }

    /// A rate on the stepped clock, and the cipher's own time per byte.
    struct Stepped(CipherRate, Duration);

    impl Stepped {
        fn new(bytes_per_second: u64, byte: Duration) -> Self {
            Self(CipherRate::by(NonZeroU64::new(bytes_per_second).unwrap(), stepped), byte)
        }
    }

    impl Pace for Stepped {
        fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
            let mut make = || {
                make();
                step(self.1 * bytes as u32);
            };
            self.0.pace_by(stepped, bytes, &mut make, || false);
        }

        fn longest(&self, bytes: usize) -> Duration {
            self.0.longest(bytes)
        }
    }

    fn keystream(suite: impl Into<Protection>, engine: CipherEngine) -> Arc<KeystreamKey> {
        let suite = suite.into();
        let keys = SuiteKey::derive_with(suite, &[3; 32][..suite.key_bytes()], &[4; 12], engine);
        keys.keystream.unwrap()
    }

    /// Asserts that `make`, which makes this many bytes in total, takes the stepped clock as long
    /// as the rate says, except for the end of one wait.
    #[track_caller]
    fn assert_takes(bytes: usize, bytes_per_second: u64, make: impl FnOnce()) {
        let began = STEPPED.get();
        make();
        let taken = STEPPED.get() - began;
        let due = Duration::from_nanos(bytes as u64 * 1_000_000_000 / bytes_per_second);
        assert!(taken.abs_diff(due) <= 4 * STEP, "{bytes} bytes: {taken:?} instead of {due:?}");
    }

    #[test]
    fn keystream_is_made_at_the_rate_in_pieces_of_every_size() {
        for bytes_per_second in [1_000_000, 20_000_000] {
            // The cipher itself takes a fifth of a byte's time, or almost none.
            let pace = Stepped::new(bytes_per_second, Duration::from_nanos(10));
            let key = keystream(Suite::AES_128_GCM, CipherEngine::default().at_pace(pace));
            for bytes in [128, 500, 1400] {
                let mut inline = InlineKeystream::new(Arc::clone(&key));
                let (pieces, mut piece) = (100, vec![0; bytes]);
                assert_takes(pieces * bytes, bytes_per_second, || {
                    for number in 0..pieces as u64 {
                        inline.write(PacketNumber::new(number), 0, &mut piece);
                    }
                });
            }
            let mut chunk = vec![0; SEGMENT_PACKETS * 128];
            let chunks = 20;
            assert_takes(chunks * chunk.len(), bytes_per_second, || {
                for number in 0..chunks as u64 {
                    let segment = PacketNumber::new(number * SEGMENT_PACKETS as u64).segment();
                    key.write_rows(segment, 0, chunk.chunks_mut(128));
                }
            });
        }
    }

    #[test]
    fn a_rate_holds_the_thread_for_its_cpu_time() {
        let began = thread_cpu();
        // Ten milliseconds.
        rate(1_000_000).paced(10_000, &mut || {});
        assert!(thread_cpu().saturating_sub(began) > Duration::from_millis(9));
    }

    #[test]
    fn a_throttle_slows_from_when_it_is_set_until_it_is_lifted() {
        let throttle = Throttle::default();
        assert_eq!(throttle.rate(), None);
        let rate = NonZeroU64::new(100_000);
        throttle.clone().set(rate);
        assert_eq!(throttle.rate().map(CipherRate::bytes_per_second), rate);
        let began = thread_cpu();
        // Ten milliseconds.
        throttle.paced(1_000, &mut || {});
        assert!(thread_cpu().saturating_sub(began) > Duration::from_millis(9));
        throttle.set(None);
        assert_eq!(throttle.rate(), None);
        let mut made = false;
        throttle.paced(1 << 40, &mut || made = true);
        assert!(made, "and this test would still run");
    }

    #[test]
    fn a_throttle_that_is_lifted_ends_the_piece_that_waits_for_it() {
        let throttle = Throttle::default();
        throttle.set(NonZeroU64::new(1));
        // Lifted while the first piece is made: by its rate it would take a year.
        throttle.paced(30_000_000, &mut || throttle.set(None));
        assert_eq!(AHEAD.get(), Duration::ZERO);
    }

    #[test]
    fn the_longest_time_is_that_of_the_slowest_rate_declared() {
        assert_eq!(rate(1_000_000).longest(1_000), Duration::from_millis(1));
        let throttle = Throttle::default();
        assert_eq!(throttle.longest(1_000), Duration::ZERO);
        throttle.clone().declare(NonZeroU64::new(100_000).unwrap());
        assert_eq!(throttle.longest(1_000), Duration::from_millis(10));
    }

    #[test]
    fn the_bytes_are_those_of_the_real_cipher() {
        let paced = CipherEngine::default().at_pace(rate(50_000_000));
        for suite in Protection::all().filter(|it| !it.cipher().is_null()) {
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
        let pace = Stepped::new(1_000_000, Duration::ZERO);
        let make = &mut || {
            step(Duration::from_millis(2));
        };
        pace.0.pace_by(stepped, 1, make, || false);
        assert_eq!(AHEAD.get(), Duration::ZERO);
        assert_takes(1000, 1_000_000, || pace.paced(1000, &mut || {}));
    }
}

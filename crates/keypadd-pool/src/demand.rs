//! Estimates how much keystream a direction needs from its packet rate, and holds the limits of
//! peers.
//!
//! Lanes count packets, and the filler turns the counts into rates. Both belong to the direction of
//! a connection, not to a key: the next key will carry the same traffic.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::arena::UNIT_BYTES;
use crate::chunk::Part;
use crate::lane_view::Allotment;
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// The time constant of the averages: after it, a past burst weighs about a third as much.
const MEMORY: Duration = Duration::from_secs(10);

/// Least time between two readings of a rate; a shorter one says too little.
const SHORTEST: Duration = Duration::from_millis(50);

/// Packets too long for a pad per packet that needs a part, from which that part is not used.
const TOO_LONG_PER_USE: u64 = 16;

/// Packets in a row that need a part, after which it is used again.
const USES_IN_A_ROW: u64 = 16;

/// Most lanes of one direction of a connection queued for the filler: those of the present and the
/// next phase, and as many again.
const LANES_WAITING_MAX: u64 = 4;

/// The direction of a key's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that we send; their numbers only rise.
    Send,
    /// Packets that arrive; some come late, so a few chunks behind the newest are kept.
    Receive,
}

/// The memory that the connections of one peer may hold together. Clones share the limit.
#[derive(Clone, Debug)]
pub struct PoolAllowance(Arc<AtomicU64>);

impl PoolAllowance {
    /// No limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// A limit in bytes. If it is less than a head chunk for each of the peer's lanes, some have
    /// none.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// Changes the limit; the next plan obeys it.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Relaxed);
    }

    /// The limit as the planner uses it; `None` if unlimited.
    pub(crate) fn allotment(&self) -> Option<Allotment> {
        let bytes = Some(self.0.load(Relaxed)).filter(|bytes| *bytes != Self::UNLIMITED)?;
        let units = usize::try_from(bytes / UNIT_BYTES as u64).unwrap_or(usize::MAX);
        Some(Allotment { peer: Arc::as_ptr(&self.0) as usize, units })
    }
}

/// The traffic of one direction of a connection, over all its keys. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Traffic {
    pub(crate) direction: Direction,
    counts: Arc<Counts>,
    /// Lanes queued for the filler.
    waiting: Arc<AtomicU64>,
    /// Used by the filler only: no packet waits for it.
    averages: Arc<Mutex<Averages>>,
}

/// Counts of packets, by part.
#[derive(Debug, Default)]
struct Counts {
    needed: [AtomicU64; 2],
    /// Packets too long for a pad, less [`TOO_LONG_PER_USE`] per packet that needed the part. Never
    /// below zero, nor above what [`USES_IN_A_ROW`] make up for, so that only the latest packets
    /// count.
    too_long: [AtomicU64; 2],
}

/// Rates, computed by the filler from the counts.
#[derive(Debug, Default)]
struct Averages {
    /// The counts of the last reading.
    counts: [u64; 2],
    /// The time of the last reading; `None` before the first.
    at: Option<Duration>,
    /// Packets that needed each part.
    per_second: [f64; 2],
}

impl Traffic {
    /// A direction without traffic so far.
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            counts: Arc::default(),
            waiting: Arc::default(),
            averages: Arc::default(),
        }
    }

    /// Identifies the direction: all of its lanes share it, and no other direction has it.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.counts) as usize
    }

    /// Whether fewer lanes are queued than may be.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Relaxed) < LANES_WAITING_MAX
    }

    /// Counts a new lane; false if the limit of queued lanes is reached.
    pub(crate) fn lane_may_wait(&self) -> bool {
        let may = self.waiting.fetch_add(1, Relaxed) < LANES_WAITING_MAX;
        if !may {
            self.waiting.fetch_sub(1, Relaxed);
        }
        may
    }

    /// Records that the filler has taken a lane in.
    pub(crate) fn lane_arrived(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Counts a packet by the parts of its pad. Returns whether it ended [`Self::is_too_long`] for
    /// one. Call from one thread at a time.
    #[inline(always)]
    #[must_use]
    pub(crate) fn count(&self, pad_bytes: usize) -> bool {
        let mut is_used_again = false;
        for part in Part::ALL {
            if pad_bytes > part.range().start {
                let count = &self.counts.needed[part as usize];
                count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
                let too_long = &self.counts.too_long[part as usize];
                let before = too_long.load(Relaxed);
                if before > 0 {
                    let now = before.saturating_sub(TOO_LONG_PER_USE);
                    too_long.store(now, Relaxed);
                    is_used_again |= is_too_many(before) && !is_too_many(now);
                }
            }
        }
        is_used_again
    }

    /// Counts a packet that is too long for a pad. Call from one thread at a time.
    pub(crate) fn count_too_long(&self) {
        for count in &self.counts.too_long {
            let most = TOO_LONG_PER_USE * USES_IN_A_ROW;
            count.store((count.load(Relaxed) + 1).min(most), Relaxed);
        }
    }

    /// Whether nearly all packets of late were too long for a pad to use this part.
    pub(crate) fn is_too_long(&self, part: Part) -> bool {
        is_too_many(self.counts.too_long[part as usize].load(Relaxed))
    }

    /// Packets so far that needed this part; the count wraps.
    pub(crate) fn packets(&self, part: Part) -> u64 {
        self.counts.needed[part as usize].load(Relaxed)
    }

    /// Recent packets per second that needed each part. Packets before the first reading count as
    /// if they had come at that moment, so a late filler misses nothing.
    pub(crate) fn demand(&self, now: Duration) -> [f64; 2] {
        let mut averages = self.averages.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_sub(*averages.at.get_or_insert(now));
        if passed >= SHORTEST {
            let counts = self.counts.needed.each_ref().map(|count| count.load(Relaxed));
            let weight = 1.0 - (-passed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
            let Averages { counts: before, per_second, .. } = &mut *averages;
            for ((average, now), before) in per_second.iter_mut().zip(counts).zip(*before) {
                let rate = now.wrapping_sub(before) as f64 / passed.as_secs_f64();
                *average += weight * (rate - *average);
            }
            (averages.counts, averages.at) = (counts, Some(now));
        }
        averages.per_second
    }
}

fn is_too_many(too_long: u64) -> bool {
    too_long >= TOO_LONG_PER_USE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{HEAD_BYTES, PAD_BYTES};

    /// Reads the rate every 100 ms, with `packets` packets of `pad_bytes` in between.
    fn carry(traffic: &Traffic, from: Duration, steps: u32, packets: u64, pad_bytes: usize) {
        for step in 1..=steps {
            (0..packets).for_each(|_| assert!(!traffic.count(pad_bytes)));
            traffic.demand(from + Duration::from_millis(100) * step);
        }
    }

    #[test]
    fn a_steady_rate_is_learned_and_forgotten() {
        let traffic = Traffic::new(Direction::Send);
        assert_eq!(traffic.demand(Duration::ZERO), [0.0, 0.0]);
        carry(&traffic, Duration::ZERO, 600, 10, HEAD_BYTES);
        let [heads, bodies] = traffic.demand(Duration::from_secs(60));
        assert!((99.0..=100.0).contains(&heads), "{heads}");
        assert_eq!(bodies, 0.0);
        let [heads, _] = traffic.demand(Duration::from_secs(120));
        assert!(heads < 0.3, "{heads}");
    }

    #[test]
    fn long_packets_need_both_parts() {
        let traffic = Traffic::new(Direction::Send);
        carry(&traffic, Duration::ZERO, 100, 100, PAD_BYTES);
        let [heads, bodies] = traffic.demand(Duration::from_secs(10));
        assert_eq!(heads, bodies);
        assert!((600.0..=700.0).contains(&heads), "{heads}");
    }

    #[test]
    fn packets_without_a_pad_create_no_demand() {
        let traffic = Traffic::new(Direction::Send);
        carry(&traffic, Duration::ZERO, 100, 100, 0);
        assert_eq!(traffic.demand(Duration::from_secs(10)), [0.0, 0.0]);
    }

    #[test]
    fn a_part_that_one_packet_in_sixteen_needs_is_used() {
        for (too_long, pad_bytes, expected) in [
            (15, HEAD_BYTES, [false, true]),
            (17, HEAD_BYTES, [true, true]),
            (15, PAD_BYTES, [false, false]),
            (17, PAD_BYTES, [true, true]),
        ] {
            let traffic = Traffic::new(Direction::Receive);
            for _ in 0..1000 {
                (0..too_long).for_each(|_| traffic.count_too_long());
                let _ = traffic.count(pad_bytes);
            }
            (0..too_long).for_each(|_| traffic.count_too_long());
            let found = Part::ALL.map(|part| traffic.is_too_long(part));
            assert_eq!(found, expected, "{too_long} per {pad_bytes} bytes");
        }
    }

    #[test]
    fn a_part_is_used_again_after_sixteen_packets_that_need_it_and_that_is_told_once() {
        let traffic = Traffic::new(Direction::Send);
        (0..1_000_000).for_each(|_| traffic.count_too_long());
        let told: Vec<u32> = (1..1000).filter(|_| traffic.count(HEAD_BYTES)).collect();
        assert_eq!(told, [16]);
        assert_eq!(Part::ALL.map(|part| traffic.is_too_long(part)), [false, true]);
    }

    #[test]
    fn packets_before_the_first_reading_count_for_all_keys() {
        let traffic = Traffic::new(Direction::Receive);
        (0..1000).for_each(|_| assert!(!traffic.count(PAD_BYTES)));
        let of_the_next_key = traffic.clone();
        traffic.demand(Duration::from_secs(5));
        let [heads, bodies] = of_the_next_key.demand(Duration::from_secs(6));
        assert!(heads == bodies && (90.0..100.0).contains(&heads), "{heads}, {bodies}");
        assert_eq!(traffic.demand(Duration::from_secs(6)), [heads, bodies]);
    }

    #[test]
    fn readings_too_close_together_change_nothing_and_lose_nothing() {
        let traffic = Traffic::new(Direction::Receive);
        assert_eq!(traffic.demand(Duration::ZERO), [0.0, 0.0]);
        (0..1000).for_each(|_| assert!(!traffic.count(1)));
        assert_eq!(traffic.demand(Duration::from_millis(1)), [0.0, 0.0]);
        let [heads, _] = traffic.demand(Duration::from_secs(10));
        assert!((60.0..=70.0).contains(&heads), "{heads}");
    }
}

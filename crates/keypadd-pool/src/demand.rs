//! Estimates how much keystream a direction needs from its packet rate, and holds the limits of peers.
//!
//! Lanes count packets, and the filler turns the counts into rates. Both belong to the direction of a
//! connection, not to a key: the next key will carry the same traffic.

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
pub struct Allowance(Arc<AtomicU64>);

impl Allowance {
    /// No limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// A limit in bytes. If it is less than a head chunk for each of the peer's lanes, some have none.
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
    needed: Arc<[AtomicU64; 2]>,
    too_long: Arc<AtomicU64>,
    /// Lanes queued for the filler.
    waiting: Arc<AtomicU64>,
    /// Used by the filler only: no packet waits for it.
    averages: Arc<Mutex<Averages>>,
}

/// Rates, computed by the filler from the counts.
#[derive(Debug, Default)]
struct Averages {
    /// The counts of the last reading.
    counts: [u64; 3],
    /// The time of the last reading; `None` before the first.
    at: Option<Duration>,
    /// Packets that needed each part, and packets too long for a pad.
    per_second: [f64; 3],
}

impl Traffic {
    /// A direction without traffic so far.
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            needed: Arc::default(),
            too_long: Arc::default(),
            waiting: Arc::default(),
            averages: Arc::default(),
        }
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

    /// Counts a packet by the parts of its pad. Call from one thread at a time.
    #[inline(always)]
    pub(crate) fn count(&self, pad_bytes: usize) {
        for part in Part::ALL {
            if pad_bytes > part.range().start {
                let count = &self.needed[part as usize];
                count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
            }
        }
    }

    /// Counts a packet that is too long for a pad. Call from one thread at a time.
    #[inline(always)]
    pub(crate) fn count_too_long(&self) {
        self.too_long.store(self.too_long.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn counts(&self) -> [u64; 3] {
        let [heads, bodies] = &*self.needed;
        [heads, bodies, &self.too_long].map(|count| count.load(Relaxed))
    }

    /// Recent packets per second that needed each part. Packets before the first reading count as if
    /// they had come at that moment, so a late filler misses nothing.
    pub(crate) fn demand(&self, now: Duration) -> [f64; 2] {
        let [heads, bodies, _] = self.per_second(now);
        [heads, bodies]
    }

    /// Recent packets per second that were too long for a pad, read as [`Self::demand`].
    pub(crate) fn too_long(&self, now: Duration) -> f64 {
        self.per_second(now)[2]
    }

    fn per_second(&self, now: Duration) -> [f64; 3] {
        let mut averages = self.averages.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_sub(*averages.at.get_or_insert(now));
        if passed >= SHORTEST {
            let counts = self.counts();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{HEAD_BYTES, PAD_BYTES};

    /// Reads the rate every 100 ms, with `packets` packets of `pad_bytes` in between.
    fn carry(traffic: &Traffic, from: Duration, steps: u32, packets: u64, pad_bytes: usize) {
        for step in 1..=steps {
            (0..packets).for_each(|_| traffic.count(pad_bytes));
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
    fn packets_too_long_for_a_pad_are_counted_apart() {
        let traffic = Traffic::new(Direction::Receive);
        assert_eq!(traffic.too_long(Duration::ZERO), 0.0);
        for second in 1..=60 {
            (0..100).for_each(|_| traffic.count_too_long());
            traffic.demand(Duration::from_secs(second));
        }
        let minute = Duration::from_secs(60);
        assert_eq!(traffic.demand(minute), [0.0, 0.0]);
        assert!((99.0..=100.0).contains(&traffic.too_long(minute)));
    }

    #[test]
    fn packets_before_the_first_reading_count_for_all_keys() {
        let traffic = Traffic::new(Direction::Receive);
        (0..1000).for_each(|_| traffic.count(PAD_BYTES));
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
        (0..1000).for_each(|_| traffic.count(1));
        assert_eq!(traffic.demand(Duration::from_millis(1)), [0.0, 0.0]);
        let [heads, _] = traffic.demand(Duration::from_secs(10));
        assert!((60.0..=70.0).contains(&heads), "{heads}");
    }
}

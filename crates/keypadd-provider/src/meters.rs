//! Counts what packet protection does, for metrics: one set per daemon.
//!
//! Per-packet counters are kept per direction and updated with a load and a store, because an
//! atomic read-modify-write costs as much as a keystroke's XOR; readers sum them. The other
//! counters are relaxed atomics; the two histograms are sampled, one packet in 64, because a clock
//! read costs as much as a short packet's XOR.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use keypadd_pool::{Coverage, Direction, HEAD_BYTES};

use crate::histogram::Histogram;

/// One packet in this many is timed.
pub const SAMPLED_ONE_IN: u64 = 64;

/// The stages of handling a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketStage {
    /// Finding the pad, and generating and XORing what the pool lacks of it.
    Pad,
    /// XORing a pad of which the pool had every byte, and wiping the bytes used.
    Xor,
    /// Computing or checking the tag.
    Mac,
}

impl PacketStage {
    /// All stages, in the order of a sent packet.
    pub const ALL: [Self; 3] = [Self::Pad, Self::Xor, Self::Mac];

    /// The stage's label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pad => "pad",
            Self::Xor => "xor",
            Self::Mac => "mac",
        }
    }
}

/// Counters and timings of every key of a daemon. They only grow.
#[derive(Debug, Default)]
pub struct Meters {
    tallies: Mutex<Tallies>,
    seconds: [[Histogram; 3]; 2],
    stages: [Histogram; 3],
    exhaustions: AtomicU64,
    open_failures: AtomicU64,
    resets: AtomicU64,
    /// How many of `open_failures` were stateless resets.
    reset_failures: AtomicU64,
    replays: AtomicU64,
    pad_reuse: AtomicU64,
}

impl Meters {
    /// Packets sealed or opened with this coverage of their pads.
    pub fn packets(&self, direction: Direction, pad: Coverage) -> u64 {
        self.sum(&[direction], |counts| &counts.packets[pad as usize])
    }

    /// Packets sealed or opened, by the nearest length of [`TIMED_BYTES`](crate::TIMED_BYTES).
    pub fn lengths(&self) -> [u64; 3] {
        [0, 1, 2].map(|class| self.sum(&BOTH, |counts| &counts.lengths[class]))
    }

    /// How long sealing or opening took, in seconds, sampled one in [`SAMPLED_ONE_IN`].
    pub fn seconds(&self, direction: Direction, pad: Coverage) -> &Histogram {
        &self.seconds[direction as usize][pad as usize]
    }

    /// How long a stage of a packet took, in seconds, sampled one in [`SAMPLED_ONE_IN`]. Packets
    /// that ring does in one pass have no stages.
    pub fn stage_seconds(&self, stage: PacketStage) -> &Histogram {
        &self.stages[stage as usize]
    }

    /// Keystream bytes that came from the pool.
    pub fn keystream_pool_bytes(&self) -> u64 {
        self.sum(&BOTH, |counts| &counts.pool_bytes)
    }

    /// Keystream bytes that were generated inline.
    pub fn keystream_inline_bytes(&self) -> u64 {
        self.sum(&BOTH, |counts| &counts.inline_bytes)
    }

    /// Times that a lane which had served packets ran dry.
    pub fn exhaustions(&self) -> u64 {
        self.exhaustions.load(Relaxed)
    }

    /// Packets whose tag did not verify, without stateless resets.
    pub fn open_failures(&self) -> u64 {
        let of_resets = self.reset_failures.load(Acquire);
        self.open_failures.load(Relaxed).saturating_sub(of_resets)
    }

    /// Connections that ended by a stateless reset: their peer does not know them any more.
    pub fn resets(&self) -> u64 {
        self.resets.load(Relaxed)
    }

    /// Genuine packets refused because their number had been opened or was too old.
    pub fn replays(&self) -> u64 {
        self.replays.load(Relaxed)
    }

    /// Attempts to use a pad twice, all refused. Anything but zero is a bug.
    pub fn pad_reuse(&self) -> u64 {
        self.pad_reuse.load(Relaxed)
    }

    /// One counter of some directions, over all connections.
    fn sum(&self, directions: &[Direction], figure: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        let tallies = self.tallies();
        let of = |way: &Direction| {
            let live = tallies.live[*way as usize].iter().map(|counts| &**counts);
            live.chain([&tallies.gone[*way as usize]])
        };
        directions.iter().flat_map(of).map(|counts| figure(counts).load(Relaxed)).sum()
    }

    /// Nothing done under this lock can leave it half changed.
    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_open_failure(&self) {
        self.open_failures.fetch_add(1, Relaxed);
    }

    /// Counts a stateless reset, which may have counted as a packet that did not open.
    pub(crate) fn count_reset(&self, has_failed: bool) {
        self.resets.fetch_add(1, Relaxed);
        self.reset_failures.fetch_add(has_failed.into(), Release);
    }

    pub(crate) fn count_replay(&self) {
        self.replays.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_pad_reuse(&self) {
        self.pad_reuse.fetch_add(1, Relaxed);
    }

    #[inline]
    pub(crate) fn observe(&self, direction: Direction, pad: Coverage, since: Option<Instant>) {
        if let Some(since) = since {
            self.observe_packet(direction, pad, since);
        }
    }

    #[cold]
    fn observe_packet(&self, direction: Direction, pad: Coverage, since: Instant) {
        self.seconds[direction as usize][pad as usize].observe(since.elapsed());
    }

    /// Ends a stage that began at `last`; returns its end, which is now.
    #[cold]
    fn observe_stage(&self, stage: PacketStage, last: Instant) -> Instant {
        let now = Instant::now();
        self.stages[stage as usize].observe(now - last);
        now
    }
}

const BOTH: [Direction; 2] = [Direction::Send, Direction::Receive];

/// Counters of directions of connections: one set for each that lives, and one for all that have
/// ended.
#[derive(Debug, Default)]
struct Tallies {
    live: [Vec<Arc<Counts>>; 2],
    gone: [Counts; 2],
}

#[derive(Debug, Default)]
struct Counts {
    packets: [AtomicU64; 3],
    pool_bytes: AtomicU64,
    inline_bytes: AtomicU64,
    lengths: [AtomicU64; 3],
}

/// Longest pads of the first and of the second length class: a head, and the geometric mean of a
/// line and a full packet.
const LENGTHS: [usize; 2] = [HEAD_BYTES, 600];

/// Counters of one direction of one connection. When they are dropped, the meters keep the counts.
#[derive(Debug)]
pub(crate) struct Tally {
    meters: Arc<Meters>,
    direction: Direction,
    counts: Arc<Counts>,
}

impl Tally {
    pub(crate) fn new(meters: &Arc<Meters>, direction: Direction) -> Self {
        let counts = Arc::default();
        meters.tallies().live[direction as usize].push(Arc::clone(&counts));
        Self { meters: Arc::clone(meters), direction, counts }
    }

    /// Counts that the pool ran dry.
    #[cold]
    pub(crate) fn count_exhaustion(&self) {
        self.meters.exhaustions.fetch_add(1, Relaxed);
    }

    /// Counts a packet by the coverage of its pad, and the keystream that it took. `&mut` means one
    /// caller at a time: what is read here was written last.
    #[inline]
    pub(crate) fn count(
        &mut self,
        pad: Coverage,
        pad_bytes: usize,
        pool_bytes: usize,
        inline_bytes: usize,
    ) {
        add(&self.counts.packets[pad as usize], 1);
        let [short, medium] = LENGTHS.map(|most| usize::from(pad_bytes > most));
        add(&self.counts.lengths[short + medium], 1);
        add(&self.counts.pool_bytes, pool_bytes as u64);
        add(&self.counts.inline_bytes, inline_bytes as u64);
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let mut tallies = self.meters.tallies();
        tallies.live[self.direction as usize].retain(|counts| !Arc::ptr_eq(counts, &self.counts));
        let gone = &tallies.gone[self.direction as usize];
        let Counts { packets, pool_bytes, inline_bytes, lengths } = &*self.counts;
        let sums = gone.packets.iter().chain(&gone.lengths);
        for (sum, packets) in sums.zip(packets.iter().chain(lengths)) {
            add(sum, packets.load(Relaxed));
        }
        add(&gone.pool_bytes, pool_bytes.load(Relaxed));
        add(&gone.inline_bytes, inline_bytes.load(Relaxed));
    }
}

/// Adds to a counter that nobody else writes now.
fn add(sum: &AtomicU64, more: u64) {
    sum.store(sum.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Times the stages of a sampled packet; does nothing for any other.
pub(crate) struct StageClock<'m> {
    meters: &'m Meters,
    last: Option<Instant>,
}

impl<'m> StageClock<'m> {
    pub(crate) fn new(meters: &'m Meters, started: Option<Instant>) -> Self {
        Self { meters, last: started }
    }

    /// Ends a stage and begins the next one.
    #[inline]
    pub(crate) fn end_of(&mut self, stage: PacketStage) {
        if let Some(last) = self.last {
            self.last = Some(self.meters.observe_stage(stage, last));
        }
    }
}

/// Starts timing one packet in [`SAMPLED_ONE_IN`], chosen by a hash of its number, so that the
/// sample does not always fall on the same place in a chunk.
pub(crate) fn sample(packet_number: u64) -> Option<Instant> {
    /// 2^64 over the golden ratio: consecutive numbers spread evenly (Knuth, TAOCP 6.4).
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    (packet_number.wrapping_mul(SPREAD) >> (64 - SAMPLED_ONE_IN.ilog2()) == 0).then(Instant::now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_direction_counted_stays_when_it_is_gone() {
        let meters = Arc::new(Meters::default());
        let mut tallies = BOTH.map(|way| [(); 2].map(|()| Some(Tally::new(&meters, way))));
        let check = |packets: u64| {
            for (way, times) in BOTH.into_iter().zip([1, 2]) {
                assert_eq!(meters.packets(way, Coverage::Partial), times * packets);
                assert_eq!(meters.packets(way, Coverage::Hit), 0);
            }
            assert_eq!(meters.keystream_pool_bytes(), 3 * packets * 100);
            assert_eq!(meters.keystream_inline_bytes(), 3 * packets * 7);
            assert_eq!(meters.lengths(), [3 * packets, 0, 0]);
        };
        for nth in [0, 1] {
            for (way, times) in [(0, 1), (1, 2)] {
                for _ in 0..times {
                    tallies[way][nth].as_mut().expect("it lives").count(
                        Coverage::Partial,
                        107,
                        100,
                        7,
                    );
                }
            }
        }
        check(2);
        for nth in [0, 1] {
            tallies.iter_mut().for_each(|of_a_way| of_a_way[nth] = None);
            check(2);
        }
    }
}

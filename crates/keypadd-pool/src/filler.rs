//! Fills lanes with chunks, one step at a time.
//!
//! A [`Filler`] collects spent memory, plans (`targets.rs`, `plan.rs`) and generates whole chunks.
//! Consumers wake it at most once per sleep and never wait for it. It knows no clock and no thread:
//! the thread of `thread.rs`, or a simulator, calls [`Filler::step`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{KeystreamKey, PacketNumber, SEGMENT_PACKETS, Segment};

use crate::arena::{Ledger, Released, Unit, locked};
use crate::chunk::{Chunk, KeyId, PAD_BYTES, Part};
use crate::cpu_share::CpuShare;
use crate::demand::{Allowance, Traffic};
use crate::filler_state::{FillerState, MemoryReturn};
use crate::free_units::FreeUnits;
use crate::lane_state::{LaneState, PartHolding};
use crate::lane_view::{LaneView, Stage};
use crate::plan::{Plan, Recall, Work, plan_refill};
use crate::saturation::{Progress, Saturation};
use crate::sync::Ordering::{AcqRel, Relaxed};
use crate::sync::{Consumer, Producer, mpsc};
use crate::targets::targets;

/// Segments that the filler may skip to get ahead of a consumer that outruns it, by part. Skipped
/// segments stay empty even when keystrokes, which need heads, follow the burst. Heads are quick to
/// generate, so few are skipped.
const MAX_LEAD: [u64; 2] = [2, 32];

/// While long packets come, a filler with nothing to do looks again after this time. They do not wake it before
/// low water, and bulk may stop above that: the pool would rest below full, and divided by former traffic.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Orders from the pool's handles to the filler.
pub(crate) enum FillerCommand {
    /// Fill this lane.
    Lane(Box<Feed>),
    /// Use this many units; `new` holds those added by a larger budget.
    Budget { units: usize, new: Vec<Unit> },
}

/// The filler's end of a lane.
pub(crate) struct Feed {
    key: KeyId,
    keystream: Arc<KeystreamKey>,
    state: Arc<LaneState>,
    traffic: Traffic,
    /// Its peer's limit, if it has one.
    allowance: Option<Allowance>,
    ends: [FeedEnd; 2],
}

impl Feed {
    pub(crate) fn new(
        key: KeyId,
        keystream: Arc<KeystreamKey>,
        state: Arc<LaneState>,
        (traffic, allowance): (Traffic, Option<Allowance>),
        ends: [FeedEnd; 2],
    ) -> Self {
        Self { key, keystream, state, traffic, allowance, ends }
    }

    /// The lane as the planner sees it.
    fn view(&mut self, now: Duration) -> LaneView {
        let Self { state, traffic, allowance, ends, .. } = self;
        let holdings = state.holdings();
        let available = holdings.each_ref().map(PartHolding::available);
        let left = Part::ALL.map(|part| {
            let next = ends[part as usize].next.value().max(state.position());
            available[part as usize].saturating_add(state.end().saturating_sub(next))
        });
        LaneView {
            stage: state.stage(),
            traffic: traffic.id(),
            available,
            left,
            kept: holdings.map(|holding| holding.kept),
            demand: traffic.demand(now),
            too_long: Part::ALL.map(|part| traffic.is_too_long(part)),
            allotment: allowance.as_ref().and_then(Allowance::allotment),
            recalled: Part::ALL.map(|part| ends[part as usize].is_recalled(state, part)),
        }
    }
}

/// A feed that its lane keeps while too many of its direction are queued for the filler.
pub(crate) struct UnqueuedFeed {
    pub(crate) feed: Box<Feed>,
    pub(crate) commands: mpsc::Sender<FillerCommand>,
}

impl UnqueuedFeed {
    /// Queues the feed for the filler if its direction has room now; gives it back otherwise. The feed is lost
    /// if the filler is dead: the lane then stays dry.
    pub(crate) fn queue(self) -> Result<(), Self> {
        if !self.feed.traffic.lane_may_wait() {
            return Err(self);
        }
        let _ = self.commands.send(FillerCommand::Lane(self.feed));
        Ok(())
    }
}

/// The filler's end of one part's queues.
pub(crate) struct FeedEnd {
    pub(crate) ready: Producer<Box<Chunk>>,
    pub(crate) spent: Consumer<Box<Chunk>>,
    /// The next segment to generate.
    next: Segment,
    /// Segments to stay ahead of the consumer; grows while chunks arrive too late to be used.
    lead: u64,
    /// A recall is outstanding.
    recalled: bool,
}

impl FeedEnd {
    pub(crate) fn new(
        ready: Producer<Box<Chunk>>,
        spent: Consumer<Box<Chunk>>,
        next: Segment,
    ) -> Self {
        Self { ready, spent, next, lead: 0, recalled: false }
    }

    /// Whether a recall is outstanding. Once the consumer has obeyed it, filling resumes where it left a
    /// gap.
    fn is_recalled(&mut self, state: &LaneState, part: Part) -> bool {
        if self.recalled
            && let Some(resume) = state.parts[part as usize].obeyed()
        {
            self.recalled = false;
            let resume = PacketNumber::new(resume.saturating_mul(SEGMENT_PACKETS as u64));
            self.next = self.next.min(resume.segment());
        }
        self.recalled
    }
}

/// The outcome of one step of a filler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It generated a chunk, or found that one was no longer wanted.
    Worked,
    /// There is nothing to do until it is woken.
    Idle,
    /// It rests this long, unless it is woken: its share of the CPU is spent, bulk outruns it on busy CPUs, or it
    /// is to look again.
    Resting(Duration),
    /// The last handle of its pool is gone; it is done for good.
    Stopped,
}

/// Generates the chunks of one pool. [`Pool::new`](crate::Pool::new) runs it in a thread; the caller of
/// [`Pool::with_filler`](crate::Pool::with_filler) steps it.
pub struct Filler {
    state: Arc<FillerState>,
    commands: mpsc::Receiver<FillerCommand>,
    feeds: Vec<Feed>,
    /// The rest of the last plan; its lanes are indices into `feeds`.
    work: VecDeque<Work>,
    /// Memory of chunks that were dropped instead of given back.
    returned: mpsc::Receiver<Box<[Unit]>>,
    released: Released,
    ledger: Arc<Ledger>,
    home: MemoryReturn,
    free: FreeUnits,
    mapped_units: usize,
    locked_units: usize,
    budget_units: usize,
    /// Long packets of the lanes in use when there was last nothing to do.
    long_packets: u64,
    cpu: CpuShare,
    cpu_spent: Duration,
    saturation: Saturation,
}

impl Filler {
    pub(crate) fn new(
        state: Arc<FillerState>,
        commands: mpsc::Receiver<FillerCommand>,
        units: Vec<Unit>,
        (released, ledger): (Released, Arc<Ledger>),
    ) -> Self {
        let (sender, returned) = mpsc::channel();
        let home = MemoryReturn::new(sender, Arc::clone(&state));
        let budget_units = units.len();
        let mut filler = Self {
            state,
            commands,
            feeds: Vec::new(),
            work: VecDeque::new(),
            returned,
            released,
            ledger,
            home,
            free: FreeUnits::default(),
            mapped_units: 0,
            locked_units: 0,
            budget_units,
            long_packets: 0,
            cpu: CpuShare::default(),
            cpu_spent: Duration::ZERO,
            saturation: Saturation::default(),
        };
        filler.take_in(units);
        filler
    }

    pub(crate) fn has_no_work(&self) -> bool {
        self.work.is_empty()
    }

    /// Reports the total CPU time it has spent, for the CPU limit and to see whether CPUs are idle.
    pub fn spent(&mut self, cpu: Duration) {
        self.cpu_spent = cpu;
    }

    /// Generates at most one chunk, after making a new plan if the last one is done. Never waits. `now`
    /// counts from any fixed moment; rates are computed from it.
    pub fn step(&mut self, now: Duration) -> Step {
        if self.state.stop.load(Relaxed) {
            return Step::Stopped;
        }
        // Before clearing the wake-up flag, so that nobody wakes it while it rests.
        let percent = self.state.max_cpu_percent.load(Relaxed);
        if let Some(rest) = self.cpu.rest(now, self.cpu_spent, percent) {
            self.saturation.pause();
            return Step::Resting(rest);
        }
        if self.work.is_empty() {
            if let Some(rest) = self.rest_from_bulk(now) {
                return Step::Resting(rest);
            }
            // Pairs with the swap of a consumer: what it did before waking us is visible below.
            self.state.wanted.swap(false, AcqRel);
            // The last handle may have gone since.
            if self.state.stop.load(Relaxed) {
                return Step::Stopped;
            }
        }
        if self.work.is_empty() {
            self.collect();
            self.trim();
            let Plan { work, recalls } = self.make_plan(now);
            self.work = work.into();
            for recall in recalls {
                self.recall(recall);
            }
            let filled_units = self.units_in_use();
            self.state.filled_units.store(filled_units as u64, Relaxed);
            let is_owed = self.feeds.iter().flat_map(|feed| &feed.ends).any(|end| end.recalled);
            let looks_again = self.work.is_empty() && self.carries_bulk();
            let unsettled = !self.work.is_empty() || is_owed || looks_again;
            self.state.unsettled.store(unsettled, Relaxed);
            if self.work.is_empty() {
                self.saturation.pause();
            }
            if looks_again {
                return Step::Resting(LOOK_AGAIN);
            }
        }
        let Some(piece) = self.work.pop_front() else { return Step::Idle };
        if self.fill(&piece) && piece.chunks > 1 {
            self.work.push_front(Work { chunks: piece.chunks - 1, ..piece });
        }
        Step::Worked
    }

    /// Takes commands, forgets closed lanes, and collects memory that came back.
    fn collect(&mut self) {
        while let Ok(order) = self.commands.try_recv() {
            match order {
                FillerCommand::Lane(feed) => {
                    feed.traffic.lane_arrived();
                    self.feeds.push(*feed);
                }
                FillerCommand::Budget { units, new } => {
                    self.budget_units = units;
                    self.take_in(new);
                }
            }
        }
        let free = &mut self.free;
        self.feeds.retain_mut(|feed| {
            let closed = feed.state.is_closed();
            for end in &mut feed.ends {
                while let Ok(chunk) = end.spent.pop() {
                    free.add(chunk.into_units());
                }
            }
            !closed
        });
        while let Ok(units) = self.returned.try_recv() {
            free.add(units);
        }
    }

    /// Adds freshly mapped memory.
    fn take_in(&mut self, units: Vec<Unit>) {
        self.mapped_units += units.len();
        self.locked_units += locked(&units);
        self.state.locked_units.store(self.locked_units as u64, Relaxed);
        self.free.add_mapped(units);
    }

    /// Withholds free memory above the budget, unlocked units first, and returns to the kernel what
    /// `free_units` allows.
    fn trim(&mut self) {
        let units = {
            let mut counts = self.ledger.lock();
            // The budget may have been raised since.
            let excess = self.mapped_units.saturating_sub(counts.wanted);
            let units = self.free.remove_excess(excess);
            counts.mapped -= units.len();
            counts.unmapping += units.len();
            units
        };
        self.state.withheld_units.store(self.free.withheld() as u64, Relaxed);
        if !units.is_empty() {
            self.mapped_units -= units.len();
            self.locked_units -= locked(&units);
            self.state.locked_units.store(self.locked_units as u64, Relaxed);
            let _ = self.released.send(units.into());
        }
    }

    /// Units in chunks.
    fn units_in_use(&self) -> usize {
        self.mapped_units - self.free.units() - self.free.withheld()
    }

    fn make_plan(&mut self, now: Duration) -> Plan {
        let views: Vec<LaneView> = self.feeds.iter_mut().map(|feed| feed.view(now)).collect();
        // Chunks kept for late packets, and memory on its way back, cannot be assigned.
        let available: usize = views.iter().map(LaneView::units_available).sum();
        let elsewhere = self.units_in_use().saturating_sub(available);
        let total_units = self.budget_units.saturating_sub(elsewhere);
        let targets = targets(&views, total_units);
        for (feed, target) in self.feeds.iter().zip(&targets) {
            for part in Part::ALL {
                let low_water = target[part as usize] * 3 / 4;
                feed.state.parts[part as usize].low_water.store(low_water, Relaxed);
            }
        }
        plan_refill(&views, &targets, self.free.units(), total_units)
    }

    /// Whether long packets have come since this was last asked.
    fn carries_bulk(&mut self) -> bool {
        let long_packets = self.long_packets_in_use();
        std::mem::replace(&mut self.long_packets, long_packets) != long_packets
    }

    /// Long packets so far on the lanes in use.
    fn long_packets_in_use(&self) -> u64 {
        let is_in_use = |feed: &&Feed| matches!(feed.state.stage(), Stage::Brief | Stage::Active);
        let packets = |feed: &Feed| feed.traffic.packets(Part::Body);
        self.feeds.iter().filter(is_in_use).map(packets).fold(0, u64::wrapping_add)
    }

    /// How long it must rest because bulk outruns it on busy CPUs. Never if a key is so slow that any CPU time
    /// is worth taking.
    fn rest_from_bulk(&mut self, now: Duration) -> Option<Duration> {
        if !self.feeds.iter().all(|feed| feed.keystream.is_cheap()) {
            return None;
        }
        let made = self.state.fill_bytes.load(Relaxed) / PAD_BYTES as u64;
        let needed = self.long_packets_in_use();
        self.saturation.rest(Progress { now, spent: self.cpu_spent, made, needed })
    }

    fn recall(&mut self, Recall { lane, part, keep }: Recall) {
        let feed = &mut self.feeds[lane];
        feed.ends[part as usize].recalled = true;
        feed.state.parts[part as usize].recall(keep);
    }

    /// Generates one chunk of a piece of work; false if no more of it is wanted or possible.
    fn fill(&mut self, work: &Work) -> bool {
        let feed = &mut self.feeds[work.lane];
        // The key may have been retired since the plan was made.
        if feed.state.is_closed() || feed.state.stage() == Stage::Dormant {
            return false;
        }
        let end = &mut feed.ends[work.part as usize];
        if end.ready.is_full() {
            return false;
        }
        let Some(units) = self.free.take(work.part) else { return false };
        let position = feed.state.position();
        let ahead = PacketNumber::new((position + end.lead) * SEGMENT_PACKETS as u64);
        let segment = end.next.max(ahead.segment());
        let chunk =
            Chunk::fill(feed.key, &feed.keystream, segment, work.part, units, self.home.clone());
        end.next = segment.next();
        // A chunk that comes too late is wasted: aim further ahead until one is in time.
        end.lead = if feed.state.position() > segment.value() {
            (end.lead * 2).clamp(1, MAX_LEAD[work.part as usize])
        } else {
            end.lead / 2
        };
        if end.ready.push(Box::new(chunk)).is_ok() {
            feed.state.parts[work.part as usize].pushed.fetch_add(1, Relaxed);
        }
        let bytes = work.part.row_bytes() * SEGMENT_PACKETS;
        self.state.fill_bytes.fetch_add(bytes as u64, Relaxed);
        true
    }
}

/// Releases all memory that no lane holds, also if the thread panics.
impl Drop for Filler {
    fn drop(&mut self) {
        self.collect();
        // Dropping the queues returns their chunks' memory.
        self.feeds.clear();
        self.collect();
        let units = self.free.remove_all();
        let _ = self.released.send(units.into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use keypadd_keystream::{Suite, SuiteKey};

    use super::*;
    use crate::arena::UNIT_BYTES;
    use crate::chunk::PAD_BYTES;
    use crate::demand::Direction;
    use crate::lane::Lane;
    use crate::pool::{Pool, PoolSettings};

    const UNITS: usize = 128;

    /// A pool with a full lane, and the memory that the filler passes on for release.
    fn filled() -> (Pool, Filler, Lane, Receiver<Box<[Unit]>>) {
        filled_of(UNITS)
    }

    fn filled_of(units: usize) -> (Pool, Filler, Lane, Receiver<Box<[Unit]>>) {
        let settings = PoolSettings { budget_bytes: units * UNIT_BYTES };
        let (pool, mut filler) = Pool::with_filler(settings).expect("memory");
        let (sender, released) = channel();
        filler.released = sender;
        let key = SuiteKey::derive(Suite::AES_128_GCM, &[1; 16], &[2; 12]).keystream;
        let (traffic, first) = (Traffic::new(Direction::Send), PacketNumber::new(0));
        let lane = pool.open_lane(key.expect("pads"), &traffic, first, Stage::Active);
        fill(&mut filler);
        (pool, filler, lane, released)
    }

    fn fill(filler: &mut Filler) {
        while filler.step(Duration::ZERO) == Step::Worked {}
    }

    fn units(released: &Receiver<Box<[Unit]>>) -> usize {
        released.try_iter().map(|units| units.len()).sum()
    }

    #[test]
    fn a_lane_that_has_ended_leaves_its_memory_to_others_and_keeps_pads_for_late_packets() {
        let (pool, mut filler, mut lane, _released) = filled();
        let full = lane.level(Part::Body).packets;
        let packet = PacketNumber::new(10);
        lane.seek(packet, PAD_BYTES);
        let key = SuiteKey::derive(Suite::AES_128_GCM, &[3; 16], &[4; 12]).keystream;
        let traffic = Traffic::new(Direction::Send);
        let next = pool.open_lane(key.expect("pads"), &traffic, packet, Stage::Active);
        lane.end();
        fill(&mut filler);
        assert!(next.level(Part::Body).packets + 128 > full, "{full}");
        assert!(lane.level(Part::Body).packets <= 64);
        assert_eq!(lane.peek(packet, PAD_BYTES).bytes(), PAD_BYTES);
    }

    #[test]
    fn the_filler_passes_memory_above_a_smaller_budget_on_and_does_not_unmap_it() {
        let (pool, mut filler, _lane, released) = filled();
        let free = filler.free.units();
        assert_eq!(units(&released), 0);
        pool.set_budget((UNITS - free) * UNIT_BYTES).expect("a smaller budget");
        fill(&mut filler);
        assert_eq!(units(&released), free);
    }

    #[test]
    fn budgets_that_change_faster_than_the_filler_runs_map_no_more_than_the_largest() {
        let (pool, mut filler, _lane, released) = filled();
        for _ in 0..20 {
            pool.set_budget(4 * UNITS * UNIT_BYTES).expect("a larger budget");
            pool.set_budget(UNITS * UNIT_BYTES).expect("a smaller budget");
        }
        pool.set_budget(2 * UNITS * UNIT_BYTES).expect("a budget");
        fill(&mut filler);
        assert_eq!(units(&released), 2 * UNITS);
        assert_eq!(filler.mapped_units, 2 * UNITS);
    }

    #[test]
    fn a_stopping_filler_releases_free_queued_and_returning_memory() {
        let (pool, filler, mut lane, released) = filled();
        for number in [0, 1 << 8] {
            lane.seek(PacketNumber::new(number), 1);
        }
        pool.set_budget((UNITS + 3) * UNIT_BYTES).expect("a larger budget");
        drop(lane);
        drop((pool, filler));
        assert_eq!(units(&released), UNITS + 3);
    }

    #[test]
    fn packets_too_long_for_a_pad_use_up_no_pads() {
        let (pool, mut filler, mut lane, _released) = filled_of(8 * UNITS);
        let mut pass = |seconds: std::ops::Range<u64>| {
            for second in seconds {
                let first = second * SEGMENT_PACKETS as u64;
                (first..).take(SEGMENT_PACKETS).for_each(|pn| lane.pass(PacketNumber::new(pn)));
                while filler.step(Duration::from_secs(second)) == Step::Worked {}
            }
        };
        // What the lane holds at first is given up; meanwhile the rate becomes known.
        pass(0..100);
        let before = pool.snapshot().fill_bytes_total;
        pass(100..200);
        assert_eq!(pool.snapshot().fill_bytes_total, before);
    }

    #[test]
    fn keystrokes_after_packets_too_long_for_a_pad_wake_the_filler_and_hit() {
        let (_pool, mut filler, mut lane, _released) = filled();
        let mut number = 0;
        let mut next = || {
            number += 1;
            PacketNumber::new(number - 1)
        };
        // A minute of them, with the filler awake, and then silence.
        for second in 0..60 {
            (0..1_000).for_each(|_| lane.pass(next()));
            while filler.step(Duration::from_secs(second)) == Step::Worked {}
        }
        let mut found = 0;
        for stroke in 0..32 {
            let mut byte = [0];
            found += lane.take(next(), &mut [], &mut byte, 0, || ()).bytes;
            let woken = filler.state.wanted.load(Relaxed);
            let now = Duration::from_secs(70) + Duration::from_millis(100) * stroke;
            while woken && filler.step(now) == Step::Worked {}
        }
        assert_eq!(found, 16);
    }

    #[test]
    fn a_chunk_that_came_too_late_does_not_hide_the_next_one() {
        let (_pool, mut filler, mut lane, _released) = filled();
        let mut fill_segment = |segment: u64| {
            filler.collect();
            let units = filler.free.take(Part::Head).expect("free memory");
            let feed = &mut filler.feeds[0];
            let segment = PacketNumber::new(segment * SEGMENT_PACKETS as u64).segment();
            let home = filler.home.clone();
            let chunk = Chunk::fill(feed.key, &feed.keystream, segment, Part::Head, units, home);
            feed.ends[Part::Head as usize].ready.push(Box::new(chunk)).expect("room");
        };
        let mut has_head = |segment: u64| {
            let number = PacketNumber::new(segment * SEGMENT_PACKETS as u64);
            lane.take(number, &mut [], &mut [0], 0, || ()).head
        };
        // While the filler makes segment 999, the numbers jump to the next one.
        assert!(!has_head(1_000));
        fill_segment(999);
        // A late packet draws it.
        assert!(has_head(999));
        fill_segment(1_000);
        assert!(has_head(1_000));
    }

    #[test]
    fn keys_that_change_faster_than_the_filler_runs_do_not_grow_its_queue_and_the_last_is_served() {
        let settings = PoolSettings { budget_bytes: UNITS * UNIT_BYTES };
        let (pool, mut filler) = Pool::with_filler(settings).expect("memory");
        let key = SuiteKey::derive(Suite::AES_128_GCM, &[1; 16], &[2; 12]).keystream;
        let key = key.expect("pads");
        let (traffic, first) = (Traffic::new(Direction::Send), PacketNumber::new(0));
        let open = || pool.open_lane(key.clone(), &traffic, first, Stage::Active);
        let mut lane = open();
        for _ in 0..1000 {
            lane = open();
        }
        filler.collect();
        assert!(filler.feeds.is_empty(), "all that were queued are closed");
        let mut is_hit = |number: u64| {
            let taken = lane.take(PacketNumber::new(number), &mut [], &mut [0; 16], 0, || {});
            taken.bytes == 16
        };
        assert!(!is_hit(0), "this packet queues the lane");
        fill(&mut filler);
        assert!(is_hit(1));
    }
}

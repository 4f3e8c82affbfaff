//! The filler: turns plans into chunks, a step at a time.
//!
//! It takes back spent memory, asks `targets.rs` and `plan.rs` for a plan, and makes whole chunks.
//! Consumers ring for it, at most once per sleep, and never wait for it. It knows no clock and no
//! thread: [`Filler::step`] is called by the thread of `thread.rs`, or by a simulator.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{KeystreamKey, PacketNumber, SEGMENT_PACKETS, Segment};

use crate::arena::{Released, Unit, locked};
use crate::chunk::{Chunk, KeyId, Part};
use crate::cpu_share::CpuShare;
use crate::demand::{Allowance, Traffic};
use crate::lane::{PartHolding, Shared};
use crate::plan::{LaneView, Plan, Recall, Stage, Work, plan_refill};
use crate::shared::{FillerShared, Home};
use crate::stock::Stock;
use crate::sync::Ordering::{AcqRel, Relaxed};
use crate::sync::{Consumer, Producer, mpsc};
use crate::targets::targets;

/// Segments that the filler may skip ahead of a consumer that outruns it, by part. Skipped
/// segments stay empty, also when the burst is over and keystrokes follow, which live on heads:
/// those are quickly made, so little is skipped.
const MAX_LEAD: [u64; 2] = [2, 32];

/// What the filler is told by the pool's handles.
pub(crate) enum Order {
    /// Fill this lane.
    Lane(Box<Feed>),
    /// Keep to this many units; `new` are those that a larger budget takes.
    Budget { units: usize, new: Vec<Unit> },
}

/// The filler's end of a lane.
pub(crate) struct Feed {
    key: KeyId,
    keystream: Arc<KeystreamKey>,
    shared: Arc<Shared>,
    traffic: Traffic,
    /// Its peer's, if that is limited.
    allowance: Option<Allowance>,
    ends: [FeedEnd; 2],
}

impl Feed {
    pub(crate) fn new(
        key: KeyId,
        keystream: Arc<KeystreamKey>,
        shared: Arc<Shared>,
        (traffic, allowance): (Traffic, Option<Allowance>),
        ends: [FeedEnd; 2],
    ) -> Self {
        Self { key, keystream, shared, traffic, allowance, ends }
    }

    /// What the plan needs to know.
    fn view(&mut self, now: Duration) -> LaneView {
        let Self { shared, traffic, allowance, ends, .. } = self;
        let holdings = shared.holdings();
        LaneView {
            stage: shared.stage(),
            at_hand: holdings.each_ref().map(PartHolding::at_hand),
            kept: holdings.map(|holding| holding.kept),
            demand: traffic.demand(now),
            allotment: allowance.as_ref().and_then(Allowance::allotment),
            recalled: Part::ALL.map(|part| ends[part as usize].is_recalled(shared, part)),
        }
    }
}

/// The filler's end of one part's queues.
pub(crate) struct FeedEnd {
    pub(crate) ready: Producer<Box<Chunk>>,
    pub(crate) spent: Consumer<Box<Chunk>>,
    /// The next segment to generate.
    next: Segment,
    /// Segments to stay ahead of the consumer: grows while chunks arrive too late to be used.
    lead: u64,
    /// Chunks have been asked back.
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

    /// Whether a recall is not obeyed yet. Once it is, filling goes on where it left a gap.
    fn is_recalled(&mut self, shared: &Shared, part: Part) -> bool {
        if self.recalled
            && let Some(resume) = shared.parts[part as usize].obeyed()
        {
            self.recalled = false;
            let resume = PacketNumber::new(resume.saturating_mul(SEGMENT_PACKETS as u64));
            self.next = self.next.min(resume.segment());
        }
        self.recalled
    }
}

/// What a filler has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It made a chunk, or found that one was no longer wanted.
    Worked,
    /// There is nothing to do until somebody wakes it.
    Idle,
    /// It has spent its share of the CPU: nothing until so much time has passed.
    Resting(Duration),
    /// The last handle of its pool is gone: there will be nothing to do any more.
    Stopped,
}

/// Makes the chunks of one pool. [`Pool::new`](crate::Pool::new) gives it a thread; whoever takes
/// it from [`Pool::with_filler`](crate::Pool::with_filler) decides when it works.
pub struct Filler {
    shared: Arc<FillerShared>,
    orders: mpsc::Receiver<Order>,
    feeds: Vec<Feed>,
    /// What is left of the last plan, its lanes as places in `feeds`.
    work: VecDeque<Work>,
    /// Memory of chunks that were dropped rather than given back.
    returned: mpsc::Receiver<Box<[Unit]>>,
    released: Released,
    home: Home,
    free: Stock,
    mapped_units: usize,
    locked_units: usize,
    budget_units: usize,
    cpu: CpuShare,
    cpu_spent: Duration,
}

impl Filler {
    pub(crate) fn new(
        shared: Arc<FillerShared>,
        orders: mpsc::Receiver<Order>,
        units: Vec<Unit>,
        released: Released,
    ) -> Self {
        let (sender, returned) = mpsc::channel();
        let home = Home::new(sender, Arc::clone(&shared));
        let budget_units = units.len();
        let mut filler = Self {
            shared,
            orders,
            feeds: Vec::new(),
            work: VecDeque::new(),
            returned,
            released,
            home,
            free: Stock::default(),
            mapped_units: 0,
            locked_units: 0,
            budget_units,
            cpu: CpuShare::default(),
            cpu_spent: Duration::ZERO,
        };
        filler.take_in(units);
        filler
    }

    pub(crate) fn has_no_work(&self) -> bool {
        self.work.is_empty()
    }

    /// Tells it what CPU time it has spent in all: what a limit is held against.
    pub fn spent(&mut self, cpu: Duration) {
        self.cpu_spent = cpu;
    }

    /// Does one chunk's work at most, and looks around first when the last plan has been carried
    /// out. Never waits. `now` counts from any one moment: rates are learned by it.
    pub fn step(&mut self, now: Duration) -> Step {
        if self.shared.stop.load(Relaxed) {
            return Step::Stopped;
        }
        // Before it takes note of who rang: nobody rings again while it rests.
        let percent = self.shared.max_cpu_percent.load(Relaxed);
        if let Some(rest) = self.cpu.rest(now, self.cpu_spent, percent) {
            return Step::Resting(rest);
        }
        if self.work.is_empty() {
            // Paired with the swap of a consumer: what it did before asking is seen below.
            self.shared.wanted.swap(false, AcqRel);
            // The last handle may have gone since.
            if self.shared.stop.load(Relaxed) {
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
            let filled_units = self.mapped_units - self.free.units();
            self.shared.filled_units.store(filled_units as u64, Relaxed);
        }
        let Some(piece) = self.work.pop_front() else { return Step::Idle };
        if self.fill(&piece) && piece.chunks > 1 {
            self.work.push_front(Work { chunks: piece.chunks - 1, ..piece });
        }
        Step::Worked
    }

    /// Does as it was told, forgets closed lanes, and gathers memory that came back.
    fn collect(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Lane(feed) => self.feeds.push(*feed),
                Order::Budget { units, new } => {
                    self.budget_units = units;
                    self.take_in(new);
                }
            }
        }
        let free = &mut self.free;
        self.feeds.retain_mut(|feed| {
            let closed = feed.shared.is_closed();
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
        self.shared.locked_units.store(self.locked_units as u64, Relaxed);
        self.free.add(units);
    }

    /// Gives memory above the budget back as far as it is free, unlocked units first.
    fn trim(&mut self) {
        let excess = self.mapped_units.saturating_sub(self.budget_units).min(self.free.units());
        if excess > 0 {
            let units = self.free.part_with(excess);
            self.mapped_units -= units.len();
            self.locked_units -= locked(&units);
            self.shared.locked_units.store(self.locked_units as u64, Relaxed);
            let _ = self.released.send(units);
        }
    }

    fn make_plan(&mut self, now: Duration) -> Plan {
        let views: Vec<LaneView> = self.feeds.iter_mut().map(|feed| feed.view(now)).collect();
        // What keys keep for late packets, and what is on its way home, is nobody's to be given.
        let at_hand: usize = views.iter().map(LaneView::units_at_hand).sum();
        let elsewhere = (self.mapped_units - self.free.units()).saturating_sub(at_hand);
        let targets = targets(&views, self.budget_units.saturating_sub(elsewhere));
        for (feed, target) in self.feeds.iter().zip(&targets) {
            for part in Part::ALL {
                let low_water = target[part as usize] * 3 / 4;
                feed.shared.parts[part as usize].low_water.store(low_water, Relaxed);
            }
        }
        plan_refill(&views, &targets, self.free.units(), self.budget_units)
    }

    fn recall(&mut self, Recall { lane, part, keep }: Recall) {
        let feed = &mut self.feeds[lane];
        feed.ends[part as usize].recalled = true;
        feed.shared.parts[part as usize].recall(keep);
    }

    /// Makes one chunk of a piece of work; false when no more of it is wanted or possible.
    fn fill(&mut self, work: &Work) -> bool {
        let feed = &mut self.feeds[work.lane];
        // The plan is a moment old: the key may have been retired since.
        if feed.shared.is_closed() || feed.shared.stage() == Stage::Dormant {
            return false;
        }
        let end = &mut feed.ends[work.part as usize];
        if end.ready.is_full() {
            return false;
        }
        let Some(units) = self.free.take(work.part) else { return false };
        let position = feed.shared.position();
        let ahead = PacketNumber::new((position + end.lead) * SEGMENT_PACKETS as u64);
        let segment = end.next.max(ahead.segment());
        let chunk =
            Chunk::fill(feed.key, &feed.keystream, segment, work.part, units, self.home.clone());
        end.next = segment.next();
        // A chunk that comes too late is lost work: aim further ahead until one is in time.
        end.lead = if feed.shared.position() > segment.value() {
            (end.lead * 2).clamp(1, MAX_LEAD[work.part as usize])
        } else {
            end.lead / 2
        };
        if end.ready.push(Box::new(chunk)).is_ok() {
            feed.shared.parts[work.part as usize].pushed.fetch_add(1, Relaxed);
        }
        let bytes = work.part.row_bytes() * SEGMENT_PACKETS;
        self.shared.fill_bytes.fetch_add(bytes as u64, Relaxed);
        true
    }
}

/// Gives back all memory that no lane has or may still use, also when the thread ends by a panic.
impl Drop for Filler {
    fn drop(&mut self) {
        self.collect();
        // What is queued for closed lanes comes home as it is dropped.
        self.feeds.clear();
        self.collect();
        let units = self.free.part_with(usize::MAX);
        let _ = self.released.send(units);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use keypadd_keystream::{Suite, SuiteKey};

    use super::*;
    use crate::arena::UNIT_BYTES;
    use crate::demand::Direction;
    use crate::lane::Lane;
    use crate::pool::{Pool, PoolSettings};

    const UNITS: usize = 128;

    /// A pool whose lane took all it wants, and what the filler passes on to be given back to the kernel.
    fn filled() -> (Pool, Filler, Lane, Receiver<Vec<Unit>>) {
        let settings = PoolSettings { budget_bytes: UNITS * UNIT_BYTES };
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

    fn units(released: &Receiver<Vec<Unit>>) -> usize {
        released.try_iter().map(|units| units.len()).sum()
    }

    #[test]
    fn memory_above_a_smaller_budget_is_passed_on_and_not_unmapped_by_the_filler() {
        let (pool, mut filler, _lane, released) = filled();
        let free = filler.free.units();
        assert_eq!(units(&released), 0);
        pool.set_budget((UNITS - free) * UNIT_BYTES).expect("a smaller budget");
        fill(&mut filler);
        assert_eq!(units(&released), free);
    }

    #[test]
    fn an_ending_filler_passes_all_on_that_is_free_or_queued_or_on_its_way() {
        let (pool, filler, mut lane, released) = filled();
        for number in [0, 1 << 8] {
            lane.seek(PacketNumber::new(number), 1);
        }
        pool.set_budget((UNITS + 3) * UNIT_BYTES).expect("a larger budget");
        drop(lane);
        drop((pool, filler));
        assert_eq!(units(&released), UNITS + 3);
    }
}

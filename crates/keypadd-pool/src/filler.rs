//! The filler: an OS thread of class SCHED_IDLE that turns plans into chunks.
//!
//! A thin shell around `plan.rs`: it takes back spent memory, asks for a plan, generates whole
//! chunks and goes to sleep when there is nothing to do. Consumers wake it, at most once per
//! sleep, and never wait for it. When it dies the lanes run dry and everything goes inline.
//! The thread is a loop around [`Filler::step`], which a simulator calls by itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_keystream::{KeystreamKey, PacketNumber, SEGMENT_PACKETS, Segment};
use rtrb::{Consumer, Producer};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use crate::arena::Unit;
use crate::chunk::{Chunk, KeyId, Part};
use crate::demand::{Demand, Traffic};
use crate::lane::Shared;
use crate::plan::{LaneView, Plan, Recall, Stage, Work, plan_refill};
use crate::shared::{FillerShared, Home};
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
    /// Begins when the filler takes the lane in.
    demand: Option<Demand>,
    ends: [FeedEnd; 2],
}

impl Feed {
    pub(crate) fn new(
        key: KeyId,
        keystream: Arc<KeystreamKey>,
        shared: Arc<Shared>,
        traffic: Traffic,
        ends: [FeedEnd; 2],
    ) -> Self {
        Self { key, keystream, shared, traffic, demand: None, ends }
    }

    /// What the plan needs to know.
    fn view(&mut self, now: Duration) -> LaneView {
        let Self { shared, traffic, demand, ends, .. } = self;
        let demand = demand.get_or_insert_with(|| Demand::new(traffic.clone(), now));
        LaneView {
            stage: shared.stage(),
            at_hand: Part::ALL.map(|part| shared.at_hand(part)),
            demand: demand.at(now),
            allotment: demand.allotment(),
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
    home: Home,
    /// Units without keystream, the locked ones last.
    free: Vec<Unit>,
    mapped_units: usize,
    locked_units: usize,
    budget_units: usize,
}

impl Filler {
    pub(crate) fn new(
        shared: Arc<FillerShared>,
        orders: mpsc::Receiver<Order>,
        units: Vec<Unit>,
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
            home,
            free: Vec::new(),
            mapped_units: 0,
            locked_units: 0,
            budget_units,
        };
        filler.take_in(units);
        filler
    }

    /// Says from now on that it lives. Said by the spawner: a thread of an idle class may begin late,
    /// and a filler that has not begun is none that has failed.
    pub(crate) fn alive(&self) -> Alive {
        Alive::new(Arc::clone(&self.shared))
    }

    /// Fills until the pool is dropped.
    pub(crate) fn run(mut self, _alive: Alive) {
        // Set here, not by the spawner: a wake-up needs the handle before the first sleep.
        let _ = self.shared.thread.set(thread::current());
        self.shared.thread_id.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
        self.shared.idle_class.store(become_idle(), Relaxed);
        let started = Instant::now();
        loop {
            if self.work.is_empty() {
                self.account();
            }
            match self.step(started.elapsed()) {
                Step::Worked => {}
                Step::Idle => thread::park(),
                Step::Stopped => break,
            }
        }
    }

    /// Does one chunk's work at most, and looks around first when the last plan has been carried
    /// out. Never waits. `now` counts from any one moment: rates are learned by it.
    pub fn step(&mut self, now: Duration) -> Step {
        if self.work.is_empty() {
            // Paired with the swap of a consumer: what it did before asking is seen below.
            self.shared.wanted.swap(false, AcqRel);
        }
        if self.shared.stop.load(Relaxed) {
            return Step::Stopped;
        }
        if self.work.is_empty() {
            self.collect();
            self.trim();
            let Plan { work, recalls } = self.make_plan(now);
            self.work = work.into();
            for recall in recalls {
                self.recall(recall);
            }
            let filled_units = self.mapped_units - self.free.len();
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
                    free.extend(chunk.into_units());
                }
            }
            !closed
        });
        free.extend(self.returned.try_iter().flatten());
    }

    /// Adds freshly mapped memory.
    fn take_in(&mut self, units: Vec<Unit>) {
        self.mapped_units += units.len();
        self.locked_units += units.iter().filter(|unit| unit.is_locked()).count();
        self.shared.locked_units.store(self.locked_units as u64, Relaxed);
        self.free.extend(units);
        self.free.sort_by_key(Unit::is_locked);
    }

    /// Gives memory above the budget back to the kernel as far as it is free, unlocked units first.
    fn trim(&mut self) {
        let excess = self.mapped_units.saturating_sub(self.budget_units).min(self.free.len());
        if excess == 0 {
            return;
        }
        self.free.sort_by_key(Unit::is_locked);
        self.mapped_units -= excess;
        self.locked_units -= self.free.drain(..excess).filter(Unit::is_locked).count();
        self.shared.locked_units.store(self.locked_units as u64, Relaxed);
    }

    fn make_plan(&mut self, now: Duration) -> Plan {
        let views: Vec<LaneView> = self.feeds.iter_mut().map(|feed| feed.view(now)).collect();
        // What keys keep for late packets, and what is on its way home, is nobody's to be given.
        let at_hand: usize = views.iter().map(LaneView::units).sum();
        let elsewhere = (self.mapped_units - self.free.len()).saturating_sub(at_hand);
        let targets = targets(&views, self.budget_units.saturating_sub(elsewhere));
        for (feed, target) in self.feeds.iter().zip(&targets) {
            for part in Part::ALL {
                let low_water = target[part as usize] * 3 / 4;
                feed.shared.parts[part as usize].low_water.store(low_water, Relaxed);
            }
        }
        plan_refill(&views, &targets, self.free.len(), self.budget_units)
    }

    fn recall(&mut self, Recall { lane, part, keep }: Recall) {
        let feed = &mut self.feeds[lane];
        feed.ends[part as usize].recalled = true;
        feed.shared.parts[part as usize].recall(keep.saturating_sub(feed.shared.in_use(part)));
    }

    /// Makes one chunk of a piece of work; false when no more of it is wanted or possible.
    fn fill(&mut self, work: &Work) -> bool {
        let feed = &mut self.feeds[work.lane];
        // The plan is a moment old: the key may have been retired since.
        if feed.shared.is_closed() || feed.shared.stage() == Stage::Dormant {
            return false;
        }
        let end = &mut feed.ends[work.part as usize];
        let units = work.part.units();
        if end.ready.is_full() || self.free.len() < units {
            return false;
        }
        let position = feed.shared.position.load(Relaxed);
        let ahead = PacketNumber::new((position + end.lead) * SEGMENT_PACKETS as u64);
        let segment = end.next.max(ahead.segment());
        let units: Box<[Unit]> = self.free.split_off(self.free.len() - units).into();
        let chunk =
            Chunk::fill(feed.key, &feed.keystream, segment, work.part, units, self.home.clone());
        end.next = segment.next();
        // A chunk that comes too late is lost work: aim further ahead until one is in time.
        end.lead = if feed.shared.position.load(Relaxed) > segment.value() {
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

    /// Publishes the CPU time that this thread has spent, by the kernel's account.
    fn account(&self) {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let nanos = spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64;
        self.shared.fill_cpu_nanos.store(nanos, Relaxed);
    }
}

/// Asks for SCHED_IDLE, which runs only when nothing else wants the CPU; nice 19 where that is
/// refused. True if the kernel took SCHED_IDLE.
fn become_idle() -> bool {
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    match set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle) {
        Ok(()) => true,
        Err(error) => {
            let nice = rustix::process::setpriority_process(None, 19);
            tracing::warn!(
                ?error,
                nice = nice.is_ok(),
                "the kernel refused SCHED_IDLE to a filler"
            );
            false
        }
    }
}

/// Says that the filler lives, and when it stops without being told to, why tunnels are inline.
pub(crate) struct Alive(Arc<FillerShared>);

impl Alive {
    fn new(shared: Arc<FillerShared>) -> Self {
        shared.alive.store(true, Relaxed);
        Self(shared)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.store(false, Relaxed);
        if thread::panicking() {
            tracing::error!("a filler stopped on an internal error; keystream is made inline now");
        }
    }
}

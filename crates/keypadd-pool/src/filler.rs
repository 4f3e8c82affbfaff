//! Fills lanes with chunks, one step at a time.
//!
//! A [`Filler`] collects spent memory, plans (`targets.rs`, `plan.rs`) and generates whole chunks.
//! Consumers wake it at most once per sleep and never wait for it. It knows no clock and no thread:
//! the thread of `thread.rs`, or a simulator, calls [`Filler::step`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::SEGMENT_PACKETS;

use crate::arena::{Ledger, Released, Unit, locked};
use crate::chunk::PAD_BYTES;
use crate::cpu_share::CpuShare;
use crate::feed::{Feed, FillerCommand};
use crate::filler_state::{FillerState, MemoryReturn};
use crate::free_units::FreeUnits;
use crate::lane_view::LaneView;
use crate::plan::{Plan, Recall, Work, plan_refill};
use crate::saturation::{Progress, Saturation};
use crate::sync::Ordering::{AcqRel, Relaxed};
use crate::sync::mpsc;
use crate::targets::targets;

/// While long packets come, a filler with nothing to do looks again after this time. They do not
/// wake it before low water, and bulk may stop above that: the pool would rest below full, and
/// divided by former traffic.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The outcome of one step of a filler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The filler generated a chunk, or found that one was no longer wanted.
    Worked,
    /// There is nothing to do until it is woken.
    Idle,
    /// The filler rests this long, unless it is woken: its share of the CPU is spent, bulk outruns
    /// it on busy CPUs, or it is to look again.
    Resting(Duration),
    /// The last handle of its pool is gone; it is done for good.
    Stopped,
}

/// Generates the chunks of one pool. [`Pool::new`](crate::Pool::new) runs it in a thread; the
/// caller of [`Pool::with_filler`](crate::Pool::with_filler) steps it.
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

    /// Generates at most one chunk, after making a new plan if the last one is done. Never waits.
    /// `now` counts from any fixed moment; rates are computed from it.
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
            for Recall { lane, part, keep } in recalls {
                self.feeds[lane].recall(part, keep);
            }
            let filled_units = self.units_in_use();
            self.state.filled_units.store(filled_units as u64, Relaxed);
            let is_owed = self.feeds.iter().any(Feed::owes_chunks);
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
                    feed.arrive();
                    self.feeds.push(*feed);
                }
                FillerCommand::Budget { units, new } => {
                    self.budget_units = units;
                    self.take_in(new);
                }
            }
        }
        let free = &mut self.free;
        self.feeds.retain_mut(|feed| feed.collect_spent(free));
        while let Ok(units) = self.returned.try_recv() {
            free.add(units);
        }
    }

    /// Adds freshly mapped memory.
    fn take_in(&mut self, units: Vec<Unit>) {
        self.mapped_units += units.len();
        self.state.locked_units.fetch_add(locked(&units) as u64, Relaxed);
        self.free.add_mapped(units);
    }

    /// Withholds free memory above the budget, and returns to the kernel what `free_units` allows.
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
            self.state.locked_units.fetch_sub(locked(&units) as u64, Relaxed);
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
            feed.aim_at(target);
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
        self.feeds.iter().filter_map(Feed::long_packets).fold(0, u64::wrapping_add)
    }

    /// How long it must rest because bulk outruns it on busy CPUs. Never if a key is so slow that
    /// any CPU time is worth taking.
    fn rest_from_bulk(&mut self, now: Duration) -> Option<Duration> {
        if !self.feeds.iter().all(Feed::is_cheap) {
            return None;
        }
        let made = self.state.fill_bytes.load(Relaxed) / PAD_BYTES as u64;
        let needed = self.long_packets_in_use();
        self.saturation.rest(Progress { now, spent: self.cpu_spent, made, needed })
    }

    /// Generates one chunk of a piece of work; false if no more of it is wanted or possible.
    fn fill(&mut self, work: &Work) -> bool {
        if !self.feeds[work.lane].fill(work.part, &mut self.free, &self.home) {
            return false;
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
mod tests;

//! Steps both ends' pools and fillers; each filler alternates between working and idle periods.

use std::time::Duration;

use fastrand::Rng;
use keypadd_pool::{Coverage, Direction, Filler, Pool, PoolSettings, Step};
use keypadd_provider::Meters;

use crate::schedule::Schedule;

/// One end's pool with its filler.
pub(crate) struct SteppedPool {
    pub(crate) pool: Pool,
    filler: Filler,
    rng: Rng,
    working: bool,
    /// Overrides the mood.
    pub(crate) order: Option<bool>,
    /// Datagrams until the next mood.
    mood_left: u32,
    mood: u32,
    steps: u32,
    /// The largest budget so far: memory above a smaller one may still be in use.
    most_bytes: usize,
}

impl SteppedPool {
    pub(crate) fn new(schedule: &Schedule, end: usize, mut rng: Rng) -> Self {
        let settings = PoolSettings { budget_bytes: schedule.budget_bytes[end] };
        let (pool, filler) = Pool::with_filler(settings).expect("memory");
        let (mood, steps) = (schedule.mood, schedule.steps);
        let mood_left = rng.u32(1..=mood);
        let most_bytes = settings.budget_bytes;
        Self { pool, filler, working: true, order: None, mood_left, mood, steps, rng, most_bytes }
    }

    /// Lets the filler work as its mood allows, between two datagrams; returns its steps.
    pub(crate) fn turn(&mut self, now: Duration) -> u32 {
        if self.mood_left == 0 {
            self.working = !self.working;
            self.mood_left = self.rng.u32(1..=self.mood);
        }
        self.mood_left -= 1;
        if !self.order.unwrap_or(self.working) {
            return 0;
        }
        let steps = self.rng.u32(0..=self.steps);
        (0..steps).take_while(|_| self.filler.step(now) == Step::Worked).count() as u32
    }

    /// Changes the budget during the run.
    pub(crate) fn resize(&mut self, budget_bytes: usize) {
        self.pool.set_budget(budget_bytes).expect("memory");
        self.most_bytes = self.most_bytes.max(budget_bytes);
    }

    /// Describes what the pool holds beyond its budget, if it does.
    pub(crate) fn broken_promise(&self) -> Option<String> {
        let snapshot = self.pool.snapshot();
        let broken = snapshot.filled_bytes > self.most_bytes as u64;
        broken.then(|| format!("above {} bytes: {snapshot:?}", self.most_bytes))
    }

    /// Steps the filler until it has nothing left to do.
    pub(crate) fn settle(&mut self, now: Duration) {
        while self.filler.step(now) == Step::Worked {}
    }
}

/// Packets served fully or partly from the pool that count as serving.
const SERVED_MIN: u64 = 20;
/// Packets without any pad that count as having run dry.
const MISSED_MIN: u64 = 10;

/// Tracks whether the pools of a run have served, run dry, and served again.
#[derive(Default)]
pub(crate) struct Refill(RefillStage);

/// Progress; each value is the count at which the step started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum RefillStage {
    #[default]
    Filling,
    Served(u64),
    Dry(u64),
    Refilled,
}

impl Refill {
    /// Reads the counts of both ends.
    pub(crate) fn observe<'a>(&mut self, meters: impl Iterator<Item = &'a Meters> + Clone) -> bool {
        let count = |pad: Coverage| -> u64 {
            let of = |meters: &Meters| {
                meters.packets(Direction::Send, pad) + meters.packets(Direction::Receive, pad)
            };
            meters.clone().map(of).sum()
        };
        let served = count(Coverage::Hit) + count(Coverage::Partial);
        let missed = count(Coverage::Miss);
        self.0 = match self.0 {
            RefillStage::Filling if served >= SERVED_MIN => RefillStage::Served(missed),
            RefillStage::Served(before) if missed >= before + MISSED_MIN => {
                RefillStage::Dry(served)
            }
            RefillStage::Dry(before) if served >= before + SERVED_MIN => RefillStage::Refilled,
            same => same,
        };
        self.is_done()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0 == RefillStage::Refilled
    }

    /// Whether fillers must work, or must not, to bring about what is missing.
    pub(crate) fn order(&self) -> Option<bool> {
        match self.0 {
            RefillStage::Filling | RefillStage::Dry(_) => Some(true),
            RefillStage::Served(_) => Some(false),
            RefillStage::Refilled => None,
        }
    }
}

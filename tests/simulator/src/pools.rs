//! The two ends' pools and fillers, stepped: each filler has moods, in which it works or does not.

use std::time::Duration;

use fastrand::Rng;
use keypadd_pool::{Filler, Pool, PoolSettings, Step};

use crate::schedule::Schedule;

/// One end's pool with its filler.
pub(crate) struct SteppedPool {
    pub(crate) pool: Pool,
    filler: Filler,
    rng: Rng,
    working: bool,
    /// Overrules the mood.
    pub(crate) order: Option<bool>,
    /// Datagrams until the next mood.
    mood_left: u32,
    mood: u32,
    steps: u32,
    /// The largest budget so far: what a smaller one takes back may still be in use.
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

    /// Lets the filler do what its mood allows, between two datagrams; how many steps it took.
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

    /// Changes the budget under way.
    pub(crate) fn resize(&mut self, budget_bytes: usize) {
        self.pool.set_budget(budget_bytes).expect("memory");
        self.most_bytes = self.most_bytes.max(budget_bytes);
    }

    /// What the pool holds beyond what it may, if it does.
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

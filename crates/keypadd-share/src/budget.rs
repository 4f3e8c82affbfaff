//! Shares out an amount, such as bytes of memory, among holders whose parts change often.
//!
//! Takes no lock: event loops use it. Unlike [`Shares`](crate::Shares) it knows no holders by name,
//! and grants a part of what is wanted rather than nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::threshold;

/// An amount of which holders have parts.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    taken: AtomicU64,
}

impl Budget {
    /// A budget of `total`.
    pub const fn new(total: u64) -> Self {
        Self { total, taken: AtomicU64::new(0) }
    }

    /// A budget of which everybody gets what they want.
    pub const fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// What holders have.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// What nobody has.
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.taken())
    }

    /// Counts what a holder has from now on, whether or not it is entitled to it.
    pub fn change(&self, from: u64, to: u64) {
        // Wraps around, as the counter does.
        self.taken.fetch_add(to.wrapping_sub(from), Relaxed);
    }

    /// Exchanges what a holder has for what it wants, as far as it is entitled (`threshold`);
    /// returns what it has then. What it has and still wants is never taken away.
    fn exchange(&self, ratio: (u64, u64), has: u64, wanted: u64) -> u64 {
        let grant = |taken: u64| {
            let free = self.total.saturating_sub(taken);
            wanted.min(threshold(ratio, has, free).max(has))
        };
        let exchanged = |taken: u64| Some(taken.wrapping_sub(has).wrapping_add(grant(taken)));
        match self.taken.fetch_update(Relaxed, Relaxed, exchanged) {
            Ok(taken) | Err(taken) => grant(taken),
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

/// What one holder has of a budget, until it is dropped.
#[derive(Debug)]
pub struct Part {
    budget: Arc<Budget>,
    amount: u64,
}

impl Part {
    /// Nothing of this budget.
    pub const fn of(budget: Arc<Budget>) -> Self {
        Self { budget, amount: 0 }
    }

    /// How much it is.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Becomes `wanted`, as far as the holder is entitled: what it takes more makes its part at
    /// most `up / (up + down)` of itself and what is free. Returns how much it is then.
    pub fn set(&mut self, wanted: u64, ratio: (u64, u64)) -> u64 {
        self.amount = self.budget.exchange(ratio, self.amount, wanted);
        self.amount
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.budget.change(self.amount, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_is_wanted_as_far_as_its_holder_is_entitled_and_comes_back_when_dropped() {
        let budget = Arc::new(Budget::new(400));
        let mut greedy = Part::of(Arc::clone(&budget));
        assert_eq!(greedy.set(100, (3, 1)), 100);
        assert_eq!(greedy.set(1_000, (3, 1)), 300, "three quarters of all");
        assert_eq!(greedy.set(350, (1, 3)), 300, "what it has is not taken away");
        assert_eq!((budget.taken(), budget.free()), (300, 100));
        let mut late = Part::of(Arc::clone(&budget));
        assert_eq!(late.set(1_000, (1, 1)), 50);
        assert_eq!(greedy.set(10, (1, 1)), 10, "it gives some back");
        drop(greedy);
        assert_eq!((late.amount(), budget.taken()), (50, 50));
        drop(late);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_is_counted_beyond_the_total_leaves_nothing_free_until_it_is_gone() {
        let budget = Arc::new(Budget::new(10));
        budget.change(0, 15);
        assert_eq!(budget.free(), 0);
        let mut part = Part::of(Arc::clone(&budget));
        assert_eq!(part.set(5, (1, 1)), 0);
        budget.change(15, 0);
        assert_eq!(part.set(5, (1, 1)), 5);
    }

    #[test]
    fn everybody_gets_all_of_what_has_no_limit() {
        let budget = Arc::new(Budget::unlimited());
        let mut parts = [(); 9].map(|()| Part::of(Arc::clone(&budget)));
        assert!(
            parts
                .iter_mut()
                .all(|part| part.set(u64::from(u32::MAX), (1, 255)) == u64::from(u32::MAX))
        );
    }
}

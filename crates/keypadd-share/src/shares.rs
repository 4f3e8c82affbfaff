//! Shares something countable out among holders, and counts what each has until it is dropped.
//!
//! Two rules: each holder may have a fixed number, or all together a total, of which each may have
//! as much as it leaves free (`threshold`).

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::threshold::threshold;

/// What is shared out; clones share it. A holder of nothing takes no memory.
#[derive(Clone, Debug)]
pub struct Shares<H: Clone + Eq + Hash>(Arc<Mutex<State<H>>>);

/// What one holder was given, until it is dropped.
#[derive(Debug)]
pub struct Share<H: Clone + Eq + Hash> {
    of: Shares<H>,
    holder: H,
    count: usize,
}

#[derive(Debug)]
struct State<H: Clone + Eq + Hash> {
    rule: Rule,
    taken: usize,
    by_holder: HashMap<H, usize>,
    /// In order of arrival.
    waiting: Vec<Waiting<H>>,
}

#[derive(Debug)]
enum Rule {
    /// Each holder may have this many.
    Each(usize),
    /// All together may have this many, each of them as many as it leaves free.
    Total(usize),
}

#[derive(Debug)]
struct Waiting<H: Clone + Eq + Hash> {
    holder: H,
    count: usize,
    grant: oneshot::Sender<Share<H>>,
}

impl<H: Clone + Eq + Hash> Shares<H> {
    /// Each holder may have this many, whatever others have.
    pub fn of_each(max: usize) -> Self {
        Self::new(Rule::Each(max))
    }

    /// All together may have this many, and each as many as it leaves free.
    pub fn of_total(total: usize) -> Self {
        Self::new(Rule::Total(total))
    }

    fn new(rule: Rule) -> Self {
        let (by_holder, waiting) = (HashMap::new(), Vec::new());
        Self(Arc::new(Mutex::new(State { rule, taken: 0, by_holder, waiting })))
    }

    /// Each holder, or all together, may have this many from now on. Nothing is taken back.
    pub fn set_max(&self, max: usize) {
        match &mut self.state().rule {
            Rule::Each(each) => *each = max,
            Rule::Total(total) => *total = max,
        }
        self.grant();
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.state().taken
    }

    /// How many this holder has.
    pub fn of(&self, holder: &H) -> usize {
        self.state().of(holder)
    }

    /// Gives the holder `count`, if its share allows.
    pub fn try_take(&self, holder: H, count: usize) -> Option<Share<H>> {
        let mut state = self.state();
        state.allows(&holder, 0, count).then(|| self.give(&mut state, holder, count))
    }

    /// Gives the holder `count` once its share allows. Those that wait are served in order, except
    /// that nobody waits for one whose share does not allow it.
    pub async fn take(&self, holder: H, count: usize) -> Share<H> {
        let granted = {
            let mut state = self.state();
            if state.allows(&holder, 0, count) {
                return self.give(&mut state, holder, count);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.retain(|it| !it.grant.is_closed());
            state.waiting.push(Waiting { holder, count, grant });
            granted
        };
        granted.await.expect("only a grant ends the wait")
    }

    /// Whether the holder's share would allow `count` more if it gave back `returned`.
    pub fn would_allow(&self, holder: &H, returned: usize, count: usize) -> bool {
        self.state().allows(holder, returned, count)
    }

    /// Counts what the holder has already, whatever its share.
    pub fn adopt(&self, holder: H, count: usize) -> Share<H> {
        self.give(&mut self.state(), holder, count)
    }

    fn give(&self, state: &mut State<H>, holder: H, count: usize) -> Share<H> {
        state.taken += count;
        *state.by_holder.entry(holder.clone()).or_default() += count;
        Share { of: self.clone(), holder, count }
    }

    /// Gives what is free to those that wait and whose shares allow it, and wakes nobody else.
    fn grant(&self) {
        while let Some((grant, granted)) = self.next_grant() {
            // If it no longer waits, this is dropped here, which grants it to the next.
            let _ = grant.send(granted);
        }
    }

    fn next_grant(&self) -> Option<(oneshot::Sender<Share<H>>, Share<H>)> {
        let mut state = self.state();
        state.waiting.retain(|it| !it.grant.is_closed());
        let next = state.waiting.iter().position(|it| state.allows(&it.holder, 0, it.count))?;
        let Waiting { holder, count, grant } = state.waiting.remove(next);
        Some((grant, self.give(&mut state, holder, count)))
    }

    /// A panic cannot leave the counts half changed.
    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Clone + Eq + Hash> State<H> {
    fn of(&self, holder: &H) -> usize {
        self.by_holder.get(holder).copied().unwrap_or(0)
    }

    fn allows(&self, holder: &H, returned: usize, count: usize) -> bool {
        let own = self.of(holder).saturating_sub(returned);
        let most = match self.rule {
            Rule::Each(max) => max,
            Rule::Total(total) => {
                let free = total.saturating_sub(self.taken.saturating_sub(returned));
                threshold((1, 1), own as u64, free as u64) as usize
            }
        };
        own.saturating_add(count) <= most
    }
}

impl<H: Clone + Eq + Hash> Drop for Share<H> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.taken -= self.count;
        if let Some(held) = state.by_holder.get_mut(&self.holder) {
            *held -= self.count;
            if *held == 0 {
                state.by_holder.remove(&self.holder);
            }
        }
        drop(state);
        self.of.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll, Wake, Waker},
    };

    use super::*;

    /// Takes one at a time until refused.
    fn take_all(shares: &Shares<u8>, holder: u8) -> Vec<Share<u8>> {
        std::iter::from_fn(|| shares.try_take(holder, 1)).collect()
    }

    #[test]
    fn the_limit_holds_for_each_owner_and_frees_memory() {
        let shares = Shares::of_each(2);
        let [one, two] = [(); 2].map(|()| shares.try_take("key", 1).unwrap());
        assert!(shares.try_take("key", 1).is_none());
        assert!(shares.try_take("other", 1).is_some());
        drop((one, two));
        assert!(shares.state().by_holder.is_empty());
    }

    #[test]
    fn a_greedy_holder_leaves_as_many_free_as_it_has_and_the_next_gets_some() {
        let shares = Shares::of_total(600);
        let first = take_all(&shares, 1);
        assert_eq!(first.len(), 300);
        let second = take_all(&shares, 2);
        assert_eq!(second.len(), 150);
        let third = take_all(&shares, 3);
        assert_eq!(third.len(), 75);
        assert_eq!(shares.taken(), 525);
        drop(first);
        assert_eq!(take_all(&shares, 4).len(), 187);
        drop((second, third));
        assert_eq!(shares.taken(), 0);
        assert!(shares.state().by_holder.is_empty());
    }

    #[test]
    fn what_was_open_before_counts_beyond_the_share_of_its_holder() {
        let shares = Shares::of_total(8);
        let adopted = [5, 2].map(|count| shares.adopt(1, count));
        assert_eq!((shares.taken(), shares.of(&1)), (7, 7));
        assert!(take_all(&shares, 1).is_empty() && take_all(&shares, 2).is_empty());
        assert!(shares.would_allow(&1, 5, 2) && !shares.would_allow(&1, 5, 3));
        drop(adopted);
        assert_eq!(take_all(&shares, 1).len(), 4);
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(
        waiting: &mut Pin<Box<impl Future<Output = Share<u8>>>>,
        wakes: &Arc<Wakes>,
    ) -> Poll<Share<u8>> {
        waiting.as_mut().poll(&mut Context::from_waker(&Arc::clone(wakes).into()))
    }

    #[test]
    fn a_release_wakes_only_the_first_whose_share_allows_it() {
        let shares = Shares::of_total(8);
        let greedy = shares.adopt(0, 4);
        let [other, released] = [2, 2].map(|count| shares.adopt(9, count));
        let wakes: [Arc<Wakes>; 3] = Default::default();
        let wake_ups = || wakes.each_ref().map(|one| one.0.load(Ordering::Relaxed));
        let mut waiting: Vec<_> =
            (0..3).map(|holder| Some(Box::pin(shares.take(holder, 1)))).collect();
        for (one, it) in waiting.iter_mut().flatten().enumerate() {
            assert!(poll(it, &wakes[one]).is_pending());
        }
        drop(released);
        assert_eq!(wake_ups(), [0, 1, 0], "the first one has half of the total");
        // The next one gets what another was granted and no longer waits for.
        waiting[1] = None;
        assert_eq!(wake_ups(), [0, 1, 1]);
        assert!(waiting[2].as_mut().is_some_and(|it| poll(it, &wakes[2]).is_ready()));
        drop((greedy, other));
        assert_eq!(wake_ups(), [1, 1, 1]);
    }

    #[test]
    fn a_larger_total_is_granted_to_those_that_wait() {
        let shares = Shares::of_total(1);
        let mut waiting = pin!(shares.take(1, 1));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(context).is_pending());
        shares.set_max(2);
        assert!(waiting.as_mut().poll(context).is_ready());
    }
}

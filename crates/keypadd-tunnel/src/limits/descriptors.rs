//! Shares the process's file descriptors among peers.
//!
//! A budget holds what forwards may use; the rest is for this end's own listeners, and a reserve for
//! control, metrics, lookups and new sessions. A peer gets another descriptor only if at least as
//! many stay free as it then holds: one greedy peer gets half of the budget, two a third each, and
//! there is always room for the next one.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use keypadd_provider::PublicKey;
use keypadd_share::Rates;
use tokio::sync::oneshot;
use tracing::warn;

/// Descriptors of a forwarded connection: its socket, in two event loops once it is bulk.
pub(crate) const OF_CONNECTION: usize = 2;

/// Descriptors of a connection carried for another process: as above, the other end of the socket pair
/// between the two, and the socket over which that process learns how it ended, with a copy for the
/// process that takes over.
pub(crate) const OF_CARRIED: usize = OF_CONNECTION + 3;

/// The descriptor of a connection that waits at a remote forward, whose sockets have one each.
pub(crate) const OF_WAITING: usize = 1;

/// Descriptors of a UDP flow with its own socket.
pub(crate) const OF_FLOW: usize = 1;

/// Descriptors of a socket of a UDP remote forward: here and in an event loop.
pub(crate) const OF_UDP_SOCKET: usize = 2;

/// Who holds descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// A peer that opens streams or listens here.
    Peer(PublicKey),
    /// Local programs that use the forwards of this client.
    Client(u64),
}

impl Holder {
    /// A client's own programs.
    pub(crate) fn client() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::Client(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The descriptors of forwards; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    /// What the process may open beside what is set apart, and how much of that is the reserve.
    files: usize,
    reserved: fn(usize) -> usize,
    held: Mutex<Holding>,
    refused: AtomicU64,
    log_limit: Rates<Holder>,
}

#[derive(Debug, Default)]
struct Holding {
    /// Those of this end's own listeners.
    apart: usize,
    sum: usize,
    by_holder: HashMap<Holder, usize>,
    /// Who waits for their shares to allow more, in order of arrival.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    holder: Holder,
    count: usize,
    grant: oneshot::Sender<Descriptors>,
}

/// Descriptors set aside for a holder until this is dropped.
#[derive(Debug)]
pub(crate) struct Descriptors {
    budget: DescriptorBudget,
    holder: Holder,
    count: usize,
}

/// Descriptors that are not the budget's until this is dropped.
#[derive(Debug)]
pub(crate) struct SetApart {
    budget: DescriptorBudget,
    count: usize,
}

impl Default for BudgetState {
    fn default() -> Self {
        Self {
            files: usize::MAX,
            reserved: |_| 0,
            held: Mutex::default(),
            refused: AtomicU64::default(),
            log_limit: Rates::log_lines(),
        }
    }
}

impl DescriptorBudget {
    /// A budget of `files` without the reserve: a function of those that are not set apart.
    pub(crate) fn new(files: usize, reserved: fn(usize) -> usize) -> Self {
        Self(Arc::new(BudgetState { files, reserved, ..BudgetState::default() }))
    }

    /// The size of the budget.
    pub(crate) fn total(&self) -> usize {
        self.0.total(&self.held())
    }

    /// Takes descriptors out of the budget that this end opens for itself, however many are free.
    pub(crate) fn set_apart(&self, count: usize) -> SetApart {
        self.held().apart += count;
        SetApart { budget: self.clone(), count }
    }

    /// Descriptors held now, and how often some were refused.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.held().sum, self.0.refused.load(Ordering::Relaxed))
    }

    /// Sets `count` descriptors aside, if the holder's share allows. Logs a refusal, at most once a
    /// minute for each holder; `name` is the holder's name in the log.
    pub(crate) fn acquire(&self, holder: Holder, name: &str, count: usize) -> Option<Descriptors> {
        let granted = self.try_acquire(holder, count);
        if granted.is_none() {
            self.refused(holder, name);
        }
        granted
    }

    /// The same, but waits until the holder's share allows it.
    pub(crate) async fn acquire_when_free(
        &self,
        holder: Holder,
        name: &str,
        count: usize,
    ) -> Descriptors {
        match self.acquire(holder, name, count) {
            Some(granted) => granted,
            None => self.when_free(holder, count).await,
        }
    }

    /// Waits until the holder's share allows it; counts and logs nothing.
    pub(crate) async fn when_free(&self, holder: Holder, count: usize) -> Descriptors {
        let granted = {
            let mut held = self.held();
            if self.0.allows(&held, (holder, 0), count) {
                return self.take(&mut held, holder, count);
            }
            let (grant, granted) = oneshot::channel();
            held.waiting.retain(|it| !it.grant.is_closed());
            held.waiting.push(Waiting { holder, count, grant });
            granted
        };
        granted.await.expect("only a grant ends the wait")
    }

    /// Gives what is free to those that wait and whose shares allow it, and wakes nobody else.
    fn grant(&self) {
        while let Some((grant, granted)) = self.next_grant() {
            // If it no longer waits, they are dropped here, which grants them to the next.
            let _ = grant.send(granted);
        }
    }

    fn next_grant(&self) -> Option<(oneshot::Sender<Descriptors>, Descriptors)> {
        let mut held = self.held();
        held.waiting.retain(|it| !it.grant.is_closed());
        let allows = |it: &Waiting| self.0.allows(&held, (it.holder, 0), it.count);
        let next = held.waiting.iter().position(allows)?;
        let Waiting { holder, count, grant } = held.waiting.remove(next);
        Some((grant, self.take(&mut held, holder, count)))
    }

    /// Sets `count` descriptors aside, if the holder's share allows; counts and logs nothing.
    pub(crate) fn try_acquire(&self, holder: Holder, count: usize) -> Option<Descriptors> {
        let mut held = self.held();
        self.0.allows(&held, (holder, 0), count).then(|| self.take(&mut held, holder, count))
    }

    /// Whether the holder's share would allow `count` more if it gave back `returned`.
    pub(crate) fn would_allow(&self, holder: Holder, returned: usize, count: usize) -> bool {
        self.0.allows(&self.held(), (holder, returned), count)
    }

    /// Sets aside descriptors that are open already, whatever the holder's share.
    pub(crate) fn adopt(&self, holder: Holder, count: usize) -> Descriptors {
        self.take(&mut self.held(), holder, count)
    }

    fn take(&self, held: &mut Holding, holder: Holder, count: usize) -> Descriptors {
        held.sum += count;
        *held.by_holder.entry(holder).or_default() += count;
        Descriptors { budget: self.clone(), holder, count }
    }

    fn refused(&self, holder: Holder, name: &str) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        if self.0.log_limit.allow(holder, Instant::now()) {
            let held = self.held();
            let own = held.by_holder.get(&holder).copied().unwrap_or(0);
            let budget = self.0.total(&held);
            let free = budget.saturating_sub(held.sum);
            drop(held);
            let total = self.0.refused.load(Ordering::Relaxed);
            warn!(
                peer = name,
                held = own,
                free,
                budget,
                refused = total,
                "too many open files: forwards of this peer are refused or wait; to allow more, \
                 raise the limit (`ulimit -n`, LimitNOFILE=)"
            );
        }
    }

    /// A panic cannot leave the counts half changed.
    fn held(&self) -> MutexGuard<'_, Holding> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    fn total(&self, held: &Holding) -> usize {
        let files = self.files.saturating_sub(held.apart);
        files.saturating_sub((self.reserved)(files))
    }

    fn allows(&self, held: &Holding, (holder, returned): (Holder, usize), count: usize) -> bool {
        let own = held.by_holder.get(&holder).copied().unwrap_or(0);
        let sum = held.sum.saturating_sub(returned).saturating_add(count);
        let free = self.total(held).checked_sub(sum);
        free.is_some_and(|free| own.saturating_sub(returned) + count <= free)
    }
}

impl Drop for SetApart {
    fn drop(&mut self) {
        self.budget.held().apart -= self.count;
        self.budget.grant();
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let mut held = self.budget.held();
        held.sum -= self.count;
        if let Some(own) = held.by_holder.get_mut(&self.holder) {
            *own -= self.count;
            if *own == 0 {
                held.by_holder.remove(&self.holder);
            }
        }
        drop(held);
        self.budget.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::atomic::AtomicUsize,
        task::{Context, Poll, Wake},
    };

    use super::*;

    /// Takes one at a time until refused.
    fn acquire_all(budget: &DescriptorBudget, holder: u64) -> Vec<Descriptors> {
        std::iter::from_fn(|| budget.acquire(Holder::Client(holder), "greedy", 1)).collect()
    }

    #[test]
    fn a_greedy_holder_leaves_as_many_free_as_it_has_and_the_next_gets_some() {
        let budget = DescriptorBudget::new(600, |_| 0);
        let first = acquire_all(&budget, 1);
        assert_eq!(first.len(), 300);
        let second = acquire_all(&budget, 2);
        assert_eq!(second.len(), 150);
        let third = acquire_all(&budget, 3);
        assert_eq!(third.len(), 75);
        assert_eq!(budget.counts(), (525, 3));
        drop(first);
        assert_eq!(acquire_all(&budget, 4).len(), 187);
        drop((second, third));
        assert_eq!(budget.counts().0, 0);
        assert!(budget.held().by_holder.is_empty());
    }

    #[test]
    fn what_was_open_before_counts_beyond_the_share_of_its_holder() {
        let (budget, holder) = (DescriptorBudget::new(8, |_| 0), Holder::Client(1));
        let adopted = [5, 2].map(|count| budget.adopt(holder, count));
        assert_eq!(budget.counts(), (7, 0));
        assert!(acquire_all(&budget, 1).is_empty() && acquire_all(&budget, 2).is_empty());
        assert!(budget.would_allow(holder, 5, 2) && !budget.would_allow(holder, 5, 3));
        drop(adopted);
        assert_eq!(acquire_all(&budget, 1).len(), 4);
    }

    #[test]
    fn what_is_set_apart_is_neither_the_budgets_nor_the_reserves() {
        let budget = DescriptorBudget::new(900, |files| files / 3);
        assert_eq!(budget.total(), 600);
        let apart = budget.set_apart(300);
        assert_eq!((budget.total(), acquire_all(&budget, 1).len()), (400, 200));
        let more = budget.set_apart(1_000);
        assert!(budget.total() == 0 && acquire_all(&budget, 1).is_empty());
        drop((apart, more));
        assert_eq!(budget.total(), 600);
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(
        waiting: &mut Pin<Box<impl Future<Output = Descriptors>>>,
        wakes: &Arc<Wakes>,
    ) -> Poll<Descriptors> {
        waiting.as_mut().poll(&mut Context::from_waker(&Arc::clone(wakes).into()))
    }

    #[test]
    fn a_release_wakes_only_the_first_whose_share_allows_it() {
        let budget = DescriptorBudget::new(8, |_| 0);
        let greedy = budget.adopt(Holder::Client(0), 4);
        let [other, released] = [2, 2].map(|count| budget.adopt(Holder::Client(9), count));
        let wakes: [Arc<Wakes>; 3] = Default::default();
        let wake_ups = || wakes.each_ref().map(|one| one.0.load(Ordering::Relaxed));
        let mut waiting: Vec<_> = (0..3)
            .map(|holder| Some(Box::pin(budget.when_free(Holder::Client(holder), 1))))
            .collect();
        for (one, it) in waiting.iter_mut().flatten().enumerate() {
            assert!(poll(it, &wakes[one]).is_pending());
        }
        drop(released);
        assert_eq!(wake_ups(), [0, 1, 0], "the first one has half of the budget");
        // The next one gets what another was granted and no longer waits for.
        waiting[1] = None;
        assert_eq!(wake_ups(), [0, 1, 1]);
        assert!(waiting[2].as_mut().is_some_and(|it| poll(it, &wakes[2]).is_ready()));
        drop((greedy, other));
        assert_eq!(wake_ups(), [1, 1, 1]);
    }

    #[tokio::test]
    async fn who_waits_gets_descriptors_when_some_are_released() {
        let budget = DescriptorBudget::new(4, |_| 0);
        let held = budget.acquire(Holder::Client(1), "one", 2).unwrap();
        let waiting = budget.acquire_when_free(Holder::Client(1), "one", 2);
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("over its share"),
            () = tokio::task::yield_now() => {}
        }
        drop(held);
        drop(waiting.await);
        assert_eq!(budget.counts(), (0, 1));
    }
}

//! Shares the process's file descriptors among peers.
//!
//! A budget holds what forwards may use; the rest is for this end's own listeners, and a reserve
//! for control, metrics, lookups and new sessions. A peer may hold as many as it leaves free
//! (`keypadd_share::threshold`).

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use keypadd_provider::PublicKey;
use keypadd_share::{Rates, Share, Shares};
use tracing::warn;

/// Descriptors of a forwarded connection: its socket, in two event loops once it is bulk.
pub(crate) const OF_CONNECTION: usize = 2;

/// Descriptors of a connection carried for another process: its socket as that of any connection,
/// the other end of the socket pair between the two, and the socket over which that process learns
/// how it ended, with a copy for the process that takes over.
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

/// Descriptors set aside for a holder until this is dropped.
pub(crate) type Descriptors = Share<Holder>;

/// The descriptors of forwards; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    /// What the process may open beside what is set apart, and how much of that is the reserve.
    files: usize,
    reserved: fn(usize) -> usize,
    /// Descriptors of this end's own listeners.
    apart: Mutex<usize>,
    /// The most that memory allows.
    of_memory: usize,
    shares: Shares<Holder>,
    refused: AtomicU64,
    log_limit: Rates<Holder>,
}

const TOO_FEW_FILES: &str = "too many open files: forwards of this peer are refused or wait; to \
                             allow more, raise the limit (`ulimit -n`, LimitNOFILE=)";
const TOO_LITTLE_MEMORY: &str = "too little memory: forwards of this peer are refused or wait; to \
                                 allow more, raise the limit of the container or unit (MemoryMax=)";

/// Descriptors that are not the budget's until this is dropped.
#[derive(Debug)]
pub(crate) struct SetApart {
    budget: DescriptorBudget,
    count: usize,
}

impl Default for DescriptorBudget {
    fn default() -> Self {
        Self::new(usize::MAX, |_| 0, usize::MAX)
    }
}

impl DescriptorBudget {
    /// A budget of `files` without the reserve, a function of those that are not set apart, and no
    /// more than memory allows.
    pub(crate) fn new(files: usize, reserved: fn(usize) -> usize, of_memory: usize) -> Self {
        Self(Arc::new(BudgetState {
            files,
            reserved,
            apart: Mutex::new(0),
            of_memory,
            shares: Shares::of_total(files.saturating_sub(reserved(files)).min(of_memory)),
            refused: AtomicU64::default(),
            log_limit: Rates::log_lines(),
        }))
    }

    /// The size of the budget.
    pub(crate) fn total(&self) -> usize {
        self.total_without(*self.apart())
    }

    fn total_without(&self, apart: usize) -> usize {
        let files = self.0.files.saturating_sub(apart);
        files.saturating_sub((self.0.reserved)(files)).min(self.0.of_memory)
    }

    /// Takes descriptors out of the budget that this end opens for itself, however many are free.
    pub(crate) fn set_apart(&self, count: usize) -> SetApart {
        self.change_apart(|apart| apart + count);
        SetApart { budget: self.clone(), count }
    }

    fn change_apart(&self, change: impl FnOnce(usize) -> usize) {
        let mut apart = self.apart();
        *apart = change(*apart);
        self.0.shares.set_max(self.total_without(*apart));
    }

    /// Descriptors held now, and how often some were refused.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.0.shares.taken(), self.0.refused.load(Ordering::Relaxed))
    }

    /// The shares of all holders. A refusal that these give is neither counted nor logged.
    pub(crate) fn shares(&self) -> &Shares<Holder> {
        &self.0.shares
    }

    /// Sets `count` descriptors aside, if the holder's share allows. Logs a refusal, at most once a
    /// minute for each holder; `name` is the holder's name in the log.
    pub(crate) fn acquire(&self, holder: Holder, name: &str, count: usize) -> Option<Descriptors> {
        let granted = self.0.shares.try_take(holder, count);
        if granted.is_none() {
            self.refused(holder, name);
        }
        granted
    }

    /// Sets `count` descriptors aside once the holder's share allows. Logs the wait as a refusal.
    pub(crate) async fn acquire_when_free(
        &self,
        holder: Holder,
        name: &str,
        count: usize,
    ) -> Descriptors {
        match self.acquire(holder, name, count) {
            Some(granted) => granted,
            None => self.0.shares.take(holder, count).await,
        }
    }

    fn refused(&self, holder: Holder, name: &str) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        if self.0.log_limit.allow(holder, Instant::now()) {
            let (budget, (taken, refused)) = (self.total(), self.counts());
            let line = if budget < self.0.of_memory { TOO_FEW_FILES } else { TOO_LITTLE_MEMORY };
            warn!(
                peer = name,
                held = self.0.shares.of(&holder),
                free = budget.saturating_sub(taken),
                budget,
                refused,
                "{line}"
            );
        }
    }

    /// A panic cannot leave the count half changed.
    fn apart(&self) -> MutexGuard<'_, usize> {
        self.0.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SetApart {
    fn drop(&mut self) {
        self.budget.change_apart(|apart| apart - self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one at a time until refused.
    fn acquire_all(budget: &DescriptorBudget, holder: u64) -> Vec<Descriptors> {
        std::iter::from_fn(|| budget.acquire(Holder::Client(holder), "greedy", 1)).collect()
    }

    #[test]
    fn what_is_set_apart_is_neither_the_budgets_nor_the_reserves() {
        let budget = DescriptorBudget::new(900, |files| files / 3, usize::MAX);
        assert_eq!(budget.total(), 600);
        let apart = budget.set_apart(300);
        assert_eq!((budget.total(), acquire_all(&budget, 1).len()), (400, 200));
        let more = budget.set_apart(1_000);
        assert!(budget.total() == 0 && acquire_all(&budget, 1).is_empty());
        drop((apart, more));
        assert_eq!(budget.total(), 600);
    }

    #[test]
    fn memory_allows_fewer_than_open_files_do() {
        let budget = DescriptorBudget::new(900, |files| files / 3, 200);
        assert_eq!((budget.total(), acquire_all(&budget, 1).len()), (200, 100));
        let apart = budget.set_apart(750);
        assert_eq!(budget.total(), 100, "there are not even as many files");
        drop(apart);
        assert_eq!(budget.total(), 200);
    }

    #[tokio::test]
    async fn who_waits_gets_descriptors_when_some_are_released() {
        let budget = DescriptorBudget::new(4, |_| 0, usize::MAX);
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

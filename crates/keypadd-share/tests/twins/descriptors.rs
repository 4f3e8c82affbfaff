//! Shares the process's file descriptors among peers.
//!
//! A budget holds what forwards may use; the rest is for this end's own listeners, and a reserve for
//! control, metrics, lookups and new sessions. A peer gets another descriptor only if at least as
//! many stay free as it then holds: one greedy peer gets half of the budget, two a third each, and
//! there is always room for the next one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Who holds descriptors.
pub(crate) type Holder = u8;

/// The descriptors of forwards; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    /// What the process may open beside what is set apart, and how much of that is the reserve.
    files: usize,
    reserved: fn(usize) -> usize,
    held: Mutex<Holding>,
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
        Self { files: usize::MAX, reserved: |_| 0, held: Mutex::default() }
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

    /// Descriptors held now.
    pub(crate) fn held_now(&self) -> usize {
        self.held().sum
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

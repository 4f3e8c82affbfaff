//! Shares the places for connections of a session among its forwards.
//!
//! A forward gets another place only if as many are free for each forward with connections that wait for their
//! targets as it has of those itself: those whose targets do not answer leave half of the places to the others.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::forwards::open_stream::place_of_connection;

/// All places. A client's last longer than its sessions.
#[derive(Debug)]
pub(crate) struct Places {
    /// As many as this end allows.
    pub(crate) max: usize,
    /// As many as both ends allow.
    limit: AtomicUsize,
    taken: AtomicUsize,
    /// Forwards with connections that wait.
    waiting: AtomicUsize,
    /// A place is free again, or its connection no longer waits.
    changed: Notify,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Places>);

/// The places that one forward takes.
#[derive(Debug)]
pub(crate) struct ForwardPlaces {
    all: Arc<Places>,
    waiting: AtomicUsize,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Arc<ForwardPlaces>,
    slot: Option<Slot>,
    waits: bool,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let (taken, waiting, changed) = <_>::default();
        Arc::new(Self { max, limit: max.into(), taken, waiting, changed })
    }

    /// Takes note of how many connections the other end allows.
    pub(crate) fn allow(&self, count: u32) {
        self.limit.store(self.max.min(count as usize), Relaxed);
        self.changed.notify_waiters();
    }

    /// As many as both ends allow.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    fn free(&self) -> usize {
        self.limit().saturating_sub(self.taken.load(Relaxed))
    }

    pub(crate) fn of_forward(self: &Arc<Self>) -> Arc<ForwardPlaces> {
        Arc::new(ForwardPlaces { all: Arc::clone(self), waiting: AtomicUsize::new(0) })
    }

    /// Takes a place, if one is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let more = |taken| (taken < self.limit()).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Slot(Arc::clone(self)))
    }

    /// Takes a place once one is free.
    pub(crate) async fn take(self: &Arc<Self>) -> Slot {
        loop {
            let changed = self.changed.notified();
            if let Some(slot) = self.try_take() {
                return slot;
            }
            changed.await;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
        self.0.changed.notify_waiters();
    }
}

impl ForwardPlaces {
    /// Whether the forward's connections that wait leave a place to another one of it.
    fn has_room(&self) -> bool {
        let waiting = self.waiting.load(Relaxed);
        waiting == 0 || waiting.saturating_mul(self.all.waiting.load(Relaxed)) <= self.all.free()
    }

    /// Whether a connection gets a place without waiting.
    pub(crate) fn is_free(&self) -> bool {
        self.has_room() && self.all.free() > 0
    }

    /// Takes a place for a connection, which waits for its target from now on, if that is possible without
    /// waiting.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Place> {
        if self.has_room() { self.all.try_take().map(|slot| self.place(slot)) } else { None }
    }

    /// The same, but waits for it. `displace` ends a UDP flow that has been idle for this long, if there is one.
    pub(crate) async fn take(self: &Arc<Self>, displace: &(dyn Fn(Duration) + Sync)) -> Place {
        loop {
            let changed = self.all.changed.notified();
            if self.has_room() {
                break;
            }
            changed.await;
        }
        let slot = place_of_connection(self.all.take(), displace).await;
        self.place(slot)
    }

    fn place(self: &Arc<Self>, slot: Slot) -> Place {
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.all.waiting.fetch_add(1, Relaxed);
        }
        Place { of: Arc::clone(self), slot: Some(slot), waits: true }
    }
}

impl Place {
    /// Its connection waits for the target no longer.
    pub(crate) fn connected(&mut self) {
        if mem::take(&mut self.waits) {
            if self.of.waiting.fetch_sub(1, Relaxed) == 1 {
                self.of.all.waiting.fetch_sub(1, Relaxed);
            }
            self.of.all.changed.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.slot = None;
        self.connected();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places until it would have to wait.
    async fn take_all(forward: &Arc<ForwardPlaces>) -> Vec<Place> {
        let mut taken = Vec::new();
        loop {
            tokio::select! {
                biased;
                place = forward.take(&|_| ()) => taken.push(place),
                () = std::future::ready(()) => return taken,
            }
        }
    }

    #[tokio::test]
    async fn a_forward_whose_target_is_silent_leaves_places_to_others() {
        let places = Places::new(1_000);
        let [silent, other, third] = [(); 3].map(|()| places.of_forward());
        let mut waiting = take_all(&silent).await;
        assert_eq!(waiting.len(), 501);
        assert_eq!(take_all(&other).await.len(), 167);
        // Those were given back. Connections whose targets answer take all.
        let mut open = Vec::new();
        while third.is_free() {
            let mut place = third.take(&|_| ()).await;
            place.connected();
            open.push(place);
        }
        assert_eq!(open.len(), 499);

        let next = tokio::task::spawn(async move { silent.take(&|_| ()).await });
        tokio::task::yield_now().await;
        open.truncate(100);
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        for place in &mut waiting[..501 - 399] {
            place.connected();
        }
        tokio::time::timeout(Duration::from_secs(30), next).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn forwards_whose_targets_are_silent_leave_a_place_together() {
        let places = Places::new(64);
        let mut waiting = Vec::new();
        for _ in 0..10 {
            let silent = places.of_forward();
            waiting.extend(take_all(&silent).await);
        }
        assert!(places.of_forward().is_free());
    }

    #[tokio::test]
    async fn places_are_as_many_as_the_end_with_fewer_allows() {
        let places = Places::new(1_000);
        let [silent, other] = [(); 2].map(|()| places.of_forward());
        let waiting = take_all(&silent).await;
        places.allow(64);
        // More than that are taken already.
        assert!(!other.is_free());
        drop(waiting);
        assert_eq!(take_all(&silent).await.len(), 33);
        places.allow(2_000);
        assert_eq!(take_all(&silent).await.len(), 501);
    }

    #[tokio::test]
    async fn a_client_with_one_place_uses_it() {
        let forward = Places::new(1).of_forward();
        for _ in 0..2 {
            assert_eq!(take_all(&forward).await.len(), 1);
        }
    }
}

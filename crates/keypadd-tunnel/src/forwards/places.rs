//! Shares the places for connections among the forwards of a client.
//!
//! A forward gets another place only if at least as many are free as it has connections that wait for their
//! targets: one whose target does not answer leaves half of the places to the others.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::forwards::open_stream::place_of_connection;

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) max: usize,
    /// A place is free again, or its connection no longer waits.
    changed: Notify,
}

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
    slot: Option<OwnedSemaphorePermit>,
    waits: bool,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let max = max.min(Semaphore::MAX_PERMITS);
        let (slots, changed) = (Arc::new(Semaphore::new(max)), Notify::new());
        Arc::new(Self { slots, max, changed })
    }

    pub(crate) fn of_forward(self: &Arc<Self>) -> Arc<ForwardPlaces> {
        Arc::new(ForwardPlaces { all: Arc::clone(self), waiting: AtomicUsize::new(0) })
    }
}

impl ForwardPlaces {
    /// Whether the forward's connections that wait leave a place to another one of it.
    fn has_room(&self) -> bool {
        let waiting = self.waiting.load(Relaxed);
        waiting == 0 || waiting <= self.all.slots.available_permits()
    }

    /// Whether a connection gets a place without waiting.
    pub(crate) fn is_free(&self) -> bool {
        self.has_room() && self.all.slots.available_permits() > 0
    }

    /// Waits until there is a place for a connection, which waits for its target from now on. `displace` ends a UDP
    /// flow that has been idle for this long, if there is one.
    pub(crate) async fn take(self: &Arc<Self>, displace: &(dyn Fn(Duration) + Sync)) -> Place {
        loop {
            let changed = self.all.changed.notified();
            if self.has_room() {
                break;
            }
            changed.await;
        }
        let slot = Arc::clone(&self.all.slots).acquire_owned();
        let slot = place_of_connection(slot, displace).await.ok();
        self.waiting.fetch_add(1, Relaxed);
        Place { of: Arc::clone(self), slot, waits: true }
    }
}

impl Place {
    /// Its connection waits for the target no longer.
    pub(crate) fn connected(&mut self) {
        let waited = mem::take(&mut self.waits);
        self.of.waiting.fetch_sub(waited.into(), Relaxed);
        self.of.all.changed.notify_waiters();
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
        assert_eq!(take_all(&other).await.len(), 250);
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
    async fn a_client_with_one_place_uses_it() {
        let forward = Places::new(1).of_forward();
        for _ in 0..2 {
            assert_eq!(take_all(&forward).await.len(), 1);
        }
    }
}

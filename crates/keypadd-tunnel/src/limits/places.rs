//! Shares the places for connections of a session among its forwards.
//!
//! A forward gets another place while `free >= waiting * holders`. `waiting` counts its own
//! connections that wait for their target, and `holders` the forwards that have any. So however
//! many forwards have targets that do not answer, they cannot use up the places: n such forwards
//! leave about 1/(n+1) of them free, if each takes more than one.

use std::{
    mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use keypadd_share::{Share, Shares};
use tokio::{sync::Notify, time::timeout};

/// A UDP flow without a datagram for this long makes room for a connection; one in use does not.
const FLOW_UNUSED: Duration = Duration::from_secs(10);

/// How often a connection that waits looks for such a flow.
const FLOW_CHECK: Duration = Duration::from_secs(1);

/// The places of a session's connections. They last as long as the client, or as the lineage of a
/// server's sessions.
#[derive(Debug)]
pub(crate) struct Places {
    /// How many this end allows.
    pub(crate) max: usize,
    /// How many both ends allow.
    limit: AtomicUsize,
    slots: Shares<()>,
    /// Forwards with connections that wait.
    waiting: AtomicUsize,
    /// Tells the forwards that a place is free, or that a connection no longer waits for its
    /// target.
    changed: Notify,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _share: Share<()>,
    /// Dropped after that.
    _freed: Freed,
}

/// Tells the forwards that a place is free when it is dropped.
#[derive(Debug)]
struct Freed(Arc<Places>);

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
    waits: bool,
    _slot: Slot,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let (waiting, changed) = <_>::default();
        let slots = Shares::of_each(max);
        Arc::new(Self { max, limit: max.into(), slots, waiting, changed })
    }

    /// Sets how many connections the other end allows; 0 counts as 1, or they would wait forever.
    pub(crate) fn set_peer_limit(&self, count: u32) {
        let limit = self.max.min(count.max(1) as usize);
        self.limit.store(limit, Relaxed);
        self.slots.set_max(limit);
        self.changed.notify_waiters();
    }

    /// Forgets what the other end allows: another one may not say it.
    pub(crate) fn forget_peer_limit(&self) {
        self.set_peer_limit(u32::MAX);
    }

    /// How many both ends allow.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    fn free(&self) -> usize {
        self.limit().saturating_sub(self.slots.taken())
    }

    pub(crate) fn of_forward(self: &Arc<Self>) -> Arc<ForwardPlaces> {
        Arc::new(ForwardPlaces { all: Arc::clone(self), waiting: AtomicUsize::new(0) })
    }

    /// Takes a place for a connection that is open already, even if none is free.
    pub(crate) fn occupy(self: &Arc<Self>) -> Slot {
        self.slot(self.slots.adopt((), 1))
    }

    /// Takes a place, if one is free and nobody waits for it.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Slot> {
        self.slots.try_take((), 1).map(|share| self.slot(share))
    }

    /// Takes a place once one is free, in the order of the calls.
    pub(crate) async fn take(self: &Arc<Self>) -> Slot {
        // Dropped after what was given to one that gives up.
        let _freed = Freed(Arc::clone(self));
        Slot { _share: self.slots.take((), 1).await, _freed }
    }

    fn slot(self: &Arc<Self>, share: Share<()>) -> Slot {
        Slot { _share: share, _freed: Freed(Arc::clone(self)) }
    }
}

impl Drop for Freed {
    fn drop(&mut self) {
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

    /// Takes a place for a connection, which waits for its target from now on, if that is possible
    /// without waiting.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Place> {
        if self.has_room() { self.all.try_take().map(|slot| self.place(slot)) } else { None }
    }

    /// Takes a place for a connection, which waits for its target from now on, once there is one.
    /// Unused UDP flows make room meanwhile: `displace` ends the flow that has been idle longest,
    /// if that is at least the given time.
    pub(crate) async fn take(self: &Arc<Self>, displace: &(dyn Fn(Duration) + Sync)) -> Place {
        loop {
            let changed = self.all.changed.notified();
            if self.has_room() {
                break;
            }
            changed.await;
        }
        let mut slot = pin!(self.all.take());
        let mut wait = Duration::ZERO;
        loop {
            if let Ok(slot) = timeout(wait, slot.as_mut()).await {
                return self.place(slot);
            }
            displace(FLOW_UNUSED);
            wait = FLOW_CHECK;
        }
    }

    fn place(self: &Arc<Self>, slot: Slot) -> Place {
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.all.waiting.fetch_add(1, Relaxed);
        }
        Place { of: Arc::clone(self), waits: true, _slot: slot }
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
        self.connected();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

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
        places.set_peer_limit(64);
        // More than that are taken already.
        assert!(!other.is_free());
        drop(waiting);
        assert_eq!(take_all(&silent).await.len(), 33);
        places.set_peer_limit(2_000);
        assert_eq!(take_all(&silent).await.len(), 501);
    }

    #[tokio::test]
    async fn a_client_with_one_place_uses_it() {
        let forward = Places::new(1).of_forward();
        for _ in 0..2 {
            assert_eq!(take_all(&forward).await.len(), 1);
        }
    }

    #[tokio::test]
    async fn a_limit_of_none_is_one() {
        let places = Places::new(8);
        places.set_peer_limit(0);
        let forward = places.of_forward();
        assert_eq!(take_all(&forward).await.len(), 1);
    }

    type Taking<'a> = (u8, Pin<Box<dyn Future<Output = Slot> + 'a>>);

    #[test]
    fn places_are_given_in_order_and_none_is_lost_with_one_that_gave_up() {
        let places = Places::new(2);
        let [first, second] = [(); 2].map(|()| places.try_take().unwrap());
        let mut waiting: Vec<Taking<'_>> =
            (0..4).map(|at| -> Taking<'_> { (at, Box::pin(places.take())) }).collect();
        let mut served = Vec::new();
        let context = &mut Context::from_waker(Waker::noop());
        let mut poll_all = |waiting: &mut Vec<Taking<'_>>| {
            waiting.retain_mut(|(at, taking)| match taking.as_mut().poll(context) {
                Poll::Ready(slot) => {
                    served.push((*at, slot));
                    false
                }
                Poll::Pending => true,
            });
        };
        poll_all(&mut waiting);
        drop(first);
        assert!(places.try_take().is_none(), "others have waited for it");
        // Who gives up has been told of it.
        drop(waiting.remove(0));
        waiting.reverse();
        poll_all(&mut waiting);
        drop(second);
        poll_all(&mut waiting);
        assert_eq!(served.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 2]);
        drop(served);
        let (_, last) = &mut waiting[0];
        assert!(last.as_mut().poll(context).is_ready());
    }
}

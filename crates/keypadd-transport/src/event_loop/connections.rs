//! Keeps a loop's connections: by key, by `quinn-proto`'s handle, and by when to drive them.
//!
//! Knows no sockets and no packets, and nothing of what a connection does.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use rustc_hash::FxHashMap;

use super::slot::{Slot, Stage};
use crate::{driver::Driver, splice::Key};

/// Most connections of a loop that have ended and wait for late packets.
const CLOSING_MAX: usize = 256;

pub(super) struct Connections<D = Driver> {
    /// Boxed: a table of slots is up to half empty, and moves when it grows.
    slots: FxHashMap<Key, Box<Slot<D>>>,
    /// By `quinn-proto`'s handles, which are reused.
    routes: FxHashMap<usize, Key>,
    /// Connections to drive.
    dirty: Vec<Key>,
    timers: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// Connections that have ended and wait for late packets, oldest first.
    closing: VecDeque<Key>,
    next_serial: u64,
}

/// A connection has panicked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Panicked;

impl<D> Connections<D> {
    pub(super) fn new() -> Self {
        Self {
            slots: FxHashMap::default(),
            routes: FxHashMap::default(),
            dirty: Vec::new(),
            timers: BinaryHeap::new(),
            closing: VecDeque::new(),
            next_serial: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// A key for a connection with this handle of `quinn-proto`'s.
    pub(super) fn next_key(&mut self, handle: usize) -> Key {
        let serial = self.next_serial;
        self.next_serial += 1;
        Key { handle, serial }
    }

    /// Adds a connection, and marks it.
    pub(super) fn insert(&mut self, slot: Slot<D>) {
        let key = slot.key;
        self.slots.insert(key, Box::new(slot));
        self.routes.insert(key.handle, key);
        self.mark(key);
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Slot<D>> {
        self.slots.get_mut(&key).map(Box::as_mut)
    }

    /// The connection that has this handle of `quinn-proto`'s.
    pub(super) fn of_handle(&self, handle: usize) -> Option<Key> {
        self.routes.get(&handle).copied()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.slots.keys().copied().collect()
    }

    /// Clients that have not proved a key yet.
    pub(super) fn strangers(&self) -> Vec<Key> {
        let strangers = self.slots.values().filter(|slot| slot.standing.is_stranger());
        strangers.map(|slot| slot.key).collect()
    }

    /// Works on a connection, if there still is one, and marks it.
    pub(super) fn work(
        &mut self,
        key: Key,
        work: impl FnOnce(&mut Slot<D>),
    ) -> Result<(), Panicked> {
        let Some(slot) = self.slots.get_mut(&key) else { return Ok(()) };
        catch_unwind(AssertUnwindSafe(|| work(slot))).map_err(|_| Panicked)?;
        slot.mark_in(&mut self.dirty);
        Ok(())
    }

    /// Marks a connection to be driven.
    pub(super) fn mark(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.mark_in(&mut self.dirty);
        }
    }

    /// Whether connections are marked.
    pub(super) fn has_marked(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// How many connections are marked.
    pub(super) fn marked(&self) -> usize {
        self.dirty.len()
    }

    /// Puts the first `count` marked connections behind the others. Those that found the UDP socket
    /// full are driven first once there is room; otherwise the first ones would fill it each time.
    pub(super) fn put_behind(&mut self, count: usize) {
        self.dirty.rotate_left(count);
    }

    /// Takes the list of marked connections, which keep their marks until they are driven.
    pub(super) fn take_marked(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.dirty)
    }

    /// Gives the list back to be filled again, which saves an allocation in most rounds.
    pub(super) fn give_back(&mut self, list: Vec<Key>) {
        if self.dirty.is_empty() {
            self.dirty = list;
        }
    }

    pub(super) fn set_timer(&mut self, key: Key, at: Instant) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        // An entry that is due earlier leads here again.
        if slot.deadline.is_none_or(|earlier| at < earlier) {
            slot.deadline = Some(at);
            self.timers.push(Reverse((at, key.serial, key.handle)));
        }
    }

    /// When the next timer expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Marks connections whose timers have expired.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((at, serial, handle))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if let Some(slot) = self.slots.get_mut(&Key { handle, serial })
                && slot.deadline == Some(at)
            {
                slot.deadline = None;
                slot.mark_in(&mut self.dirty);
            }
        }
    }

    /// Records that a connection is lost: it waits for late packets.
    pub(super) fn lost(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(&key)
            && slot.stage.lost()
        {
            self.closing.push_back(key);
        }
    }

    /// Records that the endpoint has forgotten a connection.
    pub(super) fn drained(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.stage = Stage::Drained;
            self.routes.remove(&key.handle);
        }
    }

    /// Takes the oldest connection that is closing if there are many: how long they wait for late
    /// packets depends on the peer (RFC 9000 10.2). It may be gone.
    pub(super) fn surplus(&mut self) -> Option<Key> {
        if self.closing.len() > CLOSING_MAX { self.closing.pop_front() } else { None }
    }

    /// Removes a connection; the endpoint may still route datagrams to it.
    pub(super) fn remove(&mut self, key: Key) -> Option<Slot<D>> {
        let slot = *self.slots.remove(&key)?;
        if slot.stage != Stage::Drained {
            self.routes.remove(&key.handle);
        }
        Some(slot)
    }

    /// Removes all connections.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Slot<D>> + '_ {
        self.slots.drain().map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{cid::Purpose, event_loop::slot::Standing};

    const SECOND: Duration = Duration::from_secs(1);

    fn key(handle: usize, serial: u64) -> Key {
        Key { handle, serial }
    }

    fn slot(key: Key) -> Slot<()> {
        Slot::new((), key, Purpose::Sparse, Standing::Dialed)
    }

    fn with(keys: impl IntoIterator<Item = Key>) -> Connections<()> {
        let mut connections = Connections::new();
        keys.into_iter().for_each(|key| connections.insert(slot(key)));
        connections
    }

    fn unmark(connections: &mut Connections<()>, key: Key) {
        connections.get_mut(key).unwrap().dirty = false;
    }

    #[test]
    fn a_connection_is_marked_once_until_it_is_driven() {
        let one = key(0, 0);
        let mut connections = with([one]);
        assert!(connections.has_marked() && !connections.is_empty());
        connections.mark(one);
        assert_eq!(connections.work(one, |_| {}), Ok(()));
        assert_eq!(connections.take_marked(), [one]);
        assert!(!connections.has_marked());
        connections.mark(one);
        assert!(!connections.has_marked(), "its mark is still set");
        unmark(&mut connections, one);
        assert_eq!(connections.work(one, |_| {}), Ok(()));
        assert_eq!(connections.take_marked(), [one]);
    }

    #[test]
    fn the_list_of_marked_ones_is_reused_unless_there_is_a_new_one() {
        let mut connections = with([]);
        connections.give_back(Vec::with_capacity(100));
        assert!(connections.take_marked().capacity() >= 100);
        connections.insert(slot(key(0, 0)));
        connections.give_back(Vec::new());
        assert!(connections.has_marked());
    }

    #[test]
    fn who_found_the_socket_full_is_driven_first() {
        let keys = [0, 1, 2, 3].map(|handle| key(handle, 0));
        let mut connections = with(keys);
        assert_eq!(connections.marked(), 4);
        connections.put_behind(2);
        assert_eq!(connections.take_marked(), [keys[2], keys[3], keys[0], keys[1]]);
    }

    #[test]
    fn who_panics_is_told_apart_from_who_is_gone() {
        let mut connections = with([key(0, 0)]);
        connections.take_marked();
        unmark(&mut connections, key(0, 0));
        assert_eq!(connections.work(key(0, 0), |_| panic!("in a test")), Err(Panicked));
        assert_eq!(connections.work(key(0, 1), |_| panic!("nobody")), Ok(()));
        assert!(!connections.has_marked());
    }

    #[test]
    fn a_timer_marks_its_connection_at_its_earliest_time() {
        let (one, start) = (key(0, 0), Instant::now());
        let mut connections = with([one]);
        connections.take_marked();
        unmark(&mut connections, one);
        for seconds in [3, 1, 2] {
            connections.set_timer(one, start + seconds * SECOND);
        }
        assert_eq!(connections.deadline(), Some(start + SECOND));
        connections.expire(start);
        assert!(!connections.has_marked());
        connections.expire(start + SECOND);
        assert_eq!(connections.take_marked(), [one]);
        unmark(&mut connections, one);
        // The one at three seconds was replaced.
        connections.expire(start + 10 * SECOND);
        assert!(!connections.has_marked());
        assert_eq!(connections.deadline(), None);
        connections.set_timer(one, start);
        assert_eq!(connections.deadline(), Some(start), "it may have a timer again");
    }

    #[test]
    fn a_timer_of_a_connection_that_is_gone_marks_nobody() {
        let start = Instant::now();
        let mut connections = with([key(0, 0)]);
        connections.set_timer(key(0, 0), start);
        connections.remove(key(0, 0));
        connections.insert(slot(key(0, 1)));
        connections.take_marked();
        unmark(&mut connections, key(0, 1));
        connections.expire(start);
        assert!(!connections.has_marked());
    }

    #[test]
    fn a_handle_leads_to_its_connection_until_the_endpoint_has_forgotten_it() {
        let mut connections = with([key(7, 0)]);
        assert_eq!(connections.of_handle(7), Some(key(7, 0)));
        connections.drained(key(7, 0));
        assert_eq!(connections.of_handle(7), None);
        // The handle is another's now.
        connections.insert(slot(key(7, 1)));
        assert!(connections.remove(key(7, 0)).is_some_and(|slot| slot.stage == Stage::Drained));
        assert_eq!(connections.of_handle(7), Some(key(7, 1)));
        assert!(connections.remove(key(7, 1)).is_some());
        assert_eq!(connections.of_handle(7), None);
        assert!(connections.is_empty() && connections.remove(key(7, 1)).is_none());
    }

    #[test]
    fn the_oldest_of_many_that_are_closing_is_surplus() {
        let keys = (0..=CLOSING_MAX).map(|handle| key(handle, 0));
        let mut connections = with(keys.clone());
        for key in keys {
            assert_eq!(connections.surplus(), None);
            connections.lost(key);
            connections.lost(key);
        }
        assert_eq!(connections.surplus(), Some(key(0, 0)));
        assert_eq!(connections.surplus(), None);
    }

    #[test]
    fn strangers_are_those_who_have_proved_nothing() {
        let mut connections = with([key(0, 0), key(1, 1)]);
        connections.get_mut(key(1, 1)).unwrap().standing = Standing::Stranger;
        assert_eq!(connections.strangers(), [key(1, 1)]);
        let mut keys = connections.keys();
        keys.sort_by_key(|key| key.serial);
        assert_eq!(keys, [key(0, 0), key(1, 1)]);
        assert_eq!(connections.drain().count(), 2);
        assert!(connections.is_empty());
    }
}

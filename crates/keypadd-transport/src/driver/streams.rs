//! Keeps the streams of one connection: which are open, which have something to deliver or to send,
//! and which are to end.
//!
//! Knows of a stream only what [`Scheduled`] says: no bytes, no sockets and no QUIC.

use std::{collections::VecDeque, time::Instant};

use quinn_proto::StreamId;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::channel::{Class, Scheduled};

/// With more entries than this, streams are looked for that are listed again.
const LISTED_AGAIN_MIN: usize = 64;

/// An open stream.
struct Entry<C> {
    channel: C,
    /// Whether it is in a queue of those that send.
    is_queued: bool,
}

/// The streams of one connection.
pub(crate) struct StreamTable<C> {
    open: FxHashMap<StreamId, Entry<C>>,
    /// What a lost connection has left to be ended.
    leaving: FxHashMap<StreamId, Entry<C>>,
    /// Streams with data to read.
    arrived: Vec<StreamId>,
    /// Streams that may have data to send.
    sparse: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    /// Streams whose sockets have failed, to be ended if they may be.
    failed: Vec<StreamId>,
    /// Streams whose sockets have failed, until the peer has what they delivered before.
    lingering: Vec<StreamId>,
    /// When the first of `lingering` is ended at the latest.
    linger_at: Option<Instant>,
    /// Whether to look for splices that were cut elsewhere.
    must_sweep: bool,
}

impl<C> Default for StreamTable<C> {
    fn default() -> Self {
        Self {
            open: FxHashMap::default(),
            leaving: FxHashMap::default(),
            arrived: Vec::new(),
            sparse: VecDeque::new(),
            bulk: VecDeque::new(),
            failed: Vec::new(),
            lingering: Vec::new(),
            linger_at: None,
            must_sweep: false,
        }
    }
}

/// Which streams are open.
impl<C> StreamTable<C> {
    pub(super) fn get(&self, id: StreamId) -> Option<&C> {
        self.open.get(&id).map(|entry| &entry.channel)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut C> {
        self.open.get_mut(&id).map(|entry| &mut entry.channel)
    }

    pub(super) fn insert(&mut self, id: StreamId, channel: C) {
        self.open.insert(id, Entry { channel, is_queued: false });
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<C> {
        self.open.remove(&id).map(|entry| entry.channel)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (StreamId, &C)> {
        self.open.iter().map(|(id, entry)| (*id, &entry.channel))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StreamId, &mut C)> {
        self.open.iter_mut().map(|(id, entry)| (*id, &mut entry.channel))
    }

    /// Whether there are none, also of those that a lost connection has left.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.leaving.is_empty()
    }

    /// The connection is lost: its streams are to be ended, one after the other.
    pub(super) fn lose(&mut self) {
        self.leaving = std::mem::take(&mut self.open);
    }

    /// Opens one of the streams that the lost connection has left, to be ended.
    pub(super) fn next_left(&mut self) -> Option<StreamId> {
        let id = self.leaving.keys().next().copied()?;
        let entry = self.leaving.remove(&id)?;
        self.open.insert(id, entry);
        Some(id)
    }

    /// Whether the lost connection has left streams.
    pub(super) fn has_left(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes all streams.
    pub(super) fn into_all(self) -> impl Iterator<Item = C> {
        let entries = self.leaving.into_values().chain(self.open.into_values());
        entries.map(|entry| entry.channel)
    }
}

/// Which streams have data to read.
impl<C> StreamTable<C> {
    /// A stream has data to read, or its reader has room again.
    pub(super) fn arrived(&mut self, id: StreamId) {
        self.arrived.push(id);
    }

    /// Whether this stream was the last to have data to read.
    pub(super) fn arrived_last(&self, id: StreamId) -> bool {
        self.arrived.last() == Some(&id)
    }

    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Takes the streams that have data to read; each packet lists its own.
    pub(super) fn take_arrived(&mut self) -> Vec<StreamId> {
        let mut arrived = std::mem::take(&mut self.arrived);
        if arrived.len() > LISTED_AGAIN_MIN {
            let mut listed = FxHashSet::default();
            arrived.retain(|id| listed.insert(*id));
        }
        arrived
    }

    /// Puts back what [`StreamTable::take_arrived`] gave, without the first ones, which were read.
    /// What has arrived meanwhile goes behind the rest.
    pub(super) fn put_back(&mut self, mut arrived: Vec<StreamId>, read: usize) {
        arrived.drain(..read);
        arrived.append(&mut self.arrived);
        self.arrived = arrived;
    }
}

/// Which streams send next.
impl<C: Scheduled> StreamTable<C> {
    /// Queues a stream if it may have something to send.
    pub(super) fn may_send(&mut self, id: StreamId) {
        let Some(entry) = self.open.get_mut(&id).filter(|entry| !entry.is_queued) else { return };
        let Some(class) = entry.channel.class() else { return };
        entry.is_queued = true;
        self.queue(class).push_back(id);
    }

    /// Takes the next stream of this class, which may have ended since it was queued.
    pub(super) fn next(&mut self, of: Class) -> Option<StreamId> {
        let id = self.queue(of).pop_front()?;
        if let Some(entry) = self.open.get_mut(&id) {
            entry.is_queued = false;
        }
        Some(id)
    }

    /// Streams that wait to send.
    pub(super) fn waiting(&self, of: Class) -> usize {
        match of {
            Class::Sparse => self.sparse.len(),
            Class::Bulk => self.bulk.len(),
        }
    }

    /// Whether any stream waits to send.
    pub(super) fn some_wait(&self) -> bool {
        !(self.sparse.is_empty() && self.bulk.is_empty())
    }

    /// Whether no other stream sends bulk data.
    pub(super) fn is_alone_in_bulk(&self, id: StreamId) -> bool {
        self.bulk.iter().all(|other| *other == id)
    }

    fn queue(&mut self, of: Class) -> &mut VecDeque<StreamId> {
        match of {
            Class::Sparse => &mut self.sparse,
            Class::Bulk => &mut self.bulk,
        }
    }
}

/// Which streams are to end.
impl<C: Scheduled> StreamTable<C> {
    /// A stream's socket has failed: it ends when the peer has what it delivered before.
    pub(super) fn fail(&mut self, id: StreamId) {
        self.linger(id);
        self.failed.push(id);
    }

    /// Waits for the peer to have what a failed socket has delivered.
    pub(super) fn linger(&mut self, id: StreamId) {
        let Some(until) = self.get(id).and_then(Scheduled::lingers_until) else { return };
        self.linger_at = Some(self.linger_at.map_or(until, |at| at.min(until)));
        if !self.lingering.contains(&id) {
            self.lingering.push(id);
        }
        self.may_send(id);
    }

    /// The next stream whose socket has failed and that is to end: the peer has what was delivered
    /// before, or the stream's time is over.
    pub(super) fn next_failed(&mut self, now: Instant) -> Option<StreamId> {
        if self.linger_at.take_if(|at| *at <= now).is_some() {
            for id in std::mem::take(&mut self.lingering) {
                match self.get(id).and_then(Scheduled::lingers_until) {
                    Some(until) if until <= now => self.failed.push(id),
                    Some(_) => self.linger(id),
                    None => {}
                }
            }
        }
        while let Some(id) = self.failed.pop() {
            let is_over = |channel: &C| {
                channel.is_failed_and_delivered()
                    || channel.lingers_until().is_some_and(|until| until <= now)
            };
            if self.get(id).is_some_and(is_over) {
                return Some(id);
            }
        }
        None
    }

    /// When the first stream whose socket has failed ends at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.linger_at
    }

    /// A splice was cut, or its socket has failed, whose other direction may be here.
    pub(super) fn sweep(&mut self) {
        self.must_sweep = true;
    }

    /// Whether to look for splices that were cut; not until the next one is.
    pub(super) fn take_sweep(&mut self) -> bool {
        std::mem::take(&mut self.must_sweep)
    }

    /// Whether there are streams to end, besides those that a lost connection has left.
    pub(super) fn has_some_to_end(&self) -> bool {
        self.must_sweep || !self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests;

//! The consumer's end of one part's queues: the chunks in use, and what is given back. Its owner is the lane;
//! it never waits, whatever the filler does.

use std::collections::VecDeque;

use keypadd_keystream::{PacketNumber, Segment};

use super::{NO_RECALL, PartShared};
use crate::chunk::{Chunk, KeyId, Part, Row};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{Consumer, Producer};

/// Segments behind the newest one whose chunks are kept for late packets. QUIC stacks drop what is more
/// than about 128 numbers late, which spans at most two earlier segments.
const RECENT_CHUNKS: usize = 2;

/// The consumer's end of one part's queues, and the chunks in use.
pub(crate) struct Hand {
    /// Chunks that were drawn to get at those behind them, and kept; they come before `ready`.
    drawn: VecDeque<Box<Chunk>>,
    ready: Consumer<Box<Chunk>>,
    spent: Producer<Box<Chunk>>,
    current: Option<Box<Chunk>>,
    /// Chunks before the current one, newest first, kept for late packets; empty where the
    /// direction never goes back.
    recent: [Option<Box<Chunk>>; RECENT_CHUNKS],
    keeps_recent: bool,
}

impl Hand {
    pub(crate) fn new(
        ready: Consumer<Box<Chunk>>,
        spent: Producer<Box<Chunk>>,
        keeps_recent: bool,
    ) -> Self {
        Self {
            drawn: VecDeque::new(),
            ready,
            spent,
            current: None,
            recent: [None, None],
            keeps_recent,
        }
    }

    /// Chunks that a hand may hold besides the queue.
    pub(crate) const fn held_chunks() -> usize {
        1 + RECENT_CHUNKS
    }

    /// Whether there is no chunk in use and none is kept.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && (!self.keeps_recent || self.recent.iter().all(Option::is_none))
    }

    /// Whether there is no chunk in use and one that could be.
    #[inline(always)]
    pub(super) fn can_draw(&self) -> bool {
        self.current.is_none() && (!self.drawn.is_empty() || self.ready.peek().is_ok())
    }

    /// Gives up chunks older than `segment` and draws the next ones; true if there was any of either. Ends
    /// after at most the queue's length, however far the number jumped.
    pub(super) fn advance_to(&mut self, segment: Segment, counts: &PartShared) -> bool {
        let mut moved = false;
        while self.current.as_ref().is_none_or(|chunk| chunk.segment() < segment) {
            let next = self.next();
            if self.current.is_none() && next.is_none() {
                break;
            }
            moved = true;
            if next.is_some() {
                counts.popped.fetch_add(1, Relaxed);
            }
            if let Some(old) = std::mem::replace(&mut self.current, next) {
                self.retire(old);
            }
        }
        if moved {
            self.publish(counts);
        }
        moved
    }

    /// Lets the filler see what the hand holds.
    fn publish(&self, counts: &PartShared) {
        counts.current_end.store(self.current_end(), Relaxed);
        counts.recent.store(self.recent.iter().flatten().count() as u64, Relaxed);
    }

    /// Gives up what is too far behind `segment` for late packets; true if there was any. A lane that has run
    /// dry draws nothing that would push it out.
    pub(super) fn expire(&mut self, segment: Segment, counts: &PartShared) -> bool {
        let oldest = segment.value().saturating_sub(RECENT_CHUNKS as u64);
        let Self { recent, spent, .. } = self;
        let mut expired = false;
        for place in recent {
            if let Some(chunk) = place.take_if(|chunk| chunk.segment().value() < oldest) {
                give_back(spent, chunk);
                expired = true;
            }
        }
        if expired {
            self.publish(counts);
        }
        expired
    }

    /// The chunk that comes next.
    fn next(&mut self) -> Option<Box<Chunk>> {
        self.drawn.pop_front().or_else(|| self.ready.pop().ok())
    }

    /// Whether the current chunk has pads for packet numbers from `next` on.
    pub(super) fn has_pads(&self, next: u64) -> bool {
        self.current_end() > next
    }

    /// One above the last packet number of the current chunk; 0 without one.
    fn current_end(&self) -> u64 {
        self.current.as_ref().map_or(0, |chunk| chunk.segment().next().first().value())
    }

    /// Gives back what the filler wants for others, the furthest first; true if it had asked. Packet numbers
    /// from `next` on are to come. What the packet at hand needs stays: it may have been seen already.
    pub(super) fn obey(&mut self, needed: Option<Segment>, next: u64, counts: &PartShared) -> bool {
        // Paired with the filler's store: everything it had pushed by then is in the queue.
        let recall = counts.recall.load(Acquire);
        if recall == NO_RECALL {
            return false;
        }
        self.give_back_all_but(recall - 1, needed, next, counts);
        true
    }

    fn give_back_all_but(
        &mut self,
        keep: u64,
        needed: Option<Segment>,
        next: u64,
        counts: &PartShared,
    ) {
        while let Ok(chunk) = self.ready.pop() {
            self.drawn.push_back(chunk);
        }
        let keep_queued = keep.saturating_sub(u64::from(self.has_pads(next)));
        let mut resume = u64::MAX;
        while self.drawn.len() as u64 > keep_queued {
            let Some(chunk) = self.drawn.pop_back() else { break };
            counts.popped.fetch_add(1, Relaxed);
            resume = chunk.segment().value();
            give_back(&mut self.spent, chunk);
        }
        // The chunk in use is not made anew: what is left of its segment goes inline.
        let spare = |chunk: &mut Box<Chunk>| Some(chunk.segment()) != needed;
        let in_use = if keep == 0 { self.current.take_if(spare) } else { None };
        let recent = self.recent.iter_mut().filter_map(|place| place.take_if(spare));
        for chunk in recent.chain(in_use) {
            give_back(&mut self.spent, chunk);
        }
        self.publish(counts);
        counts.resume.store(resume, Relaxed);
        counts.recall.store(NO_RECALL, Release);
    }

    fn retire(&mut self, chunk: Box<Chunk>) {
        let oldest = if self.keeps_recent {
            let [newest, older] = &mut self.recent;
            let oldest = older.take();
            *older = newest.replace(chunk);
            oldest
        } else {
            Some(chunk)
        };
        if let Some(chunk) = oldest {
            give_back(&mut self.spent, chunk);
        }
    }

    /// The packet's row, where a chunk in the hand has it.
    #[inline(always)]
    pub(super) fn row(&mut self, key: KeyId, part: Part, pn: PacketNumber) -> Option<Row<'_>> {
        let Self { current, recent, keeps_recent, .. } = self;
        // Where the pad of nearly every packet is.
        if let Some(chunk) = current
            && let Some(row) = chunk.row(key, pn.segment(), part, pn.slot())
        {
            return Some(row);
        }
        if *keeps_recent { late_row(recent, key, part, pn) } else { None }
    }

    /// As [`Self::row`], but also sees the front of the queue, and moves nothing.
    pub(super) fn peek(&self, key: KeyId, part: Part, pn: PacketNumber) -> Option<&[u8]> {
        let in_hand = self.current.iter().chain(self.recent.iter().flatten());
        let mut chunks = in_hand.chain(self.drawn.front().or_else(|| self.ready.peek().ok()));
        chunks.find_map(|chunk| chunk.peek(key, pn.segment(), part, pn.slot()))
    }
}

/// The row of a packet that came late.
#[inline(never)]
fn late_row(
    recent: &mut [Option<Box<Chunk>>; RECENT_CHUNKS],
    key: KeyId,
    part: Part,
    pn: PacketNumber,
) -> Option<Row<'_>> {
    let mut chunks = recent.iter_mut().flatten();
    chunks.find_map(|chunk| chunk.row(key, pn.segment(), part, pn.slot()))
}

impl Drop for Hand {
    /// Wipes and gives back what is in use. What still waits in the queue is the filler's to wipe:
    /// it may be tens of MiB, and this runs under the connection's lock.
    fn drop(&mut self) {
        let recent = self.recent.iter_mut().filter_map(Option::take);
        for mut chunk in self.current.take().into_iter().chain(recent) {
            chunk.wipe_left();
            give_back(&mut self.spent, chunk);
        }
        for chunk in self.drawn.drain(..) {
            give_back(&mut self.spent, chunk);
        }
    }
}

/// Chunks go as they are: a jump of numbers may leave tens of MiB behind, and wiping them is the filler's
/// work, not that of a packet. The queue back has room for every chunk of the lane; if it ever had not, the
/// chunk is dropped, which wipes it and sends its memory home another way.
fn give_back(spent: &mut Producer<Box<Chunk>>, chunk: Box<Chunk>) {
    drop(spent.push(chunk));
}

//! The consumer's end of one part's queues: the chunks in use, and what is given back. Its owner is the lane;
//! it never waits, whatever the filler does.

use std::collections::VecDeque;

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS, Segment};

use super::{NO_RECALL, PartShared};
use crate::chunk::{Chunk, KeyId, Part};
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

    /// Gives up chunks older than `segment` and draws the next ones; true if there was any of either.
    /// What every packet of a dry pool does is small enough to be inlined.
    #[inline]
    pub(super) fn advance_to(&mut self, segment: Segment, counts: &PartShared) -> bool {
        match &self.current {
            Some(chunk) if chunk.segment() >= segment => false,
            None if self.drawn.is_empty() && self.ready.peek().is_err() => false,
            _ => self.draw(segment, counts),
        }
    }

    /// Ends after at most the queue's length, however far the number jumped.
    fn draw(&mut self, segment: Segment, counts: &PartShared) -> bool {
        let mut moved = false;
        loop {
            if let Some(old) = self.current.take() {
                moved = true;
                self.retire(old);
            }
            let Some(chunk) = self.next() else { break };
            moved = true;
            counts.popped.fetch_add(1, Relaxed);
            let arrived = chunk.segment() >= segment;
            self.current = Some(chunk);
            if arrived {
                break;
            }
        }
        self.note(self.current.as_ref().map_or(0, |chunk| u64::from(chunk.untaken())), counts);
        moved
    }

    /// Lets the filler see the pads left in the current chunk, and what the hand holds besides.
    pub(super) fn note(&self, in_hand: u64, counts: &PartShared) {
        let used_up = self.current.is_some() && in_hand == 0;
        let kept = self.recent.iter().flatten().count() as u64 + u64::from(used_up);
        counts.in_hand.store(in_hand, Relaxed);
        counts.kept.store(kept, Relaxed);
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
            self.note(counts.in_hand.load(Relaxed), counts);
        }
        expired
    }

    /// The chunk that comes next.
    fn next(&mut self) -> Option<Box<Chunk>> {
        self.drawn.pop_front().or_else(|| self.ready.pop().ok())
    }

    /// Gives back what the filler wants for others, the furthest first; true if it had asked. What the
    /// packet at hand needs stays: it may have been seen already.
    pub(super) fn obey(&mut self, needed: Option<Segment>, counts: &PartShared) -> bool {
        // Paired with the filler's store: everything it had pushed by then is in the queue.
        let recall = counts.recall.load(Acquire);
        if recall == NO_RECALL {
            return false;
        }
        self.give_back_all_but(recall - 1, needed, counts);
        true
    }

    fn give_back_all_but(&mut self, keep: u64, needed: Option<Segment>, counts: &PartShared) {
        while let Ok(chunk) = self.ready.pop() {
            self.drawn.push_back(chunk);
        }
        let mut in_hand = counts.in_hand.load(Relaxed);
        let keep_queued = keep.saturating_sub(u64::from(in_hand > 0));
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
        if in_use.is_some() {
            in_hand = 0;
        }
        let recent = self.recent.iter_mut().filter_map(|place| place.take_if(spare));
        for chunk in recent.chain(in_use) {
            give_back(&mut self.spent, chunk);
        }
        self.note(in_hand, counts);
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

    fn chunks(&self) -> impl Iterator<Item = &Box<Chunk>> {
        self.current.iter().chain(self.recent.iter().flatten())
    }

    #[inline]
    pub(super) fn find(&mut self, key: KeyId, part: Part, pn: PacketNumber) -> Option<&mut Chunk> {
        let holds = |chunk: &Chunk| chunk.holds(key, pn.segment(), part, pn.slot());
        let Self { current, recent, .. } = self;
        // Where the pad of nearly every packet is.
        if let Some(chunk) = current.as_deref_mut()
            && holds(chunk)
        {
            return Some(chunk);
        }
        recent.iter_mut().flatten().map(|chunk| &mut **chunk).find(|chunk| holds(chunk))
    }

    /// As `find`, but also sees the front of the queue, and moves nothing.
    pub(super) fn peek(&self, key: KeyId, part: Part, pn: PacketNumber) -> Option<&Chunk> {
        self.chunks()
            .chain(self.drawn.front().or_else(|| self.ready.peek().ok()))
            .map(|chunk| &**chunk)
            .find(|chunk| chunk.holds(key, pn.segment(), part, pn.slot()))
    }

    /// Pads left in the current chunk after `pn`; `None` when `pn` is not of that chunk.
    pub(super) fn in_hand(&self, pn: PacketNumber) -> Option<u64> {
        let current = self.current.as_ref().filter(|chunk| chunk.segment() == pn.segment());
        current.map(|_| (SEGMENT_PACKETS - 1 - pn.slot()) as u64)
    }
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

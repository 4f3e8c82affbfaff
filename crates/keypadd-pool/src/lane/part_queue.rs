//! Queues one part's chunks, heads or bodies, for the consumer of a lane: the current chunk, those
//! kept for late packets, those to come, and spent ones on their way back. Never waits, whatever
//! the filler does.

use std::collections::VecDeque;

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS, Segment, prefetch};

use crate::chunk::{Chunk, KeyId, Part, Row};
use crate::lane_state::PartState;
use crate::sync::{Consumer, Producer};

/// Segments behind the newest whose chunks are kept for late packets. QUIC stacks drop packets more
/// than about 128 numbers late, so at most two earlier segments matter.
const RECENT_CHUNKS: usize = 2;

/// How many packets ahead pads are fetched from memory, which takes longer than a packet of a
/// train.
const PACKETS_AHEAD: usize = 2;

/// The slots at which the next chunk is fetched, and then what it points to. A filler wrote it long
/// ago, so it is in no cache, and following a pointer there would take as long as sealing a packet.
const FETCH_CHUNK_SLOT: usize = 32;
const FETCH_UNITS_SLOT: usize = 48;

/// The consumer's end of one part's queues.
pub(crate) struct PartQueue {
    /// Chunks popped to reach those behind them, and kept; they come before `ready`.
    popped: VecDeque<Box<Chunk>>,
    ready: Consumer<Box<Chunk>>,
    spent: Producer<Box<Chunk>>,
    current: Option<Box<Chunk>>,
    /// Chunks before the current one, newest first, kept for late packets; empty if `keeps_recent`
    /// is false.
    recent: [Option<Box<Chunk>>; RECENT_CHUNKS],
    keeps_recent: bool,
}

impl PartQueue {
    pub(crate) fn new(
        ready: Consumer<Box<Chunk>>,
        spent: Producer<Box<Chunk>>,
        keeps_recent: bool,
    ) -> Self {
        Self {
            popped: VecDeque::new(),
            ready,
            spent,
            current: None,
            recent: [None, None],
            keeps_recent,
        }
    }

    /// Chunks held besides those in the queue, at most.
    pub(crate) const fn held_chunks() -> usize {
        1 + RECENT_CHUNKS
    }

    /// Whether there is neither a current chunk nor one kept for late packets.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && (!self.keeps_recent || self.recent.iter().all(Option::is_none))
    }

    /// Whether a chunk is ready for `segment` while the current one is older, because it came too
    /// late, or missing.
    #[inline(always)]
    pub(super) fn can_draw(&self, segment: Segment) -> bool {
        self.current.as_ref().is_none_or(|chunk| chunk.segment() < segment)
            && (!self.popped.is_empty() || self.ready.peek().is_ok())
    }

    /// Gives up chunks older than `segment` and draws the next ones; true if there was any of
    /// either. Takes at most as many steps as the queue is long, however far the number jumped.
    pub(super) fn advance_to(&mut self, segment: Segment, state: &PartState) -> bool {
        let mut moved = false;
        while self.current.as_ref().is_none_or(|chunk| chunk.segment() < segment) {
            let next = self.next();
            if self.current.is_none() && next.is_none() {
                break;
            }
            moved = true;
            if next.is_some() {
                state.count_pop();
            }
            if let Some(old) = std::mem::replace(&mut self.current, next) {
                self.retire(old);
            }
        }
        if moved {
            self.publish(state);
        }
        moved
    }

    fn publish(&self, state: &PartState) {
        state.publish(self.current_end(), self.recent.iter().flatten().count());
    }

    /// Gives up chunks too far behind `segment` for late packets; true if there were any. A dry
    /// lane draws no chunks that would push them out.
    pub(super) fn expire(&mut self, segment: Segment, state: &PartState) -> bool {
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
            self.publish(state);
        }
        expired
    }

    /// Pops the next chunk.
    fn next(&mut self) -> Option<Box<Chunk>> {
        self.popped.pop_front().or_else(|| self.ready.pop().ok())
    }

    /// Whether the current chunk has pads for packet numbers from `next` on.
    pub(super) fn has_pads(&self, next: u64) -> bool {
        self.current_end() > next
    }

    /// One above the last packet number of the current chunk; 0 without one.
    fn current_end(&self) -> u64 {
        self.current.as_ref().map_or(0, |chunk| chunk.segment().next().first().value())
    }

    /// Obeys a recall, if there is one: gives chunks back, the furthest first, and returns true.
    /// Packet numbers from `next` on are to come. Keeps the `needed` segment, whose pad may have
    /// been peeked at.
    pub(super) fn obey(&mut self, needed: Option<Segment>, next: u64, state: &PartState) -> bool {
        let recalled = state.recalled();
        if let Some(keep) = recalled {
            self.give_back_all_but(keep, needed, next, state);
        }
        recalled.is_some()
    }

    /// Gives back all chunks to come.
    pub(super) fn give_back_queued(&mut self, state: &PartState) {
        while let Some(chunk) = self.next() {
            state.count_pop();
            give_back(&mut self.spent, chunk);
        }
    }

    fn give_back_all_but(
        &mut self,
        keep: u64,
        needed: Option<Segment>,
        next: u64,
        state: &PartState,
    ) {
        while let Ok(chunk) = self.ready.pop() {
            self.popped.push_back(chunk);
        }
        let keep_queued = keep.saturating_sub(u64::from(self.has_pads(next)));
        let mut resume = u64::MAX;
        while self.popped.len() as u64 > keep_queued {
            let Some(chunk) = self.popped.pop_back() else { break };
            state.count_pop();
            resume = chunk.segment().value();
            give_back(&mut self.spent, chunk);
        }
        // The current chunk is not generated again: the rest of its segment goes inline.
        let spare = |chunk: &mut Box<Chunk>| Some(chunk.segment()) != needed;
        let current = if keep == 0 { self.current.take_if(spare) } else { None };
        let recent = self.recent.iter_mut().filter_map(|place| place.take_if(spare));
        for chunk in recent.chain(current) {
            give_back(&mut self.spent, chunk);
        }
        self.publish(state);
        state.obey(resume);
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

    /// The packet's row, if the current chunk or a recent one has it.
    #[inline(always)]
    pub(super) fn row(&mut self, key: KeyId, part: Part, pn: PacketNumber) -> Option<Row<'_>> {
        let Self { current, recent, keeps_recent, .. } = self;
        // Nearly every packet's pad is here.
        if let Some(chunk) = current
            && let Some(row) = chunk.row(key, pn.segment(), part, pn.slot())
        {
            return Some(row);
        }
        if *keeps_recent { late_row(recent, key, part, pn) } else { None }
    }

    /// Wipes the packet's pad, if the current chunk or a recent one has it.
    #[inline(always)]
    pub(super) fn discard(&mut self, key: KeyId, part: Part, pn: PacketNumber) {
        // Every packet of a lane without pads comes here.
        if !self.is_empty() {
            self.search_and_discard(key, part, pn);
        }
    }

    #[inline(never)]
    fn search_and_discard(&mut self, key: KeyId, part: Part, pn: PacketNumber) {
        for chunk in self.current.iter_mut().chain(self.recent.iter_mut().flatten()) {
            chunk.discard(key, pn.segment(), part, pn.slot());
        }
    }

    /// Fetches from memory what a packet soon after this one will need of its row, if as many
    /// bytes.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self, part: Part, pn: PacketNumber, bytes: usize) {
        let slot = pn.slot() + PACKETS_AHEAD;
        if let Some(chunk) = &self.current
            && slot < SEGMENT_PACKETS
        {
            chunk.fetch(part, slot, bytes);
        }
    }

    /// Fetches from memory, in the second half of a segment, the chunk of the next one.
    #[inline(always)]
    pub(super) fn fetch_next(&self, part: Part, pn: PacketNumber, bytes: usize) {
        if pn.slot() >= FETCH_CHUNK_SLOT {
            self.fetch_next_for(part, pn.slot(), bytes);
        }
    }

    #[inline(never)]
    fn fetch_next_for(&self, part: Part, slot: usize, bytes: usize) {
        let row = slot.checked_sub(SEGMENT_PACKETS - PACKETS_AHEAD);
        if slot != FETCH_CHUNK_SLOT && slot != FETCH_UNITS_SLOT && row.is_none() {
            return;
        }
        let Some(next) = self.popped.front().or_else(|| self.ready.peek().ok()) else { return };
        match row {
            Some(row) => next.fetch(part, row, bytes),
            None if slot == FETCH_CHUNK_SLOT => prefetch(&**next),
            None => next.fetch_units(),
        }
    }

    /// As [`Self::row`], but also looks at the front of the queue, and moves nothing.
    #[inline(always)]
    pub(super) fn peek(&self, key: KeyId, part: Part, pn: PacketNumber) -> Option<&[u8]> {
        // Nearly every packet's pad is here.
        if let Some(chunk) = &self.current
            && let Some(row) = chunk.peek(key, pn.segment(), part, pn.slot())
        {
            return Some(row);
        }
        let front = self.popped.front().or_else(|| self.ready.peek().ok());
        if front.is_none() && self.is_empty() {
            return None;
        }
        let mut others = front.into_iter().chain(self.recent.iter().flatten());
        others.find_map(|chunk| chunk.peek(key, pn.segment(), part, pn.slot()))
    }
}

/// The row of a late packet.
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

impl Drop for PartQueue {
    /// Wipes the chunks in use and gives them back. The filler wipes those still in the queue: they
    /// may be tens of MiB, and this runs under the connection's lock.
    fn drop(&mut self) {
        let recent = self.recent.iter_mut().filter_map(Option::take);
        for mut chunk in self.current.take().into_iter().chain(recent) {
            chunk.wipe_left();
            give_back(&mut self.spent, chunk);
        }
        for chunk in self.popped.drain(..) {
            give_back(&mut self.spent, chunk);
        }
    }
}

/// Gives a chunk back as it is: a jump of numbers may leave tens of MiB behind, and wiping them is
/// the filler's job, not the packet path's. The return queue has room for every chunk of the lane;
/// if it ever were full, the chunk is dropped, which wipes it and returns its memory through
/// [`MemoryReturn`](crate::filler_state::MemoryReturn).
fn give_back(spent: &mut Producer<Box<Chunk>>, chunk: Box<Chunk>) {
    drop(spent.push(chunk));
}

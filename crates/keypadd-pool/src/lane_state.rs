//! Shares a lane's levels, position and recalls between its consumer and the filler.
//!
//! The counters are independent atomics that carry no other data, so relaxed ordering is enough;
//! the queues order the chunks.

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS, Segment};

use crate::chunk::Part;
use crate::lane_view::Stage;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicU8, AtomicU64};

/// What both ends of a lane share.
#[derive(Debug)]
pub(crate) struct LaneState {
    stage: AtomicU8,
    /// The consumer is gone and has given everything back.
    closed: AtomicBool,
    /// The lowest packet number whose pad may still be needed: one above the newest that was used,
    /// and not before the newest segment that the consumer needed.
    next: AtomicU64,
    /// The segment from which on no packet is expected.
    end: AtomicU64,
    pub(crate) parts: [PartState; 2],
}

/// The level of one part, in chunks pushed by the filler and popped by the consumer.
#[derive(Debug, Default)]
pub(crate) struct PartState {
    pub(crate) pushed: AtomicU64,
    popped: AtomicU64,
    /// One above the last packet number of the consumer's current chunk; 0 without one.
    current_end: AtomicU64,
    /// Chunks that the consumer keeps for late packets.
    recent: AtomicU64,
    /// The consumer wakes the filler when its level falls to this many chunks.
    pub(crate) low_water: AtomicU64,
    recall: AtomicU64,
    resume: AtomicU64,
}

/// The value of `recall` without a recall.
const NO_RECALL: u64 = 0;

impl PartState {
    /// Recalls all but the nearest `keep` chunks, counting the current one, and those kept for late
    /// packets. The filler pushes nothing until they are back.
    pub(crate) fn recall(&self, keep: u64) {
        self.recall.store(keep + 1, Release);
    }

    /// The number of chunks to keep, if a recall is outstanding.
    #[inline(always)]
    pub(crate) fn recalled(&self) -> Option<u64> {
        // Pairs with the filler's store: everything that it had pushed by then is in the queue.
        self.recall.load(Acquire).checked_sub(1)
    }

    /// Reports a recall as done: the filler continues with segment `resume`.
    pub(crate) fn obey(&self, resume: u64) {
        self.resume.store(resume, Relaxed);
        self.recall.store(NO_RECALL, Release);
    }

    /// The segment from which to fill again, once the consumer has obeyed a recall.
    pub(crate) fn obeyed(&self) -> Option<u64> {
        self.recalled().is_none().then(|| self.resume.load(Relaxed))
    }

    pub(crate) fn queued(&self) -> u64 {
        self.pushed.load(Relaxed).saturating_sub(self.popped.load(Relaxed))
    }

    pub(crate) fn count_pop(&self) {
        self.popped.fetch_add(1, Relaxed);
    }

    /// Publishes the chunks that the consumer holds besides its queue.
    pub(crate) fn publish(&self, current_end: u64, recent: usize) {
        self.current_end.store(current_end, Relaxed);
        self.recent.store(recent as u64, Relaxed);
    }
}

impl LaneState {
    pub(crate) fn new(stage: Stage, position: Segment) -> Self {
        Self {
            stage: AtomicU8::new(stage as u8),
            closed: AtomicBool::new(false),
            next: AtomicU64::new(position.first().value()),
            end: AtomicU64::new(u64::MAX),
            parts: Default::default(),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Relaxed)) % Stage::ALL.len()]
    }

    /// Sets the stage; true if it changed.
    pub(crate) fn set_stage(&self, stage: Stage) -> bool {
        self.stage.swap(stage as u8, Relaxed) != stage as u8
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// The lowest packet number whose pad may still be needed.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_next(&self, next: u64) {
        self.next.store(next, Relaxed);
    }

    /// The segment from which on no packet is expected.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// Sets it; true if it changed.
    pub(crate) fn set_end(&self, end: u64) -> bool {
        self.end.swap(end, Relaxed) != end
    }

    /// The consumer's segment.
    pub(crate) fn position(&self) -> u64 {
        PacketNumber::new(self.next()).segment().value()
    }

    /// The levels of both parts. Reads each counter once, so that no chunk counts both as available
    /// and as kept.
    pub(crate) fn holdings(&self) -> [PartHolding; 2] {
        let next = self.next();
        Part::ALL.map(|part| {
            let state = &self.parts[part as usize];
            let end = state.current_end.load(Relaxed);
            let is_used_up = end > 0 && end <= next;
            PartHolding {
                queued: state.queued(),
                left_in_current: end.saturating_sub(next).min(SEGMENT_PACKETS as u64),
                kept: state.recent.load(Relaxed) + u64::from(is_used_up),
            }
        })
    }
}

/// The level of one part of a lane at one moment.
pub(crate) struct PartHolding {
    /// Chunks in the queue.
    queued: u64,
    /// Pads left in the consumer's current chunk.
    left_in_current: u64,
    /// Chunks of the consumer without pads to come: those kept for late packets, and a current one
    /// that is used up.
    pub(crate) kept: u64,
}

impl PartHolding {
    /// Chunks with pads to come: those in the queue and the current one.
    pub(crate) fn available(&self) -> u64 {
        self.queued + u64::from(self.left_in_current > 0)
    }

    /// Pads to come.
    pub(crate) fn packets(&self) -> u64 {
        self.queued * SEGMENT_PACKETS as u64 + self.left_in_current
    }
}

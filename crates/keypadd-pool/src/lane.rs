//! A lane: the queues between the filler and one key of one direction.
//!
//! The consumer's end ([`Lane`]) finds the pad of a packet number, never waits and takes no lock
//! that a filler takes. It follows the newest packet number, keeps a few chunks behind it for
//! late packets where the direction wants that, and gives spent chunks back. The filler's end
//! ([`Feed`]) is in `filler.rs`. Counters between the two are atomics of their own and carry no
//! other data, so relaxed ordering is enough; the queues order the chunks.

mod hand;

use std::sync::Arc;

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS, Segment};

use crate::chunk::{BODY_BYTES, HEAD_BYTES, KeyId, PAD_BYTES, Part};
use crate::demand::Traffic;
use crate::plan::Stage;
use crate::shared::Wake;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicU8, AtomicU64};

pub(crate) use hand::Hand;

/// How much of a packet's pad was at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte comes from the pool.
    Hit,
    /// A part comes from the pool, the rest is generated inline.
    Partial,
    /// Every byte is generated inline.
    Miss,
}

impl Coverage {
    /// Of a pad of so many bytes of which some are at hand.
    #[inline(always)]
    pub fn of(at_hand: usize, pad_bytes: usize) -> Self {
        match at_hand {
            0 => Self::Miss,
            all if all == pad_bytes => Self::Hit,
            _ => Self::Partial,
        }
    }
}

/// What the pool holds for one part of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartLevel {
    /// Keystream bytes at hand.
    pub bytes: u64,
    /// Packets whose pad (of this part) is at hand.
    pub packets: u64,
}

/// What both ends of a lane see.
#[derive(Debug)]
pub(crate) struct Shared {
    stage: AtomicU8,
    /// The consumer is gone and has given everything back.
    closed: AtomicBool,
    /// The lowest packet number whose pad may still be wanted: one above the newest that was used, and in
    /// no segment before the newest that the consumer has needed.
    next: AtomicU64,
    pub(crate) parts: [PartShared; 2],
}

/// Level of one part: chunks pushed by the filler and popped by the consumer since the start.
#[derive(Debug, Default)]
pub(crate) struct PartShared {
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

/// No chunk is asked back.
const NO_RECALL: u64 = 0;

impl PartShared {
    /// Asks for all but the nearest `keep` chunks, the one in use among them, and for what is kept for
    /// late packets. The filler pushes nothing until they are back.
    pub(crate) fn recall(&self, keep: u64) {
        self.recall.store(keep + 1, Release);
    }

    fn queued(&self) -> u64 {
        self.pushed.load(Relaxed).saturating_sub(self.popped.load(Relaxed))
    }

    /// Whether the filler has asked for chunks back, and has not got them yet.
    #[inline(always)]
    fn is_recalled(&self) -> bool {
        self.recall.load(Acquire) != NO_RECALL
    }

    /// After a recall that has been obeyed: the segment from which on chunks are to be made again,
    /// if any came back.
    pub(crate) fn obeyed(&self) -> Option<u64> {
        (!self.is_recalled()).then(|| self.resume.load(Relaxed))
    }
}

impl Shared {
    pub(crate) fn new(stage: Stage, position: Segment) -> Self {
        Self {
            stage: AtomicU8::new(stage as u8),
            closed: AtomicBool::new(false),
            next: AtomicU64::new(position.first().value()),
            parts: Default::default(),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Relaxed)) % Stage::ALL.len()]
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// The segment that the consumer is in.
    pub(crate) fn position(&self) -> u64 {
        PacketNumber::new(self.next.load(Relaxed)).segment().value()
    }

    /// What there is of both parts now. Each counter is read once, so that a chunk is either at hand or kept.
    pub(crate) fn holdings(&self) -> [PartHolding; 2] {
        let next = self.next.load(Relaxed);
        Part::ALL.map(|part| {
            let counts = &self.parts[part as usize];
            let end = counts.current_end.load(Relaxed);
            let is_used_up = end > 0 && end <= next;
            PartHolding {
                queued: counts.queued(),
                in_hand: end.saturating_sub(next).min(SEGMENT_PACKETS as u64),
                kept: counts.recent.load(Relaxed) + u64::from(is_used_up),
            }
        })
    }
}

/// What there is of one part of a lane at one moment.
pub(crate) struct PartHolding {
    /// Chunks in the queue, not counting those in the consumer's hands.
    queued: u64,
    /// Pads to come of the consumer's current chunk.
    in_hand: u64,
    /// Chunks in the consumer's hand that have no pads to come: those kept for late packets, and a
    /// current one that is used up.
    pub(crate) kept: u64,
}

impl PartHolding {
    /// Chunks with pads that are to be used: those in the queue, and the one in use.
    pub(crate) fn at_hand(&self) -> u64 {
        self.queued + u64::from(self.in_hand > 0)
    }
}

/// The consumer's end. One thread at a time uses it (`&mut self`); in quinn that is whoever holds
/// the connection's lock.
pub struct Lane {
    key: KeyId,
    /// The newest segment that was needed.
    segment: Segment,
    /// As [`Shared::next`], which it is the only one to write.
    next: u64,
    shared: Arc<Shared>,
    traffic: Traffic,
    hands: [Hand; 2],
    // Last, so that it is dropped when the hands have given everything back.
    bell: Bell,
}

/// Rings for the filler, for the last time when the lane is gone.
struct Bell {
    wake: Wake,
    shared: Arc<Shared>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.shared.closed.store(true, Release);
        self.wake.filler();
    }
}

impl Lane {
    pub(crate) fn new(
        key: KeyId,
        shared: Arc<Shared>,
        traffic: Traffic,
        hands: [Hand; 2],
        wake: Wake,
    ) -> Self {
        let bell = Bell { wake, shared: Arc::clone(&shared) };
        let next = shared.next.load(Relaxed);
        let segment = PacketNumber::new(next).segment();
        Self { key, segment, next, shared, traffic, hands, bell }
    }

    /// What of the first `pad_bytes` of the packet's pad could be taken now, without taking or moving
    /// anything: safe to ask for packets that are not yet known to be genuine.
    pub fn peek(&self, packet_number: PacketNumber, pad_bytes: usize) -> Peek<'_> {
        let [heads, bodies] = &self.hands;
        let (needs_head, needs_body) = needs(pad_bytes);
        let head = if needs_head { heads.peek(self.key, Part::Head, packet_number) } else { None };
        let has_body = needs_body && bodies.peek(self.key, Part::Body, packet_number).is_some();
        Peek { head, has_body, pad_bytes }
    }

    /// Moves to the packet's segment, as for a packet that needs the first `pad_bytes` of its pad, and takes
    /// none of it. Only for packet numbers that we chose or that came with a good tag: older chunks are given
    /// up.
    #[inline(always)]
    pub fn seek(&mut self, packet_number: PacketNumber, pad_bytes: usize) {
        self.traffic.count(pad_bytes);
        let (needs_head, needs_body) = needs(pad_bytes);
        let [heads, bodies] = &self.hands;
        if packet_number.segment() > self.segment
            || needs_head && heads.can_draw()
            || needs_body && bodies.can_draw()
            || self.shared.parts.iter().any(PartShared::is_recalled)
        {
            self.advance_to(packet_number.segment(), pad_bytes);
        }
    }

    /// Moves to the packet's segment as [`Self::seek`] does and takes the packet's pad: XORs what is at hand of
    /// it over `mask` and `data`, which together are the packet's first pad bytes. If that is less than `least`
    /// bytes nothing is taken. The caller makes the rest inline. `found` is called in between, when every byte
    /// is at hand.
    ///
    /// # Panics
    ///
    /// If `mask` does not fit into a head.
    // Inlined into its caller, with what it calls: rows that are handed from frame to frame through memory cost
    // a short packet as much as its XOR.
    #[inline(always)]
    pub fn take(
        &mut self,
        packet_number: PacketNumber,
        mask: &mut [u8],
        data: &mut [u8],
        least: usize,
        found: impl FnOnce(),
    ) -> Taken {
        let pad_bytes = mask.len() + data.len();
        self.seek(packet_number, pad_bytes);
        let Self { key, next, shared, hands: [heads, bodies], .. } = self;
        if heads.is_empty() && bodies.is_empty() {
            return Taken::NOTHING;
        }
        let (needs_head, needs_body) = needs(pad_bytes);
        let head = if needs_head { heads.row(*key, Part::Head, packet_number) } else { None };
        let body = if needs_body { bodies.row(*key, Part::Body, packet_number) } else { None };
        let taken = Taken::of(head.is_some(), body.is_some(), pad_bytes);
        if taken.bytes < least.max(1) {
            return Taken::NOTHING;
        }
        if taken.bytes == pad_bytes {
            found();
        }
        let number = packet_number.value();
        if number >= *next {
            *next = number + 1;
            shared.next.store(*next, Relaxed);
        }
        let (for_head, rest) = data.split_at_mut(data.len().min(HEAD_BYTES - mask.len()));
        if let Some(head) = head {
            head.take(mask, for_head);
        }
        if let Some(body) = body {
            let bytes = rest.len().min(BODY_BYTES);
            body.take(&mut [], &mut rest[..bytes]);
        }
        taken
    }

    /// Draws chunks for a packet of this segment, and gives back what is behind it or asked for. What hardly
    /// any packet comes to.
    #[inline(never)]
    fn advance_to(&mut self, segment: Segment, pad_bytes: usize) {
        let Self { next, shared, hands, .. } = self;
        let goes_on = segment > self.segment;
        if goes_on {
            self.segment = segment;
            *next = segment.first().value();
            shared.next.store(*next, Relaxed);
        }
        for part in Part::ALL {
            let (counts, hand) = (&shared.parts[part as usize], &mut hands[part as usize]);
            // A part that this packet does not need follows from segment to segment.
            let needs = pad_bytes > part.range().start;
            let moved = (needs || goes_on) && hand.advance_to(segment, counts);
            let expired = goes_on && hand.expire(segment, counts);
            let gave_back = hand.obey(needs.then_some(segment), *next, counts) || expired;
            // Where there is nothing, nothing moves; the filler may not know that it is needed now.
            let uses = moved || needs && goes_on;
            let at_hand = || counts.queued() + u64::from(hand.has_pads(*next));
            if gave_back || uses && at_hand() <= counts.low_water.load(Relaxed) {
                self.bell.wake.filler();
            }
        }
    }

    /// How much the filler should hold ready for this key.
    pub fn set_stage(&self, stage: Stage) {
        if self.shared.stage.swap(stage as u8, Relaxed) != stage as u8 {
            self.bell.wake.filler();
        }
    }

    /// The stage last set.
    pub fn stage(&self) -> Stage {
        self.shared.stage()
    }

    /// What is at hand for one part.
    pub fn level(&self, part: Part) -> PartLevel {
        let [head, body] = self.shared.holdings();
        let holding = if part == Part::Head { head } else { body };
        let packets = holding.queued * SEGMENT_PACKETS as u64 + holding.in_hand;
        PartLevel { bytes: packets * part.row_bytes() as u64, packets }
    }
}

/// What could be taken of one packet's pad.
pub struct Peek<'a> {
    head: Option<&'a [u8]>,
    has_body: bool,
    pad_bytes: usize,
}

impl<'a> Peek<'a> {
    /// How many bytes are at hand.
    pub fn bytes(&self) -> usize {
        Taken::of(self.head.is_some(), self.has_body, self.pad_bytes).bytes
    }

    /// How much of the pad that is.
    pub fn coverage(&self) -> Coverage {
        Coverage::of(self.bytes(), self.pad_bytes)
    }

    /// The first 16 bytes, GCM's tag mask, where they lie. `None` when they are not at hand; the pad stays
    /// usable.
    pub fn mask(&self) -> Option<&'a [u8; 16]> {
        self.head.and_then(|head| head.first_chunk())
    }
}

/// What was taken of one packet's pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Whether the head was, as far as it was needed.
    pub head: bool,
    /// Whether the body was, likewise.
    pub body: bool,
    /// Bytes in all.
    pub bytes: usize,
}

impl Taken {
    /// No byte.
    pub const NOTHING: Self = Self { head: false, body: false, bytes: 0 };

    /// Of a pad of so many bytes, the parts that are there and needed.
    #[inline(always)]
    fn of(head: bool, body: bool, pad_bytes: usize) -> Self {
        let of_head = if head { pad_bytes.min(HEAD_BYTES) } else { 0 };
        let of_body = if body { pad_bytes.min(PAD_BYTES) - HEAD_BYTES } else { 0 };
        Self { head, body, bytes: of_head + of_body }
    }
}

/// Whether a pad of so many bytes has something of the head, and of the body.
#[inline(always)]
fn needs(pad_bytes: usize) -> (bool, bool) {
    (pad_bytes > 0, pad_bytes > HEAD_BYTES)
}

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
    /// The newest segment that the consumer has needed.
    pub(crate) position: AtomicU64,
    pub(crate) parts: [PartShared; 2],
}

/// Level of one part: chunks pushed by the filler and popped by the consumer since the start.
#[derive(Debug, Default)]
pub(crate) struct PartShared {
    pub(crate) pushed: AtomicU64,
    popped: AtomicU64,
    /// Pads left in the consumer's current chunk.
    in_hand: AtomicU64,
    /// Chunks in the consumer's hand that have no pads to come: those kept for late packets, and a
    /// current one that is used up.
    pub(crate) kept: AtomicU64,
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

    /// Whether the filler has asked for chunks back, and has not got them yet.
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
            position: AtomicU64::new(position.value()),
            parts: Default::default(),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Relaxed)) % Stage::ALL.len()]
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Chunks with pads that are to be used: those in the queue, and the one in use.
    pub(crate) fn at_hand(&self, part: Part) -> u64 {
        self.queued(part) + u64::from(self.parts[part as usize].in_hand.load(Relaxed) > 0)
    }

    /// Chunks in the queue, not counting those in the consumer's hands.
    fn queued(&self, part: Part) -> u64 {
        let counts = &self.parts[part as usize];
        counts.pushed.load(Relaxed).saturating_sub(counts.popped.load(Relaxed))
    }

    fn level(&self, part: Part) -> PartLevel {
        let in_hand = self.parts[part as usize].in_hand.load(Relaxed);
        let packets = self.queued(part) * SEGMENT_PACKETS as u64 + in_hand;
        PartLevel { bytes: packets * part.row_bytes() as u64, packets }
    }
}

/// The consumer's end. One thread at a time uses it (`&mut self`); in quinn that is whoever holds
/// the connection's lock.
pub struct Lane {
    key: KeyId,
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
        Self { key, shared, traffic, hands, bell }
    }

    /// How much of the first `pad_bytes` of the packet's pad could be taken now, without taking
    /// or moving anything: safe to ask for packets that are not yet known to be genuine.
    pub fn peek(&self, packet_number: PacketNumber, pad_bytes: usize) -> Coverage {
        coverage(pad_bytes, |part| {
            self.hands[part as usize].peek(self.key, part, packet_number).is_some()
        })
    }

    /// How many of the first `pad_bytes` of the packet's pad could be taken now; as [`Self::peek`].
    pub fn at_hand(&self, packet_number: PacketNumber, pad_bytes: usize) -> usize {
        let has =
            |part: Part| self.hands[part as usize].peek(self.key, part, packet_number).is_some();
        let bytes = |part: Part| part.range().end.min(pad_bytes).saturating_sub(part.range().start);
        Part::ALL.into_iter().filter(|&part| has(part)).map(bytes).sum()
    }

    /// The first 16 bytes of the packet's pad, GCM's tag mask, read in place. `None` when they
    /// are not at hand; the pad stays usable.
    pub fn peek_mask(&self, packet_number: PacketNumber) -> Option<[u8; 16]> {
        let chunk = self.hands[Part::Head as usize].peek(self.key, Part::Head, packet_number)?;
        chunk.row(packet_number.slot())[..16].try_into().ok()
    }

    /// Moves to the packet's segment and says how much of the first `pad_bytes` of its pad is at
    /// hand. Only for packet numbers that we chose or that came with a good tag: older chunks are
    /// given up.
    pub fn seek(&mut self, packet_number: PacketNumber, pad_bytes: usize) -> Coverage {
        let segment = packet_number.segment();
        let goes_on = segment.value() > self.shared.position.load(Relaxed);
        if goes_on {
            self.shared.position.store(segment.value(), Relaxed);
        }
        self.traffic.count(pad_bytes);
        for part in Part::ALL {
            let (counts, hand) =
                (&self.shared.parts[part as usize], &mut self.hands[part as usize]);
            // A part that this packet does not need follows from segment to segment.
            let needs = pad_bytes > part.range().start;
            let moved = (needs || goes_on) && hand.advance_to(segment, counts);
            if !moved && !goes_on && !counts.is_recalled() {
                continue; // as nearly always
            }
            let expired = goes_on && hand.expire(segment, counts);
            let gave_back = hand.obey(needs.then_some(segment), counts) || expired;
            // Where there is nothing, nothing moves; the filler may not know that it is needed now.
            let uses = moved || needs && goes_on;
            if gave_back || uses && self.shared.at_hand(part) <= counts.low_water.load(Relaxed) {
                self.bell.wake.filler();
            }
        }
        coverage(pad_bytes, |part| {
            self.hands[part as usize].find(self.key, part, packet_number).is_some()
        })
    }

    /// Takes the packet's pad: XORs it over `mask` and `data`, which together are the packet's
    /// first pad bytes, as far as it is at hand. Returns per part, in the order of
    /// [`Part::ALL`], whether it was; the caller makes the rest inline. Call [`Self::seek`] first.
    pub fn take(
        &mut self,
        packet_number: PacketNumber,
        mask: &mut [u8],
        data: &mut [u8],
    ) -> [bool; 2] {
        debug_assert!(mask.len() <= HEAD_BYTES, "the tag mask lies in the head");
        let (head, rest) = data.split_at_mut(data.len().min(HEAD_BYTES - mask.len()));
        let (body, _) = rest.split_at_mut(rest.len().min(BODY_BYTES));
        [
            self.take_part(Part::Head, packet_number, mask, head),
            self.take_part(Part::Body, packet_number, &mut [], body),
        ]
    }

    /// As [`Self::take`], for one part of the pad.
    #[inline]
    fn take_part(
        &mut self,
        part: Part,
        packet_number: PacketNumber,
        mask: &mut [u8],
        data: &mut [u8],
    ) -> bool {
        if mask.is_empty() && data.is_empty() {
            return false;
        }
        let hand = &mut self.hands[part as usize];
        let Some(chunk) = hand.find(self.key, part, packet_number) else { return false };
        chunk.take(packet_number.slot(), mask, data);
        if let Some(in_hand) = hand.in_hand(packet_number) {
            hand.note(in_hand, &self.shared.parts[part as usize]);
        }
        true
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
        self.shared.level(part)
    }
}

/// Which of a pad's parts a packet needs decides between hit, partial and miss.
#[inline]
fn coverage(pad_bytes: usize, mut at_hand: impl FnMut(Part) -> bool) -> Coverage {
    let is_long = pad_bytes > HEAD_BYTES;
    match (pad_bytes > 0 && at_hand(Part::Head), is_long && at_hand(Part::Body)) {
        (false, false) => Coverage::Miss,
        (true, body) if body == is_long && pad_bytes <= PAD_BYTES => Coverage::Hit,
        _ => Coverage::Partial,
    }
}

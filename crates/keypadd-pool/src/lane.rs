//! Finds and takes the pads of one key in one direction: the consumer's end of a lane.
//!
//! A [`Lane`] never waits and takes no lock that a filler takes. It follows the newest packet
//! number, keeps a few chunks behind it for late packets if its direction receives, and gives spent
//! chunks back. The filler's end ([`Feed`](crate::feed::Feed)) is in `feed.rs`.

mod part_queue;

use std::sync::Arc;

use keypadd_keystream::{KeystreamKey, PacketNumber, Segment};

use crate::chunk::{BODY_BYTES, HEAD_BYTES, KeyId, PAD_BYTES, Part, is_keystream};
use crate::demand::Traffic;
use crate::feed::UnqueuedFeed;
use crate::filler_state::FillerState;
use crate::lane_state::LaneState;
use crate::lane_view::Stage;
use crate::sync::Ordering::Relaxed;

pub(crate) use part_queue::PartQueue;

/// How much of a packet's pad comes from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte.
    Hit,
    /// Some bytes; the rest is generated inline.
    Partial,
    /// No byte; all are generated inline.
    Miss,
}

impl Coverage {
    /// The coverage of a pad of `pad_bytes` bytes of which the pool has `pool_bytes`.
    #[inline(always)]
    pub fn of(pool_bytes: usize, pad_bytes: usize) -> Self {
        match pool_bytes {
            0 => Self::Miss,
            all if all == pad_bytes => Self::Hit,
            _ => Self::Partial,
        }
    }
}

/// How much precomputed keystream one part of a lane has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartLevel {
    /// Keystream bytes.
    pub bytes: u64,
    /// Packets whose pad (of this part) is available.
    pub packets: u64,
}

/// The consumer's end of a lane. Used by one thread at a time (`&mut self`).
pub struct Lane {
    key: KeyId,
    /// The filler has a weak reference, so that a lane's end wipes the key, however long the filler
    /// does not run.
    _keystream: Arc<KeystreamKey>,
    /// The newest segment that was needed.
    segment: Segment,
    /// A copy of [`LaneState::next`], which only the lane writes.
    next: u64,
    state: Arc<LaneState>,
    traffic: Traffic,
    queues: [PartQueue; 2],
    /// The filler's end, until it is queued there. A peer that updates keys faster than a starved
    /// filler takes lanes in must not grow the filler's queue.
    unqueued: Option<Box<UnqueuedFeed>>,
    // Last, so that it is dropped after the queues have given everything back.
    closer: Closer,
}

/// Wakes the filler, and closes the lane when dropped.
struct Closer {
    filler: Arc<FillerState>,
    state: Arc<LaneState>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.state.close();
        self.filler.wake();
    }
}

impl Lane {
    pub(crate) fn new(
        (key, keystream): (KeyId, Arc<KeystreamKey>),
        state: Arc<LaneState>,
        traffic: Traffic,
        queues: [PartQueue; 2],
        filler: Arc<FillerState>,
    ) -> Self {
        let closer = Closer { filler, state: Arc::clone(&state) };
        let next = state.next();
        let segment = PacketNumber::new(next).segment();
        let (_keystream, unqueued) = (keystream, None);
        Self { key, _keystream, segment, next, state, traffic, queues, unqueued, closer }
    }

    /// Asks the filler to serve this lane, now or, if too many of its direction wait, at a later
    /// packet.
    #[cold]
    pub(crate) fn queue(&mut self, unqueued: UnqueuedFeed) {
        match unqueued.queue() {
            Ok(()) => self.closer.filler.wake(),
            Err(unqueued) => self.unqueued = Some(Box::new(unqueued)),
        }
    }

    /// What the pool has of the first `pad_bytes` bytes of the packet's pad. Takes and moves
    /// nothing, and reads no byte of the pad, so it is safe for packets that are not authenticated
    /// yet.
    pub fn peek(&self, packet_number: PacketNumber, pad_bytes: usize) -> Peek<'_> {
        let [heads, bodies] = &self.queues;
        let (needs_head, needs_body) = needs(pad_bytes);
        let head = if needs_head { heads.peek(self.key, Part::Head, packet_number) } else { None };
        let has_body = needs_body && bodies.peek(self.key, Part::Body, packet_number).is_some();
        Peek { head, has_body, pad_bytes }
    }

    /// Whether all of its pads are for packets more than a segment after this one.
    pub fn begins_after(&self, packet_number: PacketNumber) -> bool {
        self.segment > packet_number.segment().next()
    }

    /// Whether chunks are to be given back at the next packet.
    #[inline(always)]
    pub fn is_recalled(&self) -> bool {
        self.state.parts.iter().any(|part| part.recalled().is_some())
    }

    /// Moves to the packet's segment, for a packet that needs the first `pad_bytes` bytes of its
    /// pad, and takes none of it. Gives up older chunks, so it must not be called with numbers that
    /// are neither our own nor authenticated.
    #[inline(always)]
    pub fn seek(&mut self, packet_number: PacketNumber, pad_bytes: usize) {
        if self.traffic.count(pad_bytes) {
            self.closer.filler.wake();
        }
        let (needs_head, needs_body) = needs(pad_bytes);
        let [heads, bodies] = &self.queues;
        let segment = packet_number.segment();
        if segment > self.segment
            || needs_head && heads.can_draw(segment)
            || needs_body && bodies.can_draw(segment)
            || self.is_recalled()
        {
            self.advance_to(segment, pad_bytes);
        }
    }

    /// Moves to the segment of a packet that is too long for a pad, as [`Self::seek`], and wipes
    /// what the pool has of its pad.
    pub fn pass(&mut self, packet_number: PacketNumber) {
        self.traffic.count_too_long();
        self.seek(packet_number, 0);
        self.discard(packet_number);
    }

    /// Moves to the segment of a packet that does without its pad, as [`Self::seek`], and wipes
    /// what the pool has of it.
    pub fn skip(&mut self, packet_number: PacketNumber, pad_bytes: usize) {
        self.seek(packet_number, pad_bytes);
        self.discard(packet_number);
    }

    /// Wipes what the pool has of a packet's pad, which would open that packet.
    #[inline(always)]
    fn discard(&mut self, packet_number: PacketNumber) {
        for part in Part::ALL {
            self.queues[part as usize].discard(self.key, part, packet_number);
        }
    }

    /// Moves to the packet's segment, as [`Self::seek`], and takes the packet's pad: XORs what the
    /// pool has of it into `mask` and `data`, which together are as long as the pad. If the pool
    /// has fewer than `least` bytes, wipes them and takes nothing. Calls `found` before the XOR if
    /// the pool has every byte. The caller generates the rest inline.
    ///
    /// # Panics
    ///
    /// If `mask` is longer than a head.
    // Inlined, with everything it calls: passing rows through memory from frame to frame costs a
    // short packet as much as its XOR.
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
        let Self { key, next, state, queues: [heads, bodies], unqueued, .. } = self;
        if heads.is_empty() && bodies.is_empty() {
            if let Some(unqueued) = unqueued.take_if(|unqueued| unqueued.may_be_queued()) {
                self.queue(*unqueued);
            }
            return Taken::NOTHING;
        }
        let (needs_head, needs_body) = needs(pad_bytes);
        let head = if needs_head { heads.row(*key, Part::Head, packet_number) } else { None };
        let body = if needs_body { bodies.row(*key, Part::Body, packet_number) } else { None };
        let taken = Taken::of(head.is_some(), body.is_some(), pad_bytes);
        if taken.bytes < least.max(1) {
            if taken.bytes > 0 {
                self.discard(packet_number);
            }
            return Taken::NOTHING;
        }
        if taken.bytes == pad_bytes {
            found();
        }
        let number = packet_number.value();
        if number >= *next {
            *next = number + 1;
            state.set_next(*next);
        }
        let (for_head, rest) = data.split_at_mut(data.len().min(HEAD_BYTES - mask.len()));
        if let Some(head) = head {
            head.take(mask, for_head);
            // Heads lie so close together that the CPU fetches the others by itself.
            heads.fetch_next(Part::Head, packet_number, HEAD_BYTES);
        }
        if let Some(body) = body {
            let bytes = rest.len().min(BODY_BYTES);
            body.take(&mut [], &mut rest[..bytes]);
            bodies.fetch_ahead(Part::Body, packet_number, bytes);
            bodies.fetch_next(Part::Body, packet_number, bytes);
        }
        taken
    }

    /// Draws chunks for a packet of this segment, and gives back chunks that are behind it or
    /// recalled. The slow path: few packets need it.
    #[inline(never)]
    fn advance_to(&mut self, segment: Segment, pad_bytes: usize) {
        let Self { next, state, queues, .. } = self;
        let goes_on = segment > self.segment;
        if goes_on {
            self.segment = segment;
            *next = segment.first().value();
            state.set_next(*next);
        }
        for part in Part::ALL {
            let (part_state, queue) = (&state.parts[part as usize], &mut queues[part as usize]);
            // A part that this packet does not need follows from segment to segment.
            let needs = pad_bytes > part.range().start;
            let moved = (needs || goes_on) && queue.advance_to(segment, part_state);
            let expired = goes_on && queue.expire(segment, part_state);
            let gave_back = queue.obey(needs.then_some(segment), *next, part_state) || expired;
            // An empty queue does not move, but the filler may not know yet that it is needed.
            let uses = moved || needs && goes_on;
            let available = || part_state.queued() + u64::from(queue.has_pads(*next));
            if gave_back || uses && available() <= part_state.low_water.load(Relaxed) {
                self.closer.filler.wake();
            }
        }
    }

    /// Sets how much the filler should hold ready for this key.
    pub fn set_stage(&self, stage: Stage) {
        if self.state.set_stage(stage) {
            self.closer.filler.wake();
        }
    }

    /// Expects no packet after this segment, so that no pads are made for any; `None` expects all.
    pub fn expect_last(&self, last: Option<Segment>) {
        if self.state.set_end(last.map_or(u64::MAX, |last| last.next().value())) {
            self.closer.filler.wake();
        }
    }

    /// Gives back all pads but those for late packets: no new packet uses this key.
    pub fn end(&mut self) {
        self.state.set_stage(Stage::Dormant);
        for part in Part::ALL {
            self.queues[part as usize].give_back_queued(&self.state.parts[part as usize]);
        }
        self.closer.filler.wake();
    }

    /// The stage last set.
    pub fn stage(&self) -> Stage {
        self.state.stage()
    }

    /// How much precomputed keystream one part has.
    pub fn level(&self, part: Part) -> PartLevel {
        let packets = self.state.holdings()[part as usize].packets();
        PartLevel { bytes: packets * part.row_bytes() as u64, packets }
    }
}

/// What the pool has of one packet's pad.
pub struct Peek<'a> {
    head: Option<&'a [u8]>,
    has_body: bool,
    pad_bytes: usize,
}

impl<'a> Peek<'a> {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        Taken::of(self.head.is_some(), self.has_body, self.pad_bytes).bytes
    }

    /// The coverage of the pad.
    pub fn coverage(&self) -> Coverage {
        Coverage::of(self.bytes(), self.pad_bytes)
    }

    /// The first bytes, the MAC's mask, in place; the pad stays usable. `None` if the pool has
    /// none. Panics if the mask is longer than a head.
    pub fn mask(&self, mask_bytes: usize) -> Option<&'a [u8]> {
        self.head.filter(|head| is_keystream(head)).map(|head| &head[..mask_bytes])
    }
}

/// What was taken of one packet's pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Whether the head was taken, as far as the packet needed it.
    pub head: bool,
    /// Whether the body was taken, as far as the packet needed it.
    pub body: bool,
    /// Total bytes taken.
    pub bytes: usize,
}

impl Taken {
    /// Nothing was taken.
    pub const NOTHING: Self = Self { head: false, body: false, bytes: 0 };

    /// The parts that the pool has of a pad of `pad_bytes` bytes.
    #[inline(always)]
    fn of(head: bool, body: bool, pad_bytes: usize) -> Self {
        let of_head = if head { pad_bytes.min(HEAD_BYTES) } else { 0 };
        let of_body = if body { pad_bytes.min(PAD_BYTES) - HEAD_BYTES } else { 0 };
        Self { head, body, bytes: of_head + of_body }
    }
}

/// Whether a pad of this length needs a head, and whether it needs a body.
#[inline(always)]
fn needs(pad_bytes: usize) -> (bool, bool) {
    (pad_bytes > 0, pad_bytes > HEAD_BYTES)
}

//! A chunk: one part of the keystream of 64 consecutive packet numbers of one key.
//!
//! A chunk is neither `Clone` nor `Copy`. Using a pad marks it taken, wipes what is used of it, and first checks
//! that the chunk belongs to the key, the segment and the part that the caller means: the real
//! bug of a pool is a pad under the wrong number, so the check stays in release builds.

use std::ops::Range;

use keypadd_keystream::{KeystreamKey, SEGMENT_PACKETS, Segment};

use crate::arena::{UNIT_BYTES, Unit, wipe};
use crate::shared::Home;

/// Bytes of a pad that a head chunk holds: a keystroke's packet needs no more.
pub const HEAD_BYTES: usize = 128;
/// Bytes of a pad that a body chunk holds, after the head's.
pub const BODY_BYTES: usize = 1328;
/// Bytes of a pad that the pool can hold at all: enough for a UDP payload of 1,452 bytes less
/// the shortest header and the tag, plus GCM's tag mask. Longer packets end inline.
pub const PAD_BYTES: usize = HEAD_BYTES + BODY_BYTES;

/// A row that begins with so many zeros is no pad.
const MARK_BYTES: usize = 16;
/// The longest rest of a pad that is wiped along with what was used of it, two lines of a cache: for a longer
/// one, a packet would wait until memory that it has no use for has been fetched.
const REST_WIPED_MAX: usize = 128;

/// Which bytes of every pad a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first [`HEAD_BYTES`].
    Head,
    /// The [`BODY_BYTES`] after the head.
    Body,
}

impl Part {
    /// Both parts, in pad order.
    pub const ALL: [Self; 2] = [Self::Head, Self::Body];

    /// The part's place in a pad, in bytes.
    pub const fn range(self) -> Range<usize> {
        match self {
            Self::Head => 0..HEAD_BYTES,
            Self::Body => HEAD_BYTES..PAD_BYTES,
        }
    }

    /// Bytes of one pad's row in a chunk of this part.
    pub const fn row_bytes(self) -> usize {
        let range = self.range();
        range.end - range.start
    }

    /// Rows that fit in one unit.
    const fn rows_per_unit(self) -> usize {
        UNIT_BYTES / self.row_bytes()
    }

    /// The unit that holds the row of `slot`, and where in it. By constants: to divide takes as long as to
    /// XOR a keystroke.
    #[inline]
    const fn place(self, slot: usize) -> (usize, Range<usize>) {
        const HEADS: usize = Part::Head.rows_per_unit();
        const BODIES: usize = Part::Body.rows_per_unit();
        let (unit, nth) = match self {
            Self::Head => (slot / HEADS, slot % HEADS),
            Self::Body => (slot / BODIES, slot % BODIES),
        };
        let start = nth * self.row_bytes();
        (unit, start..start + self.row_bytes())
    }

    /// Units that a chunk of this part takes from the arena.
    pub(crate) const fn units(self) -> usize {
        SEGMENT_PACKETS.div_ceil(self.rows_per_unit())
    }
}

/// Identifies one key (connection, direction, phase) within a pool; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId(pub(crate) u64);

/// The keystream of one part of one segment of one key. Dropped chunks are wiped and their memory
/// goes home to the pool. No `Debug`: it would print keystream.
pub(crate) struct Chunk {
    key: KeyId,
    segment: Segment,
    part: Part,
    /// One bit a packet: set when its pad was used.
    taken: u64,
    /// One bit a packet: set when all of its pad has been wiped.
    wiped: u64,
    units: Box<[Unit]>,
    home: Home,
}

impl Chunk {
    /// Generates the keystream of `segment` into `units`.
    pub(crate) fn fill(
        key: KeyId,
        keystream: &KeystreamKey,
        segment: Segment,
        part: Part,
        units: Box<[Unit]>,
        home: Home,
    ) -> Self {
        debug_assert_eq!(units.len(), part.units());
        let mut chunk = Self { key, segment, part, taken: 0, wiped: 0, units, home };
        let rows = chunk
            .units
            .iter_mut()
            .flat_map(|unit| unit.chunks_exact_mut(part.row_bytes()))
            .take(SEGMENT_PACKETS);
        keystream.write_rows(segment, part.range().start, rows);
        chunk
    }

    /// The segment whose pads these are.
    pub(crate) fn segment(&self) -> Segment {
        self.segment
    }

    /// Pads that were generated and never used.
    pub(crate) fn untaken(&self) -> u32 {
        self.taken.count_zeros()
    }

    /// Whether the pad of `slot` of (key, segment, part) is here and unused.
    ///
    /// A row that begins with 16 zero bytes is never keystream that was generated: it was wiped,
    /// or never written. XORing it would send plaintext, so it counts as not here.
    #[inline]
    pub(crate) fn holds(&self, key: KeyId, segment: Segment, part: Part, slot: usize) -> bool {
        self.key == key
            && self.segment == segment
            && self.part == part
            && self.taken & (1 << slot) == 0
            && self.row(slot)[..MARK_BYTES] != [0; MARK_BYTES]
    }

    /// Reads a pad without taking it: for GCM's tag mask, before the tag is known to be good.
    pub(crate) fn row(&self, slot: usize) -> &[u8] {
        let (unit, bytes) = self.part.place(slot);
        &self.units[unit][bytes]
    }

    /// Takes the pad of `slot`: XORs its first bytes over `mask` and then `data`, and wipes what was used of it;
    /// a long rest is wiped along with what was not used at all. The caller has asked [`Self::holds`]; both
    /// together are no longer than the row, or it panics.
    #[inline]
    pub(crate) fn take(&mut self, slot: usize, mask: &mut [u8], data: &mut [u8]) {
        // Retire the pad before using it, so that nothing can use it twice.
        self.taken |= 1 << slot;
        let (unit, bytes) = self.part.place(slot);
        let row = &mut self.units[unit][bytes];
        let used = mask.len() + data.len();
        let (for_mask, for_data) = row[..used].split_at(mask.len());
        xor(mask, for_mask);
        xor(data, for_data);
        if row.len() - used > REST_WIPED_MAX {
            // The first bytes in any case: they tell that there is no pad any more.
            wipe(&mut row[..used.max(MARK_BYTES)]);
        } else {
            wipe(row);
            self.wiped |= 1 << slot;
        }
    }

    /// Wipes what is left of all pads, and counts those of which nothing was used as wasted; the chunk has
    /// nothing to take after that.
    pub(crate) fn wipe_left(&mut self) {
        self.home.count_wasted(u64::from(self.untaken()));
        self.taken = u64::MAX;
        for slot in (0..SEGMENT_PACKETS).filter(|slot| self.wiped & (1 << slot) == 0) {
            let (unit, bytes) = self.part.place(slot);
            wipe(&mut self.units[unit][bytes]);
        }
        self.wiped = u64::MAX;
    }

    /// The memory of a chunk that has been wiped.
    pub(crate) fn into_units(mut self) -> Box<[Unit]> {
        self.wipe_left();
        std::mem::take(&mut self.units)
    }
}

/// XORs a pad over as many bytes of data.
fn xor(data: &mut [u8], pad: &[u8]) {
    for (byte, pad) in data.iter_mut().zip(pad) {
        *byte ^= pad;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.units.is_empty() {
            self.wipe_left();
            self.home.take_back(std::mem::take(&mut self.units));
        }
    }
}

#[cfg(test)]
mod tests;

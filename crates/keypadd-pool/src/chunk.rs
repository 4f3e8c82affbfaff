//! Holds one part of the keystream of 64 consecutive packet numbers of one key.
//!
//! A chunk is neither `Clone` nor `Copy`. Finding a pad checks, in release builds too, that the
//! chunk belongs to the caller's key, segment and part: the worst bug of a pool is a pad under the
//! wrong number. Taking a pad marks it taken and wipes what is used of it.

use std::ops::Range;

use keypadd_keystream::{KeystreamKey, SEGMENT_PACKETS, Segment, prefetch, spend, wipe};

use crate::arena::{UNIT_BYTES, Unit};
use crate::filler_state::MemoryReturn;

/// Bytes of a pad that a head chunk holds: enough for a keystroke's packet.
pub const HEAD_BYTES: usize = 128;
/// Bytes of a pad that a body chunk holds, after the head's.
pub const BODY_BYTES: usize = 1344;
/// Bytes of a pad that the pool holds at most: enough for a UDP payload of 1,452 bytes less the
/// shortest header and the tag, plus the longest mask. The end of longer pads is generated inline.
pub const PAD_BYTES: usize = HEAD_BYTES + BODY_BYTES;

/// A row that begins with this many zeros is not a pad.
const MARK_BYTES: usize = 16;
/// The longest unused rest of a pad that is wiped when the pad is taken: two cache lines. Wiping
/// more would make the packet wait for memory that it does not need.
const REST_WIPED_MAX: usize = 128;

/// The part of every pad that a chunk holds.
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

    /// The part's byte range in a pad.
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

    /// The unit that holds the row of `slot`, and the range in it. Divides by constants: a division
    /// would take as long as XORing a keystroke.
    #[inline(always)]
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

    /// Units in a chunk of this part.
    pub(crate) const fn units(self) -> usize {
        SEGMENT_PACKETS.div_ceil(self.rows_per_unit())
    }
}

/// Identifies one key (connection, direction, phase) within a pool; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId(pub(crate) u64);

/// The keystream of one part of one segment of one key. Dropping it wipes it and returns its memory
/// to the pool. Has no `Debug`, which would print keystream.
pub(crate) struct Chunk {
    key: KeyId,
    segment: Segment,
    part: Part,
    /// One bit per packet: its pad was taken.
    taken: u64,
    /// One bit per packet: all of its pad has been wiped.
    wiped: u64,
    units: Box<[Unit]>,
    home: MemoryReturn,
}

impl Chunk {
    /// Generates the keystream of `segment` into `units`.
    pub(crate) fn fill(
        key: KeyId,
        keystream: &KeystreamKey,
        segment: Segment,
        part: Part,
        units: Box<[Unit]>,
        home: MemoryReturn,
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

    /// Pads that were generated and not used.
    pub(crate) fn untaken(&self) -> u32 {
        self.taken.count_zeros()
    }

    /// The place of the pad of `slot` of (key, segment, part), if it is in this chunk and unused.
    /// Reads no byte of it.
    #[inline(always)]
    fn find(
        &self,
        key: KeyId,
        segment: Segment,
        part: Part,
        slot: usize,
    ) -> Option<(usize, Range<usize>)> {
        let is_asked_for = self.key == key && self.segment == segment && self.part == part;
        if !is_asked_for || self.taken & (1 << slot) != 0 {
            return None;
        }
        Some(part.place(slot))
    }

    /// A pad in place, without taking it: before its packet's tag is verified. Reads no byte of it;
    /// whoever does must ask [`is_keystream`].
    pub(crate) fn peek(
        &self,
        key: KeyId,
        segment: Segment,
        part: Part,
        slot: usize,
    ) -> Option<&[u8]> {
        let (unit, bytes) = self.find(key, segment, part, slot)?;
        Some(&self.units[unit][bytes])
    }

    /// The pad of `slot` of (key, segment, part), ready to be taken, if it is [`is_keystream`].
    #[inline(always)]
    pub(crate) fn row(
        &mut self,
        key: KeyId,
        segment: Segment,
        part: Part,
        slot: usize,
    ) -> Option<Row<'_>> {
        let (unit, bytes) = self.find(key, segment, part, slot)?;
        let Self { taken, wiped, units, .. } = self;
        let bytes = &mut units[unit][bytes];
        is_keystream(bytes).then_some(Row { bytes, bit: 1 << slot, taken, wiped })
    }

    /// Wipes the pad of `slot` of (key, segment, part), if it is in this chunk and unused, and
    /// counts it as wasted. Nothing can take it afterwards.
    pub(crate) fn discard(&mut self, key: KeyId, segment: Segment, part: Part, slot: usize) {
        let Some((unit, bytes)) = self.find(key, segment, part, slot) else { return };
        self.taken |= 1 << slot;
        wipe(&mut self.units[unit][bytes]);
        self.wiped |= 1 << slot;
        self.home.count_wasted(1);
    }

    /// Fetches where the rows are into the caches, without waiting for it.
    pub(crate) fn fetch_units(&self) {
        prefetch(&*self.units);
    }

    /// Fetches the first bytes of a row into the caches, without waiting for them.
    #[inline(always)]
    pub(crate) fn fetch(&self, part: Part, slot: usize, bytes: usize) {
        let (unit, row) = part.place(slot);
        prefetch(&self.units[unit][row][..bytes]);
    }

    /// Wipes what is left of all pads, and counts unused ones as wasted. Nothing can be taken
    /// afterwards.
    pub(crate) fn wipe_left(&mut self) {
        self.home.count_wasted(u64::from(self.untaken()));
        self.taken = u64::MAX;
        for slot in (0..SEGMENT_PACKETS).filter(|slot| self.wiped & (1 << slot) == 0) {
            let (unit, bytes) = self.part.place(slot);
            wipe(&mut self.units[unit][bytes]);
        }
        self.wiped = u64::MAX;
    }

    /// Wipes the chunk and returns its memory.
    pub(crate) fn into_units(mut self) -> Box<[Unit]> {
        self.wipe_left();
        std::mem::take(&mut self.units)
    }
}

/// Whether a row is a pad. One that begins with 16 zero bytes was wiped or never written: XORing it
/// would send plaintext, so it counts as missing.
#[inline(always)]
pub(crate) fn is_keystream(row: &[u8]) -> bool {
    row[..MARK_BYTES] != [0; MARK_BYTES]
}

/// One packet's row of a chunk, not taken yet.
pub(crate) struct Row<'a> {
    bytes: &'a mut [u8],
    /// The packet's bit in the chunk's two maps.
    bit: u64,
    taken: &'a mut u64,
    wiped: &'a mut u64,
}

impl Row<'_> {
    /// Takes the pad: XORs its first bytes into `mask` and then `data`, and wipes what was used. A
    /// long rest is wiped with the chunk. Panics if both together are longer than the row.
    #[inline(always)]
    pub(crate) fn take(self, mask: &mut [u8], data: &mut [u8]) {
        let Self { bytes: row, bit, taken, wiped } = self;
        // Retire the pad before using it, so that nothing can use it twice.
        *taken |= bit;
        let (for_mask, rest) = row.split_at_mut(mask.len());
        let (for_data, rest) = rest.split_at_mut(data.len());
        spend(mask, for_mask);
        spend(data, for_data);
        if rest.len() <= REST_WIPED_MAX {
            wipe(rest);
            *wiped |= bit;
        } else {
            // At least the first bytes, which mark the pad as gone.
            wipe(&mut row[..MARK_BYTES]);
        }
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

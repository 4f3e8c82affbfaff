//! A chunk: one part of the keystream of 64 consecutive packet numbers of one key.
//!
//! A chunk is neither `Clone` nor `Copy`. Finding a pad checks that the chunk belongs to the key, the segment
//! and the part that the caller means: the real bug of a pool is a pad under the wrong number, so the check
//! stays in release builds. Using it marks it taken and wipes what is used of it.

use std::ops::Range;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

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

    /// Where the pad of `slot` of (key, segment, part) lies, if it is here and unused.
    ///
    /// A row that begins with 16 zero bytes is never keystream that was generated: it was wiped, or never
    /// written. XORing it would send plaintext, so it counts as not here.
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
        let (unit, bytes) = part.place(slot);
        let is_keystream = self.units[unit][bytes.clone()][..MARK_BYTES] != [0; MARK_BYTES];
        is_keystream.then_some((unit, bytes))
    }

    /// Reads a pad where it lies, without taking it: for GCM's tag mask, before the tag is known to be good.
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

    /// The pad of `slot` of (key, segment, part), to be taken.
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
        Some(Row { bytes: &mut units[unit][bytes], bit: 1 << slot, taken, wiped })
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

/// One packet's row of a chunk: found, and not used yet.
pub(crate) struct Row<'a> {
    bytes: &'a mut [u8],
    /// The packet's place in the chunk's two maps.
    bit: u64,
    taken: &'a mut u64,
    wiped: &'a mut u64,
}

impl Row<'_> {
    /// Takes the pad: XORs its first bytes over `mask` and then `data`, and wipes what was used of it; a long
    /// rest is wiped along with what was not used at all. Both together are no longer than the row, or it
    /// panics.
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
            // The first bytes in any case: they tell that there is no pad any more.
            wipe(&mut row[..MARK_BYTES]);
        }
    }
}

/// XORs a pad over as many bytes of data, and wipes it.
#[inline(always)]
fn spend(data: &mut [u8], pad: &mut [u8]) {
    for (byte, pad) in data.iter_mut().zip(&mut *pad) {
        *byte ^= std::mem::take(pad);
    }
    compiler_fence(SeqCst);
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

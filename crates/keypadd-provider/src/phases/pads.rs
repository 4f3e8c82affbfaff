//! Supplies the pads of one key: from its lane where the pool has them, the rest inline.
//!
//! Knows no key phases but its own number, and not when a lane is opened.

use std::ops::Range;

use keypadd_keystream::{InlineKeystream, PacketNumber};
use keypadd_pool::{Coverage, HEAD_BYTES, Lane, PAD_BYTES, Part, Taken};

use crate::meters::Tally;

/// The longest rest of a pad that is generated inline if the packet could be sealed or opened in
/// one pass.
pub(crate) const REST_BYTES_MAX: usize = 2 * HEAD_BYTES;

/// The pads of one key.
pub(crate) struct PhasePads {
    pub(super) phase: u64,
    /// Generates pads inline; `None` for a null cipher, which never has a lane either.
    pub(super) inline: Option<InlineKeystream>,
    /// In memory of its own: most keys of a server with many idle peers have none.
    pub(super) lane: Option<Box<Lane>>,
    /// The first packet number of the phase.
    pub(super) first_packet: Option<u64>,
    /// Whether the last packet without a body, and the last one with, was a hit.
    pub(super) was_hit: [bool; 2],
}

impl PhasePads {
    /// Counts a packet with this many pad bytes from the pool; returns the coverage.
    #[inline(always)]
    pub(super) fn count(
        &mut self,
        tally: &mut Tally,
        pool_bytes: usize,
        pad_bytes: usize,
    ) -> Coverage {
        let coverage = Coverage::of(pool_bytes, pad_bytes);
        let inline_bytes = if self.inline.is_some() { pad_bytes - pool_bytes } else { 0 };
        tally.count(coverage, pad_bytes, pool_bytes, inline_bytes);
        // The first packet without its full pad after a hit: the pool has just run dry. Short
        // packets, which need no body, and longer ones are counted separately.
        let is_hit = coverage == Coverage::Hit;
        let was_hit = &mut self.was_hit[has_body(pad_bytes)];
        if std::mem::replace(was_hit, is_hit) && !is_hit {
            tally.count_exhaustion();
        }
        coverage
    }

    /// XORs the part of the pad that was not `taken` into `mask` and `data`.
    #[inline(never)]
    pub(super) fn apply_inline(
        &mut self,
        packet_number: PacketNumber,
        taken: Taken,
        mask: &mut [u8],
        data: &mut [u8],
    ) {
        let Some(inline) = &mut self.inline else { return };
        let pad_bytes = mask.len() + data.len();
        for gap in gaps(taken, pad_bytes).into_iter().filter(|gap| !gap.is_empty()) {
            apply_range(inline, packet_number, gap, mask, data);
        }
    }
}

/// 1 if a pad has a body, else 0.
pub(super) fn has_body(pad_bytes: usize) -> usize {
    usize::from(pad_bytes > HEAD_BYTES)
}

/// The least pad bytes from the pool that make a pooled packet worthwhile: with fewer, ring's
/// single pass is faster than a MAC and a long rest of the pad.
pub(crate) fn least_of(pad_bytes: usize) -> usize {
    pad_bytes.saturating_sub(REST_BYTES_MAX).max(1)
}

/// Whether no pad in the pool is long enough to be worthwhile for a packet that could be sealed or
/// opened in one pass.
pub(crate) fn is_too_long(pad_bytes: usize) -> bool {
    least_of(pad_bytes) > PAD_BYTES
}

/// XORs the byte range `pad` of a packet's pad into `mask` and `data`.
fn apply_range(
    inline: &mut InlineKeystream,
    packet_number: PacketNumber,
    pad: Range<usize>,
    mask: &mut [u8],
    data: &mut [u8],
) {
    let skip = mask.len();
    if pad.start < skip {
        let end = pad.end.min(skip);
        inline.apply(packet_number, pad.start, &mut mask[pad.start..end]);
    }
    let start = pad.start.max(skip);
    if start < pad.end {
        inline.apply(packet_number, start, &mut data[start - skip..pad.end - skip]);
    }
}

/// The ranges of a pad that the pool did not serve, in order and merged if adjacent; some are
/// empty, and a few end before they start. Only a packet longer than a head gets a body.
fn gaps(taken: Taken, pad_bytes: usize) -> [Range<usize>; 2] {
    let [head_range, body_range] = Part::ALL.map(Part::range);
    match (taken.head, taken.body) {
        (true, true) => [body_range.end..pad_bytes, 0..0],
        (true, false) => [head_range.end..pad_bytes, 0..0],
        (false, true) => [head_range, body_range.end..pad_bytes],
        (false, false) => [0..pad_bytes, 0..0],
    }
}

//! The pads of one direction of a connection, over its key phases.
//!
//! It lies behind the mutex of its direction, beside the count of numbers or the replay window
//! (`Departures`, `Arrivals`), which quinn's calls take and, for a moment, whoever reads status;
//! fillers never do. It decides when a phase gets a lane and how full that is kept: the first
//! phase little, since it lasts under 1,000 packets; the second at once, since its key exists from
//! the start; later ones shortly before their use, so that a rekey does not meet a cold pool.
//! Without a pool, or before the peer has proved its key, there are no lanes and every byte is
//! made inline.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use keypadd_keystream::{InlineKeystream, KeystreamKey, PacketNumber};
use keypadd_pool::{Coverage, Direction, HEAD_BYTES, Lane, Part, PartLevel, Pool, Stage, Traffic};
use zeroize::Zeroizing;

use crate::limits::STANDBY_PACKETS;
use crate::meters::{Meters, Tally};

/// The longest rest of a pad that is made inline where the packet could be done as a whole.
pub(crate) const REST_BYTES_MAX: usize = 2 * HEAD_BYTES;

/// All live phases, oldest first.
pub(crate) struct Phases {
    traffic: Traffic,
    tally: Tally,
    /// Set once the handshake is complete: no chunk is made for strangers.
    pool: Option<Pool>,
    pads: Vec<PhasePads>,
    /// The newest phase that a packet was sealed or opened with.
    current: u64,
    /// One above the newest packet number used: where new lanes begin.
    next_packet: u64,
    /// Packets after which the phase is expected to end.
    phase_packets: u64,
    ahead: Ahead,
}

/// The newest phase whose keystream should be made ahead, shared by a connection's directions:
/// quinn updates the keys of both when either has sent its phase's packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead(Arc<AtomicU64>);

/// The pads of one key.
pub(crate) struct PhasePads {
    phase: u64,
    /// Makes pads on the spot; a null cipher has none, and then there is never a lane.
    inline: Option<InlineKeystream>,
    lane: Option<Lane>,
    /// The first packet number that the phase was used for.
    first_packet: Option<u64>,
    /// Whether the last packet that needed no body, and the last that did, found all of its pad.
    was_hit: [bool; 2],
}

/// Keystream bytes that a packet took, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) pool_bytes: usize,
    pub(crate) inline_bytes: usize,
}

impl Phases {
    pub(crate) fn new(
        direction: Direction,
        phase_packets: u64,
        ahead: Ahead,
        meters: &Arc<Meters>,
    ) -> Self {
        Self {
            traffic: Traffic::new(direction),
            tally: Tally::new(meters, direction),
            pool: None,
            pads: Vec::new(),
            current: 0,
            next_packet: 0,
            phase_packets,
            ahead,
        }
    }

    /// Adds the next phase's keystream; phases come in order.
    pub(crate) fn add(&mut self, phase: u64, keystream: Option<Arc<KeystreamKey>>) {
        self.pads.push(PhasePads {
            phase,
            inline: keystream.map(InlineKeystream::new),
            lane: None,
            first_packet: None,
            was_hit: [false; 2],
        });
    }

    /// The peer has proved its key, and chunks may be made in this pool from now on, or none any more. What
    /// the pool of before has made is kept only if it is this one.
    pub(crate) fn use_pool(&mut self, pool: Option<Pool>) {
        if let (Some(former), Some(pool)) = (&self.pool, &pool)
            && former.is_same(pool)
        {
            return;
        }
        for pads in &mut self.pads {
            pads.lane = None;
        }
        self.pool = pool;
        self.open_lanes();
    }

    /// Wipes and forgets phases before `phase`.
    pub(crate) fn retire_before(&mut self, phase: u64) {
        self.pads.retain(|pads| pads.phase >= phase);
    }

    /// Wipes and forgets one phase: its key is gone.
    pub(crate) fn retire(&mut self, phase: u64) {
        self.pads.retain(|pads| pads.phase != phase);
    }

    /// The pads of a live phase.
    pub(crate) fn pads(&mut self, phase: u64) -> Option<&mut PhasePads> {
        self.pads.iter_mut().find(|pads| pads.phase == phase)
    }

    /// Counts a packet whose pad was taken: where it came from, and how much of it.
    pub(crate) fn count(&mut self, pad: Coverage, spent: Spent) {
        self.tally.count(pad, spent.pool_bytes, spent.inline_bytes);
    }

    /// Follows the connection: called for every packet that was sealed or has verified.
    pub(crate) fn follow(&mut self, phase: u64, packet_number: PacketNumber) {
        self.next_packet = self.next_packet.max(packet_number.value() + 1);
        if phase > self.current {
            self.current = phase;
            self.set_stages();
        }
        if phase != self.current {
            return;
        }
        let mut phases = self.pads.iter_mut();
        let Some(pads) = phases.find(|pads| pads.phase == phase) else { return };
        let first = *pads.first_packet.get_or_insert_with(|| packet_number.value());
        let spanned = (packet_number.value() + 1).saturating_sub(first);
        if spanned + STANDBY_PACKETS >= self.phase_packets {
            self.ahead.0.fetch_max(phase + 1, Relaxed);
        }
        let is_ahead = self.ahead.0.load(Relaxed) > phase;
        match phases.next().map(|next| &mut next.lane) {
            // The next phase will begin at a number not far above this one: its chunks for
            // numbers already used up are given back and made anew further on.
            Some(Some(lane)) => {
                lane.seek(packet_number, 0);
            }
            Some(None) if is_ahead => self.open_lane(phase + 1, Stage::Standby),
            _ => {}
        }
    }

    /// The phase that quinn seals the next packet in. It holds the keys of the one after, and may have
    /// followed its peer into this one without having sent anything since.
    pub(crate) fn sealing(&self) -> u64 {
        self.pads.last().map_or(0, |next| next.phase.saturating_sub(1))
    }

    /// The phase that is being sealed in ends soon, in both directions.
    pub(crate) fn expect_update(&self) {
        self.ahead.0.fetch_max(self.sealing() + 1, Relaxed);
    }

    /// What the pool holds for all live phases, per part.
    pub(crate) fn level(&self, part: Part) -> PartLevel {
        let mut sum = PartLevel::default();
        for lane in self.pads.iter().filter_map(|pads| pads.lane.as_ref()) {
            let level = lane.level(part);
            sum.bytes += level.bytes;
            sum.packets += level.packets;
        }
        sum
    }

    /// The phase of the newest packet and the packet numbers it has spanned.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let pads = self.pads.iter().find(|pads| pads.phase == self.current);
        let first = pads.and_then(|pads| pads.first_packet);
        (self.current, first.map_or(0, |first| self.next_packet.saturating_sub(first)))
    }

    /// Lanes of the first phases.
    fn open_lanes(&mut self) {
        for (phase, stage) in [(0, Stage::Brief), (1, Stage::Active)] {
            self.open_lane(phase, stage);
        }
        self.set_stages();
    }

    fn open_lane(&mut self, phase: u64, stage: Stage) {
        let Some(pool) = &self.pool else { return };
        let (traffic, next) = (&self.traffic, PacketNumber::new(self.next_packet));
        let pads = self.pads.iter_mut().find(|pads| pads.phase == phase);
        if let Some(PhasePads { inline: Some(inline), lane: lane @ None, .. }) = pads {
            *lane = Some(pool.open_lane(Arc::clone(inline.key()), traffic, next, stage));
        }
    }

    /// The phase in use is kept full, the ones before it no longer.
    fn set_stages(&mut self) {
        let current = self.current;
        if current > 0 {
            self.open_lane(current, Stage::Active);
        }
        for pads in &self.pads {
            match &pads.lane {
                Some(lane) if pads.phase < current => lane.set_stage(Stage::Dormant),
                Some(lane) if pads.phase == current && current > 0 => lane.set_stage(Stage::Active),
                _ => {}
            }
        }
    }
}

impl PhasePads {
    /// The lane, where one has been opened.
    pub(crate) fn lane(&self) -> Option<&Lane> {
        self.lane.as_ref()
    }

    /// GCM's tag mask: read in place without taking the pad, else made inline (one block).
    pub(crate) fn mask(&mut self, packet_number: PacketNumber) -> Zeroizing<[u8; 16]> {
        if let Some(mask) = self.lane.as_ref().and_then(|lane| lane.peek_mask(packet_number)) {
            return Zeroizing::new(mask);
        }
        let mut mask = Zeroizing::new([0; 16]);
        if let Some(inline) = &mut self.inline {
            inline.write(packet_number, 0, &mut mask[..]);
        }
        mask
    }

    /// Moves the lane to the packet and says how much of its pad is at hand.
    pub(crate) fn seek(&mut self, packet_number: PacketNumber, pad_bytes: usize) -> Coverage {
        self.lane.as_mut().map_or(Coverage::Miss, |lane| lane.seek(packet_number, pad_bytes))
    }

    /// Whether a packet whose pad is at hand so far had better be sealed or opened as a whole, where
    /// that can be done: GHASH and a long rest of the pad take longer than AES-GCM in one pass.
    pub(crate) fn is_worse(
        &self,
        coverage: Coverage,
        packet_number: PacketNumber,
        pad_bytes: usize,
    ) -> bool {
        let at_hand =
            || self.lane.as_ref().map_or(0, |lane| lane.at_hand(packet_number, pad_bytes));
        match coverage {
            Coverage::Hit => false,
            Coverage::Partial => pad_bytes - at_hand() > REST_BYTES_MAX,
            Coverage::Miss => true,
        }
    }

    /// True when this packet is the first of its kind to lack pad after a hit: the pool has just
    /// run dry. Short packets, which need no body, and longer ones are judged apart.
    pub(crate) fn ran_dry(&mut self, coverage: Coverage, pad_bytes: usize) -> bool {
        let was_hit = &mut self.was_hit[usize::from(pad_bytes > HEAD_BYTES)];
        std::mem::replace(was_hit, coverage == Coverage::Hit) && coverage != Coverage::Hit
    }

    /// XORs the packet's pad over `mask` and `data`, which together are its first pad bytes: from
    /// the pool what [`Self::seek`] has just found, inline the rest. A null cipher leaves both as they
    /// are and spends nothing.
    pub(crate) fn apply(
        &mut self,
        found: Coverage,
        packet_number: PacketNumber,
        mask: &mut [u8],
        data: &mut [u8],
    ) -> Spent {
        let Some(inline) = &mut self.inline else { return Spent::default() };
        let [head, body] = match &mut self.lane {
            Some(lane) if found != Coverage::Miss => lane.take(packet_number, mask, data),
            _ => [false; 2],
        };
        let pad_bytes = mask.len() + data.len();
        let mut spent = Spent { pool_bytes: pad_bytes, inline_bytes: 0 };
        for gap in gaps(head, body, pad_bytes).into_iter().filter(|gap| !gap.is_empty()) {
            spent.pool_bytes -= gap.len();
            spent.inline_bytes += gap.len();
            apply_inline(inline, packet_number, gap, mask, data);
        }
        spent
    }
}

/// XORs the bytes `pad` of a packet's pad over what `mask` and `data` have there.
fn apply_inline(
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

/// The ranges of a pad that the pool did not serve, in order and joined where they touch; some are empty, of
/// which a few end before they start. A body is served only to a packet that is longer than a head.
fn gaps(head: bool, body: bool, pad_bytes: usize) -> [Range<usize>; 2] {
    let [head_range, body_range] = Part::ALL.map(Part::range);
    match (head, body) {
        (true, true) => [body_range.end..pad_bytes, 0..0],
        (true, false) => [head_range.end..pad_bytes, 0..0],
        (false, true) => [head_range, body_range.end..pad_bytes],
        (false, false) => [0..pad_bytes, 0..0],
    }
}

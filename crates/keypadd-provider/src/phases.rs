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

use keypadd_keystream::{InlineKeystream, KeystreamKey, PacketNumber, Segment};
use keypadd_pool::{
    Coverage, Direction, HEAD_BYTES, Lane, PAD_BYTES, Part, PartLevel, Pool, Stage, Taken, Traffic,
};

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
    /// What the last packet came to; `None` when the next one has to look at everything anew.
    followed: Option<Followed>,
}

/// The newest phase whose keystream should be made ahead, shared by a connection's directions:
/// quinn updates the keys of both when either has sent its phase's packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead(Arc<AtomicU64>);

impl Ahead {
    fn phase(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn reach(&self, phase: u64) {
        self.0.fetch_max(phase, Relaxed);
    }
}

/// How far a connection has been followed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Followed {
    phase: u64,
    segment: Segment,
    ahead: u64,
}

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
            followed: None,
        }
    }

    /// Adds the next phase's keystream; phases come in order.
    pub(crate) fn add(&mut self, phase: u64, keystream: Option<Arc<KeystreamKey>>) {
        self.followed = None;
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
        self.followed = None;
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

    /// The lane of a live phase, where one has been opened.
    pub(crate) fn lane(&self, phase: u64) -> Option<&Lane> {
        self.pads.iter().find(|pads| pads.phase == phase)?.lane.as_ref()
    }

    /// Overwrites `mask` with the first bytes of a packet's pad, made inline.
    pub(crate) fn write_mask(&mut self, phase: u64, number: PacketNumber, mask: &mut [u8]) {
        let pads = self.pads.iter_mut().find(|pads| pads.phase == phase);
        if let Some(PhasePads { inline: Some(inline), .. }) = pads {
            inline.write(number, 0, mask);
        }
    }

    /// Follows the connection to a packet that is sealed or has verified, and XORs the packet's pad over `mask`
    /// and `data`, which together are its bytes: from the pool what that has, inline the rest. But a packet of
    /// whose pad the pool has less than `least` bytes is left as it is: the caller does it as a whole. A null
    /// cipher leaves all as they are. `found` is called in between, when the pool has every byte.
    ///
    /// Returns how much came from the pool; `None` if the phase is over.
    #[inline(always)]
    pub(crate) fn apply(
        &mut self,
        phase: u64,
        packet_number: PacketNumber,
        (mask, data): (&mut [u8], &mut [u8]),
        least: usize,
        found: impl FnOnce(),
    ) -> Option<Coverage> {
        let pad_bytes = mask.len() + data.len();
        let (pads, tally) = self.follow(phase, packet_number)?;
        let taken = match &mut pads.lane {
            // It needs no pad, and none should be made for packets like it.
            Some(lane) if least > PAD_BYTES => {
                lane.seek(packet_number, 0);
                Taken::NOTHING
            }
            Some(lane) => lane.take(packet_number, mask, data, least, found),
            None => Taken::NOTHING,
        };
        let coverage = pads.count(tally, taken.bytes, pad_bytes);
        if coverage != Coverage::Hit && taken.bytes >= least {
            pads.apply_inline(packet_number, taken, mask, data);
        }
        Some(coverage)
    }

    /// As [`Self::apply`], for a packet that has been opened as a whole: what the pool has of its pad is wasted.
    pub(crate) fn leave(
        &mut self,
        phase: u64,
        packet_number: PacketNumber,
        pad_bytes: usize,
    ) -> Option<Coverage> {
        let (pads, tally) = self.follow(phase, packet_number)?;
        if let Some(lane) = &mut pads.lane {
            let needed = if least_of(pad_bytes) > PAD_BYTES { 0 } else { pad_bytes };
            lane.seek(packet_number, needed);
        }
        Some(pads.count(tally, 0, pad_bytes))
    }

    /// Follows the connection to a packet; the pads of its phase, if that is not over.
    #[inline(always)]
    pub(crate) fn follow(
        &mut self,
        phase: u64,
        packet_number: PacketNumber,
    ) -> Option<(&mut PhasePads, &mut Tally)> {
        self.next_packet = self.next_packet.max(packet_number.value() + 1);
        let segment = packet_number.segment();
        let followed = Followed { phase, segment, ahead: self.ahead.phase() };
        if self.followed != Some(followed) {
            self.followed = Some(followed);
            self.catch_up(phase, packet_number);
        }
        let mut phases = self.pads.iter_mut();
        let pads = phases.find(|pads| pads.phase == phase)?;
        // The next phase will begin at a number not far above this one: its chunks for numbers already used up
        // are given back and made anew further on.
        if let Some(PhasePads { lane: Some(next), .. }) = phases.next() {
            next.seek(packet_number, 0);
        }
        Some((pads, &mut self.tally))
    }

    /// What a packet does that begins a phase or a segment, or comes after somebody has asked for the next
    /// phase.
    #[inline(never)]
    fn catch_up(&mut self, phase: u64, packet_number: PacketNumber) {
        if phase > self.current {
            self.current = phase;
            self.set_stages();
        }
        if phase != self.current {
            return;
        }
        let Some(pads) = self.pads.iter_mut().find(|pads| pads.phase == phase) else { return };
        let first = *pads.first_packet.get_or_insert_with(|| packet_number.value());
        let near = first.saturating_add(self.phase_packets.saturating_sub(STANDBY_PACKETS));
        if self.next_packet >= near {
            self.ahead.reach(phase + 1);
        } else if near <= packet_number.segment().next().first().value() {
            // In this segment: its packets are looked at one by one.
            self.followed = None;
        }
        if self.ahead.phase() > phase {
            self.open_lane(phase + 1, Stage::Standby);
        }
    }

    /// The phase that quinn seals the next packet in. It holds the keys of the one after, and may have
    /// followed its peer into this one without having sent anything since.
    pub(crate) fn sealing(&self) -> u64 {
        self.pads.last().map_or(0, |next| next.phase.saturating_sub(1))
    }

    /// The phase that is being sealed in ends soon, in both directions.
    pub(crate) fn expect_update(&self) {
        self.ahead.reach(self.sealing() + 1);
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
    /// Counts a packet of whose pad so many bytes came from the pool; how much of it that is.
    #[inline(always)]
    fn count(&mut self, tally: &mut Tally, pool_bytes: usize, pad_bytes: usize) -> Coverage {
        let coverage = Coverage::of(pool_bytes, pad_bytes);
        let inline_bytes = if self.inline.is_some() { pad_bytes - pool_bytes } else { 0 };
        tally.count(coverage, pool_bytes, inline_bytes);
        // The first of its kind to lack pad after a hit: the pool has just run dry. Short packets, which need
        // no body, and longer ones are judged apart.
        let is_hit = coverage == Coverage::Hit;
        let was_hit = &mut self.was_hit[usize::from(pad_bytes > HEAD_BYTES)];
        if std::mem::replace(was_hit, is_hit) && !is_hit {
            tally.count_exhaustion();
        }
        coverage
    }

    /// XORs what was not `taken` of the packet's pad over `mask` and `data`.
    #[inline(never)]
    fn apply_inline(
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

/// The bytes that the pool must have of a packet's pad, or the packet had better be sealed or opened as a
/// whole, where that can be done: GHASH and a long rest of the pad take longer than AES-GCM in one pass.
pub(crate) fn least_of(pad_bytes: usize) -> usize {
    pad_bytes.saturating_sub(REST_BYTES_MAX).max(1)
}

/// XORs the bytes `pad` of a packet's pad over what `mask` and `data` have there.
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

/// The ranges of a pad that the pool did not serve, in order and joined where they touch; some are empty, of
/// which a few end before they start. A body is served only to a packet that is longer than a head.
fn gaps(taken: Taken, pad_bytes: usize) -> [Range<usize>; 2] {
    let [head_range, body_range] = Part::ALL.map(Part::range);
    match (taken.head, taken.body) {
        (true, true) => [body_range.end..pad_bytes, 0..0],
        (true, false) => [head_range.end..pad_bytes, 0..0],
        (false, true) => [head_range, body_range.end..pad_bytes],
        (false, false) => [0..pad_bytes, 0..0],
    }
}

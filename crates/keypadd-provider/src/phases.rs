//! Supplies the pads of one direction of a connection, over its key phases.
//!
//! Decides when a phase gets a lane and how full it is kept:
//!
//! - The first phase gets little, since it lasts under 1,000 packets.
//! - The second is filled at once, since its key exists from the start.
//! - Later ones are filled shortly before their use, so that a key update does not meet an empty
//!   pool.
//!
//! Without a pool, or before the peer has proved its key, there are no lanes and all keystream is
//! generated inline.
//!
//! Lives under the mutex of its direction (`SendState`, `ReceiveState`), which quinn's calls and
//! status readers take; fillers never do.

mod pads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use keypadd_keystream::{InlineKeystream, KeystreamKey, PacketNumber, Segment};
use keypadd_pool::{
    Coverage, Direction, Lane, PAD_BYTES, Part, PartLevel, Pool, Stage, Taken, Traffic,
};

use self::pads::{PhasePads, has_body};
use crate::limits::{IMMINENT_PACKETS, STANDBY_PACKETS};
use crate::meters::{Meters, Tally};

#[cfg(test)]
pub(crate) use self::pads::REST_BYTES_MAX;
pub(crate) use self::pads::{is_too_long, least_of};

/// Packets that rather go inline than that a lane filled for those after them is given up. A
/// receiver that has lost a phase's first packets expects its end, and the next one's first packet,
/// as much too late.
const GAP_PACKETS_MAX: u64 = 512;

/// All live phases, oldest first.
pub(crate) struct Phases {
    traffic: Traffic,
    tally: Tally,
    /// Set once the peer has proved its key: strangers cost no keystream.
    pool: Option<Pool>,
    pads: Vec<PhasePads>,
    /// The newest phase used.
    current: u64,
    /// One above the newest packet number used.
    next_packet: u64,
    /// The expected packets of a phase.
    phase_packets: u64,
    ahead: NewestPhase,
    /// The state at the last packet; `None` if the next one must check everything.
    followed: Option<LastPacket>,
}

/// The newest phase to precompute, shared by a connection's directions: quinn updates the keys of
/// both when either has sent its phase's packets. Twice its number, plus one if it may begin at any
/// packet.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewestPhase(Arc<AtomicU64>);

impl NewestPhase {
    fn state(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn phase(&self) -> u64 {
        self.state() / 2
    }

    /// Whether this phase, or a later one, may begin at any packet.
    fn is_due(&self, phase: u64) -> bool {
        self.state() > 2 * phase
    }

    fn reach(&self, phase: u64) {
        self.0.fetch_max(2 * phase, Relaxed);
    }

    fn expect(&self, phase: u64) {
        self.0.fetch_max(2 * phase + 1, Relaxed);
    }
}

/// How far the connection has progressed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct LastPacket {
    phase: u64,
    segment: Segment,
    ahead: u64,
}

impl Phases {
    pub(crate) fn new(
        direction: Direction,
        phase_packets: u64,
        ahead: NewestPhase,
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

    /// Adds the next phase, in order.
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

    /// Uses this pool, or none, from now on; the peer must have proved its key. Wipes the pads of a
    /// former pool, unless it is the same.
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

    /// Wipes and removes the phases before `phase`.
    pub(crate) fn retire_before(&mut self, phase: u64) {
        self.pads.retain(|pads| pads.phase >= phase);
    }

    /// Wipes and removes one phase, whose key is gone.
    pub(crate) fn retire(&mut self, phase: u64) {
        self.pads.retain(|pads| pads.phase != phase);
    }

    /// The lane of a phase, if it has one.
    pub(crate) fn lane(&self, phase: u64) -> Option<&Lane> {
        self.pads.iter().find(|pads| pads.phase == phase)?.lane.as_deref()
    }

    /// Whether the phase's last packet with as many parts was a hit: the next one most likely is
    /// one too.
    pub(crate) fn expects_hit(&self, phase: u64, pad_bytes: usize) -> bool {
        let pads = self.pads.iter().find(|pads| pads.phase == phase);
        pads.is_some_and(|pads| pads.was_hit[has_body(pad_bytes)]) && !is_too_long(pad_bytes)
    }

    /// Overwrites `mask` with the first bytes of a packet's pad, generated inline; `None` if the
    /// phase is over or has no pads. The packet must then be refused unverified: anybody can make a
    /// tag under a mask of zeros.
    pub(crate) fn write_mask(
        &mut self,
        phase: u64,
        number: PacketNumber,
        mask: &mut [u8],
    ) -> Option<()> {
        let pads = self.pads.iter_mut().find(|pads| pads.phase == phase)?;
        pads.inline.as_mut()?.write(number, 0, mask);
        Some(())
    }

    /// Follows the connection to a packet that is ours or authenticated, and XORs the packet's pad
    /// into `mask` and `data`, which together are as long as the pad: from the pool as far as it
    /// goes, the rest inline. If the pool has fewer than `least` bytes, wipes those and leaves the
    /// packet unchanged, for the caller to process in one pass. A null cipher changes nothing.
    /// Calls `found` before the XOR if the pool has every byte.
    ///
    /// Returns the pool's coverage; `None` if the phase is over.
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
            // No pad can be long enough, so create no demand for one.
            Some(lane) if least > PAD_BYTES => {
                lane.pass(packet_number);
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

    /// As [`Self::apply`], for a packet that was opened in one pass: what the pool has of its pad
    /// is wiped.
    pub(crate) fn skip(
        &mut self,
        phase: u64,
        packet_number: PacketNumber,
        pad_bytes: usize,
    ) -> Option<Coverage> {
        let (pads, tally) = self.follow(phase, packet_number)?;
        match &mut pads.lane {
            Some(lane) if is_too_long(pad_bytes) => lane.pass(packet_number),
            Some(lane) => lane.skip(packet_number, pad_bytes),
            None => {}
        }
        Some(pads.count(tally, 0, pad_bytes))
    }

    /// Follows the connection to a packet; returns the pads of its phase, unless that is over.
    #[inline(always)]
    pub(crate) fn follow(
        &mut self,
        phase: u64,
        packet_number: PacketNumber,
    ) -> Option<(&mut PhasePads, &mut Tally)> {
        self.next_packet = self.next_packet.max(packet_number.value() + 1);
        let segment = packet_number.segment();
        let followed = LastPacket { phase, segment, ahead: self.ahead.state() };
        if self.followed != Some(followed) {
            self.followed = Some(followed);
            self.catch_up(phase, packet_number);
        }
        let mut phases = self.pads.iter_mut();
        let pads = phases.find(|pads| pads.phase == phase)?;
        if let Some(PhasePads { lane: Some(next), .. }) = phases.next()
            && next.is_recalled()
        {
            next.seek(packet_number, 0);
        }
        Some((pads, &mut self.tally))
    }

    /// Handles a packet that begins a phase or a segment, or that follows a request for the next
    /// phase.
    #[inline(never)]
    fn catch_up(&mut self, phase: u64, packet_number: PacketNumber) {
        // The next phase begins not far above this number: it gives back chunks for numbers already
        // used, so that later ones are filled instead.
        let mut later = self.pads.iter_mut().skip_while(|pads| pads.phase != phase).skip(1);
        if let Some(PhasePads { lane: Some(next), .. }) = later.next() {
            next.seek(packet_number, 0);
        }
        if phase > self.current {
            self.current = phase;
            self.set_stages();
        }
        if phase != self.current {
            return;
        }
        let Some(pads) = self.pads.iter_mut().find(|pads| pads.phase == phase) else { return };
        let first = *pads.first_packet.get_or_insert_with(|| packet_number.value());
        let end = first.saturating_add(self.phase_packets);
        let near = end.saturating_sub(STANDBY_PACKETS).max(first);
        let (segment, last) = (packet_number.segment(), PacketNumber::new(end).segment());
        if segment.next() >= last {
            // In the other direction too, however far its own end is.
            self.ahead.expect(phase + 1);
        } else if self.next_packet >= end.saturating_sub(IMMINENT_PACKETS).max(first) {
            self.ahead.reach(phase + 1);
        }
        if self.next_packet >= near && !self.ahead.is_due(phase + 1) {
            self.open_lane(phase + 1, Stage::Standby, end);
        } else if self.ahead.phase() > phase {
            self.open_lane_here(phase + 1, Stage::Imminent);
        } else if near <= segment.next().first().value() {
            // The end comes near within this segment: check every packet.
            self.followed = None;
        }
        // Packet numbers that quinn skips may take the end one segment further.
        let is_over = segment > last.next();
        if let Some(lane) = self.lane(phase) {
            lane.expect_last((!is_over).then(|| last.next()));
        }
        if is_over && let Some(lane) = self.lane(phase + 1) {
            // The peer does not update: the pads for the end are given up.
            lane.set_stage(Stage::Imminent);
        }
    }

    /// The phase in which quinn seals the next packet. quinn already holds the keys of the one
    /// after, and may have followed its peer into this phase without having sent anything in it.
    pub(crate) fn sealing(&self) -> u64 {
        self.pads.last().map_or(0, |next| next.phase.saturating_sub(1))
    }

    /// Announces that the sealing phase ends soon, in both directions and whatever its packets.
    pub(crate) fn expect_update(&self) {
        self.ahead.expect(self.sealing() + 1);
    }

    /// Gives back what the filler has recalled, as the next packet would.
    pub(crate) fn give_back(&mut self) {
        let next = PacketNumber::new(self.next_packet);
        for lane in self.pads.iter_mut().filter_map(|pads| pads.lane.as_deref_mut()) {
            if lane.is_recalled() {
                lane.seek(next, 0);
            }
        }
    }

    /// What the pool holds of one part, for all phases.
    pub(crate) fn level(&self, part: Part) -> PartLevel {
        let mut sum = PartLevel::default();
        for lane in self.pads.iter().filter_map(|pads| pads.lane.as_deref()) {
            let level = lane.level(part);
            sum.bytes += level.bytes;
            sum.packets += level.packets;
        }
        sum
    }

    /// The current phase and the packet numbers it has spanned.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let pads = self.pads.iter().find(|pads| pads.phase == self.current);
        let first = pads.and_then(|pads| pads.first_packet);
        (self.current, first.map_or(0, |first| self.next_packet.saturating_sub(first)))
    }

    /// Opens the lanes of the first phases.
    fn open_lanes(&mut self) {
        for (phase, stage) in [(0, Stage::Brief), (1, Stage::Active)] {
            self.open_lane(phase, stage, self.next_packet);
        }
        self.set_stages();
    }

    /// Opens the lane of a phase, if it has none, for packet numbers from `begins` on.
    fn open_lane(&mut self, phase: u64, stage: Stage, begins: u64) {
        let Some(pool) = &self.pool else { return };
        let (traffic, next) = (&self.traffic, PacketNumber::new(begins));
        let pads = self.pads.iter_mut().find(|pads| pads.phase == phase);
        if let Some(PhasePads { inline: Some(inline), lane: lane @ None, .. }) = pads {
            *lane = Some(Box::new(pool.open_lane(Arc::clone(inline.key()), traffic, next, stage)));
        }
    }

    /// Opens the lane of a phase for the next packet, again if it was opened for much later ones.
    fn open_lane_here(&mut self, phase: u64, stage: Stage) {
        let next = PacketNumber::new(self.next_packet.saturating_add(GAP_PACKETS_MAX));
        if let Some(pads) = self.pads.iter_mut().find(|pads| pads.phase == phase) {
            pads.lane.take_if(|lane| lane.begins_after(next));
        }
        self.open_lane(phase, stage, self.next_packet);
    }

    /// Keeps the current phase full, and those before it no longer.
    fn set_stages(&mut self) {
        let current = self.current;
        if current > 0 {
            self.open_lane_here(current, Stage::Active);
        }
        for pads in &mut self.pads {
            match &mut pads.lane {
                // The next phase needs the memory before this one's key is gone.
                Some(lane) if pads.phase < current => lane.end(),
                Some(lane) if pads.phase == current && current > 0 => lane.set_stage(Stage::Active),
                _ => {}
            }
        }
    }
}

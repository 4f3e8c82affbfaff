//! The filler's end of a lane: which segment of each part comes next, and what the planner sees of
//! it.
//!
//! The consumer's end is in `lane.rs`; queues and `lane_state.rs` join them. Knows no other lane.

use std::sync::{Arc, Weak};
use std::time::Duration;

use keypadd_keystream::{KeystreamKey, PacketNumber, SEGMENT_PACKETS, Segment};

use crate::arena::Unit;
use crate::chunk::{Chunk, KeyId, Part};
use crate::demand::{PoolAllowance, Traffic};
use crate::filler_state::MemoryReturn;
use crate::free_units::FreeUnits;
use crate::lane_state::{LaneState, PartHolding};
use crate::lane_view::{LaneView, Stage};
use crate::sync::Ordering::Relaxed;
use crate::sync::{Consumer, Producer, mpsc};

/// Segments that the filler may skip to get ahead of a consumer that outruns it, by part. Skipped
/// segments stay empty even when keystrokes, which need heads, follow the burst. Heads are quick to
/// generate, so few are skipped.
const MAX_LEAD: [u64; 2] = [2, 32];

/// The filler's end of a lane.
pub(crate) struct Feed {
    pub(crate) key: KeyId,
    /// Gone once the lane is.
    keystream: Weak<KeystreamKey>,
    is_cheap: bool,
    state: Arc<LaneState>,
    traffic: Traffic,
    /// Its peer's limit, if it has one.
    allowance: Option<PoolAllowance>,
    ends: [FeedEnd; 2],
}

impl Feed {
    pub(crate) fn new(
        (key, keystream): (KeyId, &Arc<KeystreamKey>),
        state: Arc<LaneState>,
        (traffic, allowance): (Traffic, Option<PoolAllowance>),
        ends: [FeedEnd; 2],
    ) -> Self {
        let (keystream, is_cheap) = (Arc::downgrade(keystream), keystream.is_cheap());
        Self { key, keystream, is_cheap, state, traffic, allowance, ends }
    }

    /// The lane as the planner sees it.
    pub(crate) fn view(&mut self, now: Duration) -> LaneView {
        let Self { state, traffic, allowance, ends, .. } = self;
        let holdings = state.holdings();
        let available = holdings.each_ref().map(PartHolding::available);
        let left = Part::ALL.map(|part| {
            let next = ends[part as usize].next.value().max(state.position());
            available[part as usize].saturating_add(state.end().saturating_sub(next))
        });
        LaneView {
            stage: state.stage(),
            traffic: traffic.id(),
            available,
            left,
            kept: holdings.map(|holding| holding.kept),
            demand: traffic.demand(now),
            too_long: Part::ALL.map(|part| traffic.is_too_long(part)),
            allotment: allowance.as_ref().and_then(PoolAllowance::allotment),
            recalled: Part::ALL.map(|part| ends[part as usize].is_recalled(state, part)),
        }
    }

    /// The filler has it: another lane of its direction may be queued.
    pub(crate) fn arrive(&self) {
        self.traffic.lane_arrived();
    }

    /// Takes the memory of chunks that the consumer has used up; returns whether the consumer
    /// remains.
    pub(crate) fn collect_spent(&mut self, free: &mut FreeUnits) -> bool {
        // Before the queues, so that nothing is left in them for a lane that is closed.
        let is_open = !self.state.is_closed();
        for end in &mut self.ends {
            while let Ok(chunk) = end.spent.pop() {
                free.add(chunk.into_units());
            }
        }
        is_open
    }

    /// Long packets of its direction so far, if it is in use.
    pub(crate) fn long_packets(&self) -> Option<u64> {
        matches!(self.state.stage(), Stage::Brief | Stage::Active)
            .then(|| self.traffic.packets(Part::Body))
    }

    /// Whether its key is quick to encrypt with.
    pub(crate) fn is_cheap(&self) -> bool {
        self.is_cheap
    }

    /// Sets what each part is to hold, in chunks.
    pub(crate) fn aim_at(&self, target: &[u64; 2]) {
        for part in Part::ALL {
            let low_water = target[part as usize] * 3 / 4;
            self.state.parts[part as usize].low_water.store(low_water, Relaxed);
        }
    }

    /// Recalls all but the nearest `keep` chunks of a part.
    pub(crate) fn recall(&mut self, part: Part, keep: u64) {
        self.ends[part as usize].recalled = true;
        self.state.parts[part as usize].recall(keep);
    }

    /// Whether a recall is outstanding.
    pub(crate) fn owes_chunks(&self) -> bool {
        self.ends.iter().any(|end| end.recalled)
    }

    /// Generates the next chunk of a part and gives it to the consumer; false if none is wanted or
    /// there is no memory.
    pub(crate) fn fill(&mut self, part: Part, free: &mut FreeUnits, home: &MemoryReturn) -> bool {
        // The key may have been retired since the plan was made, and then be gone.
        if self.state.is_closed() || self.state.stage() == Stage::Dormant {
            return false;
        }
        let end = &self.ends[part as usize];
        if end.ready.is_full() {
            return false;
        }
        let Some(keystream) = self.keystream.upgrade() else { return false };
        let Some(units) = free.take(part) else { return false };
        let ahead = PacketNumber::new((self.state.position() + end.lead) * SEGMENT_PACKETS as u64);
        let segment = end.next.max(ahead.segment());
        let chunk = Chunk::fill(self.key, &keystream, segment, part, units, home.clone());
        // A chunk that comes too late is wasted: aim further ahead until one is in time. Looked at
        // before the push, after which a consumer may have used the chunk up: counted as late, it
        // would have the filler skip the segment that the consumer needs next.
        let is_late = self.state.position() > segment.value();
        self.push(part, chunk);
        let end = &mut self.ends[part as usize];
        end.next = segment.next();
        end.lead = match is_late {
            true => (end.lead * 2).clamp(1, MAX_LEAD[part as usize]),
            false => end.lead / 2,
        };
        true
    }

    /// Gives a chunk to the consumer.
    pub(crate) fn push(&mut self, part: Part, chunk: Chunk) {
        if self.ends[part as usize].ready.push(Box::new(chunk)).is_ok() {
            self.state.parts[part as usize].pushed.fetch_add(1, Relaxed);
        }
    }
}

/// Orders from the pool's handles to the filler.
pub(crate) enum FillerCommand {
    /// Fill this lane.
    Lane(Box<Feed>),
    /// Use this many units; `new` holds those added by a larger budget.
    Budget { units: usize, new: Vec<Unit> },
}

/// A feed that its lane keeps while too many of its direction are queued for the filler.
pub(crate) struct UnqueuedFeed {
    pub(crate) feed: Box<Feed>,
    pub(crate) commands: mpsc::Sender<FillerCommand>,
}

impl UnqueuedFeed {
    /// Whether the filler has room for it, without an atomic write.
    pub(crate) fn may_be_queued(&self) -> bool {
        self.feed.traffic.has_room()
    }

    /// Queues the feed for the filler if its direction has room now; gives it back otherwise. The
    /// feed is lost if the filler is dead: the lane then stays dry.
    pub(crate) fn queue(self) -> Result<(), Self> {
        if !self.feed.traffic.lane_may_wait() {
            return Err(self);
        }
        let _ = self.commands.send(FillerCommand::Lane(self.feed));
        Ok(())
    }
}

/// The filler's end of one part's queues.
pub(crate) struct FeedEnd {
    ready: Producer<Box<Chunk>>,
    spent: Consumer<Box<Chunk>>,
    /// The next segment to generate.
    next: Segment,
    /// Segments to stay ahead of the consumer; grows while chunks arrive too late to be used.
    lead: u64,
    /// A recall is outstanding.
    recalled: bool,
}

impl FeedEnd {
    pub(crate) fn new(
        ready: Producer<Box<Chunk>>,
        spent: Consumer<Box<Chunk>>,
        next: Segment,
    ) -> Self {
        Self { ready, spent, next, lead: 0, recalled: false }
    }

    /// Whether a recall is outstanding. Once the consumer has obeyed it, filling resumes where it
    /// left a gap.
    fn is_recalled(&mut self, state: &LaneState, part: Part) -> bool {
        if self.recalled
            && let Some(resume) = state.parts[part as usize].obeyed()
        {
            self.recalled = false;
            let resume = PacketNumber::new(resume.saturating_mul(SEGMENT_PACKETS as u64));
            self.next = self.next.min(resume.segment());
        }
        self.recalled
    }
}

//! Queues the packets of a network until they may be sent: fair among flows, and short (FQ-CoDel:
//! RFC 8290).
//!
//! Each flow has a queue, and a turn of one packet at a time; flows that begin, or seldom have
//! anything, come first. Sparse flows and bulk ones may be taken apart, so that they can be sent
//! over different connections. Pure: the caller passes the time and the keys of the hash, since
//! hosts choose their ports.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use keypadd_share::Bucket;

use crate::{
    codel::{CoDel, Patience},
    packet::{Packet, Part},
    super_packet::SuperPacket,
};

/// Queues, over which flows are spread by their hash (RFC 8290 5.2).
pub(crate) const QUEUES: usize = 1_024;

/// Bytes that may wait for one peer.
pub(crate) const QUEUE_BYTES_MAX: usize = 4 << 20;

/// A packet that has waited longer is not sent: while a path was lost, its hosts have sent it
/// again. New keys make packets wait for three round trips, and lose none.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);

/// What the longest queue loses at once when there are more, so that making room costs little: this
/// many entries, or half of it (RFC 8290 5.2).
const DROPPED_AT_ONCE: usize = 64;

/// Bytes of one queue's turn (deficit round robin): a full packet (RFC 8290 5.2).
const TURN_BYTES: isize = 1_514;

/// What an entry takes besides its bytes.
const ENTRY_BYTES: usize = size_of::<(SuperPacket, Instant)>();

/// What a flow sends at once, or has queued, until it counts as bulk: more than a screen of a
/// terminal, or the first window of a TCP connection (RFC 6928). That window is acknowledged before
/// the next one is sent, so a TCP flow that becomes bulk overtakes nothing.
const BURST_BYTES: usize = 16 << 10;

/// The sustained rate of a flow that is not bulk, in bytes a second: a video call of 2 Mbit/s. On a
/// slower path the backlog decides.
const SPARSE_RATE: usize = 256 << 10;

/// A bulk flow is sparse again after this long without a packet, by when what it sent last has
/// arrived: nothing overtakes it.
const PAUSE: Duration = Duration::from_secs(2);

/// How much a flow sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// A terminal, a call, requests: what waits is noticed.
    #[default]
    Sparse,
    /// A transfer.
    Bulk,
}

/// The classes whose packets a connection sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Whether it sends the packets of sparse flows.
    pub sparse: bool,
    /// Whether it sends the packets of bulk flows.
    pub bulk: bool,
}

impl Classes {
    /// All packets.
    pub const ALL: Self = Self { sparse: true, bulk: true };

    /// Whether it has this class.
    pub fn has(self, class: Class) -> bool {
        match class {
            Class::Sparse => self.sparse,
            Class::Bulk => self.bulk,
        }
    }
}

/// The packets that wait for one peer.
#[derive(Debug)]
pub struct PacketQueue {
    hasher: RandomState,
    queues: Vec<Queue>,
    /// Queues that had nothing to send until a moment ago.
    new: VecDeque<u16>,
    /// The other queues with something to send.
    old: VecDeque<u16>,
    /// Bytes that wait, by class.
    bytes: [usize; 2],
    patience: Patience,
    signals: Signals,
}

/// How senders have been signaled that too much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Packets that were dropped.
    pub dropped: u64,
    /// Packets that were marked instead.
    pub marked: u64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(SuperPacket, Instant)>,
    bytes: usize,
    /// What it may still send in its turn.
    credit: isize,
    has_turn: bool,
    codel: CoDel,
    class: Class,
    /// What the flow has sent recently, as the time that it takes at [`SPARSE_RATE`].
    recent: Bucket,
    /// When it sent its last packet.
    last_at: Option<Instant>,
}

impl PacketQueue {
    /// An empty queue.
    pub fn new(hasher: RandomState) -> Self {
        Self {
            hasher,
            queues: std::iter::repeat_with(Queue::default).take(QUEUES).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: [0; 2],
            patience: Patience::default(),
            signals: Signals::default(),
        }
    }

    /// Whether packets of one of these classes wait.
    pub fn has(&self, classes: Classes) -> bool {
        [Class::Sparse, Class::Bulk]
            .into_iter()
            .any(|class| classes.has(class) && self.bytes[class as usize] > 0)
    }

    /// Sets how long a round trip to the peer takes: senders answer no sooner.
    pub fn set_round_trip(&mut self, rtt: Duration) {
        self.patience = Patience::of(rtt);
    }

    /// What has happened to packets since the last call.
    pub fn take_signals(&mut self) -> Signals {
        std::mem::take(&mut self.signals)
    }

    /// Adds packets. If too much waits, the longest queue loses its oldest. Returns their class if
    /// nothing of it has waited before.
    pub fn push(&mut self, packet: SuperPacket, now: Instant) -> Option<Class> {
        let at = self.place(packet.bytes());
        let queue = self.queues.get_mut(usize::from(at))?;
        let (before, waiting) = (queue.class, queue.bytes);
        queue.classify(packet.bytes().len(), now);
        let class = queue.class;
        let bytes = packet.bytes().len() + ENTRY_BYTES;
        queue.waiting.push_back((packet, now));
        queue.bytes += bytes;
        let is_first = self.bytes[class as usize] == 0;
        self.bytes[class as usize] += bytes;
        if before != class {
            self.bytes[before as usize] -= waiting;
            self.bytes[class as usize] += waiting;
        }
        if !std::mem::replace(&mut queue.has_turn, true) {
            queue.credit = TURN_BYTES;
            self.new.push_back(at);
        }
        while self.bytes.iter().sum::<usize>() > QUEUE_BYTES_MAX {
            self.drop_of_longest();
        }
        is_first.then_some(class)
    }

    /// Appends the next packet of these classes to a frame: one of TCP that was not cut yet is no
    /// longer than `room`. Returns whether there is one.
    pub fn next(
        &mut self,
        classes: Classes,
        room: usize,
        now: Instant,
        frame: &mut BytesMut,
    ) -> bool {
        if !self.has(classes) {
            return false;
        }
        while let Some(turn) = self.turn(classes) {
            let Some(queue) = self.queues.get_mut(usize::from(turn.at)) else { return false };
            if queue.credit <= 0 {
                queue.credit += TURN_BYTES;
                self.rotate(turn);
                continue;
            }
            let before = queue.bytes;
            let sent = queue.next(room, (self.patience, now), frame, &mut self.signals);
            self.bytes[queue.class as usize] -= before - queue.bytes;
            if let Some(bytes) = sent {
                queue.credit -= bytes as isize;
                return true;
            }
            self.leave(turn);
        }
        false
    }

    /// The queue of these classes whose turn it is.
    fn turn(&self, classes: Classes) -> Option<Turn> {
        let is_of = |at: &u16| {
            self.queues.get(usize::from(*at)).is_some_and(|queue| classes.has(queue.class))
        };
        [(&self.new, true), (&self.old, false)].into_iter().find_map(|(turns, is_new)| {
            let nth = turns.iter().position(is_of)?;
            Some(Turn { at: turns[nth], nth, is_new })
        })
    }

    /// The queue of a packet's flow.
    fn place(&self, packet: &[u8]) -> u16 {
        let Ok(packet) = Packet::parse(packet) else { return 0 };
        // All fragments of a packet are in one queue: only the first has ports.
        let ports = (packet.part() == Part::Whole).then(|| packet.ports());
        let flow = (packet.source(), packet.destination(), packet.protocol(), ports);
        (self.hasher.hash_one(flow) % QUEUES as u64) as u16
    }

    /// Ends a queue's turn: it has used up its credit.
    fn rotate(&mut self, turn: Turn) {
        self.remove(turn);
        self.old.push_back(turn.at);
    }

    /// Ends a queue's turn: it has nothing to send. One that had just begun waits for the others
    /// once, or it would be first again with each packet (RFC 8290 4.2).
    fn leave(&mut self, turn: Turn) {
        self.remove(turn);
        if turn.is_new && !self.old.is_empty() {
            self.old.push_back(turn.at);
        } else if let Some(queue) = self.queues.get_mut(usize::from(turn.at)) {
            queue.has_turn = false;
        }
    }

    fn remove(&mut self, Turn { nth, is_new, .. }: Turn) {
        let turns = if is_new { &mut self.new } else { &mut self.old };
        turns.remove(nth);
    }

    fn drop_of_longest(&mut self) {
        let Some(longest) = self.queues.iter_mut().max_by_key(|queue| queue.bytes) else { return };
        let half = longest.bytes / 2;
        for _ in 0..DROPPED_AT_ONCE {
            let Some(dropped) = longest.drop_first() else { return };
            self.signals.dropped += dropped.packets;
            self.bytes[longest.class as usize] -= dropped.bytes;
            if longest.bytes <= half {
                return;
            }
        }
    }
}

/// A queue's place among the turns.
#[derive(Clone, Copy, Debug)]
struct Turn {
    at: u16,
    nth: usize,
    is_new: bool,
}

/// What a queue has lost.
struct Dropped {
    packets: u64,
    bytes: usize,
}

/// The time that a flow takes for so many bytes at [`SPARSE_RATE`].
fn sparse_time(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 * 1_000_000_000 / SPARSE_RATE as u64)
}

impl Queue {
    /// Notes that the flow sends so many bytes, which may change its class: to bulk at once, and
    /// back only after a pause.
    fn classify(&mut self, bytes: usize, now: Instant) {
        let last_at = self.last_at.replace(now);
        let has_paused = last_at.is_none_or(|at| now.saturating_duration_since(at) >= PAUSE);
        if has_paused {
            self.recent = Bucket::FULL;
        }
        self.recent.charge(sparse_time(bytes), now);
        if self.recent.full_in(now) > sparse_time(BURST_BYTES) || self.bytes > BURST_BYTES {
            self.class = Class::Bulk;
        } else if has_paused && self.waiting.is_empty() {
            self.class = Class::Sparse;
        }
    }

    /// Appends the next packet to a frame and returns its length. Drops or marks those before it as
    /// CoDel says.
    fn next(
        &mut self,
        room: usize,
        (patience, now): (Patience, Instant),
        frame: &mut BytesMut,
        signals: &mut Signals,
    ) -> Option<usize> {
        loop {
            let (packet, since) = self.waiting.front_mut()?;
            let waited = now.saturating_duration_since(*since);
            let behind = self.bytes - (packet.bytes().len() + ENTRY_BYTES);
            if packet.has_begun() {
                break;
            }
            if waited > WAIT_MAX {
                signals.dropped += self.drop_first()?.packets;
                continue;
            }
            let backlog = (behind, room.saturating_add(ENTRY_BYTES));
            if !self.codel.signals(waited, backlog, patience, now) {
                break;
            }
            if packet.mark() {
                signals.marked += packet.packets() as u64;
                break;
            }
            // One packet, not all that it was given with: the next ones show what is missing.
            signals.dropped += 1;
            if !packet.skip(room) {
                self.remove_first();
            }
        }
        let (packet, _) = self.waiting.front_mut()?;
        let before = frame.len();
        if !packet.next(room, frame) {
            self.remove_first();
        }
        Some(frame.len() - before)
    }

    fn drop_first(&mut self) -> Option<Dropped> {
        let packets = self.waiting.front()?.0.packets() as u64;
        Some(Dropped { packets, bytes: self.remove_first() })
    }

    /// Removes the first entry; returns its bytes.
    fn remove_first(&mut self) -> usize {
        let bytes = self.waiting.pop_front().map_or(0, |(it, _)| it.bytes().len() + ENTRY_BYTES);
        self.bytes -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests;

//! Queues the packets of a network until they may be sent: fair among flows, and short (FQ-CoDel:
//! RFC 8290).
//!
//! Each flow has a queue, and a turn of one packet at a time; flows that begin, or seldom have
//! anything, come first. Pure: the caller passes the time and the keys of the hash, since hosts
//! choose their ports.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use bytes::BytesMut;

use crate::{
    codel::CoDel,
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

/// The packets that wait for one peer.
#[derive(Debug)]
pub struct PacketQueue {
    hasher: RandomState,
    queues: Vec<Queue>,
    /// Queues that had nothing to send until a moment ago.
    new: VecDeque<u16>,
    /// The other queues with something to send.
    old: VecDeque<u16>,
    bytes: usize,
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
}

impl PacketQueue {
    /// An empty queue.
    pub fn new(hasher: RandomState) -> Self {
        Self {
            hasher,
            queues: std::iter::repeat_with(Queue::default).take(QUEUES).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: 0,
            signals: Signals::default(),
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What has happened to packets since the last call.
    pub fn take_signals(&mut self) -> Signals {
        std::mem::take(&mut self.signals)
    }

    /// Adds packets. If too much waits, the longest queue loses its oldest.
    pub fn push(&mut self, packet: SuperPacket, now: Instant) {
        let at = self.place(packet.bytes());
        let Some(queue) = self.queues.get_mut(usize::from(at)) else { return };
        let bytes = packet.bytes().len() + ENTRY_BYTES;
        queue.waiting.push_back((packet, now));
        queue.bytes += bytes;
        self.bytes += bytes;
        if !std::mem::replace(&mut queue.has_turn, true) {
            queue.credit = TURN_BYTES;
            self.new.push_back(at);
        }
        while self.bytes > QUEUE_BYTES_MAX {
            self.drop_of_longest();
        }
    }

    /// Appends the next packet to a frame: one of TCP that was not cut yet is no longer than
    /// `room`. Returns whether there is one.
    pub fn next(&mut self, room: usize, now: Instant, frame: &mut BytesMut) -> bool {
        loop {
            let turns = if self.new.is_empty() { &self.old } else { &self.new };
            let Some(&at) = turns.front() else { return false };
            let Some(queue) = self.queues.get_mut(usize::from(at)) else { return false };
            if queue.credit <= 0 {
                queue.credit += TURN_BYTES;
                self.rotate(at);
                continue;
            }
            let before = queue.bytes;
            let sent = queue.next(room, now, frame, &mut self.signals);
            self.bytes -= before - queue.bytes;
            if let Some(bytes) = sent {
                queue.credit -= bytes as isize;
                return true;
            }
            self.leave(at);
        }
    }

    /// The queue of a packet's flow.
    fn place(&self, packet: &[u8]) -> u16 {
        let Ok(packet) = Packet::parse(packet) else { return 0 };
        // All fragments of a packet are in one queue: only the first has ports.
        let ports = (packet.part() == Part::Whole).then(|| packet.ports());
        let flow = (packet.source(), packet.destination(), packet.protocol(), ports);
        (self.hasher.hash_one(flow) % QUEUES as u64) as u16
    }

    /// Ends the turn of the first queue: it has used up its credit.
    fn rotate(&mut self, at: u16) {
        if self.new.pop_front().is_none() {
            self.old.pop_front();
        }
        self.old.push_back(at);
    }

    /// Ends the turn of the first queue: it has nothing to send. One that had just begun waits for
    /// the others once, or it would be first again with each packet (RFC 8290 4.2).
    fn leave(&mut self, at: u16) {
        let was_new = self.new.pop_front().is_some();
        if was_new && !self.old.is_empty() {
            self.old.push_back(at);
            return;
        }
        if !was_new {
            self.old.pop_front();
        }
        if let Some(queue) = self.queues.get_mut(usize::from(at)) {
            queue.has_turn = false;
        }
    }

    fn drop_of_longest(&mut self) {
        let Some(longest) = self.queues.iter_mut().max_by_key(|queue| queue.bytes) else { return };
        let half = longest.bytes / 2;
        for _ in 0..DROPPED_AT_ONCE {
            let Some(dropped) = longest.drop_first() else { return };
            self.signals.dropped += dropped.packets;
            self.bytes -= dropped.bytes;
            if longest.bytes <= half {
                return;
            }
        }
    }
}

/// What a queue has lost.
struct Dropped {
    packets: u64,
    bytes: usize,
}

impl Queue {
    /// Appends the next packet to a frame and returns its length. Drops or marks those before it as
    /// CoDel says.
    fn next(
        &mut self,
        room: usize,
        now: Instant,
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
            if !self.codel.signals(waited, (behind, room.saturating_add(ENTRY_BYTES)), now) {
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

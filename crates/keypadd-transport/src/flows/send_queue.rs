//! Queues datagrams until congestion control allows sending: short, fair among flows, oldest
//! dropped first.
//!
//! Turns each into a frame, or into fragments if the path carries less. The packets of a network
//! wait with its device instead, and take part in the turns as one flow. Knows no sockets; the
//! caller passes the time.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use quinn_proto::StreamId;
use rustc_hash::FxHashMap;

use super::{
    frame::{FRAGMENT_BYTES_MIN, FlowFrame, Fragment, head_bytes, put_id},
    network::Outgoing,
};
use crate::transfer_stats::TransferStats;

/// Most waiting datagrams of one flow: a burst of a game or of DNS, or a small tunnel's window.
pub(crate) const FLOW_DATAGRAMS_MAX: usize = 128;

/// Most waiting bytes of one flow: at least two datagrams of maximum length.
pub(crate) const FLOW_BYTES_MAX: usize = 160 << 10;

/// Most waiting bytes of all flows of a connection.
pub(crate) const QUEUE_BYTES_MAX: usize = 1 << 20;

/// What a datagram takes besides its bytes.
const ENTRY_BYTES: usize = size_of::<(Bytes, Instant)>();

/// A datagram that has waited longer is useless to its sender, and would delay the next ones.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// Bytes of one flow's turn (deficit round robin): a full packet.
const TURN_BYTES: isize = 1_500;

/// The waiting datagrams of a connection.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    flows: FxHashMap<StreamId, FlowQueue>,
    /// Flows with something to send, in the order of their turns.
    turns: VecDeque<StreamId>,
    bytes: usize,
    /// The path's round trip.
    rtt: Duration,
    /// Whether a device has had packets of bulk flows, which a bulk connection should send.
    wants_bulk: bool,
}

#[derive(Debug)]
struct FlowQueue {
    waiting: VecDeque<(Bytes, Instant)>,
    bytes: usize,
    /// The datagram whose fragments are being sent: its length, and how much has been sent.
    begun: Option<(usize, usize)>,
    number: u16,
    credit: isize,
    /// Whether it is among the turns.
    has_turn: bool,
    /// Where more comes from once nothing waits here, if it is a network's that sends its packets.
    packets: Option<Outgoing>,
    /// Whether there is more, as of the last look.
    has_packets: bool,
    carried: Arc<TransferStats>,
}

impl SendQueue {
    /// Begins a flow; its drops are counted there.
    pub(crate) fn open(&mut self, stream: StreamId, carried: Arc<TransferStats>) {
        let queue = FlowQueue {
            waiting: VecDeque::new(),
            bytes: 0,
            begun: None,
            number: 0,
            credit: 0,
            has_turn: false,
            packets: None,
            has_packets: false,
            carried,
        };
        self.flows.insert(stream, queue);
    }

    /// Ends a flow; what waits is dropped.
    pub(crate) fn close(&mut self, stream: StreamId) {
        if let Some(queue) = self.flows.remove(&stream) {
            self.bytes -= queue.bytes;
            // Those of other flows have nowhere to go any more.
            if queue.packets.is_some() {
                queue.carried.add_dropped(queue.waiting.len() as u64);
            }
            self.turns.retain(|turn| *turn != stream);
        }
    }

    /// A round trip takes so long now.
    pub(super) fn set_round_trip(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Adds a datagram of a flow; drops the oldest if there is no room.
    pub(crate) fn push(&mut self, stream: StreamId, datagram: Bytes, now: Instant) {
        let Some(queue) = self.flows.get_mut(&stream) else { return };
        let bytes = datagram.len() + ENTRY_BYTES;
        if !std::mem::replace(&mut queue.has_turn, true) {
            self.turns.push_back(stream);
        }
        queue.waiting.push_back((datagram, now));
        (queue.bytes, self.bytes) = (queue.bytes + bytes, self.bytes + bytes);
        while queue.waiting.len() > FLOW_DATAGRAMS_MAX || queue.bytes > FLOW_BYTES_MAX {
            self.bytes -= queue.drop_oldest();
        }
        while self.bytes > QUEUE_BYTES_MAX {
            let longest = self.flows.values_mut().max_by_key(|queue| queue.bytes);
            let Some(longest) = longest else { return };
            self.bytes -= longest.drop_oldest();
        }
    }

    /// Sends the packets of a device as those of this flow from now on.
    pub(super) fn take_from(&mut self, stream: StreamId, packets: Outgoing) {
        if let Some(queue) = self.flows.get_mut(&stream) {
            queue.packets = Some(packets);
        }
    }

    /// There may be packets for a flow that takes them from a device.
    pub(super) fn wake(&mut self, stream: StreamId) {
        let Some(queue) = self.flows.get_mut(&stream) else { return };
        let waiting = queue.packets.as_ref().map(Outgoing::waiting);
        queue.has_packets = waiting.as_ref().is_some_and(|waiting| waiting.any);
        self.wants_bulk |= waiting.is_some_and(|waiting| waiting.is_bulk);
        if !queue.is_idle() && !std::mem::replace(&mut queue.has_turn, true) {
            self.turns.push_back(stream);
        }
    }

    /// Whether a device has had packets that a bulk connection should send; asked once.
    pub(crate) fn take_wants_bulk(&mut self) -> bool {
        std::mem::take(&mut self.wants_bulk)
    }

    /// The next frame, of at most `bytes_max`.
    pub(crate) fn next_frame(&mut self, bytes_max: usize, now: Instant) -> Option<Bytes> {
        loop {
            let &stream = self.turns.front()?;
            let Some(queue) = self.flows.get_mut(&stream) else {
                self.turns.pop_front();
                continue;
            };
            self.bytes -= queue.drop_stale(now);
            if queue.is_idle() {
                queue.leave(&mut self.turns);
                continue;
            }
            if queue.credit <= 0 {
                queue.credit += TURN_BYTES;
                self.turns.rotate_left(1);
                continue;
            }
            let before = queue.bytes;
            let frame = match queue.waiting.is_empty() {
                true => queue.packet(stream, bytes_max, (self.rtt, now)),
                false => queue.frame(stream, bytes_max),
            };
            self.bytes = self.bytes + queue.bytes - before;
            match frame {
                Some(frame) => {
                    if queue.is_idle() {
                        queue.leave(&mut self.turns);
                    }
                    return Some(frame);
                }
                None => self.bytes -= queue.drop_oldest(),
            }
        }
    }
}

impl FlowQueue {
    /// Whether it has nothing to send.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.has_packets
    }

    /// Ends its turn, the first in the queue: it has nothing to send.
    fn leave(&mut self, turns: &mut VecDeque<StreamId>) {
        (self.credit, self.has_turn) = (0, false);
        turns.pop_front();
    }

    /// Drops the oldest datagram; returns its bytes.
    fn drop_oldest(&mut self) -> usize {
        let Some((datagram, _)) = self.waiting.pop_front() else { return 0 };
        if self.begun.take().is_some() {
            self.number = self.number.wrapping_add(1);
        }
        let bytes = datagram.len() + ENTRY_BYTES;
        self.bytes -= bytes;
        self.carried.add_dropped(1);
        bytes
    }

    /// Drops datagrams that have waited too long; returns their bytes.
    fn drop_stale(&mut self, now: Instant) -> usize {
        let mut dropped = 0;
        while self.begun.is_none()
            && let Some((_, since)) = self.waiting.front()
            && now.saturating_duration_since(*since) > WAIT_MAX
        {
            dropped += self.drop_oldest();
        }
        dropped
    }

    /// The frame of the next packet of a device, or its first fragment; `None` if there is none, or
    /// if the path carries too little for it.
    fn packet(
        &mut self,
        stream: StreamId,
        bytes_max: usize,
        (rtt, now): (Duration, Instant),
    ) -> Option<Bytes> {
        let mut frame = BytesMut::with_capacity(bytes_max);
        put_id(stream, false, &mut frame);
        let head_bytes = frame.len();
        let room = bytes_max.saturating_sub(head_bytes);
        let more = self.packets.as_ref()?.next(room, rtt, now, &mut frame);
        self.has_packets = more.unwrap_or(false);
        more?;
        if frame.len() > bytes_max {
            let packet = frame.split_off(head_bytes).freeze();
            self.bytes += packet.len() + ENTRY_BYTES;
            self.waiting.push_back((packet, now));
            return self.frame(stream, bytes_max);
        }
        self.credit -= frame.len() as isize;
        Some(frame.freeze())
    }

    /// The next frame of the oldest datagram; `None` if the path carries too little for it.
    fn frame(&mut self, stream: StreamId, bytes_max: usize) -> Option<Bytes> {
        let (datagram, _) = self.waiting.front_mut()?;
        if self.begun.is_none() && head_bytes(stream, false) + datagram.len() <= bytes_max {
            let (bytes, _) = self.waiting.pop_front()?;
            self.bytes -= bytes.len() + ENTRY_BYTES;
            self.credit -= bytes.len() as isize;
            return Some(FlowFrame { stream, fragment: None, bytes }.encode());
        }
        let room = bytes_max.checked_sub(head_bytes(stream, true))?;
        if room < FRAGMENT_BYTES_MIN {
            return None;
        }
        let (total, offset) = self.begun.unwrap_or((datagram.len(), 0));
        let bytes = datagram.split_to(room.min(datagram.len()));
        // No socket delivers a longer datagram.
        let (total16, offset16) = (u16::try_from(total).ok()?, u16::try_from(offset).ok()?);
        let fragment = Some(Fragment { number: self.number, total: total16, offset: offset16 });
        self.begun = Some((total, offset + bytes.len()));
        if !datagram.has_remaining() {
            self.waiting.pop_front();
            self.bytes -= ENTRY_BYTES;
            (self.begun, self.number) = (None, self.number.wrapping_add(1));
        }
        self.bytes -= bytes.len();
        self.credit -= bytes.len() as isize;
        Some(FlowFrame { stream, fragment, bytes }.encode())
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::VarInt;

    use super::*;
    use crate::flows::{fragments::Fragments, frame::DATAGRAM_BYTES_MAX};

    const MAX: usize = 1_400;

    fn stream(id: u32) -> StreamId {
        StreamId::from(VarInt::from_u32(4 * id))
    }

    fn queue(flows: u32) -> (SendQueue, Vec<Arc<TransferStats>>) {
        let (mut queue, mut carried) = (SendQueue::default(), Vec::new());
        for id in 0..flows {
            carried.push(Arc::<TransferStats>::default());
            queue.open(stream(id), Arc::clone(&carried[id as usize]));
        }
        (queue, carried)
    }

    fn next(queue: &mut SendQueue, now: Instant) -> Option<FlowFrame> {
        let frame = queue.next_frame(MAX, now)?;
        assert!(frame.len() <= MAX);
        Some(FlowFrame::decode(frame).unwrap())
    }

    #[test]
    fn a_long_datagram_leaves_in_fragments_that_make_it_again() {
        let (mut queue, now) = (queue(1).0, Instant::now());
        let mut fragments = Fragments::default();
        for bytes in [MAX - 1, MAX, 3_000, DATAGRAM_BYTES_MAX] {
            let datagram = Bytes::from(vec![7; bytes]);
            queue.push(stream(0), datagram.clone(), now);
            let mut whole = None;
            while let Some(frame) = next(&mut queue, now) {
                assert_eq!(frame.fragment.is_none(), bytes == MAX - 1);
                whole = match frame.fragment {
                    Some(fragment) => fragments.add(stream(0), fragment, &frame.bytes, now),
                    None => Some(frame.bytes),
                };
            }
            assert_eq!(whole, Some(datagram));
        }
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn the_oldest_are_dropped_and_counted() {
        let ((mut queue, carried), now) = (queue(1), Instant::now());
        for number in 0..=255 {
            queue.push(stream(0), Bytes::from(vec![number]), now);
        }
        assert_eq!(carried[0].dropped(), 128);
        assert_eq!(&next(&mut queue, now).unwrap().bytes[..], [128]);
        // The rest of a datagram that was cut short is not sent.
        queue.push(stream(0), Bytes::from(vec![1; DATAGRAM_BYTES_MAX]), now);
        let late = now + WAIT_MAX + Duration::from_millis(1);
        assert_eq!(next(&mut queue, late), None);
        assert_eq!((queue.bytes, carried[0].dropped()), (0, 128 + 128));
    }

    #[test]
    fn all_flows_together_hold_no_more_than_a_bound() {
        let ((mut queue, carried), now) = (queue(100), Instant::now());
        queue.push(stream(99), Bytes::from(vec![1; 100]), now);
        for id in (0..99).cycle().take(1_000) {
            queue.push(stream(id), Bytes::from(vec![0; 20_000]), now);
            assert!(queue.bytes <= QUEUE_BYTES_MAX);
        }
        assert_eq!(carried[99].dropped(), 0, "it has the shortest queue");
    }

    #[test]
    fn a_flood_takes_turns_with_the_other_flows() {
        let ((mut queue, _), now) = (queue(2), Instant::now());
        for _ in 0..100 {
            queue.push(stream(0), Bytes::from(vec![0; 1_300]), now);
        }
        queue.push(stream(1), Bytes::from_static(b"key"), now);
        let first = (0..4).find(|_| next(&mut queue, now).unwrap().stream == stream(1));
        assert!(first.is_some());
    }

    #[test]
    fn flows_share_in_bytes_not_in_datagrams() {
        let ((mut queue, _), now) = (queue(2), Instant::now());
        let mut sent = [0; 2];
        for _ in 0..600 {
            queue.push(stream(0), Bytes::from(vec![0; 1_300]), now);
            queue.push(stream(1), Bytes::from(vec![0; 130]), now);
            queue.push(stream(1), Bytes::from(vec![0; 130]), now);
            if let Some(frame) = next(&mut queue, now) {
                sent[usize::from(frame.stream == stream(1))] += frame.bytes.len();
            }
        }
        let ratio = f64::from(sent[0] as u32) / f64::from(sent[1] as u32);
        assert!((0.7..1.4).contains(&ratio), "{sent:?}");
    }

    #[test]
    fn a_flow_that_ends_leaves_nothing_in_the_queue() {
        let ((mut queue, _), now) = (queue(2), Instant::now());
        queue.push(stream(0), Bytes::from_static(b"a"), now);
        queue.push(stream(1), Bytes::from_static(b"b"), now);
        queue.close(stream(0));
        assert_eq!(&next(&mut queue, now).unwrap().bytes[..], b"b");
        assert!(next(&mut queue, now).is_none());
        assert!(queue.is_empty());
        queue.push(stream(0), Bytes::from_static(b"late"), now);
        assert!(queue.is_empty());
    }
}

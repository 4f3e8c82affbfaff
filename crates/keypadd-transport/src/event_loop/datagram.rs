//! Receives datagrams and passes each to its connection, in this loop or another one.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{ConnectionEvent, DatagramEvent};
use quinn_udp::RecvMeta;
use tracing::warn;

use super::{Clocks, EventLoop};
use crate::{
    cid::{LONG_HEADER, loop_of},
    datagrams::Datagrams,
    handling_cost::Handled,
    splice::Key,
    time_share::TimeShare,
    udp::ReceivedDatagrams,
};

/// Batches to receive before driving connections. With fewer, a busy host answers a flood of ACKs with
/// more packets than the peer can take.
const BATCHES_PER_ROUND: usize = 16;

/// Small batches are received for at least this long, as bulk takes: a flood of them would wait in the
/// socket, before everyone's datagrams.
const RECEIVING_TIME: Duration = Duration::from_millis(2);

/// Time that a round spends on the datagrams of one connection, divided by the number of connections so far.
/// The rest waits in the backlog until the others' have been handled.
const HANDLING_TIME: Duration = Duration::from_millis(1);

/// Longer datagrams that begin with a packet of a handshake are ignored: handshakes have none, and one full of small
/// frames can take 30 ms of CPU time. Other packets, such as the first probe for the path's MTU, cost nothing before
/// the handshake is complete: `quinn-proto` drops them.
pub(super) const HANDSHAKE_BYTES_MAX: usize = 1_472;

/// Time that a round spends on the backlog.
const BACKLOG_TIME: Duration = Duration::from_micros(500);

/// A connection's datagrams of one batch.
pub(super) struct BatchShare {
    key: Key,
    began: Option<Instant>,
    /// The reading of the CPU clock and the connection's frames then, if they are measured.
    cost: Option<(Duration, u64)>,
    share: TimeShare,
    stranger: bool,
}

impl<U: Datagrams> EventLoop<U> {
    /// Receives up to a round's batches and handles the backlog; returns when the last batch was read.
    pub(super) fn receive(&mut self, now: Instant) -> Option<Instant> {
        if !self.has_received() {
            return None;
        }
        let began = Instant::now();
        (self.round, self.handling) = (self.round + 1, 0);
        let read_at = self.read(began, now).unwrap_or(now);
        self.handle_backlog(read_at);
        Some(read_at)
    }

    /// Reads up to a round's batches; returns when the last one was read.
    fn read(&mut self, began: Instant, now: Instant) -> Option<Instant> {
        if self.suspended {
            return None;
        }
        let mut last = None;
        for batch in 1.. {
            let Some(received) = self.udp.receive() else { break };
            let ReceivedDatagrams { datagrams, meta, read_at } = received;
            let now = read_at.unwrap_or(now);
            last = Some(now);
            let mut current = None;
            for datagram in datagrams {
                match loop_of(&datagram) {
                    Some(number) if number != self.number => {
                        self.hand_over(number, datagram, &meta, now);
                    }
                    _ => self.datagram(now, datagram, &meta, &mut current),
                }
            }
            self.end_share(current, now);
            if batch >= BATCHES_PER_ROUND && now.saturating_duration_since(began) >= RECEIVING_TIME
            {
                break;
            }
        }
        last
    }

    /// Handles datagrams that have waited for their connections' shares; connections that have none this time
    /// are first in the next round.
    fn handle_backlog(&mut self, now: Instant) {
        let connections = self.backlog.connections();
        let time = BACKLOG_TIME / connections.max(1) as u32;
        let mut all =
            TimeShare::new(self.clock(), BACKLOG_TIME).since(self.clock().map(|clock| clock()));
        for _ in 0..connections {
            let Some(key) = self.backlog.next_connection() else { return };
            let mut current = self.share(key, time, now);
            while let Some(event) = self.backlog.pop(key) {
                self.handle(key, event, now);
                if current.share.is_used_up() {
                    break;
                }
            }
            self.charge(current, now);
            if all.is_used_up_by_now() {
                return;
            }
        }
    }

    /// Passes a datagram to the loop that owns its connection.
    pub(super) fn hand_over(&mut self, number: u8, bytes: BytesMut, meta: &RecvMeta, now: Instant) {
        match self.peers.get(usize::from(number)) {
            Some(peer) => {
                if !peer.hand_over(now, bytes, *meta) {
                    self.counters.datagram_dropped();
                }
            }
            // From an earlier run of the daemon, or forged: answered with a reset.
            None => self.lone_datagram(now, bytes, meta),
        }
    }

    /// Passes a datagram that is not part of a batch to its connection.
    pub(super) fn lone_datagram(&mut self, now: Instant, bytes: BytesMut, meta: &RecvMeta) {
        let mut current = None;
        self.datagram(now, bytes, meta, &mut current);
        self.end_share(current, now);
    }

    /// Passes a datagram to its connection, now or later. A batch is from one source: its first datagram
    /// begins its share.
    fn datagram(
        &mut self,
        now: Instant,
        bytes: BytesMut,
        meta: &RecvMeta,
        current: &mut Option<BatchShare>,
    ) {
        let len = bytes.len();
        let most = match bytes.first() {
            Some(first) if first & LONG_HEADER != 0 => HANDSHAKE_BYTES_MAX,
            _ => self.datagram_bytes_max,
        };
        if len > most {
            return self.counters.datagram_dropped();
        }
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        self.send_buffer.clear();
        let event =
            self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, bytes, &mut self.send_buffer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(key) = self.routes.get(&handle.0).copied() else { return };
                self.handle_within_share((key, event, len), meta, current, now);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming(incoming, now),
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit),
            None => {}
        }
    }

    /// Lets a connection handle a datagram of this length if its share of the round is not used up.
    fn handle_within_share(
        &mut self,
        (key, event, len): (Key, ConnectionEvent, usize),
        meta: &RecvMeta,
        current: &mut Option<BatchShare>,
        now: Instant,
    ) {
        if current.as_ref().is_none_or(|current| current.key != key) {
            let begun = self.begin_share((key, len), meta, now);
            self.end_share(current.replace(begun), now);
        }
        let is_kept = match current {
            Some(current) if !current.share.is_over() => {
                self.handle(key, event, now);
                current.share.is_used_up();
                return;
            }
            Some(BatchShare { stranger: true, .. }) => self.strangers.push(key, event, len),
            _ => self.backlog.push(key, event, len),
        };
        if !is_kept {
            self.counters.datagram_dropped();
        }
    }

    fn begin_share(
        &mut self,
        (key, len): (Key, usize),
        meta: &RecvMeta,
        now: Instant,
    ) -> BatchShare {
        let mut left = Duration::ZERO;
        let mut slot = self.slots.get_mut(&key);
        if let Some(slot) = &mut slot {
            slot.driver.arrived(meta.dst_ip, (meta.addr, len));
        }
        let stranger = slot.as_ref().is_some_and(|slot| slot.standing.is_stranger());
        if !stranger
            && !self.backlog.holds(key)
            && let Some(slot) = slot
        {
            if slot.round != self.round {
                (slot.round, slot.handled_for) = (self.round, Duration::ZERO);
                self.handling += 1;
            }
            left = (HANDLING_TIME / self.handling.max(1)).saturating_sub(slot.handled_for);
        }
        BatchShare { stranger, ..self.share(key, left, now) }
    }

    /// A share of this length, from now on.
    fn share(&self, key: Key, left: Duration, now: Instant) -> BatchShare {
        let began = self.clock().map(|clock| clock());
        let share = match left.is_zero() {
            true => TimeShare::none(),
            false => TimeShare::new(self.clock(), left).since(began),
        };
        let cost = self.clocks.as_ref().and_then(|clocks| clocks.costs.begin(now));
        // Frames are counted only while a connection is measured.
        let cost =
            cost.and_then(|cost| Some((cost, self.slots.get(&key)?.driver.frames_received())));
        BatchShare { key, began, cost, share, stranger: false }
    }

    fn end_share(&mut self, current: Option<BatchShare>, now: Instant) {
        let Some(current) = current else { return };
        let key = current.key;
        let took = self.charge(current, now);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.handled_for += took;
        }
    }

    /// Charges a connection for what it has handled in its share; returns how long it took.
    fn charge(&mut self, current: BatchShare, now: Instant) -> Duration {
        let BatchShare { key, began, cost, share, .. } = current;
        let (Some(Clocks { costs, shares }), Some(began), Some(slot)) =
            (&mut self.clocks, began, self.slots.get_mut(&key))
        else {
            return Duration::ZERO;
        };
        let took = shares().saturating_duration_since(began);
        let frames = cost.map_or(0, |(_, before)| slot.driver.frames_received() - before);
        let handled = Handled {
            datagrams: share.calls(),
            took,
            is_bulk: slot.lane.is_bulk(),
            frames,
            opening: slot.driver.opening_cost(),
        };
        let excess = costs.excess(cost.map(|(began, _)| began), handled, now);
        slot.excess.charge(excess, now);
        if !excess.is_zero() && slot.excess.is_too_high(now) && costs.may_warn(now) {
            let remote = slot.driver.shared().remote();
            warn!(%remote, "dropping a peer's datagrams: they take too much CPU time");
        }
        took
    }

    /// Lets a connection handle a datagram, and charges it for that.
    pub(super) fn handle_alone(&mut self, key: Key, event: ConnectionEvent, now: Instant) {
        let mut current = self.share(key, HANDLING_TIME, now);
        self.handle(key, event, now);
        current.share.is_used_up();
        self.charge(current, now);
    }

    /// Lets a connection handle a datagram, unless its datagrams take too much CPU time.
    fn handle(&mut self, key: Key, event: ConnectionEvent, now: Instant) {
        let Some(slot) = self.slots.get(&key) else { return };
        if slot.excess.is_too_high(now) {
            return self.counters.costly_datagram_dropped();
        }
        self.guarded(key, |slot| slot.driver.on_event(event));
    }

    pub(super) fn respond(&mut self, transmit: quinn_proto::Transmit) {
        if !self.udp.is_full() {
            self.udp.send(transmit, &self.send_buffer);
        }
    }
}

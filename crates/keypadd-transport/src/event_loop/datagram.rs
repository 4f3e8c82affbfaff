//! Receives datagrams and passes each to its connection, in this loop or another one.

use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{ConnectionEvent, DatagramEvent};
use quinn_udp::RecvMeta;
use tracing::warn;

use super::EventLoop;
use crate::{
    datagrams::{Datagrams, ReceivedDatagrams},
    intake::{BatchShare, Decision, Step},
    splice::Key,
};

/// Batches to receive before driving connections. With fewer, a busy host answers a flood of ACKs
/// with more packets than the peer can take.
const BATCHES_PER_ROUND: usize = 16;

impl<U: Datagrams> EventLoop<U> {
    /// Receives up to a round's batches and handles the backlog; returns when the last batch was
    /// read.
    pub(super) fn receive(&mut self, now: Instant) -> Option<Instant> {
        if !self.has_received() {
            return None;
        }
        let began = Instant::now();
        self.intake.begin_round();
        let read_at = self.read(began, now).unwrap_or(now);
        self.handle_backlog(read_at);
        Some(read_at)
    }

    /// Reads up to a round's batches; returns when the last one was read.
    fn read(&mut self, began: Instant, now: Instant) -> Option<Instant> {
        if self.io.suspended {
            return None;
        }
        let mut last = None;
        for batch in 1.. {
            let Some(received) = self.io.udp.receive() else { break };
            let ReceivedDatagrams { datagrams, meta, read_at } = received;
            let now = read_at.unwrap_or(now);
            last = Some(now);
            let mut current = None;
            for datagram in datagrams {
                match self.ids.loop_of(&datagram) {
                    Some(number) if number != self.ids.number => {
                        self.hand_over(number, datagram, &meta, now);
                    }
                    _ => self.datagram(now, datagram, &meta, &mut current),
                }
            }
            self.end_share(current, now);
            if batch >= BATCHES_PER_ROUND
                && now.saturating_duration_since(began) >= Step::Receive.time()
            {
                break;
            }
        }
        last
    }

    /// Handles datagrams that have waited for their connections' shares.
    fn handle_backlog(&mut self, now: Instant) {
        let connections = self.intake.backlog.connections();
        let time = Step::Backlog.time() / connections.max(1) as u32;
        let [mut all] = self.intake.shares([Step::Backlog]);
        for _ in 0..connections {
            let Some(key) = self.intake.backlog.next_connection() else { return };
            let slot = self.connections.get_mut(key);
            let mut share = self.intake.begin_waiting(key, slot, time, now);
            while let Some((event, len)) = self.intake.backlog.pop(key) {
                self.handle(key, event, now);
                if share.is_used_up(len) {
                    break;
                }
            }
            self.end_share(Some(share), now);
            if all.is_used_up_by_now() {
                return;
            }
        }
    }

    /// Passes a datagram to the loop that owns its connection.
    fn hand_over(&mut self, number: u8, bytes: BytesMut, meta: &RecvMeta, now: Instant) {
        match self.peers.get(usize::from(number)) {
            Some(peer) => {
                if !peer.hand_over(now, bytes, *meta) {
                    self.shared.counters.datagram_dropped();
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

    /// Passes a datagram to its connection, now or later. A batch is from one source: its first
    /// datagram begins its share.
    fn datagram(
        &mut self,
        now: Instant,
        bytes: BytesMut,
        meta: &RecvMeta,
        current: &mut Option<BatchShare>,
    ) {
        if self.io.is_too_long(&bytes) {
            return self.shared.counters.datagram_dropped();
        }
        let len = bytes.len();
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        self.io.buffer.clear();
        let (from, to) = (meta.addr, meta.dst_ip);
        match self.endpoint.handle(now, from, to, ecn, bytes, &mut self.io.buffer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(key) = self.connections.of_handle(handle.0) else { return };
                if current.as_ref().is_none_or(|share| share.key() != key) {
                    let begun = self.begin_share(key, len, meta, now);
                    let ended = std::mem::replace(current, begun);
                    self.end_share(ended, now);
                }
                if let Some(share) = current {
                    self.handle_within(share, event, len, now);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming(incoming, now),
            Some(DatagramEvent::Response(transmit)) => self.io.respond(transmit),
            None => {}
        }
    }

    fn begin_share(
        &mut self,
        key: Key,
        len: usize,
        meta: &RecvMeta,
        now: Instant,
    ) -> Option<BatchShare> {
        let slot = self.connections.get_mut(key)?;
        slot.driver.arrived(meta.dst_ip, meta.addr, len);
        Some(self.intake.begin(key, slot, now))
    }

    fn end_share(&mut self, share: Option<BatchShare>, now: Instant) {
        let Some(share) = share else { return };
        let Some(slot) = self.connections.get_mut(share.key()) else { return };
        if self.intake.end(&share, slot, now) {
            let remote = slot.driver.shared().remote();
            warn!(%remote, "dropping a peer's datagrams: they take too much CPU time");
        }
    }

    /// Lets a connection handle a datagram of this length if its share of the round is not used up.
    fn handle_within(
        &mut self,
        share: &mut BatchShare,
        event: ConnectionEvent,
        len: usize,
        now: Instant,
    ) {
        match self.intake.decide(share, event, len) {
            Decision::Now(event) => {
                self.handle(share.key(), event, now);
                share.is_used_up(len);
            }
            Decision::Later => {}
            Decision::Dropped => self.shared.counters.datagram_dropped(),
        }
    }

    /// Lets a connection handle a datagram of this length that has waited, and charges it for that.
    pub(super) fn handle_alone(
        &mut self,
        key: Key,
        event: ConnectionEvent,
        len: usize,
        now: Instant,
    ) {
        let slot = self.connections.get_mut(key);
        let mut share = self.intake.begin_waiting(key, slot, Step::Handle.time(), now);
        self.handle(key, event, now);
        share.is_used_up(len);
        self.end_share(Some(share), now);
    }

    /// Lets a connection handle a datagram, unless its datagrams take too much CPU time.
    fn handle(&mut self, key: Key, event: ConnectionEvent, now: Instant) {
        let Some(slot) = self.connections.get_mut(key) else { return };
        if slot.account.excess.is_too_high(now) {
            return self.shared.counters.costly_datagram_dropped();
        }
        self.guarded(key, |slot| slot.driver.on_event(event, now));
    }
}

//! Receives datagrams and passes each to its connection, in this loop or another one.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{ConnectionEvent, DatagramEvent};
use quinn_udp::RecvMeta;
use tracing::warn;

use super::EventLoop;
use crate::{cid::loop_of, datagrams::Datagrams, splice::Key, udp::ReceivedDatagrams};

/// Batches to receive before driving connections. With fewer, a busy host answers a flood of ACKs with
/// more packets than the peer can take.
const BATCHES_PER_ROUND: usize = 16;

/// Small batches are received for at least this long, as bulk takes: a flood of them would wait in the
/// socket, before everyone's datagrams.
const RECEIVING_TIME: Duration = Duration::from_millis(2);

impl<U: Datagrams> EventLoop<U> {
    /// Receives up to a round's batches; returns when the last one was read.
    pub(super) fn receive(&mut self, now: Instant) -> Option<Instant> {
        if !self.has_unread() {
            return None;
        }
        let began = Instant::now();
        if let Some(costs) = &mut self.costs {
            costs.begin(now);
        }
        let mut last = None;
        for batch in 1.. {
            let Some(received) = self.udp.receive() else { break };
            let ReceivedDatagrams { datagrams, meta, read_at } = received;
            let now = read_at.unwrap_or(now);
            last = Some(now);
            self.carried_bytes += datagrams.len();
            let mut handler = None;
            for datagram in datagrams {
                match loop_of(&datagram) {
                    Some(number) if number != self.number => {
                        self.hand_over(number, datagram, &meta, now);
                    }
                    _ => handler = self.datagram(now, datagram, &meta).or(handler),
                }
            }
            // A batch is from one source.
            if let Some(key) = handler {
                self.charge(key, now);
            }
            if batch >= BATCHES_PER_ROUND && now.saturating_duration_since(began) >= RECEIVING_TIME
            {
                break;
            }
        }
        if let Some(costs) = &mut self.costs {
            costs.end(began, Instant::now());
        }
        last
    }

    /// Passes a datagram to the loop that owns its connection.
    pub(super) fn hand_over(&mut self, number: u8, bytes: BytesMut, meta: &RecvMeta, now: Instant) {
        match self.peers.get(usize::from(number)) {
            Some(peer) => peer.hand_over(now, bytes, *meta),
            // From an earlier run of the daemon, or forged: answered with a reset.
            None => {
                self.datagram(now, bytes, meta);
            }
        }
    }

    /// Passes a datagram to its connection, and returns that.
    pub(super) fn datagram(
        &mut self,
        now: Instant,
        bytes: BytesMut,
        meta: &RecvMeta,
    ) -> Option<Key> {
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        self.send_buffer.clear();
        let event =
            self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, bytes, &mut self.send_buffer);
        match event? {
            DatagramEvent::ConnectionEvent(handle, event) => {
                let key = *self.routes.get(&handle.0)?;
                self.handle(key, event, now);
                return Some(key);
            }
            DatagramEvent::NewConnection(incoming) => self.incoming(incoming, now),
            DatagramEvent::Response(transmit) => self.respond(transmit),
        }
        None
    }

    /// Lets a connection handle a datagram, unless its datagrams take too much CPU time.
    fn handle(&mut self, key: Key, event: ConnectionEvent, now: Instant) {
        let Some(slot) = self.slots.get(&key) else { return };
        let excess = slot.excess;
        if excess.is_too_high(now) {
            return;
        }
        self.guarded(key, |slot| slot.driver.on_event(event));
        if let Some(costs) = &mut self.costs {
            costs.count();
            if excess.is_any(now) {
                self.charge(key, now);
            }
        }
    }

    /// Charges a connection for what it has handled since the last charge.
    fn charge(&mut self, key: Key, now: Instant) {
        let Some(costs) = &mut self.costs else { return };
        let excess = costs.excess();
        if excess.is_zero() {
            return;
        }
        let Some(slot) = self.slots.get_mut(&key) else { return };
        slot.excess.charge(excess, now);
        if slot.excess.is_too_high(now) && costs.may_warn(now) {
            let remote = slot.driver.shared().remote();
            warn!(%remote, "dropping a peer's datagrams: they take too much CPU time");
        }
    }

    pub(super) fn respond(&mut self, transmit: quinn_proto::Transmit) {
        if !self.udp.is_full() {
            self.udp.send(transmit, &self.send_buffer);
        }
    }
}

//! Receives datagrams and passes each to its connection, in this loop or another one.

use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::DatagramEvent;
use quinn_udp::RecvMeta;

use super::EventLoop;
use crate::{cid::loop_of, datagrams::Datagrams, udp::ReceivedDatagrams};

/// Batches to receive before driving connections. With fewer, a busy host answers a flood of ACKs with
/// more packets than the peer can take.
const BATCHES_PER_ROUND: usize = 16;

impl<U: Datagrams> EventLoop<U> {
    /// Receives up to a round's batches; returns whether there were any.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        if self.suspended {
            return false;
        }
        for batch in 0..BATCHES_PER_ROUND {
            let Some(ReceivedDatagrams { datagrams, meta }) = self.udp.receive() else {
                return batch > 0;
            };
            self.carried_bytes += datagrams.len();
            for datagram in datagrams {
                match loop_of(&datagram) {
                    Some(number) if number != self.number => {
                        self.hand_over(number, datagram, &meta, now);
                    }
                    _ => self.datagram(now, datagram, &meta),
                }
            }
        }
        true
    }

    /// Passes a datagram to the loop that owns its connection.
    pub(super) fn hand_over(&mut self, number: u8, bytes: BytesMut, meta: &RecvMeta, now: Instant) {
        match self.peers.get(usize::from(number)) {
            Some(peer) => peer.hand_over(now, bytes, *meta),
            // From an earlier run of the daemon, or forged: answered with a reset.
            None => self.datagram(now, bytes, meta),
        }
    }

    pub(super) fn datagram(&mut self, now: Instant, bytes: BytesMut, meta: &RecvMeta) {
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        self.send_buffer.clear();
        let event =
            self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, bytes, &mut self.send_buffer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(&key) = self.routes.get(&handle.0) else { return };
                self.guarded(key, |slot| slot.driver.on_event(event));
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming(incoming, now),
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit),
            None => {}
        }
    }

    pub(super) fn respond(&mut self, transmit: quinn_proto::Transmit) {
        if !self.udp.is_full() {
            self.udp.send(transmit, &self.send_buffer);
        }
    }
}

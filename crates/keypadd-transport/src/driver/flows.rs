//! Passes datagrams between the connection and its flows, and sends what congestion control allows.

use std::{sync::Arc, time::Instant};

use super::{Driver, one_way::is_one_way};
use crate::{
    channel::Channel,
    flows::handles::{FlowCommand, FlowCommands},
    splice::Registrar,
    time_share::TimeShare,
};

/// Datagrams from this length on are bulk data. Shorter ones are requests, answers and acknowledgements,
/// which look alike: an answer says nothing about what a flow carries.
const BULK_DATAGRAM_BYTES: usize = 1000;

/// Upper bound on a packet's overhead around the frame's content: a short header (`OVERHEAD_BYTES`
/// in `send`), and the type and length of a DATAGRAM frame (RFC 9221 4).
const FRAME_OVERHEAD_BYTES: usize = (1 + 20 + 4) + 16 + (1 + 8);

impl Driver {
    pub(super) fn on_flow_command(
        &mut self,
        command: FlowCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        // Dropping it tells the caller that the connection is gone.
        if !self.lost {
            let connection: Arc<dyn FlowCommands> = self.shared.clone();
            self.flows.on_command(command, &connection, registrar, now);
        }
    }

    /// Delivers the datagrams that have arrived from the peer, and reads those of sockets; returns
    /// whether there may be more.
    pub(super) fn carry_flows(&mut self, now: Instant, share: &mut TimeShare) -> bool {
        if self.lost {
            return false;
        }
        let Self { connection, flows, channels, one_way, gate, bulk_bytes, .. } = self;
        while let Some(frame) = connection.datagrams().recv() {
            *bulk_bytes += bulk_bytes_of(&frame);
            if !is_one_way(&frame) {
                flows.arrive(frame);
            } else if let Some(waits) = one_way.arrive(&frame, now) {
                gate.set_waits(waits);
            }
        }
        if let Some(answer) = one_way.answer() {
            let _ = connection.datagrams().send(answer, false);
        }
        let is_open = |id| matches!(channels.get(&id), Some(Channel::Controlled(_)));
        let more = flows.receive_some(is_open, now, share);
        flows.expire(now);
        share.go_on();
        flows.read_sockets(now, share) || more
    }

    /// Gives quinn-proto a batch of datagrams, as far as the window and pacing allow; returns
    /// whether it gave any.
    pub(super) fn give_flows(&mut self, now: Instant, batch: usize) -> bool {
        if self.lost || !self.flows.has_unsent() {
            return false;
        }
        let Some(bytes_max) = self.connection.datagrams().max_size() else { return false };
        let room = self.gate.room(now);
        if room == 0 {
            return false;
        }
        let mtu = self.connection.current_mtu();
        if let Err(until) = self.gate.paced(now, self.connection.rtt(), mtu.into()) {
            self.paced_until = Some(until);
            return false;
        }
        let allowed = room.min(self.gate.tokens_left()).min(batch as u64) as usize;
        let mut given = 0;
        while given < allowed
            && let Some(frame) = self.flows.next_frame(bytes_max, now)
        {
            self.bulk_bytes += bulk_bytes_of(&frame);
            let bytes = frame.len() + FRAME_OVERHEAD_BYTES;
            // It has room, so earlier datagrams have been sent.
            if self.connection.datagrams().send(frame, false).is_err() {
                break;
            }
            given += bytes;
        }
        self.handed_over += given;
        given > 0
    }
}

fn bulk_bytes_of(frame: &[u8]) -> usize {
    if frame.len() < BULK_DATAGRAM_BYTES { 0 } else { frame.len() }
}

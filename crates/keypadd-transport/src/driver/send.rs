//! Sends sparse streams first, then the datagrams of flows, then bulk in full batches, within the congestion
//! window and pacing.

use std::time::{Duration, Instant};

use quinn_proto::StreamId;

use super::{Driver, SendContext};
use crate::{
    channel::{Channel, Outgoing},
    receive_buffers::BATCH_BYTES,
    socket::SPARSE_BYTES,
    time_share::TimeShare,
    to_stream::ToStream,
};

/// Batches with bulk data that a connection may send before the loop serves other connections.
const BATCHES_PER_DRIVE: usize = 4;

/// Sends in one drive, for any purpose.
const SENDS_PER_DRIVE: usize = 64;

/// Upper bound on what is not stream data in a datagram: a short header with the peer's connection
/// ID and a packet number (RFC 9000 17.3.1), the tag, and the type, ID, offset and length of a
/// STREAM frame (19.8).
const OVERHEAD_BYTES: usize = (1 + 20 + 4) + 16 + (1 + 8 + 8 + 2);

/// Datagrams per drive that ignore pacing and the window.
const FREE_DATAGRAMS: usize = 1;

/// Datagrams of a handshake are ECN-capable for this long: until the first probe timeout of a path whose round
/// trip is not known, 3 x 333 ms (RFC 9002 6.2.2).
const ECN_TRIAL: Duration = Duration::from_millis(900);

/// The largest read from a socket. Several batches: the kernel lets a source get as far ahead as
/// the largest read it has seen (dynamic right-sizing, tcp_rmem in tcp(7)), and a source that is
/// only one batch ahead runs empty whenever it is not scheduled in time. Only one stream of a
/// connection at a time reads this far ahead, so that a thousand stalled ones hold no more than a
/// batch each.
const READ_BYTES: u64 = (BATCHES_PER_DRIVE * BATCH_BYTES) as u64;

impl Driver {
    pub(crate) fn enqueue(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        if let Outgoing::Here(to_stream) = &mut spliced.to_stream
            && !to_stream.queued
            && to_stream.may_send()
        {
            to_stream.queued = true;
            if to_stream.is_bulk() { &mut self.bulk } else { &mut self.sparse }.push_back(id);
        }
    }

    /// Sends what may be sent; returns whether more could follow immediately.
    pub(crate) fn send(&mut self, context: &mut SendContext<'_>, share: &mut TimeShare) -> bool {
        let now = context.now;
        let mut sends = SENDS_PER_DRIVE;
        let mut batches = BATCHES_PER_DRIVE;
        self.paced_until = None;
        self.free_datagrams = if self.gate.is_owed_much() { 0 } else { FREE_DATAGRAMS };
        loop {
            if context.outdated || context.udp.is_full() {
                return false;
            }
            let takes = self.handed_over == 0 || self.peer_is_proved();
            if takes {
                self.give_sparse(now, share);
            }
            let batch = self.batch(context);
            // Retransmissions by quinn-proto go before new data.
            let waited = self.repairs_wait;
            let gave = takes
                && batches > 0
                && !self.repairs_wait
                && (self.give_flows(now, batch) || self.give_bulk(now, batch, share));
            // Afterwards: a source that was expected to have data may have none.
            let waits = !self.bulk.is_empty() || self.flows.has_unsent();
            self.gate.set_held_back(waits);
            match self.transmit(context, &mut sends) {
                Transmitted::All if waited => continue,
                Transmitted::All => {}
                Transmitted::Paced => return false,
                Transmitted::Stopped => return !context.udp.is_full(),
            }
            if !gave {
                let least = if self.flows.has_unsent() { 1 } else { batch as u64 };
                return batches == 0 && waits && self.gate.room(now) >= least;
            }
            batches -= 1;
        }
    }

    /// Stream bytes that fit one send. A few too many would cost another send.
    fn batch(&self, context: &SendContext<'_>) -> usize {
        let mtu = self.connection.current_mtu();
        context.udp.batch(mtu) * usize::from(mtu).saturating_sub(OVERHEAD_BYTES)
    }

    /// Sends sparse streams first, even if bulk has filled the window, until its share of the round is
    /// used up: each may take a read.
    fn give_sparse(&mut self, now: Instant, share: &mut TimeShare) {
        for _ in 0..self.sparse.len() {
            let room = self.gate.sparse_room(now, self.connection.rtt());
            if room < self.connection.current_mtu().into() || share.is_over() {
                return;
            }
            let bytes = SPARSE_BYTES.min(room as usize);
            let Some(id) = self.sparse.pop_front() else { return };
            if self.give(id, bytes, bytes, now) > 0 {
                self.guard_tail(now);
            }
            share.is_used_up();
        }
    }

    /// Gives bulk streams one batch; returns whether it gave any bytes.
    fn give_bulk(&mut self, now: Instant, batch: usize, share: &mut TimeShare) -> bool {
        if self.bulk.is_empty() {
            return false;
        }
        let room = self.gate.room(now);
        // Send full batches, or a quarter of a window that holds only a few: small batches cost as
        // much as large ones.
        let least =
            (batch as u64).min(self.gate.window() / 4).min(self.gate.burst(self.connection.rtt()));
        if room < least {
            return false;
        }
        let paced = match self.gate.paced(now, self.connection.rtt(), room.min(batch as u64)) {
            Ok(bytes) => bytes as usize,
            Err(until) => {
                self.paced_until = Some(until);
                return false;
            }
        };
        // Read ahead what may be sent soon.
        let ahead = room.min(self.gate.tokens_left()).min(READ_BYTES) as usize;
        let mut given = 0;
        while given < paced
            && let Some(id) = self.bulk.pop_front()
        {
            let bytes = (paced - given).min(BATCH_BYTES);
            let read = if self.may_read_ahead(id) { ahead.max(bytes) } else { bytes };
            let taken = self.give(id, bytes, read, now);
            given += taken;
            // Bytes are limited, but sockets with nothing to read are not.
            if taken == 0 && share.is_used_up() {
                break;
            }
        }
        if given > 0
            && let Some(question) =
                self.one_way.question(self.connection.remote_address(), self.connection.rtt(), now)
        {
            // A peer without datagrams does not answer.
            let _ = self.connection.datagrams().send(question, false);
        }
        given > 0
    }

    /// Whether the stream may read ahead: it stays on this connection, and no other stream is
    /// ahead.
    fn may_read_ahead(&mut self, id: StreamId) -> bool {
        if self.moves.sibling.is_some() && !self.moves.is_bulk {
            return false;
        }
        let holds = |other| match self.channels.get(&other) {
            Some(Channel::Spliced(spliced)) => {
                let ahead = |to_stream: &ToStream| to_stream.has_unsent() && !to_stream.is_moving();
                spliced.to_stream().is_some_and(ahead)
            }
            _ => false,
        };
        let is_free = self.reading_ahead.is_none_or(|other| other == id || !holds(other));
        if is_free {
            self.reading_ahead = Some(id);
        }
        is_free
    }

    /// Gives a stream up to `bytes`, reading up to `read` from its socket; returns how many it
    /// took.
    fn give(&mut self, id: StreamId, bytes: usize, read: usize, now: Instant) -> usize {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return 0 };
        let Outgoing::Here(to_stream) = &mut spliced.to_stream else { return 0 };
        to_stream.queued = false;
        let rtt = self.connection.rtt();
        match to_stream.send(&mut self.connection.send_stream(id), (bytes, read), (now, rtt)) {
            Ok(sent) => {
                self.handed_over += sent;
                self.bulk_bytes += to_stream.bulk_bytes(sent);
                self.enqueue(id);
                self.move_if_bulk(id, now);
                sent
            }
            Err(cut) => {
                self.end_splice(id, cut, now);
                0
            }
        }
    }

    /// Sends what quinn-proto has. New data was metered before; retransmissions are paced here,
    /// except for one datagram per call for what cannot wait: ACKs, probes, the connection's close.
    fn transmit(&mut self, context: &mut SendContext<'_>, sends: &mut usize) -> Transmitted {
        loop {
            if context.udp.is_full() || *sends == 0 {
                return Transmitted::Stopped;
            }
            let mtu = self.connection.current_mtu();
            let datagrams = match self.datagrams_allowed(context.now, mtu) {
                Ok(allowed) => allowed.min(context.udp.batch(mtu)),
                Err(_) if self.free_datagrams > 0 => {
                    self.free_datagrams -= 1;
                    1
                }
                Err(until) => {
                    self.repairs_wait = true;
                    self.paced_until = until;
                    return Transmitted::Paced;
                }
            };
            context.buffer.clear();
            let transmit = self.connection.poll_transmit(context.now, datagrams, context.buffer);
            let Some(mut transmit) = transmit else {
                self.repairs_wait = false;
                // It keeps what it may not send to an unproved address.
                if self.peer_is_proved() {
                    self.handed_over = 0;
                }
                return Transmitted::All;
            };
            if !self.may_send(&transmit) {
                continue;
            }
            if !self.proved && self.is_ecn_in_doubt(context.now) {
                transmit.ecn = None;
            }
            self.handed_over = self.handed_over.saturating_sub(transmit.size);
            self.tail.sealed(&transmit, context.buffer);
            context.udp.send(transmit, context.buffer);
            *sends -= 1;
        }
    }

    /// Whether a handshake has taken so long that the path may drop what is ECN-capable (RFC 9000 13.4.2).
    /// quinn-proto ends ECN on a path whose packets are acknowledged without counts, and never if none arrive.
    fn is_ecn_in_doubt(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        now.saturating_duration_since(began) >= ECN_TRIAL.max(2 * self.connection.rtt())
    }

    /// Datagrams that pacing and the window allow now, including what was given to quinn-proto;
    /// else when pacing will allow one.
    fn datagrams_allowed(&mut self, now: Instant, mtu: u16) -> Result<usize, Option<Instant>> {
        let room = self.gate.room(now);
        let paced = self.gate.paced(now, self.connection.rtt(), mtu.into());
        let allowed = match paced {
            Ok(_) => self.gate.tokens_left().min(room),
            Err(_) => 0,
        };
        match (allowed as usize + self.handed_over).div_ceil(usize::from(mtu)) {
            0 => Err(paced.err()),
            datagrams => Ok(datagrams),
        }
    }
}

/// Why sending stopped.
enum Transmitted {
    /// Nothing is left to send.
    All,
    /// Pacing or the window allows no more.
    Paced,
    /// The socket is full, or other connections are due.
    Stopped,
}

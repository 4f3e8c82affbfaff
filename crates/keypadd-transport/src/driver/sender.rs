//! Sends sparse streams first, then the datagrams of flows, then bulk in full batches, within the
//! congestion window and pacing. On a bulk connection flows and streams take turns.

mod acknowledged;
mod ecn;
mod meter;

use std::time::Instant;

use quinn_proto::{Connection, StreamId};
use tokio::sync::oneshot;

use self::{
    acknowledged::Acknowledged,
    ecn::EcnTrial,
    meter::{Meter, PathParameters},
};
use super::{carrier::Carrier, flow_frames, path_watch::PathWatch, tail::Tail};
use crate::{
    channel::{Class, Spliced},
    datagrams::Datagrams,
    flight::KEPT_PER_FLIGHT,
    flows::Flows,
    gate::CongestionGate,
    handed_controller::HandedController,
    rate_cap::RateCap,
    receive_buffers::BATCH_BYTES,
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

/// What a connection sends, and when.
pub(super) struct Sender {
    meter: Meter,
    tail: Tail,
    ecn: EcnTrial,
    acknowledged: Acknowledged,
    /// The stream that last read more from its socket than could be sent immediately.
    reading_ahead: Option<StreamId>,
    /// Whether a bulk connection's streams had the last turn.
    streams_were_last: bool,
    /// Bulk data that this drive has carried, in bytes.
    bulk_bytes: usize,
}

/// What a driver sends with: its loop's socket, and a buffer for sealed packets.
pub(crate) struct SendContext<'a> {
    pub(crate) udp: &'a mut dyn Datagrams,
    pub(crate) buffer: &'a mut Vec<u8>,
    /// Whether the connection was made in an earlier epoch (see [`Egress`](crate::Egress)): it
    /// seals and sends nothing more.
    pub(crate) outdated: bool,
    pub(crate) now: Instant,
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

impl Sender {
    pub(super) fn new(gate: CongestionGate) -> Self {
        Self {
            meter: Meter::new(gate),
            tail: Tail::default(),
            ecn: EcnTrial::default(),
            acknowledged: Acknowledged::default(),
            reading_ahead: None,
            streams_were_last: false,
            bulk_bytes: 0,
        }
    }

    /// Sends no more than this to the peer, over all connections to it.
    pub(super) fn set_cap(&mut self, cap: RateCap) {
        self.meter.gate.set_cap(cap);
    }

    /// Replies once the peer has acknowledged what was sent so far.
    pub(super) fn await_acknowledgment(&mut self, reply: oneshot::Sender<()>) {
        self.acknowledged.wait(reply);
    }

    /// Sends what may be sent; returns whether more could follow immediately.
    pub(super) fn run(
        &mut self,
        carrier: &mut Carrier,
        flows: &mut Flows,
        path: &mut PathWatch,
        context: &mut SendContext<'_>,
        share: &mut TimeShare,
    ) -> bool {
        let now = context.now;
        let (mut sends, mut batches) = (SENDS_PER_DRIVE, BATCHES_PER_DRIVE);
        self.meter.begin();
        let (gate, is_settled) = (&self.meter.gate, self.meter.is_settled());
        self.acknowledged.follow(&mut carrier.quic, gate, is_settled);
        if let Some(bytes) = self.meter.gate.fit_flight() {
            carrier.quic.set_send_window(KEPT_PER_FLIGHT * bytes);
        }
        loop {
            if context.outdated || context.udp.is_full() {
                return false;
            }
            let takes = self.meter.is_settled() || path.peer_is_proved(&carrier.quic);
            if takes {
                self.give_sparse(carrier, now, share);
            }
            let batch = batch(&carrier.quic, context);
            // Retransmissions by quinn-proto go before new data.
            let waited = self.meter.repairs_wait();
            let may_give = takes && batches > 0 && !waited;
            let gave = may_give && self.give_batch(carrier, flows, path, batch, now, share);
            // Afterwards: a source that was expected to have data may have none.
            let waits = carrier.streams.waiting(Class::Bulk) > 0 || flows.has_unsent();
            self.meter.gate.set_held_back(waits);
            match self.transmit(&mut carrier.quic, path, context, &mut sends) {
                Transmitted::All if waited => continue,
                Transmitted::All => {}
                Transmitted::Paced => return false,
                Transmitted::Stopped => return !context.udp.is_full(),
            }
            if !gave {
                let least = if flows.has_unsent() { 1 } else { batch as u64 };
                return batches == 0 && waits && self.meter.gate.room(now) >= least;
            }
            batches -= 1;
        }
    }

    /// Sends sparse streams first, even if bulk has filled the window, until its share of the round
    /// is used up: each may take a read.
    fn give_sparse(&mut self, carrier: &mut Carrier, now: Instant, share: &mut TimeShare) {
        for _ in 0..carrier.streams.waiting(Class::Sparse) {
            let Some(bytes) = self.meter.sparse_bytes(now, path_parameters(&carrier.quic)) else {
                return;
            };
            if share.is_over() {
                return;
            }
            let Some(id) = carrier.streams.next(Class::Sparse) else { return };
            if self.give(carrier, id, bytes, bytes, now) > 0 {
                // Reading statistics copies all counters, so near paths skip it.
                let quic = &carrier.quic;
                self.tail.given(now, quic.rtt(), || quic.stats().path.lost_packets);
            }
            share.is_used_up();
        }
    }

    /// Gives quinn-proto a batch of datagrams or of bulk data; returns whether it gave any.
    fn give_batch(
        &mut self,
        carrier: &mut Carrier,
        flows: &mut Flows,
        path: &mut PathWatch,
        batch: usize,
        now: Instant,
        share: &mut TimeShare,
    ) -> bool {
        let flows_first = !carrier.moves.is_bulk() || self.streams_were_last;
        let gave_flows = flows_first && self.give_flows(carrier, flows, now, batch);
        self.streams_were_last = !gave_flows && self.give_bulk(carrier, path, now, batch, share);
        let gave = gave_flows || self.streams_were_last;
        gave || (!flows_first && self.give_flows(carrier, flows, now, batch))
    }

    /// Gives quinn-proto a batch of datagrams, as far as the window and pacing allow; returns
    /// whether it gave any.
    fn give_flows(
        &mut self,
        carrier: &mut Carrier,
        flows: &mut Flows,
        now: Instant,
        batch: usize,
    ) -> bool {
        if carrier.lifecycle.is_lost() || !flows.has_unsent() {
            return false;
        }
        let quic = &mut carrier.quic;
        let Some(frame_max) = quic.datagrams().max_size() else { return false };
        let Some(allowed) = self.meter.flow_bytes(now, path_parameters(quic), batch) else {
            return false;
        };
        let given = flow_frames::give(quic, flows, frame_max, allowed, now);
        self.bulk_bytes += given.bulk_bytes;
        self.meter.given(given.bytes);
        given.bytes > 0
    }

    /// Gives bulk streams one batch; returns whether it gave any bytes.
    fn give_bulk(
        &mut self,
        carrier: &mut Carrier,
        path: &mut PathWatch,
        now: Instant,
        batch: usize,
        share: &mut TimeShare,
    ) -> bool {
        if carrier.streams.waiting(Class::Bulk) == 0 {
            return false;
        }
        let parameters = path_parameters(&carrier.quic);
        let Some(allowed) = self.meter.bulk_bytes(now, parameters, batch) else { return false };
        let mut given = 0;
        while given < allowed.bytes
            && let Some(id) = carrier.streams.next(Class::Bulk)
        {
            let bytes = (allowed.bytes - given).min(BATCH_BYTES);
            let read = match self.may_read_ahead(carrier, id) {
                true => allowed.ahead.max(bytes),
                false => bytes,
            };
            let taken = self.give(carrier, id, bytes, read, now);
            given += taken;
            // Bytes are limited, but sockets with nothing to read are not.
            if taken == 0 && share.is_used_up() {
                break;
            }
        }
        if given > 0 {
            path.ask(&mut carrier.quic, now);
        }
        given > 0
    }

    /// Whether the stream may read ahead: it stays on this connection, and no other stream is
    /// ahead.
    fn may_read_ahead(&mut self, carrier: &Carrier, id: StreamId) -> bool {
        if carrier.moves.sends_bulk_away() {
            return false;
        }
        let is_ahead = |to_stream: &ToStream| to_stream.has_unsent() && !to_stream.is_moving();
        let holds = |other| {
            carrier.streams.spliced(other).and_then(Spliced::to_stream).is_some_and(is_ahead)
        };
        let is_free = self.reading_ahead.is_none_or(|other| other == id || !holds(other));
        if is_free {
            self.reading_ahead = Some(id);
        }
        is_free
    }

    /// Gives a stream up to `bytes`, reading up to `read` from its socket; returns how many it
    /// took.
    fn give(
        &mut self,
        carrier: &mut Carrier,
        id: StreamId,
        bytes: usize,
        read: usize,
        now: Instant,
    ) -> usize {
        let Carrier { quic, streams, .. } = &mut *carrier;
        let Some(spliced) = streams.spliced_mut(id) else { return 0 };
        let Some(to_stream) = spliced.to_stream_mut() else { return 0 };
        let rtt = quic.rtt();
        match to_stream.send(&mut quic.send_stream(id), bytes, read, now, rtt) {
            Ok(sent) => {
                self.meter.given(sent);
                self.bulk_bytes += to_stream.bulk_bytes(sent);
                carrier.streams.may_send(id);
                carrier.move_if_bulk(&self.meter.gate, id, now);
                sent
            }
            Err(cut) => {
                carrier.end_splice(id, cut, now);
                0
            }
        }
    }

    /// Sends what quinn-proto has.
    fn transmit(
        &mut self,
        quic: &mut Connection,
        path: &mut PathWatch,
        context: &mut SendContext<'_>,
        sends: &mut usize,
    ) -> Transmitted {
        loop {
            if context.udp.is_full() || *sends == 0 {
                return Transmitted::Stopped;
            }
            let parameters = path_parameters(quic);
            let Some(datagrams) = self.meter.datagrams(context.now, parameters) else {
                return Transmitted::Paced;
            };
            let datagrams = datagrams.min(context.udp.batch(parameters.mtu));
            context.buffer.clear();
            let transmit = quic.poll_transmit(context.now, datagrams, context.buffer);
            let Some(mut transmit) = transmit else {
                self.meter.sent_all(path.peer_is_proved(quic));
                return Transmitted::All;
            };
            if !path.may_send(quic, &transmit) {
                continue;
            }
            if self.ecn.is_in_doubt(context.now, || quic.rtt()) {
                transmit.ecn = None;
            }
            self.meter.sent(transmit.size);
            self.tail.sealed(&transmit, context.buffer);
            context.udp.send(transmit, context.buffer);
            *sends -= 1;
        }
    }

    /// Sends what follows the last packet of a burst, once it is due: a PING, and the copy.
    pub(super) fn send_tail(&mut self, carrier: &mut Carrier, context: &mut SendContext<'_>) {
        let Carrier { quic, lifecycle, .. } = carrier;
        if !self.tail.is_due(context.now) || !lifecycle.is_up() || context.outdated {
            return;
        }
        quic.ping();
        // On a path that has changed, the copy would belong to the old one.
        if let Some((transmit, bytes)) = self.tail.take_copy()
            && transmit.destination == quic.remote_address()
            && !context.udp.is_full()
        {
            context.udp.send(transmit, &bytes);
        }
    }

    /// The peer has proved a key.
    pub(super) fn proved(&mut self) {
        self.ecn = EcnTrial::Over;
    }

    /// Continues with the controller of another connection of the same path.
    pub(super) fn take_over(
        &mut self,
        quic: &mut Connection,
        handed: HandedController,
        now: Instant,
    ) {
        self.meter.gate.take_over(handed, now);
        // The answer corrects what it believes to be in flight.
        quic.ping();
    }

    /// The number of the newest packet that the peer has acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.meter.gate.acked()
    }

    pub(super) fn gate(&mut self) -> &mut CongestionGate {
        &mut self.meter.gate
    }

    /// Counts bulk data that was carried otherwise.
    pub(super) fn add_bulk(&mut self, bytes: usize) {
        self.bulk_bytes += bytes;
    }

    /// Takes the count of bulk data that this drive has carried, in bytes.
    pub(super) fn take_bulk_bytes(&mut self) -> usize {
        std::mem::take(&mut self.bulk_bytes)
    }

    /// When more may be sent.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        [self.meter.deadline(now), self.tail.deadline()].into_iter().flatten().min()
    }
}

/// What the path of a connection is like now.
fn path_parameters(quic: &Connection) -> PathParameters {
    PathParameters { rtt: quic.rtt(), mtu: quic.current_mtu() }
}

/// Stream bytes that fit one send. A few too many would cost another send.
fn batch(quic: &Connection, context: &SendContext<'_>) -> usize {
    let mtu = quic.current_mtu();
    context.udp.batch(mtu) * usize::from(mtu).saturating_sub(OVERHEAD_BYTES)
}

//! Holds streams when their connection is lost, resumes them on a new one, and exchanges receipts.
//!
//! A lost connection parks its directions (`held`). A control task opens a stream on the next
//! connection, over which both ends say how much they have written to their sockets; then the loop
//! retransmits the rest and continues (`replay`).

use std::{collections::VecDeque, num::NonZeroU64, sync::Arc, time::Instant};

use mio::Interest;
use quinn_proto::{Dir, StreamId};

use super::{Carrier, to_socket};
use crate::{
    channel::{Channel, Outgoing},
    held::HeldStreams,
    receipts::Receipts,
    replay::{Receipt, Replay},
    socket::READS,
    splice::{Cut, Registrar, SpliceState, StreamName},
    stream::{ResumeRequest, SpliceRequest},
    time_share::TimeShare,
    to_socket::{ReceiptDue, ToSocket},
    to_stream::ToStream,
};

/// What lets the streams of a connection outlive it.
#[derive(Default)]
pub(in crate::driver) struct Holding {
    /// Holds streams spliced from now on when the connection is lost, with its epoch.
    hold: Option<(HeldStreams, u32)>,
    pub(super) receipts: Receipts,
    /// How many bytes of a stream the peer has memory for, if it has little.
    peer_keeps: Option<NonZeroU64>,
}

impl Holding {
    pub(in crate::driver) fn set(&mut self, streams: HeldStreams, epoch: u32) {
        self.receipts.set_keeps(streams.keeps());
        self.hold = Some((streams, epoch));
    }

    /// Registers a spliced stream if it is to be held; returns the buffer for what it sends.
    pub(super) fn add(&self, id: StreamId, state: &Arc<SpliceState>) -> Option<Replay> {
        let (streams, epoch) = self.hold.as_ref()?;
        streams.add(StreamName::new(*epoch, id), state)
    }

    /// Holds a stream that was to be spliced when this connection was already lost: the peer has
    /// spliced its end. If its streams were already claimed, it is reset.
    pub(super) fn hold_late(&self, id: StreamId, request: SpliceRequest, holds: bool) {
        let SpliceRequest { first: _, preface, socket, state } = request;
        match &self.hold {
            Some((streams, epoch)) if holds && socket.prepare().is_ok() => {
                streams.add_parked(StreamName::new(*epoch, id), &state, &preface, socket);
            }
            _ => drop(state.cut(Cut::Lost)),
        }
    }

    pub(super) fn set_peer_keeps(&mut self, bytes: Option<NonZeroU64>) {
        self.peer_keeps = bytes;
    }

    /// A socket may have accepted more: the peer may have to be told.
    pub(in crate::driver) fn delivered(
        &mut self,
        id: StreamId,
        to_socket: &mut ToSocket,
        now: Instant,
    ) {
        match to_socket.receipt_due(self.peer_keeps) {
            ReceiptDue::Now => self.receipts.add(id, to_socket.take_receipt()),
            ReceiptDue::Soon => self.receipts.add_soon(id, now),
            ReceiptDue::Later => self.receipts.add_later(id, now),
            ReceiptDue::Not => {}
        }
    }

    /// A socket will accept no more.
    pub(super) fn give_up(&mut self, id: StreamId) {
        self.receipts.add(id, Some(Receipt::GIVEN_UP));
    }

    /// When receipts are due.
    pub(in crate::driver) fn deadline(&self) -> Option<Instant> {
        self.receipts.deadline()
    }
}

impl Carrier {
    /// Parks this connection's directions of a splice.
    pub(super) fn park(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.streams.remove(id) else { return };
        self.closed.push(spliced.token);
        spliced.park();
    }

    /// Continues a held stream.
    pub(super) fn resume(
        &mut self,
        id: StreamId,
        ResumeRequest { held, receipt, attached }: ResumeRequest,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let Some(Channel::Controlled(control)) = self.streams.remove(id) else { return };
        // If the connection is lost in the meantime, the stream is held as before.
        let Some((state, socket, mut replay)) = held.into_parts() else { return };
        let outcome = control.received.take().and_then(|received| {
            let again = match &mut replay {
                Some(replay) => replay.resume(receipt).map_err(|_| Cut::Lost)?,
                None => VecDeque::new(),
            };
            let registered = registrar.register(id, socket, READS | Interest::WRITABLE)?;
            Ok((received, again, registered))
        });
        let (received, again, registered) = match outcome {
            Ok(resumed) if !state.is_cut() => resumed,
            outcome => {
                state.cut(outcome.err().unwrap_or(Cut::Lost));
                self.reset(id, self.cut_code);
                return;
            }
        };
        state.attach((self.shared.clone(), id), attached);
        let to_socket = to_socket(&control, received, &state, &registered);
        let to_stream = match replay {
            Some(_) => {
                state.add_peer_receipt(receipt);
                let state = Arc::clone(&state);
                let to_stream = ToStream::new(state, registered, replay, control.written, now);
                Outgoing::Here(to_stream.with_again(again))
            }
            None => {
                let _ = self.quic.send_stream(id).finish();
                Outgoing::Gone
            }
        };
        self.insert(id, state, to_stream, to_socket);
        // The receipt may already cover everything.
        self.on_receipt(id, receipt, now);
        self.begin(id);
    }

    /// Tells the peer how much sockets have accepted.
    pub(in crate::driver) fn send_receipts(&mut self, now: Instant) {
        if self.lifecycle.is_lost() {
            return;
        }
        let receipts = &mut self.holding.receipts;
        for id in receipts.take_later(now) {
            if let Some(spliced) = self.streams.spliced_mut(id)
                && let Some(to_socket) = &mut spliced.to_socket
            {
                receipts.add(id, to_socket.take_receipt());
            }
        }
        if !receipts.wait() {
            return;
        }
        let stream = match receipts.stream {
            Some(stream) => stream,
            None => {
                let Some(stream) = self.quic.streams().open(Dir::Uni) else { return };
                receipts.begin(stream);
                stream
            }
        };
        receipts.send(self.quic.send_stream(stream));
    }

    pub(in crate::driver) fn read_receipts(
        &mut self,
        id: StreamId,
        now: Instant,
        share: &mut TimeShare,
    ) {
        while let Some(Channel::Receipts(reader)) = self.streams.get_mut(id)
            && let Some((of, receipt)) = reader.next(self.quic.recv_stream(id))
        {
            self.on_receipt(of, receipt, now);
            if share.is_used_up() {
                self.streams.arrived(id);
                return;
            }
        }
    }

    /// Handles a receipt: the peer's socket has accepted more of this stream.
    fn on_receipt(&mut self, id: StreamId, receipt: Receipt, now: Instant) {
        let Some(spliced) = self.streams.spliced_mut(id) else { return };
        spliced.state.add_peer_receipt(receipt);
        // A direction that has moved reads the receipt itself.
        let Outgoing::Here(to_stream) = &mut spliced.to_stream else { return };
        match to_stream.on_receipt(now, self.quic.rtt()) {
            Ok(true) => {
                spliced.to_stream = Outgoing::Gone;
                // If an earlier connection has carried the end, this stream still lacks its own.
                let _ = self.quic.send_stream(id).finish();
                self.retire(id);
            }
            Ok(false) => {
                self.streams.may_send(id);
                self.retire(id);
            }
            Err(cut) => self.cut(id, cut),
        }
    }
}

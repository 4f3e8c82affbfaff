//! Holds streams when their connection is lost, resumes them on a new one, and exchanges receipts.
//!
//! A lost connection parks its directions (`held`). A control task opens a stream on the next
//! connection, over which both ends say how much they have written to their sockets; then the loop
//! retransmits the rest and continues (`replay`).

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use mio::Interest;
use quinn_proto::{Dir, StreamId};
use tokio::sync::oneshot;

use super::Driver;
use crate::{
    channel::{Channel, Outgoing, Spliced},
    held::HeldStream,
    replay::{Receipt, Replay},
    socket::{READS, Socket},
    splice::{Cut, Registrar, SpliceState, StreamName},
    time_share::TimeShare,
    to_socket::ToSocket,
    to_stream::ToStream,
};

impl Driver {
    /// Registers a spliced stream if it is to be held; returns the buffer for what it sends.
    pub(super) fn add_held(&self, id: StreamId, state: &Arc<SpliceState>) -> Option<Replay> {
        let (streams, epoch) = self.hold.as_ref()?;
        streams.add(StreamName::new(*epoch, id), state)
    }

    /// Holds a stream that was to be spliced when this connection was already lost: the peer has
    /// spliced its end. If its streams were already claimed, it is reset.
    pub(super) fn hold_late(
        &self,
        id: StreamId,
        (preface, socket): (Bytes, Socket),
        state: &Arc<SpliceState>,
    ) {
        match &self.hold {
            Some((streams, epoch)) if self.holds && socket.prepare().is_ok() => {
                streams.add_parked(StreamName::new(*epoch, id), state, (&preface, socket));
            }
            _ => drop(state.cut(Cut::Lost)),
        }
    }

    /// Parks this connection's directions of a splice.
    pub(super) fn park(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.remove(&id) else { return };
        self.ended_sockets.push(spliced.token);
        spliced.park();
    }

    /// Continues a held stream; `receipt` says how much the peer's socket has accepted.
    pub(super) fn resume(
        &mut self,
        id: StreamId,
        held: HeldStream,
        (receipt, attached): (Receipt, oneshot::Sender<()>),
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let Some(Channel::Controlled(control)) = self.channels.remove(&id) else { return };
        // If the connection is lost in the meantime, the stream is held as before.
        let Some((state, socket, replay)) = held.into_parts() else { return };
        let outcome = control.received.take().and_then(|received| {
            let (replay, again) = match replay {
                Some(mut replay) => {
                    let again = replay.resume(receipt).map_err(|_| Cut::Lost)?;
                    (Some(replay), again)
                }
                None => (None, VecDeque::new()),
            };
            let interest = READS | Interest::WRITABLE;
            Ok((received, replay, again, registrar.register(id, socket, interest)?))
        });
        let (received, replay, again, registered) = match outcome {
            Ok(resumed) if !state.is_cut() => resumed,
            outcome => {
                state.cut(outcome.err().unwrap_or(Cut::Lost));
                self.reset(id, self.rules.cut_code);
                return;
            }
        };
        state.attach((self.shared.clone(), id), attached);
        let token = registered.token;
        let mut to_socket =
            ToSocket::new(Arc::clone(&state), Arc::clone(&registered), received, control.read);
        if let Some(continuation) = control.continuation {
            to_socket.set_continuation(continuation);
        }
        let to_stream = match replay {
            Some(replay) => {
                state.add_peer_receipt(receipt);
                let sent = (Some(replay), again);
                let state = Arc::clone(&state);
                Outgoing::Here(ToStream::new(state, registered, sent, control.written, now))
            }
            None => {
                let _ = self.connection.send_stream(id).finish();
                Outgoing::Gone
            }
        };
        let spliced = Spliced { state, token, to_stream, to_socket: Some(to_socket) };
        self.channels.insert(id, Channel::Spliced(Box::new(spliced)));
        // The receipt may already cover everything.
        self.on_receipt(id, receipt, now);
        self.enqueue(id);
        self.arrived.push(id);
    }

    /// Tells the peer how much sockets have accepted.
    pub(super) fn send_receipts(&mut self, now: Instant) {
        if self.lost {
            return;
        }
        for id in self.receipts.take_later(now) {
            if let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id)
                && let Some(to_socket) = &mut spliced.to_socket
            {
                self.receipts.add(id, to_socket.take_receipt());
            }
        }
        if !self.receipts.wait() {
            return;
        }
        let stream = match self.receipts.stream {
            Some(stream) => stream,
            None => {
                let Some(stream) = self.connection.streams().open(Dir::Uni) else { return };
                self.receipts.begin(stream);
                stream
            }
        };
        self.receipts.send(self.connection.send_stream(stream));
    }

    pub(super) fn read_receipts(&mut self, id: StreamId, now: Instant, share: &mut TimeShare) {
        while let Some(Channel::Receipts(reader)) = self.channels.get_mut(&id)
            && let Some((of, receipt)) = reader.next(self.connection.recv_stream(id))
        {
            self.on_receipt(of, receipt, now);
            if share.is_used_up() {
                self.arrived.push(id);
                return;
            }
        }
    }

    /// Handles a receipt: the peer's socket has accepted more of this stream.
    fn on_receipt(&mut self, id: StreamId, receipt: Receipt, now: Instant) {
        let rtt = self.connection.rtt();
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        spliced.state.add_peer_receipt(receipt);
        // A direction that has moved reads the receipt itself.
        let Outgoing::Here(to_stream) = &mut spliced.to_stream else { return };
        match to_stream.on_receipt(now, rtt) {
            Ok(true) => {
                spliced.to_stream = Outgoing::Gone;
                // If an earlier connection has carried the end, this stream still lacks its own.
                let _ = self.connection.send_stream(id).finish();
                self.retire(id);
            }
            Ok(false) => {
                self.enqueue(id);
                self.end_delivered(id);
            }
            Err(cut) => self.cut(id, cut),
        }
    }
}

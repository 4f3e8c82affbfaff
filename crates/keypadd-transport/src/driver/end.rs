//! Ends splices, streams and the connection: cleanly, with a reset, or because the connection is lost.
//!
//! Closing a socket takes long: many streams that end at once are ended a few in each round.

use std::{io, time::Instant};

use quinn_proto::{ConnectionError, Dir, StreamId, VarInt};

use super::{Driver, HandshakeReply};
use crate::{
    channel::{Channel, Outgoing},
    handshake::{Accepted, HandshakeFailed},
    mailbox::Migration,
    replay::Receipt,
    splice::Cut,
    stream::{ReadError, Stopped},
    time_share::TimeShare,
};

impl Driver {
    /// Removes a stream that neither direction uses any more.
    pub(crate) fn retire(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        if spliced.is_failed_and_delivered() {
            self.cut_failed(id);
        } else if spliced.is_over() {
            self.remove_spliced(id);
        }
    }

    /// Ends a splice for a reason that concerns one direction or both. If the socket has failed,
    /// the peer first gets what was read from it.
    pub(super) fn end_splice(&mut self, id: StreamId, cut: Cut, now: Instant) {
        match cut {
            Cut::Local(error) => self.fail(id, error, now),
            cut => self.cut(id, cut),
        }
    }

    /// Handles the failure of a socket: reads it to its end, and resets the stream when the peer's
    /// socket has accepted that.
    pub(super) fn fail(&mut self, id: StreamId, error: io::Error, now: Instant) {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        spliced.state.fail(error, now);
        if spliced.to_stream().is_none() {
            // The direction to the stream is on another one.
            self.must_sweep = true;
            self.tell(Migration::Sweep);
        }
        self.linger(id);
        self.failed.push(id);
    }

    /// Waits for the peer to have what a failed socket has delivered.
    pub(crate) fn linger(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        self.linger_at = self.linger_at.into_iter().chain(spliced.lingers_until()).min();
        if !self.lingering.contains(&id) {
            self.lingering.push(id);
        }
        self.enqueue(id);
    }

    /// Ends streams that are to end, until its share of the round is used up.
    pub(super) fn end_some(&mut self, now: Instant, share: &mut TimeShare) {
        self.end_lost(now, share);
        self.end_failed(now, share);
        self.end_swept(share);
    }

    pub(super) fn has_some_to_end(&self) -> bool {
        let has_ended = self.losing.is_empty()
            && self.moves.waiting.is_empty()
            && self.flows.is_empty()
            && self.opening.is_empty();
        self.must_sweep || !self.failed.is_empty() || (self.lost && !has_ended)
    }

    /// Resets streams whose sockets have failed, if the peer has what was read before or their time is
    /// over.
    fn end_failed(&mut self, now: Instant, share: &mut TimeShare) {
        if self.linger_at.take_if(|at| *at <= now).is_some() {
            for id in std::mem::take(&mut self.lingering) {
                let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { continue };
                match spliced.lingers_until() {
                    Some(until) if until <= now => self.failed.push(id),
                    _ => self.linger(id),
                }
            }
        }
        while let Some(id) = self.failed.pop() {
            let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { continue };
            let is_overdue = spliced.lingers_until().is_some_and(|until| until <= now);
            if is_overdue || spliced.is_failed_and_delivered() {
                self.cut_failed(id);
                if share.is_used_up_by_now() {
                    return;
                }
            }
        }
    }

    /// Resets a stream whose socket has failed, if the peer has what was read before.
    pub(super) fn end_delivered(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        if spliced.is_failed_and_delivered() {
            self.cut_failed(id);
        }
    }

    /// Cuts a splice because its socket has failed.
    fn cut_failed(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        let cut = spliced.state.failure();
        self.cut(id, cut);
    }

    /// Cuts a splice short: resets the stream and the socket, and whatever has moved.
    pub(crate) fn cut(&mut self, id: StreamId, cut: Cut) {
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        let elsewhere = spliced.to_stream().is_none() || spliced.to_socket.is_none();
        spliced.state.cut(cut);
        self.end_cut(id);
        if elsewhere {
            // The other direction is on another stream of this connection or of the sibling.
            self.must_sweep = true;
            self.tell(Migration::Sweep);
        }
    }

    /// Resets the stream of a splice that was cut.
    pub(super) fn end_cut(&mut self, id: StreamId) {
        if let Some(Channel::Spliced(spliced)) = self.channels.get(&id)
            && spliced.to_socket.is_some()
            && spliced.state.can_be_held()
        {
            // Stopping the stream tells nothing to a peer whose QUIC knows that all has arrived.
            self.receipts.add(id, Some(Receipt::GIVEN_UP));
        }
        self.reset(id, self.rules.cut_code);
        self.remove_spliced(id);
    }

    pub(crate) fn remove_spliced(&mut self, id: StreamId) {
        if let Some(Channel::Spliced(spliced)) = self.channels.remove(&id) {
            self.ended_sockets.push(spliced.token);
            self.forget_move(id);
        }
    }

    /// Neither does anything if that half has ended or the connection is gone.
    pub(crate) fn reset(&mut self, id: StreamId, code: VarInt) {
        let (one_way, ours) = (id.dir() == Dir::Uni, id.initiator() == self.connection.side());
        if !one_way || ours {
            let _ = self.connection.send_stream(id).reset(code);
        }
        if !one_way || !ours {
            let _ = self.connection.recv_stream(id).stop(code);
        }
    }

    /// Handles the loss of the connection; data that its streams have received is still delivered.
    pub(super) fn lose(&mut self, reason: ConnectionError, holds: bool) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        self.holds = holds;
        self.shared.ended(reason.clone());
        self.incoming = None;
        match std::mem::replace(&mut self.waiting, HandshakeReply::Nobody) {
            HandshakeReply::Client(reply) => drop(reply.send(Err(reason.clone()))),
            HandshakeReply::Server(accepted) => {
                let remote = self.connection.remote_address();
                let failed = HandshakeFailed { remote, error: reason.clone() };
                drop(accepted.send(Accepted::Failed(failed)));
            }
            HandshakeReply::Nobody => {}
        }
        self.moves.idle_check = None;
        self.losing = std::mem::take(&mut self.channels);
    }

    /// Ends the streams of a connection that is lost.
    fn end_lost(&mut self, now: Instant, share: &mut TimeShare) {
        if !self.lost {
            return;
        }
        let Some(reason) = self.shared.close_reason() else { return };
        let goodbye = self.rules.is_goodbye(&reason);
        while let Some(id) = self.losing.keys().next().copied() {
            let Some(channel) = self.losing.remove(&id) else { break };
            self.channels.insert(id, channel);
            self.end_lost_stream(id, (&reason, goodbye), now);
            if share.is_used_up_by_now() {
                return;
            }
        }
        while self.end_waiting_move() {
            if share.is_used_up_by_now() {
                return;
            }
        }
        self.flows.end_some(share);
        if self.flows.is_empty() {
            // Dropping them tells the callers that the connection is gone.
            self.opening.clear();
        }
    }

    fn end_lost_stream(
        &mut self,
        id: StreamId,
        (reason, goodbye): (&ConnectionError, bool),
        now: Instant,
    ) {
        match self.channels.get_mut(&id) {
            Some(Channel::Controlled(control)) => {
                control.receive(self.connection.recv_stream(id));
                control.received.fail(ReadError::Lost(reason.clone()));
                control.received.stop(Stopped::Lost);
                self.channels.remove(&id);
            }
            Some(Channel::Spliced(spliced)) if spliced.state.failed_at().is_some() => {
                self.cut_failed(id);
            }
            Some(Channel::Spliced(spliced)) if self.holds && spliced.state.can_be_held() => {
                self.park(id);
            }
            Some(Channel::Spliced(spliced)) => {
                let is_done = match &spliced.to_stream {
                    Outgoing::Here(to_stream) => to_stream.is_done_at_end(goodbye),
                    Outgoing::Leaving => false,
                    Outgoing::Gone => true,
                };
                if !is_done {
                    return self.cut(id, Cut::Lost);
                }
                spliced.to_stream = Outgoing::Gone;
                if let Some(to_socket) = &mut spliced.to_socket {
                    to_socket.connection_lost(now);
                    self.arrived.push(id);
                }
                self.retire(id);
            }
            Some(Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_)) => {
                self.channels.remove(&id);
            }
            None => {}
        }
    }

    /// Ends immediately without telling the peer, because of a fault or the end of the loop.
    pub(crate) fn abandon(mut self, reason: ConnectionError) {
        self.shared.ended(reason.clone());
        if let HandshakeReply::Client(reply) =
            std::mem::replace(&mut self.waiting, HandshakeReply::Nobody)
        {
            let _ = reply.send(Err(reason.clone()));
        }
        while self.end_waiting_move() {}
        self.flows.end_all();
        let streams = [&mut self.losing, &mut self.channels];
        for (_, channel) in streams.into_iter().flat_map(|streams| streams.drain()) {
            match channel {
                Channel::Controlled(control) => {
                    control.received.fail(ReadError::Lost(reason.clone()));
                    control.received.stop(Stopped::Lost);
                }
                Channel::Spliced(spliced) if self.holds && spliced.state.can_be_held() => {
                    spliced.park();
                }
                Channel::Spliced(spliced) => drop(spliced.state.cut(Cut::Lost)),
                Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_) => {}
            }
        }
        self.tell(Migration::Sweep);
    }
}

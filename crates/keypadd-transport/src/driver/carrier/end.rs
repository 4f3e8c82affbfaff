//! Ends splices: cleanly, with a reset, or because the connection is lost.
//!
//! Closing a socket takes long: many streams that end at once are ended a few in each round.

use std::{io, time::Instant};

use quinn_proto::{ConnectionError, StreamId};

use super::Carrier;
use crate::{
    channel::{Channel, Outgoing},
    mailbox::Migration,
    splice::Cut,
    time_share::TimeShare,
};

/// How a connection was lost.
pub(in crate::driver) struct Loss<'a> {
    pub(in crate::driver) reason: &'a ConnectionError,
    /// The peer has said goodbye.
    pub(in crate::driver) is_goodbye: bool,
}

impl Carrier {
    /// Ends a stream that neither direction uses any more, or whose socket has failed once the peer
    /// has what was read before.
    pub(in crate::driver) fn retire(&mut self, id: StreamId) {
        let Some(spliced) = self.streams.spliced(id) else { return };
        if spliced.is_failed_and_delivered() {
            self.cut_failed(id);
        } else if spliced.is_over() {
            self.remove_spliced(id);
        }
    }

    /// Ends a splice for a reason that concerns one direction or both. If the socket has failed,
    /// the peer first gets what was read from it.
    pub(in crate::driver) fn end_splice(&mut self, id: StreamId, cut: Cut, now: Instant) {
        match cut {
            Cut::Local(error) => self.fail(id, error, now),
            Cut::Remote(_) | Cut::Lost => self.cut(id, cut),
        }
    }

    /// Handles the failure of a socket: reads it to its end, and resets the stream when the peer's
    /// socket has accepted that.
    pub(super) fn fail(&mut self, id: StreamId, error: io::Error, now: Instant) {
        let Some(spliced) = self.streams.spliced(id) else { return };
        spliced.state.fail(error, now);
        if spliced.to_stream().is_none() {
            // The direction to the stream is on another one.
            self.sweep_everywhere();
        }
        self.streams.fail(id);
    }

    /// Resets streams whose sockets have failed, if the peer has what was read before or their time
    /// is over, until the share of the round is used up.
    pub(in crate::driver) fn end_failed(&mut self, now: Instant, share: &mut TimeShare) {
        while let Some(id) = self.streams.next_failed(now) {
            self.cut_failed(id);
            if share.is_used_up_by_now() {
                return;
            }
        }
    }

    /// Ends the streams of splices that were cut, or whose sockets have failed, until the share of
    /// the round is used up.
    pub(in crate::driver) fn end_swept(&mut self, share: &mut TimeShare) {
        if !self.streams.take_sweep() {
            return;
        }
        let (mut cut, mut failed) = (Vec::new(), Vec::new());
        for (id, spliced) in self.streams.all_spliced() {
            if spliced.state.is_cut() {
                cut.push(id);
            } else if spliced.state.failed_at().is_some() && spliced.to_stream().is_some() {
                failed.push(id);
            }
        }
        for id in failed {
            self.streams.linger(id);
        }
        for id in cut {
            self.end_cut(id);
            if share.is_used_up_by_now() {
                self.streams.sweep();
                return;
            }
        }
    }

    /// Cuts a splice because its socket has failed.
    fn cut_failed(&mut self, id: StreamId) {
        let Some(spliced) = self.streams.spliced(id) else { return };
        let cut = spliced.state.failure();
        self.cut(id, cut);
    }

    /// Cuts a splice short: resets the stream and the socket, and whatever has moved.
    pub(in crate::driver) fn cut(&mut self, id: StreamId, cut: Cut) {
        let Some(spliced) = self.streams.spliced(id) else { return };
        let elsewhere = spliced.to_stream().is_none() || spliced.to_socket.is_none();
        spliced.state.cut(cut);
        self.end_cut(id);
        if elsewhere {
            // The other direction is on another stream of this connection or of the sibling.
            self.sweep_everywhere();
        }
    }

    /// Resets the stream of a splice that was cut.
    fn end_cut(&mut self, id: StreamId) {
        if let Some(spliced) = self.streams.spliced(id)
            && spliced.to_socket.is_some()
            && spliced.state.can_be_held()
        {
            // Stopping the stream tells nothing to a peer whose QUIC knows that all has arrived.
            self.holding.give_up(id);
        }
        self.reset(id, self.cut_code);
        self.remove_spliced(id);
    }

    fn remove_spliced(&mut self, id: StreamId) {
        if let Some(Channel::Spliced(spliced)) = self.streams.remove(id) {
            self.closed.push(spliced.token);
            self.moves.forget(id);
        }
    }

    /// The connection is lost: its streams are to be ended.
    pub(in crate::driver) fn lose(&mut self) {
        self.streams.lose();
        self.moves.stay();
    }

    /// Whether anything of a lost connection is still to be ended.
    pub(in crate::driver) fn has_left(&self) -> bool {
        self.streams.has_left() || self.moves.has_waiting() || !self.opening.is_empty()
    }

    /// Ends the streams of a lost connection, until the share of the round is used up; returns
    /// whether all have ended. What they have received is still delivered.
    pub(in crate::driver) fn end_lost(
        &mut self,
        loss: &Loss<'_>,
        now: Instant,
        share: &mut TimeShare,
    ) -> bool {
        while let Some(id) = self.streams.next_left() {
            self.end_lost_stream(id, loss, now);
            if share.is_used_up_by_now() {
                return false;
            }
        }
        while self.moves.end_waiting(self.lifecycle.holds()) {
            if share.is_used_up_by_now() {
                return false;
            }
        }
        true
    }

    fn end_lost_stream(&mut self, id: StreamId, loss: &Loss<'_>, now: Instant) {
        match self.streams.get_mut(id) {
            Some(Channel::Controlled(control)) => {
                control.receive(self.quic.recv_stream(id));
                control.lose(loss.reason);
                self.streams.remove(id);
            }
            Some(Channel::Spliced(spliced)) if spliced.state.failed_at().is_some() => {
                self.cut_failed(id);
            }
            Some(Channel::Spliced(spliced))
                if self.lifecycle.holds() && spliced.state.can_be_held() =>
            {
                self.park(id);
            }
            Some(Channel::Spliced(spliced)) => {
                let is_done = match &spliced.to_stream {
                    Outgoing::Here(to_stream) => to_stream.is_done_at_end(loss.is_goodbye),
                    Outgoing::Leaving => false,
                    Outgoing::Gone => true,
                };
                if !is_done {
                    return self.cut(id, Cut::Lost);
                }
                spliced.to_stream = Outgoing::Gone;
                if let Some(to_socket) = &mut spliced.to_socket {
                    to_socket.connection_lost(now);
                    self.streams.arrived(id);
                }
                self.retire(id);
            }
            Some(Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_)) => {
                self.streams.remove(id);
            }
            None => {}
        }
    }

    /// Cuts the splices of a lost connection whose sockets have accepted nothing for too long,
    /// until the share of the round is used up.
    pub(in crate::driver) fn end_overdue(&mut self, now: Instant, share: &mut TimeShare) {
        let overdue = self
            .streams
            .all_spliced()
            .filter(|(_, spliced)| spliced.deadline().is_some_and(|deadline| deadline <= now));
        let ids: Vec<_> = overdue.map(|(id, _)| id).collect();
        for id in ids {
            self.cut(id, Cut::Lost);
            if share.is_used_up_by_now() {
                return;
            }
        }
    }

    /// When sockets of a lost connection must have accepted a byte.
    pub(in crate::driver) fn delivery_deadline(&self) -> Option<Instant> {
        self.streams.all_spliced().filter_map(|(_, spliced)| spliced.deadline()).min()
    }

    /// Ends all streams without telling the peer, because of a fault or the end of the loop.
    pub(in crate::driver) fn abandon(mut self, reason: &ConnectionError) {
        let holds = self.lifecycle.holds();
        while self.moves.end_waiting(holds) {}
        for channel in self.streams.into_all() {
            match channel {
                Channel::Controlled(control) => control.lose(reason),
                Channel::Spliced(spliced) if holds && spliced.state.can_be_held() => {
                    spliced.park();
                }
                Channel::Spliced(spliced) => drop(spliced.state.cut(Cut::Lost)),
                Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_) => {}
            }
        }
        self.moves.tell(Migration::Sweep);
    }
}

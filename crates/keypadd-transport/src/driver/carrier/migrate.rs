//! Moves a direction of a splice between the two connections of a session.
//!
//! A session has one connection for sparse streams and, once there is bulk or may soon be, one for
//! bulk, each in its own loop and on its own UDP socket: a keystroke waits neither for bulk data
//! nor for the thread that carries it. A direction begins on the first connection and moves at a
//! byte boundary:
//!
//! 1. The sender stops writing to stream X at offset N and opens a unidirectional stream on the
//!    sibling connection, whose first 16 bytes say X and N. It continues there at once, but no
//!    further than [`AHEAD_BYTES`].
//! 2. The receiver continues to deliver X. When its socket has taken all N bytes, it stops X with
//!    [`MOVED`] and delivers the new stream from then on.
//! 3. The sender sees X stopped, and continues without that limit.
//!
//! So streams that their targets do not read use little of the sibling's window. Moving back works
//! the same way in the other direction. If either end fails, the splice is cut, wherever its
//! directions are.

use std::{sync::Arc, time::Instant};

use mio::Interest;
use quinn_proto::{Dir, StreamId, VarInt};

use super::{super::controller_handover::hand_over, Carrier};
use crate::{
    announcement::{Announced, Announcement, Continuation, HEAD_BYTES},
    channel::{Channel, Outgoing, Spliced},
    congestion::LONG_PATH,
    gate::CongestionGate,
    mailbox::{MigratingDirection, Migration, Sibling},
    receipts::ReceiptReader,
    socket::{READS, Socket},
    splice::{Cut, Registered, Registrar},
    time_share::TimeShare,
    to_socket::ToSocket,
    to_stream::AHEAD_BYTES,
};

/// The error code that stops a stream which continues on the sibling connection ("move").
const MOVED: VarInt = VarInt::from_u32(0x6d6f_7665);

impl Carrier {
    pub(in crate::driver) fn on_migration(
        &mut self,
        message: Migration,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match message {
            Migration::Attach { sparse, keeps } => {
                self.holding.receipts.set_keeps(keeps);
                self.attach(sparse, true);
            }
            Migration::Adopt(moving) if self.lifecycle.is_lost() => moving.to_stream.park(),
            Migration::Adopt(moving) => {
                self.moves.wait(*moving);
                self.adopt(registrar, now);
            }
            Migration::Proceed { origin } => self.proceed(origin),
            Migration::Continue { origin, continuation } => {
                self.continue_at(origin, continuation);
            }
            Migration::Arrive { to_socket, .. } if self.lifecycle.is_lost() => to_socket.park(),
            Migration::Arrive { at, to_socket, socket } => {
                self.arrive(at, *to_socket, socket, registrar);
            }
            Migration::Refuse { at } => {
                self.streams.remove(at);
                self.reset(at, self.cut_code);
            }
            Migration::Sweep => self.streams.sweep(),
        }
    }

    /// Lets another connection carry bulk streams.
    pub(in crate::driver) fn attach_bulk(&mut self, bulk: Sibling) {
        // Told by this loop, so that each knows the other before the first message between them.
        let (sparse, keeps) = (self.shared.sibling(), self.holding.receipts.keeps());
        bulk.send(Migration::Attach { sparse, keeps });
        self.attach(bulk, false);
    }

    /// `is_bulk`: this is the bulk one of both connections.
    fn attach(&mut self, sibling: Sibling, is_bulk: bool) {
        for (at, channel) in self.streams.iter_mut() {
            if let Channel::Awaiting(early) = channel
                && let Some((origin, offset)) = early.take()
            {
                let continuation = Continuation { offset, at };
                sibling.send(Migration::Continue { origin, continuation });
            }
        }
        self.moves.attach(sibling, is_bulk);
    }

    /// Moves a direction to a stream to the bulk connection if it has become bulk; requests that
    /// connection if there is none.
    pub(in crate::driver) fn move_if_bulk(
        &mut self,
        gate: &CongestionGate,
        id: StreamId,
        now: Instant,
    ) {
        if self.moves.is_bulk() {
            return;
        }
        let Some(to_stream) = self.streams.spliced(id).and_then(Spliced::to_stream) else { return };
        let rtt = self.quic.rtt();
        let is_bulk = to_stream.wants_bulk(rtt);
        if self.moves.sends_bulk_away() {
            if is_bulk {
                self.move_out(id, Some((gate, now)));
            }
        // On a long path making it takes long: three round trips, and several more if packets are
        // lost.
        } else if is_bulk || to_stream.wants_bulk_soon(rtt) || rtt > LONG_PATH {
            self.want_bulk(now);
        }
    }

    /// Requests a bulk connection if there is none.
    pub(in crate::driver) fn want_bulk(&mut self, now: Instant) {
        if self.moves.must_ask(now) {
            self.shared.want_bulk();
        }
    }

    /// Moves idle directions on the bulk connection back.
    pub(in crate::driver) fn move_idle_back(&mut self, now: Instant) {
        let Some(since) = self.moves.take_idle_check(now) else { return };
        let mut idle = Vec::new();
        for (id, spliced) in self.streams.all_spliced() {
            if let Some(to_stream) = spliced.to_stream() {
                self.moves.check_again(now);
                if to_stream.is_idle_since(since) {
                    idle.push(id);
                }
            }
        }
        for id in idle {
            self.move_out(id, None);
        }
    }

    /// Moves a direction to the sibling, with the controller of `gate` if it is the first one.
    fn move_out(&mut self, id: StreamId, gate: Option<(&CongestionGate, Instant)>) {
        let Some(spliced) = self.streams.spliced_mut(id) else { return };
        let Some(to_stream) = spliced.leave() else { return };
        // The other loop is told of data to read.
        if let Some(to_socket) = &spliced.to_socket {
            to_socket.registered.set_interest(Interest::WRITABLE);
        }
        let offset = to_stream.offset;
        let takes_controller = self.moves.take_hand_over() && self.streams.is_alone_in_bulk(id);
        let controller = gate.filter(|_| takes_controller).and_then(|(gate, now)| {
            gate.leaves_window().then(|| hand_over(gate, &self.quic, now)).flatten()
        });
        let moving = MigratingDirection { to_stream, origin: id, offset, controller };
        self.moves.tell(Migration::Adopt(Box::new(moving)));
    }

    /// Continues the directions that the sibling has handed over, as many as the peer allows. The
    /// others have no socket of their own yet, so that no splice has more than two, however long
    /// the peer lets them wait.
    pub(in crate::driver) fn adopt(&mut self, registrar: &mut Registrar<'_>, now: Instant) {
        self.moves.drop_cut();
        while !self.lifecycle.is_lost() && self.moves.has_waiting() {
            let Some(id) = self.quic.streams().open(Dir::Uni) else { return };
            let Some(moving) = self.moves.next_waiting() else { return };
            let MigratingDirection { mut to_stream, origin, offset, .. } = moving;
            let ahead = if self.moves.may_send_ahead() { AHEAD_BYTES } else { 0 };
            let socket = to_stream.registered.socket.try_clone();
            match socket.and_then(|socket| registrar.register(id, socket, READS)) {
                Ok(registered) => {
                    let head = Announcement::encode(origin, offset);
                    to_stream.move_to(registered, head, ahead, now);
                    self.moves.follow(origin, id);
                    self.streams.insert_spliced(id, Spliced::sending(to_stream));
                    self.streams.may_send(id);
                    self.moves.carries(now);
                }
                Err(error) => {
                    to_stream.state.cut(error.into());
                    self.reset(id, self.cut_code);
                    self.moves.tell(Migration::Sweep);
                }
            }
        }
    }

    /// Handles a spliced stream that the peer has stopped: it has followed a move, or has abandoned
    /// the stream.
    pub(super) fn on_stopped_splice(&mut self, id: StreamId, code: VarInt) {
        match self.streams.spliced_mut(id) {
            Some(spliced) if code == MOVED && matches!(spliced.to_stream, Outgoing::Leaving) => {
                spliced.to_stream = Outgoing::Gone;
                let _ = self.quic.send_stream(id).reset(MOVED);
                self.moves.tell(Migration::Proceed { origin: id });
                self.retire(id);
            }
            _ => self.cut(id, Cut::Remote(code)),
        }
    }

    fn proceed(&mut self, origin: StreamId) {
        let Some(id) = self.moves.followed(origin) else { return };
        if let Some(to_stream) = self.streams.spliced_mut(id).and_then(Spliced::to_stream_mut) {
            to_stream.followed();
            self.streams.may_send(id);
        }
    }

    /// Reads the head of a stream.
    pub(in crate::driver) fn read_announcement(
        &mut self,
        id: StreamId,
        now: Instant,
        share: &mut TimeShare,
    ) {
        let Some(Channel::Announced(announcement)) = self.streams.get_mut(id) else { return };
        match announcement.read(self.quic.recv_stream(id)) {
            Ok(None) => {}
            Ok(Some(Announced::Receipts(keeps))) => {
                self.holding.set_peer_keeps(keeps);
                self.streams.insert(id, Channel::Receipts(ReceiptReader::default()));
                self.read_receipts(id, now, share);
            }
            Ok(Some(Announced::Continuation(origin, offset))) => {
                let continuation = Continuation { offset, at: id };
                let early = match self.moves.sibling() {
                    Some(sibling) => {
                        sibling.send(Migration::Continue { origin, continuation });
                        None
                    }
                    None => Some((origin, offset)),
                };
                self.streams.insert(id, Channel::Awaiting(early));
            }
            Err(()) => {
                self.streams.remove(id);
                let _ = self.quic.recv_stream(id).stop(self.cut_code);
            }
        }
    }

    fn continue_at(&mut self, origin: StreamId, continuation: Continuation) {
        match self.streams.get_mut(origin) {
            Some(Channel::Controlled(control)) if control.continuation.is_none() => {
                control.continuation = Some(continuation);
            }
            Some(Channel::Spliced(spliced)) => {
                let to_socket = spliced.to_socket.as_mut();
                if to_socket.is_some_and(|to_socket| to_socket.set_continuation(continuation)) {
                    self.streams.arrived(origin);
                } else {
                    self.cut(origin, Cut::Lost);
                    self.moves.tell(Migration::Refuse { at: continuation.at });
                }
            }
            // The sibling is about to end, too, and must not reset what is parked here.
            _ if self.lifecycle.is_lost() => {}
            _ => self.moves.tell(Migration::Refuse { at: continuation.at }),
        }
    }

    /// The socket has accepted all of a stream that continues in the sibling's stream `at`.
    pub(in crate::driver) fn move_in(&mut self, id: StreamId, at: StreamId) {
        let Some(spliced) = self.streams.spliced_mut(id) else { return };
        let Some(to_socket) = spliced.to_socket.take() else { return };
        match to_socket.registered.socket.try_clone() {
            Ok(socket) => {
                if let Some(to_stream) = spliced.to_stream() {
                    to_stream.registered.set_interest(READS);
                }
                self.moves.tell(Migration::Arrive { at, to_socket: Box::new(to_socket), socket });
                let _ = self.quic.recv_stream(id).stop(MOVED);
                self.retire(id);
            }
            Err(error) => {
                self.cut(id, error.into());
                self.moves.tell(Migration::Refuse { at });
            }
        }
    }

    fn arrive(
        &mut self,
        at: StreamId,
        mut to_socket: ToSocket,
        socket: Socket,
        registrar: &mut Registrar<'_>,
    ) {
        let awaited = matches!(self.streams.get(at), Some(Channel::Awaiting(_)));
        let registered: Result<Arc<Registered>, Cut> = match awaited {
            true => registrar.register(at, socket, Interest::WRITABLE).map_err(Cut::from),
            false => Err(Cut::Lost),
        };
        match registered {
            Ok(registered) => {
                to_socket.move_to(registered, HEAD_BYTES as u64);
                self.streams.insert_spliced(at, Spliced::receiving(to_socket));
                self.streams.arrived(at);
            }
            Err(cut) => {
                to_socket.state.cut(cut);
                self.streams.remove(at);
                self.reset(at, self.cut_code);
                self.moves.tell(Migration::Sweep);
            }
        }
    }
}

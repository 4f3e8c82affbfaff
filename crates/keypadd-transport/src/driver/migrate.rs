//! Moves a direction of a splice between the two connections of a session.
//!
//! A session has one connection for sparse streams and, once there is bulk or may soon be, one
//! for bulk, each in its own loop and on its own UDP socket: a keystroke waits neither for bulk data nor for
//! the thread that carries it. A direction begins on the first connection and moves at a byte boundary:
//!
//! 1. The sender stops writing to stream X at offset N and opens a unidirectional stream on the
//!    sibling connection, whose first 16 bytes say X and N. It continues there at once, but no further than
//!    [`AHEAD_BYTES`].
//! 2. The receiver continues to deliver X. When its socket has taken all N bytes, it stops X with
//!    [`MOVED`] and delivers the new stream from then on.
//! 3. The sender sees X stopped, and continues without that limit.
//!
//! So streams that their targets do not read use little of the sibling's window. Moving back works the
//! same way in the other direction. If either end fails, the splice is cut, wherever its directions are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mio::Interest;
use quinn_proto::{Dir, StreamId, VarInt};

use super::Driver;
use crate::{
    announcement::{Announced, Announcement, Continuation, HEAD_BYTES},
    channel::{Channel, Outgoing, Spliced},
    congestion::LONG_PATH,
    handed_controller::NetworkPath,
    mailbox::{MigratingDirection, Migration, Sibling},
    receipts::ReceiptReader,
    socket::{READS, Socket},
    splice::{Cut, Registered, Registrar},
    time_share::TimeShare,
    to_socket::ToSocket,
    to_stream::AHEAD_BYTES,
};

/// The error code that stops a stream which continues on the sibling connection ("move").
pub(crate) const MOVED: VarInt = VarInt::from_u32(0x6d6f_7665);

/// With more directions than this waiting for the peer to follow, the next ones send nothing ahead: those
/// that nobody reads wait for good, and leave most of the connection's window to others.
const AHEAD_MAX: usize = 32;

/// Interval of requests for a bulk connection.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// A direction idle this long on the bulk connection moves back.
const IDLE: Duration = Duration::from_secs(1);

/// Interval of the search for idle directions on the bulk connection.
const IDLE_CHECK: Duration = Duration::from_millis(250);

impl Driver {
    pub(crate) fn on_migration(
        &mut self,
        message: Migration,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match message {
            Migration::Attach(sparse) => self.attach(sparse, true),
            Migration::Adopt(moving) if self.lost => moving.to_stream.park(),
            Migration::Adopt(mut moving) => {
                if let Some(handed) = moving.controller.take()
                    && handed.path == self.path()
                {
                    self.gate.take_over(handed, now);
                    // The answer corrects what it believes to be in flight.
                    self.connection.ping();
                }
                self.moves.waiting.push_back(*moving);
                self.adopt(registrar, now);
            }
            Migration::Proceed { origin } => self.proceed(origin),
            Migration::Continue { origin, continuation } => {
                self.continue_at(origin, continuation);
            }
            Migration::Arrive { at, to_socket, socket } => {
                self.arrive(at, *to_socket, socket, registrar)
            }
            Migration::Refuse { at } => {
                self.channels.remove(&at);
                self.reset(at, self.rules.cut_code);
            }
            Migration::Sweep => self.must_sweep = true,
        }
    }

    /// Lets another connection carry bulk streams.
    pub(super) fn attach_bulk(&mut self, bulk: Sibling) {
        // Told by this loop, so that each knows the other before the first message between them.
        bulk.send(Migration::Attach(self.shared.sibling()));
        self.attach(bulk, false);
    }

    /// `bulk`: this is the bulk one of both connections.
    fn attach(&mut self, sibling: Sibling, bulk: bool) {
        for (at, channel) in &mut self.channels {
            if let Channel::Awaiting(early) = channel
                && let Some((origin, offset)) = early.take()
            {
                let continuation = Continuation { offset, at: *at };
                sibling.send(Migration::Continue { origin, continuation });
            }
        }
        (self.moves.sibling, self.moves.is_bulk) = (Some(sibling), bulk);
        self.moves.hands_over_controller = !bulk;
    }

    /// Moves a direction to a stream to the bulk connection if it has become bulk; requests that
    /// connection if there is none.
    pub(crate) fn move_if_bulk(&mut self, id: StreamId, now: Instant) {
        if self.moves.is_bulk {
            return;
        }
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        let rtt = self.connection.rtt();
        let Some(to_stream) = spliced.to_stream() else { return };
        let is_bulk = to_stream.wants_bulk(rtt);
        match self.moves.sibling {
            Some(_) if is_bulk => self.move_out(id),
            // On a long path making it takes long: three round trips, and several more if packets are lost.
            None if is_bulk || to_stream.wants_bulk_soon(rtt) || rtt > LONG_PATH => {
                self.want_bulk(now);
            }
            _ => {}
        }
    }

    /// Requests a bulk connection, not more often than it could be made.
    fn want_bulk(&mut self, now: Instant) {
        let asked = self.moves.asked_at;
        if asked.is_none_or(|at| now.saturating_duration_since(at) >= ASK_INTERVAL) {
            self.moves.asked_at = Some(now);
            self.shared.want_bulk();
        }
    }

    /// Moves idle directions on the bulk connection back.
    pub(crate) fn move_idle_back(&mut self, now: Instant) {
        if self.moves.idle_check.is_none_or(|at| at > now) {
            return;
        }
        self.moves.idle_check = None;
        let since = now.checked_sub(IDLE).unwrap_or(now);
        let mut idle = Vec::new();
        for (id, channel) in &self.channels {
            if let Channel::Spliced(spliced) = channel
                && let Some(to_stream) = spliced.to_stream()
            {
                self.moves.idle_check = Some(now + IDLE_CHECK);
                if to_stream.is_idle_since(since) {
                    idle.push(*id);
                }
            }
        }
        for id in idle {
            self.move_out(id);
        }
    }

    fn move_out(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        let Some(sibling) = &self.moves.sibling else { return };
        let Some(to_stream) = spliced.leave() else { return };
        // The other loop is told of data to read.
        if let Some(to_socket) = &spliced.to_socket {
            to_socket.registered.set_interest(Interest::WRITABLE);
        }
        let offset = to_stream.offset;
        let is_first = std::mem::take(&mut self.moves.hands_over_controller);
        let is_alone = self.bulk.iter().all(|other| *other == id);
        let controller = (is_first && is_alone)
            .then(|| self.gate.hand_over(self.connection.congestion_state(), self.path()))
            .flatten();
        let moving = MigratingDirection { to_stream, origin: id, offset, controller };
        sibling.send(Migration::Adopt(Box::new(moving)));
    }

    /// Continues the directions that the sibling has handed over, as many as the peer allows. The others have
    /// no socket of their own yet, so that no splice has more than two, however long the peer lets them wait.
    pub(crate) fn adopt(&mut self, registrar: &mut Registrar<'_>, now: Instant) {
        self.moves.waiting.retain(|moving| !moving.to_stream.state.is_cut());
        while !self.lost && !self.moves.waiting.is_empty() {
            let Some(id) = self.connection.streams().open(Dir::Uni) else { return };
            let Some(moving) = self.moves.waiting.pop_front() else { return };
            let MigratingDirection { mut to_stream, origin, offset, .. } = moving;
            let ahead = if self.moves.following.len() < AHEAD_MAX { AHEAD_BYTES } else { 0 };
            let socket = to_stream.registered.socket.try_clone();
            match socket.and_then(|socket| registrar.register(id, socket, READS)) {
                Ok(registered) => {
                    let head = Announcement::encode(origin, offset);
                    to_stream.move_to(registered, (head, ahead), now);
                    self.moves.following.push((origin, id));
                    let spliced = Spliced::sending(to_stream);
                    self.channels.insert(id, Channel::Spliced(Box::new(spliced)));
                    self.enqueue(id);
                    if self.moves.is_bulk && self.moves.idle_check.is_none() {
                        self.moves.idle_check = Some(now + IDLE);
                    }
                }
                Err(error) => {
                    to_stream.state.cut(error.into());
                    self.reset(id, self.rules.cut_code);
                    self.tell(Migration::Sweep);
                }
            }
        }
    }

    /// Handles a stream that the peer has stopped: it has followed a move, or has abandoned the
    /// stream.
    pub(crate) fn on_stopped(&mut self, id: StreamId, code: VarInt) {
        match self.channels.get_mut(&id) {
            Some(Channel::Spliced(spliced))
                if code == MOVED && matches!(spliced.to_stream, Outgoing::Leaving) =>
            {
                spliced.to_stream = Outgoing::Gone;
                let _ = self.connection.send_stream(id).reset(MOVED);
                self.tell(Migration::Proceed { origin: id });
                self.retire(id);
            }
            _ => self.cut(id, Cut::Remote(code)),
        }
    }

    fn path(&self) -> NetworkPath {
        (self.connection.local_ip(), self.connection.remote_address().ip())
    }

    fn proceed(&mut self, origin: StreamId) {
        let following = &mut self.moves.following;
        let Some(index) = following.iter().position(|(from, _)| *from == origin) else { return };
        let (_, id) = following.swap_remove(index);
        if let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id)
            && let Outgoing::Here(to_stream) = &mut spliced.to_stream
        {
            to_stream.followed();
            self.enqueue(id);
        }
    }

    /// Reads the head of a stream.
    pub(crate) fn read_announcement(&mut self, id: StreamId, now: Instant, share: &mut TimeShare) {
        let Some(Channel::Announced(announcement)) = self.channels.get_mut(&id) else { return };
        match announcement.read(self.connection.recv_stream(id)) {
            Ok(None) => {}
            Ok(Some(Announced::Receipts)) => {
                self.channels.insert(id, Channel::Receipts(ReceiptReader::default()));
                self.read_receipts(id, now, share);
            }
            Ok(Some(Announced::Continuation(origin, offset))) => {
                let continuation = Continuation { offset, at: id };
                let early = match &self.moves.sibling {
                    Some(sibling) => {
                        sibling.send(Migration::Continue { origin, continuation });
                        None
                    }
                    None => Some((origin, offset)),
                };
                self.channels.insert(id, Channel::Awaiting(early));
            }
            Err(()) => {
                self.channels.remove(&id);
                let _ = self.connection.recv_stream(id).stop(self.rules.cut_code);
            }
        }
    }

    fn continue_at(&mut self, origin: StreamId, continuation: Continuation) {
        match self.channels.get_mut(&origin) {
            Some(Channel::Controlled(control)) if control.continuation.is_none() => {
                control.continuation = Some(continuation);
            }
            Some(Channel::Spliced(spliced)) => {
                let to_socket = spliced.to_socket.as_mut();
                if to_socket.is_some_and(|to_socket| to_socket.set_continuation(continuation)) {
                    self.arrived.push(origin);
                } else {
                    self.cut(origin, Cut::Lost);
                    self.tell(Migration::Refuse { at: continuation.at });
                }
            }
            // The sibling is about to end, too, and must not reset what is parked here.
            _ if self.lost => {}
            _ => self.tell(Migration::Refuse { at: continuation.at }),
        }
    }

    /// The socket has accepted all of a stream that has moved.
    pub(crate) fn move_in(&mut self, id: StreamId, at: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        let Some(to_socket) = spliced.to_socket.take() else { return };
        match to_socket.registered.socket.try_clone() {
            Ok(socket) => {
                if let Some(to_stream) = spliced.to_stream() {
                    to_stream.registered.set_interest(READS);
                }
                self.tell(Migration::Arrive { at, to_socket: Box::new(to_socket), socket });
                let _ = self.connection.recv_stream(id).stop(MOVED);
                self.retire(id);
            }
            Err(error) => {
                self.cut(id, error.into());
                self.tell(Migration::Refuse { at });
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
        if self.lost {
            return to_socket.park();
        }
        let awaited = matches!(self.channels.get(&at), Some(Channel::Awaiting(_)));
        let registered: Result<Arc<Registered>, Cut> = match awaited {
            true => registrar.register(at, socket, Interest::WRITABLE).map_err(Cut::from),
            false => Err(Cut::Lost),
        };
        match registered {
            Ok(registered) => {
                to_socket.move_to(registered, HEAD_BYTES as u64);
                let spliced = Spliced::receiving(to_socket);
                self.channels.insert(at, Channel::Spliced(Box::new(spliced)));
                self.arrived.push(at);
            }
            Err(cut) => {
                to_socket.state.cut(cut);
                self.channels.remove(&at);
                self.reset(at, self.rules.cut_code);
                self.tell(Migration::Sweep);
            }
        }
    }

    /// Ends the streams of splices that were cut, or whose sockets have failed, until its share of the
    /// round is used up.
    pub(super) fn end_swept(&mut self, share: &mut TimeShare) {
        if !std::mem::take(&mut self.must_sweep) {
            return;
        }
        let (mut cut, mut failed) = (Vec::new(), Vec::new());
        for (id, channel) in &self.channels {
            let Channel::Spliced(spliced) = channel else { continue };
            if spliced.state.is_cut() {
                cut.push(*id);
            } else if spliced.state.failed_at().is_some() && spliced.to_stream().is_some() {
                failed.push(*id);
            }
        }
        for id in failed {
            self.linger(id);
        }
        for id in cut {
            self.end_cut(id);
            if share.is_used_up_by_now() {
                self.must_sweep = true;
                return;
            }
        }
    }

    /// Removes a direction that waited for the peer to follow.
    pub(crate) fn forget_move(&mut self, id: StreamId) {
        self.moves.following.retain(|(_, at)| *at != id);
    }

    /// Ends a direction that waits for a stream, because the connection is gone; returns false if none does.
    pub(super) fn end_waiting_move(&mut self) -> bool {
        let Some(moving) = self.moves.waiting.pop_front() else { return false };
        match self.holds {
            true => moving.to_stream.park(),
            false => drop(moving.to_stream.state.cut(Cut::Lost)),
        }
        true
    }

    pub(crate) fn tell(&self, message: Migration) {
        if let Some(sibling) = &self.moves.sibling {
            sibling.send(message);
        }
    }
}

//! Moves a direction of a splice between the two connections of a session.
//!
//! A session has one connection for what is sparse and, once it is needed, one for what is bulk,
//! each in a loop and on a UDP socket of its own: a keystroke waits neither behind bulk data nor for
//! the thread that carries it. A direction begins on the first and moves at a byte boundary:
//!
//! 1. The sender stops writing to stream X at offset N and opens a unidirectional stream on the
//!    sibling connection, whose first 16 bytes say X and N.
//! 2. The receiver goes on delivering X. When its socket has taken all N bytes it stops X with
//!    [`MOVED`] and delivers the new stream from then on.
//! 3. The sender sees X stopped, and goes on sending on the new stream.
//!
//! A stream that its target does not read therefore never moves, and holds nothing of the sibling's
//! window. Moving back is the same with the connections exchanged. Either end's failure cuts the
//! splice, wherever its directions are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mio::Interest;
use quinn_proto::{Dir, StreamId, VarInt};
use tracing::debug;

use super::Driver;
use crate::{
    announcement::{Announcement, Continuation, HEAD_BYTES},
    channel::{Channel, Spliced},
    inward::Inward,
    mailbox::{Migration, Moving, Sibling},
    outward::Outward,
    socket::Socket,
    splice::{Cut, Registered, Registrar},
};

/// The code that stops a stream which goes on at the sibling connection ("move").
pub(crate) const MOVED: VarInt = VarInt::from_u32(0x6d6f_7665);

/// A direction on the bulk connection that has been idle this long goes back.
const IDLE: Duration = Duration::from_secs(1);

/// How often idle directions are looked for while there are any on the bulk connection.
const IDLE_CHECK: Duration = Duration::from_millis(250);

impl Driver {
    pub(crate) fn on_migration(
        &mut self,
        message: Migration,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match message {
            Migration::Attach { sibling, bulk } => self.attach(sibling, bulk),
            Migration::Adopt(moving) => {
                self.moves.waiting.push_back(*moving);
                self.adopt(registrar, now);
            }
            Migration::Proceed { origin } => self.proceed(origin),
            Migration::Continue { origin, continuation } => {
                self.continue_at(origin, continuation);
            }
            Migration::Arrive { at, inward, socket } => self.arrive(at, *inward, socket, registrar),
            Migration::Refuse { at } => {
                self.channels.remove(&at);
                self.reset(at, self.rules.cut_code);
            }
            Migration::Sweep => self.sweep(),
        }
    }

    fn attach(&mut self, sibling: Sibling, bulk: bool) {
        for (origin, continuation) in self.moves.early.drain(..) {
            sibling.send(Migration::Continue { origin, continuation });
        }
        (self.moves.sibling, self.moves.is_bulk) = (Some(sibling), bulk);
    }

    /// Moves the outward direction of a stream to the bulk connection if it has become bulk, or asks
    /// for such a connection.
    pub(crate) fn move_if_bulk(&mut self, id: StreamId) {
        if self.moves.is_bulk {
            return;
        }
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        let rtt = self.connection.rtt();
        if !spliced.outward.as_ref().is_some_and(|outward| outward.wants_bulk(rtt)) {
            return;
        }
        match self.moves.sibling {
            Some(_) => self.move_out(id),
            None => self.shared.want_bulk(),
        }
    }

    /// Moves what has been idle on the bulk connection back.
    pub(crate) fn move_idle_back(&mut self, now: Instant) {
        if self.moves.idle_check.is_none_or(|at| at > now) {
            return;
        }
        self.moves.idle_check = None;
        let since = now.checked_sub(IDLE).unwrap_or(now);
        let mut idle = Vec::new();
        for (id, channel) in &self.channels {
            if let Channel::Spliced(spliced) = channel
                && let Some(outward) = &spliced.outward
            {
                self.moves.idle_check = Some(now + IDLE_CHECK);
                if outward.is_idle_since(since) {
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
        let (Some(sibling), Some(outward)) = (&self.moves.sibling, spliced.outward.take()) else {
            return;
        };
        match outward.registered.socket.try_clone() {
            Ok(socket) => {
                spliced.moved_out = true;
                // The other loop hears of what is to be read.
                if let Some(inward) = &spliced.inward {
                    inward.registered.set_interest(Interest::WRITABLE);
                }
                let offset = outward.offset;
                let moving = Moving { outward, socket, origin: id, offset };
                sibling.send(Migration::Adopt(Box::new(moving)));
            }
            Err(error) => {
                debug!(%error, "a stream stays where it is");
                spliced.outward = Some(outward);
            }
        }
    }

    /// Carries on the directions that the sibling has given away, as many as the peer allows.
    pub(crate) fn adopt(&mut self, registrar: &mut Registrar<'_>, now: Instant) {
        self.moves.waiting.retain(|moving| !moving.outward.joint.is_cut());
        while !self.lost && !self.moves.waiting.is_empty() {
            let Some(id) = self.connection.streams().open(Dir::Uni) else { return };
            let Some(moving) = self.moves.waiting.pop_front() else { return };
            let Moving { mut outward, socket, origin, offset } = moving;
            match registrar.register(id, socket, Interest::READABLE) {
                Ok(registered) => {
                    outward.move_to(registered, Announcement::encode(origin, offset), now);
                    self.moves.following.push((origin, id));
                    self.insert_half(id, Some(outward), None);
                    self.enqueue(id);
                    if self.moves.is_bulk && self.moves.idle_check.is_none() {
                        self.moves.idle_check = Some(now + IDLE);
                    }
                }
                Err(error) => {
                    outward.joint.cut(error.into());
                    self.reset(id, self.rules.cut_code);
                    self.tell(Migration::Sweep);
                }
            }
        }
    }

    fn insert_half(&mut self, id: StreamId, outward: Option<Outward>, inward: Option<Inward>) {
        let of = outward.as_ref().map(|half| (&half.joint, &half.registered));
        let Some((joint, registered)) =
            of.or_else(|| inward.as_ref().map(|half| (&half.joint, &half.registered)))
        else {
            return;
        };
        let (joint, token) = (Arc::clone(joint), registered.token);
        let spliced = Spliced { joint, token, outward, inward, moved_out: false, moves_to: None };
        self.channels.insert(id, Channel::Spliced(Box::new(spliced)));
    }

    /// The peer has stopped a stream: because it has followed where the stream has moved, or because
    /// it has given the stream up.
    pub(crate) fn on_stopped(&mut self, id: StreamId, code: VarInt) {
        match self.channels.get_mut(&id) {
            Some(Channel::Spliced(spliced)) if code == MOVED && spliced.moved_out => {
                spliced.moved_out = false;
                let _ = self.connection.send_stream(id).reset(MOVED);
                self.tell(Migration::Proceed { origin: id });
                self.retire(id);
            }
            _ => self.cut(id, Cut::Remote(code)),
        }
    }

    fn proceed(&mut self, origin: StreamId) {
        let following = &mut self.moves.following;
        let Some(index) = following.iter().position(|(from, _)| *from == origin) else { return };
        let (_, id) = following.swap_remove(index);
        if let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id)
            && let Some(outward) = &mut spliced.outward
        {
            outward.moving = false;
            self.enqueue(id);
        }
    }

    /// Reads the head of a stream.
    pub(crate) fn read_announcement(&mut self, id: StreamId) {
        let Some(Channel::Announced(announcement)) = self.channels.get_mut(&id) else { return };
        match announcement.read(self.connection.recv_stream(id)) {
            Ok(None) => {}
            Ok(Some((origin, offset))) => {
                self.channels.insert(id, Channel::Awaiting);
                let continuation = Continuation { offset, at: id };
                match &self.moves.sibling {
                    Some(sibling) => sibling.send(Migration::Continue { origin, continuation }),
                    None => self.moves.early.push((origin, continuation)),
                }
            }
            Err(()) => {
                self.channels.remove(&id);
                let _ = self.connection.recv_stream(id).stop(self.rules.cut_code);
            }
        }
    }

    fn continue_at(&mut self, origin: StreamId, continuation: Continuation) {
        match self.channels.get_mut(&origin) {
            Some(Channel::Held(held)) if held.continuation.is_none() => {
                held.continuation = Some(continuation);
            }
            Some(Channel::Spliced(spliced)) => {
                let inward = spliced.inward.as_mut();
                if inward.is_some_and(|inward| inward.set_moves_at(continuation.offset)) {
                    spliced.moves_to = Some(continuation.at);
                    self.arrived.push(origin);
                } else {
                    self.cut(origin, Cut::Lost);
                    self.tell(Migration::Refuse { at: continuation.at });
                }
            }
            _ => self.tell(Migration::Refuse { at: continuation.at }),
        }
    }

    /// The socket has taken all of a stream that goes on elsewhere.
    pub(crate) fn move_in(&mut self, id: StreamId) {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        let (Some(inward), Some(at)) = (spliced.inward.take(), spliced.moves_to.take()) else {
            return;
        };
        match inward.registered.socket.try_clone() {
            Ok(socket) => {
                if let Some(outward) = &spliced.outward {
                    outward.registered.set_interest(Interest::READABLE);
                }
                self.tell(Migration::Arrive { at, inward: Box::new(inward), socket });
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
        mut inward: Inward,
        socket: Socket,
        registrar: &mut Registrar<'_>,
    ) {
        let awaited = matches!(self.channels.get(&at), Some(Channel::Awaiting));
        let registered: Result<Arc<Registered>, Cut> = match awaited && !self.lost {
            true => registrar.register(at, socket, Interest::WRITABLE).map_err(Cut::from),
            false => Err(Cut::Lost),
        };
        match registered {
            Ok(registered) => {
                inward.move_to(registered, HEAD_BYTES as u64);
                self.insert_half(at, None, Some(inward));
                self.arrived.push(at);
            }
            Err(cut) => {
                inward.joint.cut(cut);
                self.channels.remove(&at);
                self.reset(at, self.rules.cut_code);
                self.tell(Migration::Sweep);
            }
        }
    }

    /// Ends the streams of splices that were cut.
    pub(crate) fn sweep(&mut self) {
        let is_cut = |channel: &Channel| matches!(channel, Channel::Spliced(spliced) if spliced.joint.is_cut());
        let cut = self.channels.iter().filter(|(_, channel)| is_cut(channel));
        let ids: Vec<_> = cut.map(|(id, _)| *id).collect();
        for id in ids {
            self.reset(id, self.rules.cut_code);
            self.remove_spliced(id);
        }
    }

    /// A direction that waited for the peer to follow is gone.
    pub(crate) fn forget_move(&mut self, id: StreamId) {
        self.moves.following.retain(|(_, at)| *at != id);
    }

    /// Ends every move that is under way: the connection is gone.
    pub(crate) fn end_moves(&mut self) {
        for moving in self.moves.waiting.drain(..) {
            moving.outward.joint.cut(Cut::Lost);
        }
        self.moves.idle_check = None;
    }

    pub(crate) fn tell(&self, message: Migration) {
        if let Some(sibling) = &self.moves.sibling {
            sibling.send(message);
        }
    }
}

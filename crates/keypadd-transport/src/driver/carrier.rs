//! A QUIC connection with its streams and the sockets that they are spliced to: opens, accepts and
//! splices streams, and acts on the events of `quinn-proto` and of sockets.

mod end;
mod hold;
mod migrate;
mod moves;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use mio::{Interest, Token};
use quinn_proto::{Connection, Dir, StreamId, VarInt};
use tokio::sync::oneshot;

pub(super) use self::{end::Loss, hold::Holding, moves::Moves};
use super::{lifecycle::Lifecycle, streams::StreamTable};
use crate::{
    announcement::Announcement,
    channel::{Channel, Controlled, Outgoing, Spliced},
    mailbox::{ConnectionShared, Migration},
    socket::{READS, Socket},
    splice::{Cut, Registered, Registrar, SpliceState},
    stream::{SpliceRequest, Stopped, Stream, StreamBuffer, StreamCommand, WriteError},
    to_socket::{Received, ToSocket},
    to_stream::ToStream,
};

/// A connection with its streams: what holds them if it is lost, and what moves between it and its
/// sibling.
pub(super) struct Carrier {
    pub(super) quic: Connection,
    pub(super) lifecycle: Lifecycle,
    pub(super) streams: StreamTable<Channel>,
    pub(super) holding: Holding,
    pub(super) moves: Moves,
    /// Who waits until the peer allows another stream.
    pub(super) opening: VecDeque<oneshot::Sender<Stream>>,
    /// Tokens of closed sockets.
    pub(super) closed: Vec<Token>,
    shared: Arc<ConnectionShared>,
    /// The error code that resets a stream whose splice is cut.
    cut_code: VarInt,
}

impl Carrier {
    pub(super) fn new(
        quic: Connection,
        lifecycle: Lifecycle,
        shared: Arc<ConnectionShared>,
        cut_code: VarInt,
    ) -> Self {
        let (streams, holding, moves, opening, closed) = Default::default();
        Self { quic, lifecycle, streams, holding, moves, opening, closed, shared, cut_code }
    }

    /// Handles the system's report on a socket.
    pub(super) fn on_socket(&mut self, id: StreamId, event: &mio::event::Event, now: Instant) {
        let Some(spliced) = self.streams.spliced_mut(id) else { return };
        let (mut socket, mut waits_to_write) = (None, false);
        if let Some(to_socket) = &mut spliced.to_socket {
            to_socket.on_ready(event);
            waits_to_write = to_socket.waits_to_write();
            socket = Some(&to_socket.registered.socket);
        }
        if let Outgoing::Here(to_stream) = &mut spliced.to_stream {
            to_stream.on_ready(event, now);
            socket = Some(&to_stream.registered.socket);
        }
        let error = socket.filter(|_| event.is_error()).and_then(Socket::take_error);
        if waits_to_write {
            self.streams.arrived(id);
        }
        match error {
            Some(error) => self.fail(id, error, now),
            None => self.streams.may_send(id),
        }
    }

    pub(super) fn on_stream_command(
        &mut self,
        id: StreamId,
        command: StreamCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match (command, self.streams.get_mut(id)) {
            (StreamCommand::Write { bytes, reply }, Some(Channel::Controlled(control))) => {
                control.unwritten.push_back((bytes, reply));
                control.send(self.quic.send_stream(id));
            }
            (StreamCommand::Read, Some(_)) => self.streams.arrived(id),
            (StreamCommand::Splice(request), Some(Channel::Controlled(_))) => {
                self.splice(id, request, registrar, now);
            }
            // The peer does not know a stream whose answer has not been sent.
            (StreamCommand::Splice(request), None)
                if self.lifecycle.is_lost() && request.first.is_empty() =>
            {
                self.holding.hold_late(id, request, self.lifecycle.holds());
            }
            (StreamCommand::Resume(request), Some(Channel::Controlled(_)))
                if !self.lifecycle.is_lost() =>
            {
                self.resume(id, request, registrar, now);
            }
            (StreamCommand::Reset(code), Some(_)) => {
                self.reset(id, code);
                self.cut(id, Cut::Lost);
                self.streams.remove(id);
            }
            // Its stream has moved or ended.
            (StreamCommand::Reset(_), None) => self.sweep_everywhere(),
            // The stream is gone, or is in a state that knows no such command. Dropped, a write or
            // a splice tells its caller so, and what was to be resumed is held as before.
            (command, _) => drop(command),
        }
    }

    /// Splices a stream to a socket.
    fn splice(
        &mut self,
        id: StreamId,
        SpliceRequest { first, preface, socket, state }: SpliceRequest,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let Some(Channel::Controlled(control)) = self.streams.remove(id) else { return };
        // From here on, dropping the socket resets it.
        let prepared = socket.prepare().map_err(Cut::from);
        let registered = prepared.and_then(|()| {
            let received = control.received.take()?;
            Ok((received, registrar.register(id, socket, READS | Interest::WRITABLE)?))
        });
        match registered {
            Ok((received, registered)) => {
                let replay = self.holding.add(id, &state);
                let to_socket = to_socket(&control, received, &state, &registered);
                let to_stream =
                    ToStream::new(Arc::clone(&state), registered, replay, control.written, now)
                        .after(first)
                        .with_preface(preface);
                self.insert(id, state, Outgoing::Here(to_stream), to_socket);
                self.begin(id);
            }
            Err(cut) => {
                state.cut(cut);
                self.reset(id, self.cut_code);
            }
        }
    }

    fn insert(
        &mut self,
        id: StreamId,
        state: Arc<SpliceState>,
        to_stream: Outgoing,
        to_socket: ToSocket,
    ) {
        let token = to_socket.registered.token;
        let spliced = Spliced { state, token, to_stream, to_socket: Some(to_socket) };
        self.streams.insert_spliced(id, spliced);
    }

    /// Begins to carry bytes.
    fn begin(&mut self, id: StreamId) {
        self.streams.may_send(id);
        self.streams.arrived(id);
    }

    /// A stream may have credit again.
    pub(super) fn on_writable(&mut self, id: StreamId) {
        match self.streams.get_mut(id) {
            Some(Channel::Controlled(control)) => control.send(self.quic.send_stream(id)),
            Some(Channel::Spliced(spliced)) => {
                if let Outgoing::Here(to_stream) = &mut spliced.to_stream {
                    to_stream.unblock();
                    self.streams.may_send(id);
                }
            }
            Some(Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_)) | None => {}
        }
    }

    /// The peer has acknowledged a stream up to its end.
    pub(super) fn on_finished(&mut self, id: StreamId) {
        if let Some(spliced) = self.streams.spliced_mut(id)
            && spliced.to_stream_mut().is_some_and(ToStream::acknowledged)
        {
            spliced.to_stream = Outgoing::Gone;
            self.retire(id);
        }
    }

    /// The peer wants no more of a stream.
    pub(super) fn on_stopped(&mut self, id: StreamId, code: VarInt) {
        match self.streams.get_mut(id) {
            Some(Channel::Controlled(control)) => {
                control.received.stop(Stopped::ByPeer(code));
                for (_, reply) in control.unwritten.drain(..) {
                    let _ = reply.send(Err(WriteError::Stopped(code)));
                }
            }
            Some(Channel::Spliced(_)) => self.on_stopped_splice(id, code),
            Some(Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_)) | None => {}
        }
    }

    /// Accepts the streams that the peer has opened.
    pub(super) fn accept(&mut self) {
        while let Some(id) = self.quic.streams().accept(Dir::Bi) {
            let stream = self.control(id);
            self.streams.arrived(id);
            self.lifecycle.accept(stream);
        }
    }

    /// Accepts the unidirectional streams that the peer has opened.
    pub(super) fn accept_continuations(&mut self) {
        while let Some(id) = self.quic.streams().accept(Dir::Uni) {
            self.streams.insert(id, Channel::Announced(Announcement::default()));
            self.streams.arrived(id);
        }
    }

    /// Opens the requested streams, as many as the peer allows.
    pub(super) fn open(&mut self) {
        while !self.lifecycle.is_lost() && !self.opening.is_empty() {
            let Some(id) = self.quic.streams().open(Dir::Bi) else { return };
            let stream = self.control(id);
            if let Some(reply) = self.opening.pop_front() {
                let _ = reply.send(stream);
            }
        }
    }

    /// Lets control tasks read and write a stream.
    fn control(&mut self, id: StreamId) -> Stream {
        let received = Arc::<StreamBuffer>::default();
        self.streams.insert(id, Channel::Controlled(Controlled::new(Arc::clone(&received))));
        Stream::new(self.shared.clone(), id, received, self.cut_code)
    }

    /// Resets both directions of a stream; does nothing to one that has ended, or if the connection
    /// is gone.
    fn reset(&mut self, id: StreamId, code: VarInt) {
        let (one_way, ours) = (id.dir() == Dir::Uni, id.initiator() == self.quic.side());
        if !one_way || ours {
            let _ = self.quic.send_stream(id).reset(code);
        }
        if !one_way || !ours {
            let _ = self.quic.recv_stream(id).stop(code);
        }
    }

    /// Looks for a splice that was cut, or whose socket has failed, here and at the sibling: its
    /// directions may be anywhere.
    fn sweep_everywhere(&mut self) {
        self.streams.sweep();
        self.moves.tell(Migration::Sweep);
    }
}

/// The streams that are spliced.
impl StreamTable<Channel> {
    pub(super) fn spliced(&self, id: StreamId) -> Option<&Spliced> {
        self.get(id).and_then(Channel::spliced)
    }

    pub(super) fn spliced_mut(&mut self, id: StreamId) -> Option<&mut Spliced> {
        self.get_mut(id).and_then(Channel::spliced_mut)
    }

    pub(super) fn all_spliced(&self) -> impl Iterator<Item = (StreamId, &Spliced)> {
        self.iter().filter_map(|(id, channel)| Some((id, channel.spliced()?)))
    }

    pub(super) fn insert_spliced(&mut self, id: StreamId, spliced: Spliced) {
        self.insert(id, Channel::Spliced(Box::new(spliced)));
    }
}

/// The direction to the socket of a stream that control tasks have read so far.
fn to_socket(
    control: &Controlled,
    received: Received,
    state: &Arc<SpliceState>,
    registered: &Arc<Registered>,
) -> ToSocket {
    let (state, registered) = (Arc::clone(state), Arc::clone(registered));
    let mut to_socket = ToSocket::new(state, registered, received, control.read);
    if let Some(continuation) = control.continuation {
        to_socket.set_continuation(continuation);
    }
    to_socket
}

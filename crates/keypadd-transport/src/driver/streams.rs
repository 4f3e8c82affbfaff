//! Opens, accepts and splices streams, and acts on the events of `quinn-proto` and of sockets.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use mio::Interest;
use quinn_proto::{Dir, StreamEvent, StreamId};

use super::Driver;
use crate::{
    allowance::ANNOUNCES_EACH,
    announcement::Announcement,
    channel::{Channel, Controlled, Outgoing, Spliced},
    mailbox::Migration,
    socket::{READS, Socket},
    splice::{Cut, Owner, Registrar, SpliceState},
    stream::{Stopped, Stream, StreamBuffer, StreamCommand, WriteError},
    to_socket::ToSocket,
    to_stream::ToStream,
};

impl Driver {
    /// Handles the system's report on a socket.
    pub(crate) fn on_socket(&mut self, owner: Owner, event: &mio::event::Event, now: Instant) {
        let id = match owner {
            Owner::Stream(id) => id,
            Owner::Flow(_) | Owner::Listener(_) => return self.flows.on_ready(owner),
        };
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        let mut socket = None;
        if let Some(to_socket) = &mut spliced.to_socket {
            to_socket.on_ready(event);
            if to_socket.waits_to_write() {
                self.arrived.push(id);
            }
            socket = Some(&to_socket.registered.socket);
        }
        if let Outgoing::Here(to_stream) = &mut spliced.to_stream {
            to_stream.on_ready(event, now);
            socket = Some(&to_stream.registered.socket);
        }
        match socket.filter(|_| event.is_error()).and_then(Socket::take_error) {
            Some(error) => self.fail(id, error, now),
            None => self.enqueue(id),
        }
    }

    pub(super) fn on_stream_command(
        &mut self,
        id: StreamId,
        command: StreamCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match (command, self.channels.get_mut(&id)) {
            (StreamCommand::Write { bytes, reply }, Some(Channel::Controlled(control))) => {
                control.unwritten.push_back((bytes, reply));
                control.send(self.connection.send_stream(id));
            }
            (StreamCommand::Read, Some(_)) => self.arrived.push(id),
            (
                StreamCommand::Splice { first, preface, socket, state },
                Some(Channel::Controlled(_)),
            ) => {
                self.splice(id, (first, preface, socket), state, registrar, now);
            }
            // The peer does not know a stream whose answer has not been sent.
            (StreamCommand::Splice { first, preface, socket, state }, None)
                if self.lost && first.is_empty() =>
            {
                self.hold_late(id, (preface, socket), &state);
            }
            (StreamCommand::Resume { held, receipt, attached }, Some(Channel::Controlled(_)))
                if !self.lost =>
            {
                self.resume(id, held, (receipt, attached), registrar, now)
            }
            (StreamCommand::Reset(code), Some(_)) => {
                self.reset(id, code);
                self.cut(id, Cut::Lost);
                self.channels.remove(&id);
            }
            // Its stream has moved or ended.
            (StreamCommand::Reset(_), None) => {
                self.must_sweep = true;
                self.tell(Migration::Sweep);
            }
            (command, _) => command.gone(),
        }
    }

    /// Splices a stream to a socket.
    pub(super) fn splice(
        &mut self,
        id: StreamId,
        (first, preface, socket): (Bytes, Bytes, Socket),
        state: Arc<SpliceState>,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let Some(Channel::Controlled(control)) = self.channels.remove(&id) else { return };
        let interest = READS | Interest::WRITABLE;
        // From here on, dropping the socket resets it.
        let ready = socket.prepare().map_err(Cut::from).and_then(|()| control.received.take());
        let registered =
            ready.and_then(|received| Ok((received, registrar.register(id, socket, interest)?)));
        match registered {
            Ok((received, registered)) => {
                let replay = self.add_held(id, &state);
                let mut to_socket = ToSocket::new(
                    Arc::clone(&state),
                    Arc::clone(&registered),
                    received,
                    control.read,
                );
                if let Some(continuation) = control.continuation {
                    to_socket.set_continuation(continuation);
                }
                let token = registered.token;
                let to_stream = ToStream::new(
                    Arc::clone(&state),
                    registered,
                    (replay, VecDeque::new()),
                    control.written,
                    now,
                )
                .after(first)
                .with_preface(preface);
                let (to_stream, to_socket) = (Outgoing::Here(to_stream), Some(to_socket));
                let spliced = Spliced { state, token, to_stream, to_socket };
                self.channels.insert(id, Channel::Spliced(Box::new(spliced)));
                self.enqueue(id);
                self.arrived.push(id);
            }
            Err(cut) => {
                state.cut(cut);
                self.reset(id, self.rules.cut_code);
            }
        }
    }

    pub(super) fn on_stream_event(&mut self, event: StreamEvent) {
        match event {
            // It was closed first: nothing would end streams that are accepted now.
            StreamEvent::Opened { .. } if self.lost => {}
            StreamEvent::Opened { dir: Dir::Bi } => self.accept(),
            StreamEvent::Opened { dir: Dir::Uni } => self.accept_continuations(),
            StreamEvent::Readable { id } => {
                if self.arrived.last() != Some(&id) {
                    self.arrived.push(id);
                }
            }
            StreamEvent::Writable { id } => match self.channels.get_mut(&id) {
                Some(Channel::Controlled(control)) => control.send(self.connection.send_stream(id)),
                Some(Channel::Spliced(spliced)) => {
                    if let Outgoing::Here(to_stream) = &mut spliced.to_stream {
                        to_stream.unblock();
                        self.enqueue(id);
                    }
                }
                Some(Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_))
                | None => {}
            },
            StreamEvent::Finished { id } => {
                if let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id)
                    && spliced.to_stream_mut().is_some_and(ToStream::acknowledged)
                {
                    spliced.to_stream = Outgoing::Gone;
                    self.retire(id);
                }
            }
            StreamEvent::Stopped { id, error_code } => match self.channels.get_mut(&id) {
                Some(Channel::Controlled(control)) => {
                    control.received.stop(Stopped::ByPeer(error_code));
                    for (_, reply) in control.unwritten.drain(..) {
                        let _ = reply.send(Err(WriteError::Stopped(error_code)));
                    }
                }
                Some(Channel::Spliced(_)) => self.on_stopped(id, error_code),
                Some(Channel::Announced(_) | Channel::Awaiting(_) | Channel::Receipts(_))
                | None => {}
            },
            StreamEvent::Available { .. } => self.open(),
        }
    }

    /// Accepts the streams that the peer has opened.
    pub(super) fn accept(&mut self) {
        while let Some(id) = self.connection.streams().accept(Dir::Bi) {
            let stream = self.control(id);
            self.arrived.push(id);
            if let Some(incoming) = &self.incoming {
                // If nobody accepts it, this drops the handle, which resets the stream.
                let _ = incoming.send(stream);
            }
        }
        self.allow_more(Dir::Bi);
    }

    pub(super) fn accept_continuations(&mut self) {
        while let Some(id) = self.connection.streams().accept(Dir::Uni) {
            self.channels.insert(id, Channel::Announced(Announcement::default()));
            self.arrived.push(id);
        }
        self.allow_more(Dir::Uni);
    }

    /// Raises the peer's stream limit if it has opened many.
    pub(super) fn allow_more(&mut self, dir: Dir) {
        let open = self.connection.streams().remote_open_streams(dir);
        if let Some(count) = self.allowances[dir as usize].grow(open) {
            self.connection.set_max_concurrent_streams(dir, count);
        }
    }

    /// Announces freed streams to a peer that may be waiting for one: it would not learn of the
    /// last eighth.
    pub(super) fn announce_free(&mut self) {
        for dir in [Dir::Bi, Dir::Uni] {
            let (open, allowance) =
                (self.connection.streams().remote_open_streams(dir), self.allowances[dir as usize]);
            let before = std::mem::replace(&mut self.remote_open[dir as usize], open);
            if open != before && allowance.is_short(open) {
                self.connection.set_max_concurrent_streams(dir, ANNOUNCES_EACH);
                self.connection.set_max_concurrent_streams(dir, allowance.current());
            }
        }
    }

    /// Opens the requested streams, as many as the peer allows.
    pub(super) fn open(&mut self) {
        while !self.lost && !self.opening.is_empty() {
            let Some(id) = self.connection.streams().open(Dir::Bi) else { return };
            let stream = self.control(id);
            if let Some(reply) = self.opening.pop_front() {
                let _ = reply.send(stream);
            }
        }
    }

    pub(super) fn control(&mut self, id: StreamId) -> Stream {
        let received = Arc::<StreamBuffer>::default();
        self.channels.insert(id, Channel::Controlled(Controlled::new(Arc::clone(&received))));
        Stream::new(self.shared.clone(), id, received, self.rules.cut_code)
    }
}

//! One connection in its loop: what `quinn-proto` says, what its streams' sockets say, what leaves.
//!
//! Runs to completion each time the loop drives it. Streams are given only what the congestion
//! window lets out now, sparse ones first, so that nothing waits inside `quinn-proto`.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use mio::{Interest, Token};
use quinn_proto::{
    Connection, ConnectionError, Dir, EndpointEvent, Event, StreamEvent, StreamId, VarInt,
};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use crate::{
    allowance::Allowance,
    channel::{Channel, Held, Spliced},
    connection::{Established, Shared},
    datagrams::Datagrams,
    endpoint::{Accepted, HandshakeFailed, Rules},
    gate::Gate,
    inward::{Delivered, Inward},
    mailbox::{ConnectionCommand, StreamCommand},
    migrate::{Announcement, Migration, Moves},
    outward::Outward,
    socket::Socket,
    splice::{Cut, Delivery, Joint, Registrar, Reply},
    stream::{Hold, ReadError, Stopped, Stream, WriteError},
    windows::ReceiveWindow,
};

/// What bounds a connection.
pub(crate) struct Limits {
    pub(crate) gate: Gate,
    pub(crate) window: ReceiveWindow,
    /// By `Dir`.
    pub(crate) allowances: [Allowance; 2],
}

/// What a driver works with: its loop's socket, and a buffer for what is sealed.
pub(crate) struct Outlet<'a> {
    pub(crate) udp: &'a mut dyn Datagrams,
    pub(crate) buffer: &'a mut Vec<u8>,
    pub(crate) now: Instant,
}

/// Who waits for the handshake.
pub(crate) enum Waiting {
    /// Nobody any more.
    Nobody,
    Client(oneshot::Sender<Result<Established, ConnectionError>>),
    Server(mpsc::UnboundedSender<Accepted>),
}

/// A connection, its streams and their sockets.
pub(crate) struct Driver {
    pub(crate) connection: Connection,
    pub(crate) gate: Gate,
    window: ReceiveWindow,
    allowances: [Allowance; 2],
    pub(crate) shared: Arc<Shared>,
    pub(crate) rules: Arc<Rules>,
    waiting: Waiting,
    incoming: Option<mpsc::UnboundedSender<Stream>>,
    pub(crate) channels: FxHashMap<StreamId, Channel>,
    /// Streams with something to read.
    pub(crate) arrived: Vec<StreamId>,
    /// Streams whose sockets may have something to send.
    pub(crate) sparse: VecDeque<StreamId>,
    pub(crate) bulk: VecDeque<StreamId>,
    pub(crate) moves: Moves,
    opening: VecDeque<oneshot::Sender<Stream>>,
    /// Tokens of sockets that are closed.
    ended_sockets: Vec<Token>,
    /// When pacing lets more go.
    pub(crate) paced_until: Option<Instant>,
    proved: bool,
    pub(crate) lost: bool,
    drained: bool,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// There is more to do at once.
    pub(crate) more: bool,
    /// When to drive again, if nothing happens before.
    pub(crate) deadline: Option<Instant>,
    /// The handshake has proved a key.
    pub(crate) proved: bool,
    pub(crate) lost: bool,
}

impl Driver {
    pub(crate) fn new(
        connection: Connection,
        Limits { gate, window, allowances }: Limits,
        shared: Arc<Shared>,
        rules: Arc<Rules>,
        waiting: Waiting,
    ) -> Self {
        Self {
            connection,
            gate,
            window,
            allowances,
            shared,
            rules,
            waiting,
            incoming: None,
            channels: FxHashMap::default(),
            arrived: Vec::new(),
            sparse: VecDeque::new(),
            bulk: VecDeque::new(),
            moves: Moves::default(),
            opening: VecDeque::new(),
            ended_sockets: Vec::new(),
            paced_until: None,
            proved: false,
            lost: false,
            drained: false,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The tokens of sockets that have been closed since it was asked last.
    pub(crate) fn ended_sockets(&mut self) -> impl Iterator<Item = Token> + '_ {
        self.ended_sockets.drain(..)
    }

    /// Something from the endpoint: a datagram, or new connection IDs.
    pub(crate) fn on_event(&mut self, event: quinn_proto::ConnectionEvent) {
        self.connection.handle_event(event);
    }

    /// What the endpoint has to hear.
    pub(crate) fn endpoint_event(&mut self) -> Option<EndpointEvent> {
        let event = self.connection.poll_endpoint_events()?;
        self.drained |= event.is_drained();
        Some(event)
    }

    /// What the system says of a stream's socket.
    pub(crate) fn on_socket(&mut self, id: StreamId, event: &mio::event::Event) {
        let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id) else { return };
        let mut error = None;
        if let Some(inward) = &mut spliced.inward {
            inward.on_ready(event);
            if inward.waits_to_write() {
                self.arrived.push(id);
            }
            error = event.is_error().then(|| inward.registered.socket.take_error()).flatten();
        }
        if let Some(outward) = &mut spliced.outward {
            outward.on_ready(event);
            let taken = || outward.registered.socket.take_error();
            error = error.or_else(|| event.is_error().then(taken).flatten());
        }
        match error {
            Some(error) => self.cut(id, error.into()),
            None => self.enqueue(id),
        }
    }

    /// What a control task, or the loop of the sibling connection, asks for.
    pub(crate) fn on_command(
        &mut self,
        command: ConnectionCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match command {
            ConnectionCommand::Open(reply) => {
                self.opening.push_back(reply);
                self.open();
            }
            ConnectionCommand::Close { code, reason } => self.close(code, reason, now),
            ConnectionCommand::UpdateKeys => self.connection.force_key_update(),
            ConnectionCommand::Stream(id, command) => {
                self.on_stream_command(id, command, registrar, now);
            }
            ConnectionCommand::Migration(message) => self.on_migration(message, registrar, now),
        }
    }

    fn on_stream_command(
        &mut self,
        id: StreamId,
        command: StreamCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        match (command, self.channels.get_mut(&id)) {
            (StreamCommand::Write { bytes, reply }, Some(Channel::Held(held))) => {
                held.unwritten.push_back((bytes, reply));
                held.send(self.connection.send_stream(id));
            }
            (StreamCommand::Resume, Some(_)) => self.arrived.push(id),
            (StreamCommand::Splice { socket, delivery, reply }, Some(Channel::Held(_))) => {
                self.splice(id, socket, delivery, reply, registrar, now);
            }
            (StreamCommand::Reset(code), Some(_)) => {
                self.reset(id, code);
                self.cut(id, Cut::Lost);
                self.channels.remove(&id);
            }
            // Replies are dropped, which says that the stream is gone.
            (_, _) => {}
        }
    }

    /// Joins a stream that was held to a socket.
    fn splice(
        &mut self,
        id: StreamId,
        socket: Socket,
        delivery: Delivery,
        reply: Reply,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let Some(Channel::Held(held)) = self.channels.remove(&id) else { return };
        let interest = Interest::READABLE | Interest::WRITABLE;
        // From here on a drop of the socket resets it.
        let ready = socket.prepare().map_err(Cut::from).and_then(|()| held.hold.take());
        let registered =
            ready.and_then(|received| Ok((received, registrar.register(id, socket, interest)?)));
        match registered {
            Ok((received, registered)) => {
                let joint = Joint::new(delivery, reply);
                let mut inward =
                    Inward::new(Arc::clone(&joint), Arc::clone(&registered), received, held.read);
                let moves_to = held
                    .continuation
                    .filter(|continuation| inward.set_moves_at(continuation.offset))
                    .map(|continuation| continuation.at);
                let token = registered.token;
                let outward = Outward::new(Arc::clone(&joint), registered, held.written, now);
                let (outward, inward) = (Some(outward), Some(inward));
                let spliced = Spliced { joint, token, outward, inward, moved_out: false, moves_to };
                self.channels.insert(id, Channel::Spliced(Box::new(spliced)));
                self.enqueue(id);
                self.arrived.push(id);
            }
            Err(cut) => {
                let _ = reply.send(Err(cut));
                self.reset(id, self.rules.cut_code);
            }
        }
    }

    /// Closes from this side.
    pub(crate) fn close(&mut self, code: VarInt, reason: Bytes, now: Instant) {
        if !self.connection.is_closed() {
            self.connection.close(now, code, reason);
        }
        self.lose(ConnectionError::LocallyClosed, now);
    }

    /// Drives until there is nothing to do, or enough has been done for one turn.
    pub(crate) fn drive(&mut self, outlet: &mut Outlet<'_>, registrar: &mut Registrar<'_>) -> Turn {
        let now = outlet.now;
        self.poll_events(now);
        self.deliver(now);
        self.adopt(registrar, now);
        self.move_idle_back(now);
        self.adjust_window(now);
        let mut more = self.send(outlet);
        // Timers come after what has arrived was answered: on a path that has just changed, quinn-proto
        // takes it that something is in flight.
        if self.connection.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.connection.handle_timeout(now);
            self.poll_events(now);
            more |= self.send(outlet);
        }
        self.poll_events(now);
        more |= !self.arrived.is_empty();
        self.shared.publish(self.connection.remote_address(), self.connection.stats());
        Turn { more, deadline: self.deadline(now), proved: self.proved, lost: self.lost }
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_over(&self) -> bool {
        self.drained && self.channels.is_empty()
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let splices = match self.lost {
            true => self.channels.values().filter_map(Channel::deadline).min(),
            false => None,
        };
        let paced = self.paced_until.filter(|until| *until > now);
        let (moves, window) = (self.moves.deadline(), self.window.deadline());
        [self.connection.poll_timeout(), paced, splices, moves, window].into_iter().flatten().min()
    }

    fn poll_events(&mut self, now: Instant) {
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.established(),
                Event::ConnectionLost { reason } => self.lose(reason, now),
                Event::Stream(event) => self.on_stream_event(event),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {
                }
            }
        }
    }

    fn established(&mut self) {
        let (incoming, streams) = mpsc::unbounded_channel();
        (self.incoming, self.proved) = (Some(incoming), true);
        let proof = (self.rules.inspect)(self.connection.crypto_session());
        let established = Established { shared: Arc::clone(&self.shared), proof, streams };
        self.shared.publish(self.connection.remote_address(), self.connection.stats());
        match std::mem::replace(&mut self.waiting, Waiting::Nobody) {
            // Where nobody waits any more the handle is dropped, which closes the connection.
            Waiting::Client(reply) => drop(reply.send(Ok(established))),
            Waiting::Server(accepted) => {
                let connection = crate::Connection::new(established);
                drop(accepted.send(Accepted::Connection(connection)));
            }
            Waiting::Nobody => {}
        }
    }

    fn on_stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Opened { dir: Dir::Bi } => self.accept(),
            StreamEvent::Opened { dir: Dir::Uni } => self.accept_continuations(),
            StreamEvent::Readable { id } => {
                if self.arrived.last() != Some(&id) {
                    self.arrived.push(id);
                }
            }
            StreamEvent::Writable { id } => match self.channels.get_mut(&id) {
                Some(Channel::Held(held)) => held.send(self.connection.send_stream(id)),
                Some(Channel::Spliced(spliced)) => {
                    if let Some(outward) = &mut spliced.outward {
                        outward.unblock();
                        self.enqueue(id);
                    }
                }
                _ => {}
            },
            StreamEvent::Finished { id } => {
                if let Some(Channel::Spliced(spliced)) = self.channels.get_mut(&id)
                    && spliced.outward.as_mut().is_some_and(Outward::acknowledged)
                {
                    spliced.outward = None;
                    self.retire(id);
                }
            }
            StreamEvent::Stopped { id, error_code } => match self.channels.get_mut(&id) {
                Some(Channel::Held(held)) => {
                    held.hold.stop(Stopped::ByPeer(error_code));
                    for (_, reply) in held.unwritten.drain(..) {
                        let _ = reply.send(Err(WriteError::Stopped(error_code)));
                    }
                }
                Some(Channel::Spliced(_)) => self.on_stopped(id, error_code),
                _ => {}
            },
            StreamEvent::Available { .. } => self.open(),
        }
    }

    /// Takes the streams that the peer has opened.
    fn accept(&mut self) {
        while let Some(id) = self.connection.streams().accept(Dir::Bi) {
            let stream = self.hold(id);
            self.arrived.push(id);
            if let Some(incoming) = &self.incoming {
                // Where nobody takes it the handle is dropped, which resets the stream.
                let _ = incoming.send(stream);
            }
        }
        self.allow_more(Dir::Bi);
    }

    fn accept_continuations(&mut self) {
        while let Some(id) = self.connection.streams().accept(Dir::Uni) {
            self.channels.insert(id, Channel::Announced(Announcement::default()));
            self.arrived.push(id);
        }
        self.allow_more(Dir::Uni);
    }

    /// Lets the peer open more streams where it has opened many.
    fn allow_more(&mut self, dir: Dir) {
        let open = self.connection.streams().remote_open_streams(dir);
        if let Some(count) = self.allowances[dir as usize].grow(open) {
            self.connection.set_max_concurrent_streams(dir, count);
        }
    }

    /// Opens the streams that were asked for, as many as the peer allows.
    fn open(&mut self) {
        while !self.lost && !self.opening.is_empty() {
            let Some(id) = self.connection.streams().open(Dir::Bi) else { return };
            let stream = self.hold(id);
            if let Some(reply) = self.opening.pop_front() {
                let _ = reply.send(stream);
            }
        }
    }

    fn hold(&mut self, id: StreamId) -> Stream {
        let hold = Arc::<Hold>::default();
        self.channels.insert(id, Channel::Held(Held::new(Arc::clone(&hold))));
        Stream::new(Arc::clone(&self.shared), id, hold, self.rules.drop_code)
    }

    /// Gives what has arrived to whoever it is for.
    fn deliver(&mut self, now: Instant) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for id in arrived.drain(..) {
            match self.channels.get_mut(&id) {
                Some(Channel::Held(held)) => held.receive(self.connection.recv_stream(id)),
                Some(Channel::Spliced(spliced)) => {
                    let Some(inward) = &mut spliced.inward else { continue };
                    let before = inward.offset;
                    let delivered = inward.deliver(self.connection.recv_stream(id), now);
                    if let Some(window) = self.window.read(inward.offset - before) {
                        // Only a window that grows is announced.
                        self.connection.set_receive_window((window - 1).into());
                        self.connection.set_receive_window(window.into());
                    }
                    match delivered {
                        Ok(Delivered::Partly) if inward.is_blocked() => self.window.blocked(now),
                        Ok(Delivered::Partly) => {}
                        Ok(Delivered::UpToMove) => self.move_in(id),
                        Ok(Delivered::Whole) => {
                            spliced.inward = None;
                            self.retire(id);
                        }
                        Err(cut) => self.cut(id, cut),
                    }
                }
                Some(Channel::Announced(_)) => self.read_announcement(id),
                Some(Channel::Awaiting) | None => {}
            }
        }
        // Its capacity serves again.
        if self.arrived.is_empty() {
            self.arrived = arrived;
        }
        if self.lost {
            let overdue =
                |channel: &Channel| channel.deadline().is_some_and(|deadline| deadline <= now);
            let overdue = self.channels.iter().filter(|(_, channel)| overdue(channel));
            let ids: Vec<_> = overdue.map(|(id, _)| *id).collect();
            for id in ids {
                self.cut(id, Cut::Lost);
            }
        }
    }

    /// Leaves other streams their window while sockets take nothing.
    fn adjust_window(&mut self, now: Instant) {
        let Some(since) = self.window.is_due(now) else { return };
        let slow = |channel: &&Channel| match channel {
            Channel::Spliced(spliced) => {
                spliced.inward.as_ref().is_some_and(|inward| inward.was_blocked(since))
            }
            _ => false,
        };
        let slow = self.channels.values().filter(slow).count();
        if let Some(bytes) = self.window.set_slow(slow, now) {
            self.connection.set_receive_window(bytes.into());
        }
    }

    /// Forgets a stream that carries nothing any more.
    pub(crate) fn retire(&mut self, id: StreamId) {
        if matches!(self.channels.get(&id), Some(Channel::Spliced(spliced)) if spliced.is_over()) {
            self.remove_spliced(id);
        }
    }

    /// Cuts a splice short: the stream and the socket are reset, and so is what has moved.
    pub(crate) fn cut(&mut self, id: StreamId, cut: Cut) {
        let Some(Channel::Spliced(spliced)) = self.channels.get(&id) else { return };
        let elsewhere = spliced.outward.is_none() || spliced.inward.is_none();
        spliced.joint.cut(cut);
        self.reset(id, self.rules.cut_code);
        self.remove_spliced(id);
        if elsewhere {
            // The other direction is on another stream of this connection, or of the sibling.
            self.sweep();
            self.tell(Migration::Sweep);
        }
    }

    pub(crate) fn remove_spliced(&mut self, id: StreamId) {
        if let Some(Channel::Spliced(spliced)) = self.channels.remove(&id) {
            self.ended_sockets.push(spliced.token);
            if spliced.outward.is_some_and(|outward| outward.moving) {
                self.forget_move(id);
            }
        }
    }

    /// Both do nothing where the half has ended or the connection is gone.
    pub(crate) fn reset(&mut self, id: StreamId, code: VarInt) {
        let (one_way, ours) = (id.dir() == Dir::Uni, id.initiator() == self.connection.side());
        if !one_way || ours {
            let _ = self.connection.send_stream(id).reset(code);
        }
        if !one_way || !ours {
            let _ = self.connection.recv_stream(id).stop(code);
        }
    }

    /// The connection is gone; what its streams had still to deliver goes on.
    fn lose(&mut self, reason: ConnectionError, now: Instant) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        let goodbye = self.rules.is_goodbye(&reason);
        self.shared.close(reason.clone());
        self.opening.clear();
        self.incoming = None;
        match std::mem::replace(&mut self.waiting, Waiting::Nobody) {
            Waiting::Client(reply) => drop(reply.send(Err(reason.clone()))),
            Waiting::Server(accepted) => {
                let remote = self.connection.remote_address();
                let failed = HandshakeFailed { remote, error: reason.clone() };
                drop(accepted.send(Accepted::Failed(failed)));
            }
            Waiting::Nobody => {}
        }
        self.end_moves();
        let ids: Vec<_> = self.channels.keys().copied().collect();
        for id in ids {
            match self.channels.get_mut(&id) {
                Some(Channel::Held(held)) => {
                    held.receive(self.connection.recv_stream(id));
                    held.hold.fail(ReadError::Lost(reason.clone()));
                    held.hold.stop(Stopped::Lost);
                    self.channels.remove(&id);
                }
                Some(Channel::Spliced(spliced)) => {
                    if goodbye && spliced.outward.as_mut().is_some_and(Outward::acknowledged) {
                        spliced.outward = None;
                    }
                    if spliced.outward.is_some() || spliced.moved_out {
                        self.cut(id, Cut::Lost);
                        continue;
                    }
                    if let Some(inward) = &mut spliced.inward {
                        inward.connection_lost(now);
                        self.arrived.push(id);
                    }
                    self.retire(id);
                }
                Some(Channel::Announced(_) | Channel::Awaiting) => {
                    self.channels.remove(&id);
                }
                None => {}
            }
        }
    }

    /// Ends at once, with nothing said to the peer: a fault, or the loop ends.
    pub(crate) fn abandon(mut self, reason: ConnectionError) {
        self.shared.close(reason.clone());
        if let Waiting::Client(reply) = std::mem::replace(&mut self.waiting, Waiting::Nobody) {
            let _ = reply.send(Err(reason.clone()));
        }
        self.end_moves();
        for (_, channel) in self.channels.drain() {
            match channel {
                Channel::Held(held) => {
                    held.hold.fail(ReadError::Lost(reason.clone()));
                    held.hold.stop(Stopped::Lost);
                }
                Channel::Spliced(spliced) => drop(spliced.joint.cut(Cut::Lost)),
                Channel::Announced(_) | Channel::Awaiting => {}
            }
        }
        self.tell(Migration::Sweep);
    }
}

//! One connection in its loop: what `quinn-proto` says, what its streams' sockets say, what leaves.
//!
//! Runs to completion each time the loop drives it. Streams are given only what the congestion
//! window lets out now, sparse ones first, so that nothing waits inside `quinn-proto`.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use bytes::{Buf, Bytes};
use mio::Token;
use quinn_proto::{
    Connection, ConnectionError, Dir, EndpointEvent, Event, StreamEvent, StreamId, VarInt,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    connection::{Established, Shared},
    endpoint::{Accepted, HandshakeFailed, Rules},
    gate::Gate,
    mailbox::{ConnectionCommand, StreamCommand},
    splice::{SPARSE_BYTES, Sent, Splice},
    stream::{Hold, ReadError, Stopped, Stream, WriteError},
    udp::Udp,
};

/// Trains of packets with bulk data that leave before the loop looks elsewhere.
const TRAINS_PER_TURN: usize = 4;

/// Sends in one turn, whatever they are for.
const SENDS_PER_TURN: usize = 64;

/// Bytes that sparse streams may have in flight beyond the congestion window, all together.
const SPARSE_RESERVE: u64 = 64 << 10;

/// The largest read from a socket.
const READ_BYTES: usize = 64 << 10;

/// What a driver works with: its loop's socket, and a buffer for what is sealed.
pub(crate) struct Outlet<'a> {
    pub(crate) udp: &'a mut Udp,
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

/// A stream that a control task reads and writes.
struct Held {
    hold: Arc<Hold>,
    unwritten: VecDeque<(Bytes, oneshot::Sender<Result<(), WriteError>>)>,
}

enum Lane {
    Held(Held),
    Spliced(Box<Splice>),
}

/// A connection, its streams and their sockets.
pub(crate) struct Driver {
    connection: Connection,
    gate: Gate,
    shared: Arc<Shared>,
    rules: Arc<Rules>,
    waiting: Waiting,
    incoming: Option<mpsc::UnboundedSender<Stream>>,
    lanes: HashMap<StreamId, Lane>,
    /// Streams with something to read.
    arrived: Vec<StreamId>,
    /// Streams whose sockets may have something to send.
    sparse: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    opening: VecDeque<oneshot::Sender<Stream>>,
    /// Tokens of sockets that are closed.
    ended_sockets: Vec<Token>,
    /// When pacing lets more go.
    paced_until: Option<Instant>,
    proved: bool,
    lost: bool,
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
        gate: Gate,
        shared: Arc<Shared>,
        rules: Arc<Rules>,
        waiting: Waiting,
    ) -> Self {
        Self {
            connection,
            gate,
            shared,
            rules,
            waiting,
            incoming: None,
            lanes: HashMap::new(),
            arrived: Vec::new(),
            sparse: VecDeque::new(),
            bulk: VecDeque::new(),
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
        let Some(Lane::Spliced(splice)) = self.lanes.get_mut(&id) else { return };
        match splice.on_ready(event) {
            Ok(()) => {
                if splice.waits_to_write() {
                    self.arrived.push(id);
                }
                self.enqueue(id);
            }
            Err(cut) => self.cut(id, Err(cut)),
        }
    }

    /// What a control task asks for. A socket comes with the token it is registered by.
    pub(crate) fn on_command(
        &mut self,
        command: ConnectionCommand,
        now: Instant,
        register: impl FnOnce(StreamId, &crate::socket::Socket) -> std::io::Result<Token>,
    ) {
        match command {
            ConnectionCommand::Open(reply) => {
                self.opening.push_back(reply);
                self.open();
            }
            ConnectionCommand::Close { code, reason } => self.close(code, reason, now),
            ConnectionCommand::UpdateKeys => self.connection.force_key_update(),
            ConnectionCommand::Stream(id, command) => self.on_stream_command(id, command, register),
        }
    }

    fn on_stream_command(
        &mut self,
        id: StreamId,
        command: StreamCommand,
        register: impl FnOnce(StreamId, &crate::socket::Socket) -> std::io::Result<Token>,
    ) {
        match (command, self.lanes.get_mut(&id)) {
            (StreamCommand::Write { bytes, reply }, Some(Lane::Held(held))) => {
                held.unwritten.push_back((bytes, reply));
                self.write_held(id);
            }
            (StreamCommand::Resume, Some(_)) => self.arrived.push(id),
            (StreamCommand::Splice { socket, delivery, reply }, Some(Lane::Held(held))) => {
                let received = held.hold.take();
                let registered = socket.prepare().and_then(|()| register(id, &socket));
                match registered {
                    Ok(token) => {
                        let splice = Splice::new(socket, token, delivery, reply, received);
                        self.lanes.insert(id, Lane::Spliced(Box::new(splice)));
                        self.enqueue(id);
                        self.arrived.push(id);
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error.into()));
                        self.reset(id, self.rules.cut_code);
                    }
                }
            }
            (StreamCommand::Reset(code), Some(_)) => {
                self.reset(id, code);
                self.end(id, Err(crate::Cut::Lost));
                self.lanes.remove(&id);
            }
            // Replies are dropped, which says that the stream is gone.
            (_, _) => {}
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
    pub(crate) fn drive(&mut self, outlet: &mut Outlet<'_>) -> Turn {
        let now = outlet.now;
        if self.connection.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.connection.handle_timeout(now);
        }
        self.poll_events(now);
        self.deliver(now);
        let mut more = self.send(outlet);
        self.poll_events(now);
        more |= !self.arrived.is_empty();
        self.shared.publish(self.connection.remote_address(), self.connection.stats());
        Turn { more, deadline: self.deadline(now), proved: self.proved, lost: self.lost }
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_over(&self) -> bool {
        self.drained && self.lanes.is_empty()
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let splices = match self.lost {
            true => self.lanes.values().filter_map(Lane::deadline).min(),
            false => None,
        };
        let paced = self.paced_until.filter(|until| *until > now);
        [self.connection.poll_timeout(), paced, splices].into_iter().flatten().min()
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
            StreamEvent::Opened { dir: Dir::Uni } => {}
            StreamEvent::Readable { id } => {
                if self.arrived.last() != Some(&id) {
                    self.arrived.push(id);
                }
            }
            StreamEvent::Writable { id } => match self.lanes.get_mut(&id) {
                Some(Lane::Held(_)) => self.write_held(id),
                Some(Lane::Spliced(splice)) => {
                    splice.unblock();
                    self.enqueue(id);
                }
                None => {}
            },
            StreamEvent::Finished { id } => {
                if let Some(Lane::Spliced(splice)) = self.lanes.get_mut(&id) {
                    splice.acknowledged();
                    self.complete(id);
                }
            }
            StreamEvent::Stopped { id, error_code } => match self.lanes.get_mut(&id) {
                Some(Lane::Held(held)) => {
                    held.hold.stop(Stopped::ByPeer(error_code));
                    for (_, reply) in held.unwritten.drain(..) {
                        let _ = reply.send(Err(WriteError::Stopped(error_code)));
                    }
                }
                Some(Lane::Spliced(_)) => self.cut(id, Err(crate::Cut::Remote(error_code))),
                None => {}
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
        let held = Held { hold: Arc::clone(&hold), unwritten: VecDeque::new() };
        self.lanes.insert(id, Lane::Held(held));
        Stream::new(Arc::clone(&self.shared), id, hold, self.rules.drop_code)
    }

    fn write_held(&mut self, id: StreamId) {
        let Some(Lane::Held(held)) = self.lanes.get_mut(&id) else { return };
        let mut stream = self.connection.send_stream(id);
        while let Some((bytes, _)) = held.unwritten.front_mut() {
            let outcome = match stream.write(bytes) {
                Ok(written) if written < bytes.len() => {
                    bytes.advance(written);
                    continue;
                }
                Ok(_) => Ok(()),
                Err(quinn_proto::WriteError::Blocked) => return,
                Err(quinn_proto::WriteError::Stopped(code)) => Err(WriteError::Stopped(code)),
                Err(quinn_proto::WriteError::ClosedStream) => Err(WriteError::Lost),
            };
            if let Some((_, reply)) = held.unwritten.pop_front() {
                let _ = reply.send(outcome);
            }
        }
    }

    /// Gives what has arrived to whoever it is for.
    fn deliver(&mut self, now: Instant) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for id in arrived.drain(..) {
            match self.lanes.get_mut(&id) {
                Some(Lane::Held(held)) => receive_held(&held.hold, self.connection.recv_stream(id)),
                Some(Lane::Spliced(splice)) => {
                    let delivered = splice.deliver(self.connection.recv_stream(id), now);
                    match delivered {
                        Ok(()) => self.complete(id),
                        Err(cut) => self.cut(id, Err(cut)),
                    }
                }
                None => {}
            }
        }
        // Its capacity serves again.
        if self.arrived.is_empty() {
            self.arrived = arrived;
        }
        if self.lost {
            let overdue = |lane: &Lane| lane.deadline().is_some_and(|deadline| deadline <= now);
            let ids: Vec<_> =
                self.lanes.iter().filter(|(_, lane)| overdue(lane)).map(|(id, _)| *id).collect();
            for id in ids {
                self.cut(id, Err(crate::Cut::Lost));
            }
        }
    }

    fn enqueue(&mut self, id: StreamId) {
        let Some(Lane::Spliced(splice)) = self.lanes.get_mut(&id) else { return };
        if !splice.queued && splice.may_send() {
            splice.queued = true;
            if splice.is_bulk() { &mut self.bulk } else { &mut self.sparse }.push_back(id);
        }
    }

    /// Sends what may be sent; whether there is more that may leave at once.
    fn send(&mut self, outlet: &mut Outlet<'_>) -> bool {
        let now = outlet.now;
        let mut sends = SENDS_PER_TURN;
        let mut trains = TRAINS_PER_TURN;
        self.paced_until = None;
        loop {
            if outlet.udp.is_full() {
                return false;
            }
            self.give_sparse(now);
            let train = self.train(outlet);
            let gave = trains > 0 && self.give_bulk(now, train);
            if !self.transmit(outlet, &mut sends) {
                return !outlet.udp.is_full();
            }
            if !gave {
                return trains == 0 && !self.bulk.is_empty() && self.gate.room(now) >= train as u64;
            }
            trains -= 1;
        }
    }

    /// Stream bytes that one send takes.
    fn train(&self, outlet: &Outlet<'_>) -> usize {
        let mtu = self.connection.current_mtu();
        outlet.udp.train(mtu) * usize::from(mtu)
    }

    /// Sparse streams go first, also where bulk has filled the window.
    fn give_sparse(&mut self, now: Instant) {
        for _ in 0..self.sparse.len() {
            if self.gate.room(now) == 0 && self.gate.excess() >= SPARSE_RESERVE {
                return;
            }
            let Some(id) = self.sparse.pop_front() else { return };
            self.give(id, SPARSE_BYTES);
        }
    }

    /// Gives bulk streams a train's worth; whether anything was given.
    fn give_bulk(&mut self, now: Instant, train: usize) -> bool {
        if self.bulk.is_empty() {
            self.gate.set_held_back(false);
            return false;
        }
        self.gate.set_held_back(true);
        let room = self.gate.room(now);
        // Full trains, or a quarter of a window that holds no more than a few: small ones cost as
        // much as large ones.
        let least = (train as u64).min(self.gate.window() / 4);
        if room < least {
            return false;
        }
        let paced = match self.gate.paced(now, self.connection.rtt(), room.min(train as u64)) {
            Ok(bytes) => bytes as usize,
            Err(until) => {
                self.paced_until = Some(until);
                return false;
            }
        };
        let mut given = 0;
        while given < paced
            && let Some(id) = self.bulk.pop_front()
        {
            given += self.give(id, (paced - given).min(READ_BYTES));
        }
        self.gate.spend(given as u64);
        given > 0
    }

    /// Lets a socket's bytes into its stream; how many.
    fn give(&mut self, id: StreamId, bytes: usize) -> usize {
        let Some(Lane::Spliced(splice)) = self.lanes.get_mut(&id) else { return 0 };
        splice.queued = false;
        match splice.send(&mut self.connection.send_stream(id), bytes) {
            Ok(Sent::Bytes(sent)) => {
                self.enqueue(id);
                sent
            }
            Ok(Sent::Dry(sent)) => sent,
            Err(cut) => {
                self.cut(id, Err(cut));
                0
            }
        }
    }

    /// Sends all that the connection has to say; false where it has to be asked again.
    fn transmit(&mut self, outlet: &mut Outlet<'_>, sends: &mut usize) -> bool {
        loop {
            if outlet.udp.is_full() || *sends == 0 {
                return false;
            }
            let datagrams = outlet.udp.train(self.connection.current_mtu());
            outlet.buffer.clear();
            let transmit = self.connection.poll_transmit(outlet.now, datagrams, outlet.buffer);
            let Some(transmit) = transmit else { return true };
            outlet.udp.send(transmit, outlet.buffer);
            *sends -= 1;
        }
    }

    /// Ends a splice whose directions are both through.
    fn complete(&mut self, id: StreamId) {
        if matches!(self.lanes.get(&id), Some(Lane::Spliced(splice)) if splice.is_complete()) {
            self.end(id, Ok(()));
        }
    }

    /// Cuts a splice short: both the stream and the socket are reset.
    fn cut(&mut self, id: StreamId, outcome: Result<(), crate::Cut>) {
        self.reset(id, self.rules.cut_code);
        self.end(id, outcome);
    }

    fn end(&mut self, id: StreamId, outcome: Result<(), crate::Cut>) {
        if let Some(Lane::Spliced(splice)) = self.lanes.remove(&id) {
            self.ended_sockets.push(splice.token);
            splice.end(outcome);
        }
    }

    /// Both do nothing where the half has ended or the connection is gone.
    fn reset(&mut self, id: StreamId, code: VarInt) {
        let _ = self.connection.send_stream(id).reset(code);
        let _ = self.connection.recv_stream(id).stop(code);
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
        let ids: Vec<_> = self.lanes.keys().copied().collect();
        for id in ids {
            match self.lanes.get_mut(&id) {
                Some(Lane::Held(held)) => {
                    receive_held(&held.hold, self.connection.recv_stream(id));
                    held.hold.fail(ReadError::Lost(reason.clone()));
                    held.hold.stop(Stopped::Lost);
                    self.lanes.remove(&id);
                }
                Some(Lane::Spliced(splice)) => match splice.connection_lost(goodbye, now) {
                    Ok(()) => self.arrived.push(id),
                    Err(cut) => self.end(id, Err(cut)),
                },
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
        for (_, lane) in self.lanes.drain() {
            match lane {
                Lane::Held(held) => {
                    held.hold.fail(ReadError::Lost(reason.clone()));
                    held.hold.stop(Stopped::Lost);
                }
                Lane::Spliced(splice) => splice.end(Err(crate::Cut::Lost)),
            }
        }
    }
}

impl Lane {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Held(_) => None,
            Self::Spliced(splice) => splice.deadline(),
        }
    }
}

/// Passes on what has arrived, as far as the reader has room for it.
fn receive_held(hold: &Hold, mut stream: quinn_proto::RecvStream<'_>) {
    let Ok(mut chunks) = stream.read(true) else { return };
    loop {
        match chunks.next(hold.room()) {
            Ok(Some(chunk)) if chunk.bytes.is_empty() => return,
            Ok(Some(chunk)) => hold.push(&chunk.bytes),
            Ok(None) => return hold.finish(),
            Err(quinn_proto::ReadError::Reset(code)) => return hold.fail(ReadError::Reset(code)),
            Err(quinn_proto::ReadError::Blocked) => return,
        }
    }
}

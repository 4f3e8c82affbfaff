//! The loop: one thread, one UDP socket, its connections, and their sockets.
//!
//! Each round takes what the system has ready, gives datagrams to their connections, drives those
//! that have something to do, and sleeps when none has. A panic in one connection ends that
//! connection; the others go on.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mio::{Events, Poll, Registry, Token};
use quinn_proto::{
    ClientConfig, ConnectError, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, EndpointEvent, Incoming, ServerConfig, StreamId, TransportConfig,
    congestion::ControllerFactory,
};
use quinn_udp::RecvMeta;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error};

use crate::{
    admission::{Handshakes, Refusal, Verdict},
    allowance::Allowance,
    cid::{Lane, LoopIds, loop_of},
    connection::{Attempt, Opened, Shared},
    datagrams::Datagrams,
    driver::{Driver, Limits, Outlet, Waiting},
    endpoint::{Accepted, Counters, MakeTransport, Rules, Streams, Windows},
    gate::Gate,
    mailbox::{Command, ConnectionCommand, Inbox, Key, Mailbox},
    route,
    spin::{Spin, SpinShare},
    splice::Registrar,
    udp::Received,
    windows::{Budget, ReceiveWindow},
};

const UDP: Token = Token(0);
const WAKER: Token = Token(1);
/// Tokens of sockets begin here and are never used again.
const FIRST_SOCKET: usize = 2;

/// Events of the system taken at once.
const EVENTS: usize = 256;

/// Batches received before connections are driven.
const BATCHES_PER_ROUND: usize = 16;

/// A loop without a timer looks after this long all the same.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// What a loop is made of.
pub(crate) struct Parts {
    pub(crate) number: u8,
    pub(crate) config: EndpointConfig,
    pub(crate) server: Option<ServerConfig>,
    pub(crate) transport: MakeTransport,
    pub(crate) streams: Streams,
    /// By lane.
    pub(crate) windows: [Windows; 2],
    pub(crate) budget: Arc<Budget>,
    pub(crate) congestion: Arc<dyn ControllerFactory + Send + Sync>,
    pub(crate) flight_max: u64,
    pub(crate) connections_max: usize,
    pub(crate) rules: Arc<Rules>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) accepted: mpsc::UnboundedSender<Accepted>,
    pub(crate) spin: SpinShare,
}

/// A connection and what the loop knows of it.
struct Slot {
    driver: Driver,
    key: Key,
    lane: Lane,
    /// Whether it counts among the clients that have proved a key.
    counted: bool,
    /// In the list of those to drive.
    dirty: bool,
    /// The earliest of its entries among the timers.
    deadline: Option<Instant>,
    /// Whether the endpoint still routes datagrams to it.
    routed: bool,
}

pub(crate) struct EventLoop<U> {
    poll: Poll,
    /// A clone is a descriptor, so that all sockets share this one.
    registry: Arc<Registry>,
    inbox: Inbox,
    mailbox: Mailbox,
    peers: Vec<Mailbox>,
    number: u8,
    udp: U,
    endpoint: Endpoint,
    server: Option<ServerConfig>,
    transport: MakeTransport,
    streams: Streams,
    windows: [Windows; 2],
    budget: Arc<Budget>,
    congestion: Arc<dyn ControllerFactory + Send + Sync>,
    flight_max: u64,
    connections_max: usize,
    rules: Arc<Rules>,
    counters: Arc<Counters>,
    accepted: mpsc::UnboundedSender<Accepted>,
    handshakes: Handshakes<Key>,
    refusing: bool,

    slots: FxHashMap<Key, Slot>,
    /// By `quinn-proto`'s handles, which are used again.
    routes: FxHashMap<usize, Key>,
    next_serial: u64,
    dirty: Vec<Key>,
    timers: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    sockets: FxHashMap<Token, (Key, StreamId)>,
    next_token: usize,
    send_buffer: Vec<u8>,
    spin: Spin,
    stop: bool,
}

impl<U: Datagrams> EventLoop<U> {
    pub(crate) fn new(parts: Parts, udp: U, now: Instant) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = Arc::new(poll.registry().try_clone()?);
        let waker = mio::Waker::new(&registry, WAKER)?;
        let (mailbox, inbox) = Mailbox::new(waker);
        udp.register(&registry, UDP)?;
        let mut config = parts.config;
        let number = parts.number;
        config.cid_generator(move || Box::new(LoopIds { number }));
        let may_probe = !udp.may_fragment();
        let endpoint = Endpoint::new(Arc::new(config), None, may_probe, None);
        let mut this = Self {
            poll,
            registry,
            inbox,
            mailbox,
            peers: Vec::new(),
            number,
            udp,
            endpoint,
            server: None,
            transport: parts.transport,
            streams: parts.streams,
            windows: parts.windows,
            budget: parts.budget,
            congestion: parts.congestion,
            flight_max: parts.flight_max,
            connections_max: parts.connections_max,
            rules: parts.rules,
            counters: parts.counters,
            accepted: parts.accepted,
            handshakes: Handshakes::new(),
            refusing: false,
            slots: FxHashMap::default(),
            routes: FxHashMap::default(),
            next_serial: 0,
            dirty: Vec::new(),
            timers: BinaryHeap::new(),
            sockets: FxHashMap::default(),
            next_token: FIRST_SOCKET,
            send_buffer: Vec::new(),
            spin: Spin::new(parts.spin, now),
            stop: false,
        };
        this.set_server(parts.server);
        Ok(this)
    }

    pub(crate) fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// The mailboxes of all loops of the endpoint, by number.
    pub(crate) fn set_peers(&mut self, peers: Vec<Mailbox>) {
        self.peers = peers;
    }

    pub(crate) fn run(mut self) {
        // What is outside of any connection must not leave handles waiting either.
        if catch_unwind(AssertUnwindSafe(|| self.rounds())).is_err() {
            error!("an event loop failed; its connections are closed");
        }
        for (_, slot) in self.slots.drain() {
            let abandon = || slot.driver.abandon(ConnectionError::LocallyClosed);
            let _ = catch_unwind(AssertUnwindSafe(abandon));
            self.counters.closed();
        }
    }

    fn rounds(&mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while !self.stop {
            let timeout = self.timeout();
            if let Err(error) = self.poll(&mut events, timeout) {
                error!(%error, "cannot wait for events");
                return;
            }
            self.round(&events, Instant::now());
        }
    }

    /// Takes what the system has ready, and drives the connections that have something to do.
    pub(crate) fn round(&mut self, events: &Events, now: Instant) {
        let mut worked = !events.is_empty();
        for event in events {
            match event.token() {
                UDP => {
                    if event.is_writable() {
                        self.on_writable();
                    }
                }
                WAKER => {}
                token => self.on_socket(token, event),
            }
        }
        self.commands(now);
        worked |= self.receive(now);
        self.expire(now);
        self.drive(now);
        if worked {
            self.spin.worked();
        }
    }

    /// How long to wait for the system.
    fn timeout(&mut self) -> Option<Duration> {
        if !self.dirty.is_empty() && !self.udp.is_full() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        if !self.slots.is_empty() && self.spin.again(now) {
            thread::yield_now();
            return Some(Duration::ZERO);
        }
        self.counters.spun(self.spin.take_spent());
        let wait = self.deadline().map_or(SLEEP_MAX, |at| at.saturating_duration_since(now));
        Some(wait.min(SLEEP_MAX))
    }

    /// Whether a round has something to do that nobody reports.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.dirty.is_empty() || self.deadline().is_some_and(|at| at <= now)
    }

    pub(crate) fn udp(&mut self) -> &mut U {
        &mut self.udp
    }

    /// Waits for the system.
    pub(crate) fn poll(&mut self, events: &mut Events, wait: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    /// When something is due next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        [timer, self.handshakes.deadline()].into_iter().flatten().min()
    }

    /// The UDP socket has room: what waited for it goes on.
    fn on_writable(&mut self) {
        self.udp.flush();
    }

    fn on_socket(&mut self, token: Token, event: &mio::event::Event) {
        let Some(&(key, id)) = self.sockets.get(&token) else { return };
        self.guarded(key, |slot| slot.driver.on_socket(id, event));
    }

    fn commands(&mut self, now: Instant) {
        let commands: Vec<_> = self.inbox.take().collect();
        for command in commands {
            match command {
                Command::Connect { config, address, server_name, lane, reply } => {
                    self.connect(*config, address, (&server_name, lane), reply, now);
                }
                Command::SetServerConfig(config) => {
                    self.set_server(Some(ServerConfig::clone(&config)));
                }
                Command::Refuse => self.refusing = true,
                Command::CloseAll { code, reason } => {
                    self.refusing = true;
                    let keys: Vec<_> = self.slots.keys().copied().collect();
                    for key in keys {
                        let reason = reason.clone();
                        self.guarded(key, |slot| slot.driver.close(code, reason, now));
                    }
                }
                Command::Stop => self.stop = true,
                Command::Datagram { received_at, bytes, meta } => {
                    self.datagram(received_at, bytes, &meta);
                }
                Command::Connection(key, command) => self.on_command(key, command, now),
            }
        }
    }

    fn on_command(&mut self, key: Key, command: ConnectionCommand, now: Instant) {
        let Self { registry, sockets, next_token, slots, .. } = self;
        let Some(slot) = slots.get_mut(&key) else { return command.abandon() };
        let mut registrar = Registrar { key, registry, sockets, next_token };
        let work = || slot.driver.on_command(command, &mut registrar, now);
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(()) => self.mark(key),
            Err(_) => self.fault(key),
        }
    }

    fn set_server(&mut self, config: Option<ServerConfig>) {
        self.server = config;
        self.endpoint.set_server_config(self.server.clone().map(Arc::new));
    }

    /// The configuration of one connection to `peer`, and what bounds it.
    fn limits(&self, peer: SocketAddr, lane: Lane, now: Instant) -> (Limits, Arc<TransportConfig>) {
        let (gate, factory) = Gate::new(Arc::clone(&self.congestion), self.flight_max, now);
        let windows = self.windows[lane as usize];
        let Streams { bidirectional, unidirectional } = self.streams;
        // By `Dir`.
        let allowances = [bidirectional, unidirectional].map(Allowance::new);
        let mut transport = (self.transport)(route::payload_max(peer));
        transport
            .congestion_controller_factory(factory)
            .stream_receive_window(windows.stream.into())
            .receive_window(windows.connection.into())
            .max_concurrent_bidi_streams(allowances[Dir::Bi as usize].current())
            .max_concurrent_uni_streams(allowances[Dir::Uni as usize].current());
        let window = ReceiveWindow::new(windows, Arc::clone(&self.budget));
        (Limits { gate, window, allowances }, Arc::new(transport))
    }

    fn connect(
        &mut self,
        mut config: ClientConfig,
        address: SocketAddr,
        (server_name, lane): (&str, Lane),
        reply: oneshot::Sender<Result<Opened, ConnectError>>,
        now: Instant,
    ) {
        let (limits, transport) = self.limits(address, lane, now);
        config.transport_config(transport);
        match self.endpoint.connect(now, config, address, server_name) {
            Ok((handle, connection)) => {
                let (established, wait) = oneshot::channel();
                let waiting = Waiting::Client(established);
                let shared = self.add(handle, connection, (limits, lane), waiting, address);
                let attempt = Attempt(Some(shared));
                // Where nobody waits the attempt is dropped, which closes it.
                let _ = reply.send(Ok(Opened { attempt, established: wait }));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn add(
        &mut self,
        handle: ConnectionHandle,
        connection: quinn_proto::Connection,
        (limits, lane): (Limits, Lane),
        waiting: Waiting,
        remote: SocketAddr,
    ) -> Arc<Shared> {
        let key = Key { handle: handle.0, serial: self.next_serial };
        self.next_serial += 1;
        let shared = Arc::new(Shared::new(key, self.mailbox.clone(), remote));
        let rules = Arc::clone(&self.rules);
        let driver = Driver::new(connection, limits, Arc::clone(&shared), rules, waiting);
        let slot =
            Slot { driver, key, lane, counted: false, dirty: false, deadline: None, routed: true };
        self.slots.insert(key, slot);
        self.routes.insert(handle.0, key);
        self.counters.opened();
        self.mark(key);
        shared
    }

    /// Receives up to a round's batches; whether there were any.
    fn receive(&mut self, now: Instant) -> bool {
        for batch in 0..BATCHES_PER_ROUND {
            let Some(mut received) = self.udp.receive() else { return batch > 0 };
            while let Some(datagram) = received.next() {
                let Received { meta, .. } = &received;
                match loop_of(&datagram) {
                    Some(number) if number != self.number => {
                        self.hand_over(number, datagram, meta, now)
                    }
                    _ => {
                        let meta = *meta;
                        self.datagram(now, datagram, &meta);
                    }
                }
            }
        }
        true
    }

    /// Gives a datagram to the loop whose connection it belongs to.
    fn hand_over(&mut self, number: u8, bytes: BytesMut, meta: &RecvMeta, now: Instant) {
        match self.peers.get(usize::from(number)) {
            Some(peer) => peer.hand_over(now, bytes, *meta),
            // Of a daemon that was here before, or made up: answered as unknown.
            None => self.datagram(now, bytes, meta),
        }
    }

    fn datagram(&mut self, now: Instant, bytes: BytesMut, meta: &RecvMeta) {
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        self.send_buffer.clear();
        let event =
            self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, bytes, &mut self.send_buffer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(&key) = self.routes.get(&handle.0) else { return };
                self.guarded(key, |slot| slot.driver.on_event(event));
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming(incoming, now),
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit),
            None => {}
        }
    }

    fn respond(&mut self, transmit: quinn_proto::Transmit) {
        if !self.udp.is_full() {
            self.udp.send(transmit, &self.send_buffer);
        }
    }

    fn incoming(&mut self, incoming: Incoming, now: Instant) {
        // What the owner set before this client spoke applies to it.
        self.commands(now);
        let remote = incoming.remote_address();
        self.send_buffer.clear();
        if !self.udp.may_send() {
            // It could not be answered, and would be a connection more to wait for.
            return self.endpoint.ignore(incoming);
        }
        let lane = Lane::of(incoming.orig_dst_cid());
        let full = self.counters.clients(lane) >= self.connections_max;
        let displaced = self.handshakes.displaced_by(remote.ip());
        if self.refusing || full {
            if !self.refusing {
                self.refused(remote, Refusal::Full);
            }
            let transmit = self.endpoint.refuse(incoming, &mut self.send_buffer);
            return self.respond(transmit);
        }
        match self.handshakes.judge(remote.ip(), incoming.remote_address_validated(), now) {
            Verdict::Retry if incoming.may_retry() => {
                if let Ok(transmit) = self.endpoint.retry(incoming, &mut self.send_buffer) {
                    self.respond(transmit);
                }
                return;
            }
            Verdict::Wait => {
                self.refused(remote, Refusal::Crowded);
                return self.endpoint.ignore(incoming);
            }
            Verdict::Retry | Verdict::Accept => {}
        }
        if let Some(key) = displaced {
            self.give_up(key, Refusal::Displaced);
        }
        let Some(mut config) = self.server.clone() else { return self.endpoint.ignore(incoming) };
        let (limits, transport) = self.limits(remote, lane, now);
        config.transport_config(transport);
        self.send_buffer.clear();
        let accepted =
            self.endpoint.accept(incoming, now, &mut self.send_buffer, Some(Arc::new(config)));
        match accepted {
            Ok((handle, connection)) => {
                let waiting = Waiting::Server(self.accepted.clone());
                let shared = self.add(handle, connection, (limits, lane), waiting, remote);
                self.handshakes.add(shared.key, remote, now);
            }
            Err(error) => {
                debug!(%remote, error = %error.cause, "not accepted");
                if let Some(transmit) = error.response {
                    self.respond(transmit);
                }
            }
        }
    }

    fn refused(&self, remote: SocketAddr, refusal: Refusal) {
        self.counters.refused(refusal);
        let _ = self.accepted.send(Accepted::Refused(remote, refusal));
    }

    /// Forgets a handshake that has proved nothing, with nothing said to whoever it was.
    fn give_up(&mut self, key: Key, refusal: Refusal) {
        self.handshakes.remove(key, false);
        if let Some(slot) = self.slots.get(&key) {
            let remote = slot.driver.shared().remote();
            self.refused(remote, refusal);
            self.remove(key, ConnectionError::TimedOut);
        }
    }

    /// Marks what is due.
    fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((at, serial, handle))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let key = Key { handle, serial };
            if let Some(slot) = self.slots.get_mut(&key)
                && slot.deadline == Some(at)
            {
                slot.deadline = None;
                self.mark(key);
            }
        }
        while let Some(key) = self.handshakes.overdue(now) {
            self.give_up(key, Refusal::TimedOut);
        }
    }

    /// Drives the connections that have something to do.
    fn drive(&mut self, now: Instant) {
        let mut keys = std::mem::take(&mut self.dirty);
        for key in keys.drain(..) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.dirty = false;
                if catch_unwind(AssertUnwindSafe(|| self.drive_one(key, now))).is_err() {
                    self.fault(key);
                }
            }
        }
        if self.dirty.is_empty() {
            self.dirty = keys;
        }
    }

    fn drive_one(&mut self, key: Key, now: Instant) {
        let Self { registry, sockets, next_token, slots, udp, send_buffer, .. } = self;
        let Some(slot) = slots.get_mut(&key) else { return };
        let mut registrar = Registrar { key, registry, sockets, next_token };
        let mut outlet = Outlet { udp, buffer: send_buffer, now };
        let mut turn = slot.driver.drive(&mut outlet, &mut registrar);
        // Answers of the endpoint may be more to send.
        let mut answered = false;
        while let Some(event) = slot.driver.endpoint_event() {
            if event.is_drained() {
                slot.routed = false;
                self.routes.remove(&key.handle);
            }
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(key.handle), event) {
                slot.driver.on_event(event);
                answered = true;
            }
        }
        turn.more |= answered;
        for token in slot.driver.ended_sockets() {
            self.sockets.remove(&token);
        }
        let over = slot.driver.is_over();
        if turn.lost && !turn.proved {
            self.handshakes.remove(key, false);
        }
        if turn.proved && self.handshakes.remove(key, true) {
            slot.counted = true;
            self.counters.proved(slot.lane);
        }
        if over {
            if let Some(slot) = self.slots.remove(&key) {
                self.uncount(&slot);
            }
            return;
        }
        if turn.more || self.udp.is_full() {
            self.mark(key);
        }
        if let Some(at) = turn.deadline {
            self.set_timer(key, at);
        }
    }

    fn uncount(&self, slot: &Slot) {
        if slot.counted {
            self.counters.left(slot.lane);
        }
        self.counters.closed();
    }

    fn set_timer(&mut self, key: Key, at: Instant) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        // An earlier entry leads here again.
        if slot.deadline.is_none_or(|earlier| at < earlier) {
            slot.deadline = Some(at);
            self.timers.push(Reverse((at, key.serial, key.handle)));
        }
    }

    fn mark(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(&key)
            && !slot.dirty
        {
            slot.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Works on a connection; a panic ends it and no other.
    fn guarded(&mut self, key: Key, work: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        match catch_unwind(AssertUnwindSafe(|| work(slot))) {
            Ok(()) => self.mark(key),
            Err(_) => self.fault(key),
        }
    }

    /// A connection has panicked: nothing more is asked of it.
    fn fault(&mut self, key: Key) {
        let remote = self.slots.get(&key).map(|slot| slot.driver.shared().remote());
        error!(?remote, "internal error: this connection is closed, others go on");
        self.remove(key, ConnectionError::LocallyClosed);
    }

    fn remove(&mut self, key: Key, reason: ConnectionError) {
        self.handshakes.remove(key, false);
        let Some(slot) = self.slots.remove(&key) else { return };
        if slot.routed {
            self.routes.remove(&key.handle);
            let handle = ConnectionHandle(slot.key.handle);
            let _ = self.endpoint.handle_event(handle, EndpointEvent::drained());
        }
        self.uncount(&slot);
        self.sockets.retain(|_, (of, _)| *of != key);
        let _ = catch_unwind(AssertUnwindSafe(|| slot.driver.abandon(reason)));
    }
}

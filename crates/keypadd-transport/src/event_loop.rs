//! Runs one thread with one UDP socket, its QUIC connections, and their TCP and unix sockets.
//!
//! Each round polls the system, passes datagrams to their connections, drives those with pending
//! work, and sleeps if there is none. A panic in one connection ends only that connection.

mod connections;
mod datagram;
mod handshakes;
mod slot;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mio::{Events, Poll, Registry, Token};
use quinn_proto::{
    ConnectionError, ConnectionEvent, Endpoint, EndpointConfig, Incoming, ServerConfig,
};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tracing::error;

use self::slot::Slot;
use crate::{
    admission::Handshakes,
    backlog::Backlog,
    cid::LoopIds,
    counters::Counters,
    datagrams::Datagrams,
    handling_cost::CostMeter,
    handshake::Accepted,
    mailbox::{Command, ConnectionCommand, Inbox, Mailbox},
    newcomers::Newcomers,
    settings::Plan,
    spin::Spin,
    splice::{Key, Owner, Registrar},
    windows::Budget,
};

const UDP: Token = Token(0);
const WAKER: Token = Token(1);
/// First token of sockets; tokens are never reused.
const FIRST_SOCKET: usize = 2;

/// Events to take from the system at once: most of those of a peer's thousand streams each in several
/// sessions, since everybody else's wait behind them.
const EVENTS: usize = 4096;

/// Longest sleep of a loop without a timer.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// What the loops of an endpoint share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) plan: Arc<Plan>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) accepted: mpsc::UnboundedSender<Accepted>,
}

/// What limits how much a connection takes from the others of its loop.
pub(crate) struct Clocks {
    /// Measures what its datagrams cost.
    pub(crate) costs: CostMeter,
    /// Times what it handles and delivers in a round.
    pub(crate) shares: fn() -> Instant,
}

pub(crate) struct EventLoop<U> {
    poll: Poll,
    /// Shared by all sockets: a clone would cost a descriptor.
    registry: Arc<Registry>,
    inbox: Inbox,
    mailbox: Mailbox,
    peers: Vec<Mailbox>,
    number: u8,
    udp: U,
    endpoint: Endpoint,
    server: Option<ServerConfig>,
    plan: Arc<Plan>,
    budget: Arc<Budget>,
    /// The longest datagram that peers are told to send.
    datagram_bytes_max: usize,
    counters: Arc<Counters>,
    accepted: mpsc::UnboundedSender<Accepted>,
    handshakes: Handshakes<Key>,
    /// Connections that have ended and wait for late packets, oldest first.
    closing: VecDeque<Key>,
    refusing: bool,
    /// Whether another process reads incoming datagrams.
    suspended: bool,

    /// Boxed: a table of slots is up to half empty, and moves when it grows.
    slots: FxHashMap<Key, Box<Slot>>,
    /// By `quinn-proto`'s handles, which are reused.
    routes: FxHashMap<usize, Key>,
    next_serial: u64,
    dirty: Vec<Key>,
    timers: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    sockets: FxHashMap<Token, (Key, Owner)>,
    next_token: usize,
    send_buffer: Vec<u8>,
    backlog: Backlog<ConnectionEvent>,
    /// Datagrams of clients that have not proved a key yet, and clients whose handshakes have not begun.
    strangers: Backlog<ConnectionEvent>,
    newcomers: Newcomers<Incoming>,
    /// Rounds so far, and connections whose datagrams this one has handled.
    round: u64,
    handling: u32,
    /// Bulk data that its connections have carried in this round, in bytes.
    bulk_bytes: usize,
    spin: Spin,
    /// `None` in tests without a clock.
    clocks: Option<Clocks>,
    stop: bool,
}

impl<U: Datagrams> EventLoop<U> {
    /// A loop that reads its socket and refuses clients.
    ///
    /// # Errors
    /// The system's error about polling.
    pub(crate) fn new(
        ids: LoopIds,
        mut config: EndpointConfig,
        shared: Shared,
        mut udp: U,
        spin: Spin,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = Arc::new(poll.registry().try_clone()?);
        let waker = mio::Waker::new(&registry, WAKER)?;
        let (mailbox, inbox) = Mailbox::new(waker);
        udp.register(&registry, UDP)?;
        config.cid_generator(move || Box::new(ids));
        let datagram_bytes_max = usize::try_from(config.get_max_udp_payload_size());
        let may_probe = !udp.may_fragment();
        let endpoint = Endpoint::new(Arc::new(config), None, may_probe, None);
        Ok(Self {
            poll,
            registry,
            inbox,
            mailbox,
            peers: Vec::new(),
            number: ids.number,
            udp,
            endpoint,
            server: None,
            plan: shared.plan,
            budget: shared.budget,
            datagram_bytes_max: datagram_bytes_max.unwrap_or(usize::MAX),
            counters: shared.counters,
            accepted: shared.accepted,
            handshakes: Handshakes::new(),
            closing: VecDeque::new(),
            refusing: false,
            suspended: false,
            slots: FxHashMap::default(),
            routes: FxHashMap::default(),
            next_serial: 0,
            dirty: Vec::new(),
            timers: BinaryHeap::new(),
            sockets: FxHashMap::default(),
            next_token: FIRST_SOCKET,
            send_buffer: Vec::new(),
            backlog: Backlog::new(),
            strangers: Backlog::new(),
            newcomers: Newcomers::new(),
            round: 0,
            handling: 0,
            bulk_bytes: 0,
            spin,
            clocks: None,
            stop: false,
        })
    }

    pub(crate) fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// Sets the mailboxes of all loops of the endpoint, by number.
    pub(crate) fn set_peers(&mut self, peers: Vec<Mailbox>) {
        self.peers = peers;
    }

    /// Whether another process reads incoming datagrams, from now on.
    pub(crate) fn suspend(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// Limits from now on what a connection takes from the others.
    pub(crate) fn use_clocks(&mut self, clocks: Clocks) {
        self.clocks = Some(clocks);
    }

    /// The clock of its shares of a round.
    fn clock(&self) -> Option<fn() -> Instant> {
        self.clocks.as_ref().map(|clocks| clocks.shares)
    }

    pub(crate) fn run(mut self) {
        self.use_clocks(Clocks { costs: CostMeter::of_this_thread(), shares: Instant::now });
        // A panic outside of any connection must not leave handles waiting.
        if catch_unwind(AssertUnwindSafe(|| self.rounds())).is_err() {
            error!("an event loop failed; closing its connections");
        }
        for (_, slot) in self.slots.drain() {
            let Slot { driver, awaited: _awaited, .. } = *slot;
            let abandon = || driver.abandon(ConnectionError::LocallyClosed);
            let _ = catch_unwind(AssertUnwindSafe(abandon));
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

    /// Handles the system's events, and drives the connections with pending work.
    pub(crate) fn round(&mut self, events: &Events, now: Instant) {
        self.begin_epoch();
        let mut worked = !events.is_empty();
        let mut taken = 0;
        for event in events {
            taken += 1;
            match event.token() {
                UDP => {
                    if event.is_readable() || event.is_error() {
                        self.udp.on_readable();
                    }
                    if event.is_writable() {
                        self.on_writable();
                    }
                }
                WAKER => {}
                token => self.on_socket(token, event, now),
            }
        }
        // The UDP socket's event may be among those that are left.
        if taken >= EVENTS {
            self.udp.on_readable();
        }
        self.commands(now);
        let received_at = self.receive(now);
        worked |= received_at.is_some();
        let now = received_at.unwrap_or(now);
        self.expire(now);
        self.drive(now);
        self.shake_hands(now);
        if worked {
            self.spin.worked(now);
        }
        if self.spin.carried_bulk(std::mem::take(&mut self.bulk_bytes), now) {
            self.counters.note_bulk(now);
        }
    }

    /// How long to wait for the system.
    fn timeout(&mut self) -> Option<Duration> {
        if self.has_received()
            || self.has_strangers()
            || (!self.dirty.is_empty() && !self.udp.is_full())
        {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let loaded = self.counters.is_loaded(now);
        if !self.slots.is_empty() && self.spin.again(now, loaded) {
            thread::yield_now();
            return Some(Duration::ZERO);
        }
        self.counters.add_polling(self.spin.take_spent());
        let wait = self.deadline().map_or(SLEEP_MAX, |at| at.saturating_duration_since(now));
        Some(wait.min(SLEEP_MAX))
    }

    /// Whether this loop has work that no event will report.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.has_received()
            || self.has_strangers()
            || !self.dirty.is_empty()
            || self.deadline().is_some_and(|at| at <= now)
    }

    /// Whether datagrams wait that this loop may read, or has read.
    fn has_received(&self) -> bool {
        !self.backlog.is_empty() || (!self.suspended && self.udp.has_unread())
    }

    /// Whether clients wait for a part of their handshakes.
    fn has_strangers(&self) -> bool {
        !self.strangers.is_empty() || !self.newcomers.is_empty()
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

    /// When the next work is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        [timer, self.handshakes.deadline()].into_iter().flatten().min()
    }

    /// The UDP socket has room: continue what waited for it.
    fn on_writable(&mut self) {
        self.udp.flush();
    }

    fn on_socket(&mut self, token: Token, event: &mio::event::Event, now: Instant) {
        let Some(&(key, owner)) = self.sockets.get(&token) else { return };
        self.guarded(key, |slot| slot.driver.on_socket(owner, event, now));
    }

    fn commands(&mut self, now: Instant) {
        let commands: Vec<_> = self.inbox.take().collect();
        for command in commands {
            match command {
                Command::Connect { dial, reply } => self.connect(*dial, reply, now),
                Command::SetServerConfig(config) => {
                    self.set_server(Some(ServerConfig::clone(&config)));
                }
                Command::Refuse => self.refusing = true,
                Command::Suspend(suspended) => self.suspend(suspended),
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
                    self.lone_datagram(received_at, bytes, &meta);
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
}

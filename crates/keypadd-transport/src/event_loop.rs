//! Runs one thread with one UDP socket, its QUIC connections, and their TCP and unix sockets.
//!
//! Each round polls the system, passes datagrams to their connections, drives those with pending
//! work, and sleeps if there is none. A panic in one connection ends only that connection. The
//! parts of a loop do not know each other: what takes several is a step, in `datagram`, `drive` or
//! `handshakes`.

mod admission_control;
mod connection_limits;
mod connections;
mod datagram;
mod drive;
mod handshakes;
mod loop_io;
mod slot;

use std::{
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mio::{Events, event::Event};
use quinn_proto::{
    ConnectionError, ConnectionEvent, Endpoint, EndpointConfig, Incoming, ServerConfig,
};
use tokio::sync::mpsc;
use tracing::error;

use self::{
    admission_control::AdmissionControl,
    connections::Connections,
    drive::abandon,
    loop_io::{LoopIo, UDP, WAKER},
};
use crate::{
    cid::LoopIds,
    counters::Counters,
    datagrams::Datagrams,
    handshake::{Accepted, Refusal},
    intake::{Clocks, Intake, handling_cost::CostMeter},
    mailbox::{Command, ConnectionCommand, Inbox, Mailbox},
    settings::{MemoryBudgets, Plan},
    spin::{Spin, Work},
    splice::Key,
    token_key::TokenKey,
};

/// Events to take from the system at once: most of those of a peer's thousand streams each in
/// several sessions, since everybody else's wait behind them.
const EVENTS: usize = 4096;

/// Longest sleep of a loop without a timer.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// What the loops of an endpoint share.
#[derive(Clone)]
pub(crate) struct EndpointShared {
    pub(crate) plan: Arc<Plan>,
    pub(crate) memory: MemoryBudgets,
    pub(crate) counters: Arc<Counters>,
    pub(crate) accepted: mpsc::UnboundedSender<Accepted>,
    pub(crate) token_key: Arc<TokenKey>,
}

impl EndpointShared {
    /// Counts and reports a client that was refused.
    fn refused(&self, remote: SocketAddr, refusal: Refusal) {
        self.counters.refused(refusal);
        let _ = self.accepted.send(Accepted::Refused(remote, refusal));
    }
}

pub(crate) struct EventLoop<U> {
    shared: EndpointShared,
    io: LoopIo<U>,
    inbox: Inbox,
    mailbox: Mailbox,
    /// The mailboxes of all loops of the endpoint, by number.
    peers: Vec<Mailbox>,
    ids: LoopIds,
    /// Routes datagrams to connections, and begins handshakes.
    endpoint: Endpoint,
    admission: AdmissionControl,
    connections: Connections,
    intake: Intake<ConnectionEvent, Incoming>,
    spin: Spin,
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
        shared: EndpointShared,
        udp: U,
        spin: Spin,
    ) -> io::Result<Self> {
        config.cid_generator(move || Box::new(ids));
        let may_probe = !udp.may_fragment();
        let (io, waker) = LoopIo::new(udp, config.get_max_udp_payload_size())?;
        let (mailbox, inbox) = Mailbox::new(waker);
        let intake = Intake::new(shared.plan.of_loop.waiting_bytes);
        let admission = AdmissionControl::new(shared.plan.of_loop.handshakes);
        Ok(Self {
            shared,
            io,
            inbox,
            mailbox,
            peers: Vec::new(),
            ids,
            endpoint: Endpoint::new(Arc::new(config), None, may_probe, None),
            admission,
            connections: Connections::new(),
            intake,
            spin,
            stop: false,
        })
    }

    pub(crate) fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    pub(crate) fn set_peers(&mut self, peers: Vec<Mailbox>) {
        self.peers = peers;
    }

    /// Whether another process reads incoming datagrams, from now on.
    pub(crate) fn suspend(&mut self, suspended: bool) {
        self.io.suspended = suspended;
    }

    /// Limits from now on what a connection takes from the others.
    pub(crate) fn use_clocks(&mut self, clocks: Clocks) {
        self.intake.clocks = Some(clocks);
    }

    pub(crate) fn run(mut self) {
        self.use_clocks(Clocks { costs: CostMeter::of_this_thread(), shares: Instant::now });
        // A panic outside of any connection must not leave handles waiting.
        if catch_unwind(AssertUnwindSafe(|| self.rounds())).is_err() {
            error!("an event loop failed; closing its connections");
        }
        for slot in self.connections.drain() {
            abandon(slot, ConnectionError::LocallyClosed);
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
        self.on_events(events, now);
        self.commands(now);
        let received_at = self.receive(now);
        let work = match received_at {
            Some(_) => Some(Work::FromPeers),
            None => (!events.is_empty()).then_some(Work::FromHere),
        };
        let now = received_at.unwrap_or(now);
        self.expire(now);
        let bulk_bytes = self.drive(now);
        self.shake_hands(now);
        if let Some(work) = work {
            self.spin.worked(work, now);
        }
        if self.spin.carried_bulk(bulk_bytes, now) {
            self.shared.counters.note_bulk(now);
        }
    }

    /// How long to wait for the system.
    fn timeout(&mut self) -> Option<Duration> {
        if self.has_received()
            || self.intake.has_strangers()
            || (self.connections.has_marked() && !self.io.udp.is_full())
        {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let loaded = self.shared.counters.is_loaded(now);
        if !self.connections.is_empty() && self.spin.again(now, loaded) {
            thread::yield_now();
            return Some(Duration::ZERO);
        }
        self.shared.counters.add_polling(self.spin.take_spent());
        let wait = self.deadline().map_or(SLEEP_MAX, |at| at.saturating_duration_since(now));
        Some(wait.min(SLEEP_MAX))
    }

    /// Whether this loop has work that no event will report.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.has_received()
            || self.intake.has_strangers()
            || self.connections.has_marked()
            || self.deadline().is_some_and(|at| at <= now)
    }

    /// Whether datagrams wait that this loop may read, or has read.
    fn has_received(&self) -> bool {
        !self.intake.backlog.is_empty() || self.io.has_unread()
    }

    pub(crate) fn udp(&mut self) -> &mut U {
        &mut self.io.udp
    }

    /// Waits for the system.
    pub(crate) fn poll(&mut self, events: &mut Events, wait: Option<Duration>) -> io::Result<()> {
        self.io.poll(events, wait)
    }

    /// When the next work is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let (timer, handshake) =
            (self.connections.deadline(), self.admission.handshakes.deadline());
        timer.into_iter().chain(handshake).min()
    }

    fn on_events(&mut self, events: &Events, now: Instant) {
        let mut taken = 0;
        for event in events {
            taken += 1;
            match event.token() {
                UDP => self.on_udp(event),
                WAKER => {}
                token => {
                    let Some((key, owner)) = self.io.sockets.owner(token) else { continue };
                    self.guarded(key, |slot| slot.driver.on_socket(owner, event, now));
                }
            }
        }
        // The UDP socket's event may be among those that are left.
        if taken >= EVENTS {
            self.io.udp.on_readable();
        }
    }

    fn on_udp(&mut self, event: &Event) {
        if event.is_readable() || event.is_error() {
            self.io.udp.on_readable();
        }
        if event.is_writable() {
            // It has room: continue what waited for it.
            self.io.udp.flush();
        }
    }

    fn commands(&mut self, now: Instant) {
        let commands: Vec<_> = self.inbox.take().collect();
        for command in commands {
            match command {
                Command::Connect { dial, reply } => self.connect(*dial, reply, now),
                Command::SetServerConfig(config) => {
                    self.set_server(Some(ServerConfig::clone(&config)));
                }
                Command::Refuse => self.admission.refusing = true,
                Command::Suspend(suspended) => self.suspend(suspended),
                Command::CloseAll { code, reason } => {
                    self.admission.refusing = true;
                    for key in self.connections.keys() {
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
        let Some(slot) = self.connections.get_mut(key) else { return command.abandon() };
        let mut registrar = self.io.sockets.registrar(key);
        let work = || slot.driver.on_command(command, &mut registrar, now);
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(()) => self.connections.mark(key),
            Err(_) => self.fault(key),
        }
    }
}

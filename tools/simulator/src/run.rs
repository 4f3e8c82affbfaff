//! Runs one seed: a loop over virtual time that moves datagrams, timers, applications and fillers.
//!
//! Every decision comes from the seed and what followed from it; no clock is read except for the
//! origin of quinn's instants. The goals of a run are in `progress.rs`.

mod progress;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use keypadd_keystream::Suite;
use quinn_proto::{
    ClientConfig, ConnectionError, ConnectionHandle, DatagramEvent, Event, Incoming, ServerConfig,
    Side, StreamEvent, TransportConfig, TransportErrorCode,
};
use sha2::{Digest, Sha256};

use crate::arrivals::Arrivals;
use crate::auditor::{Auditor, Finding, ReceivedNumber};
use crate::bugs::Bug;
use crate::counts::Counts;
use crate::ends::{End, Wiring, transport};
use crate::network::{Departure, Network, SERVER};
use crate::pools::Refill;
use crate::schedule::Schedule;
use crate::traffic::mix;

pub(crate) use progress::PHASES_MIN;
use progress::Stage;

/// A run that takes longer than this hangs.
const VIRTUAL_TIME_MAX: Duration = Duration::from_secs(900);
/// A run with this many audited packets that has not reached its goals never will. No phase comes
/// to its hard stop before that, which is twice quinn's margin of 10,000.
const PACKETS_MAX: u64 = 19_000;
/// Minimum write interval of applications in a run that is halfway: what it still waits for is
/// time. After a very late handshake quinn's estimate delays key updates by seconds.
const PATIENCE: Duration = Duration::from_millis(100);

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its counts.
    pub counts: Counts,
    /// A hash over all decisions and lengths; the same for the same seed.
    pub transcript: [u8; 32],
    /// Violations.
    pub findings: Vec<Finding>,
}

/// Runs one seed with one suite.
pub fn run(suite: Suite, seed: u64) -> Outcome {
    run_with_bug(suite, seed, None)
}

/// Runs one seed with a bug in both ends.
pub fn run_with_bug(suite: Suite, seed: u64, bug: Option<Bug>) -> Outcome {
    let mut world = World::new(suite, seed, bug);
    world.go();
    world.conclude()
}

struct World {
    suite: Suite,
    bug: Option<Bug>,
    schedule: Schedule,
    transport: Arc<TransportConfig>,
    rng: Rng,
    epoch: Instant,
    now: Duration,
    network: Network,
    ends: [End; 2],
    wirings: Vec<Wiring>,
    accepted: BTreeSet<usize>,
    arrivals: Arrivals,
    auditor: Auditor,
    counts: Counts,
    transcript: Sha256,
    stage: Stage,
    /// Audited packets at which the next step happens: another connection, or the end.
    packets_goal: u64,
    /// Audited packets at which connections before the newest are cut off.
    cut_at: u64,
    rebinds_left: u32,
    resizes_left: u32,
    switches_left: u32,
    refill: Refill,
    /// Why and how connections ended.
    endings: Vec<String>,
}

impl World {
    fn new(suite: Suite, seed: u64, bug: Option<Bug>) -> Self {
        // Each suite has its own schedules, so that all suites together cover more of them.
        let seed = suite.to_string().bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
        let mut rng = Rng::with_seed(seed);
        let schedule = Schedule::draw(&mut rng);
        let network = Network::new(schedule.weather, rng.fork());
        let ends = [Side::Client, Side::Server].map(|side| End::new(side, &schedule, &mut rng));
        let mut world = Self {
            suite,
            bug,
            transport: Arc::new(transport(&schedule)),
            epoch: Instant::now(),
            now: Duration::ZERO,
            network,
            ends,
            wirings: Vec::new(),
            accepted: BTreeSet::new(),
            arrivals: Arrivals::default(),
            auditor: Auditor::default(),
            counts: Counts { runs: 1, ..Counts::default() },
            transcript: Sha256::new(),
            stage: Stage::Writing,
            packets_goal: 0,
            cut_at: 0,
            rebinds_left: schedule.rebinds,
            resizes_left: schedule.resizes,
            switches_left: schedule.switches,
            refill: Refill::default(),
            endings: Vec::new(),
            rng,
            schedule,
        };
        world.connect();
        world
    }

    fn instant(&self) -> Instant {
        self.epoch + self.now
    }

    fn note(&mut self, what: &str, values: &[u64]) {
        self.transcript.update(what);
        self.transcript.update((self.now.as_nanos() as u64).to_be_bytes());
        values.iter().for_each(|value| self.transcript.update(value.to_be_bytes()));
    }

    /// Starts the next connection.
    fn connect(&mut self) {
        let index = self.wirings.len();
        let sources =
            self.ends.each_ref().map(|end| (end.pool.pool.clone(), Arc::clone(&end.meters)));
        let wiring = Wiring::new(self.suite, &self.schedule, sources, self.bug, &mut self.rng);
        let mut config = ClientConfig::new(Arc::clone(&wiring.client));
        let first_cid = wiring.first_cid;
        config.initial_dst_cid_provider(Arc::new(move || first_cid));
        config.transport_config(Arc::clone(&self.transport));
        let now = self.instant();
        let client = &mut self.ends[0];
        let (handle, connection) =
            client.endpoint.connect(now, config, SERVER, "keypadd").expect("a fresh connection");
        let link = wiring.link(index, self.suite, connection, &self.schedule, &mut self.rng);
        client.links.insert(handle, link);
        self.wirings.push(wiring);
        let last = self.wirings.len() == self.schedule.connections;
        let packets = if last { self.schedule.packets } else { self.rng.u64(100..400) };
        self.packets_goal = self.auditor.packets + packets;
        self.cut_at = self.auditor.packets + self.rng.u64(50..300);
        self.drive(Side::Client, handle);
    }

    /// Advances time from event to event until all connections are gone.
    fn go(&mut self) {
        while self.stage != Stage::Over {
            if self.now > VIRTUAL_TIME_MAX || self.auditor.packets > PACKETS_MAX {
                let (phases, packets) = (self.phases(), self.auditor.packets);
                let (refilled, stage) = (self.has_refilled(), self.stage);
                let at = format!(
                    "after {:?}, {stage:?}, {packets} packets, phases {phases:?}, refilled {refilled}, {:?}",
                    self.now, self.schedule
                );
                self.auditor.find(Finding::Hang(at));
                break;
            }
            while let Some(flying) = self.network.arrival(self.now, &mut self.counts) {
                self.note("arrival", &[flying.to as u64, flying.bytes.len() as u64]);
                if let Some(seen) = flying.seen {
                    self.arrivals.arrive(flying.connection, flying.to, seen, &mut self.counts);
                }
                self.deliver(flying.to, flying.from, &flying.bytes, flying.connection);
            }
            for side in [Side::Client, Side::Server] {
                let handles: Vec<_> = self.ends[side as usize].links.keys().copied().collect();
                handles.into_iter().for_each(|handle| self.wake(side, handle));
            }
            self.progress();
            match self.next_event() {
                Some(next) => self.now = self.now.max(next),
                None if self.stage == Stage::Over => {}
                None => {
                    self.auditor.find(Finding::Hang(format!("nothing to do at {:?}", self.now)));
                    break;
                }
            }
        }
    }

    fn next_event(&mut self) -> Option<Duration> {
        let epoch = self.epoch;
        let mut next = self.network.next_arrival();
        for link in self.ends.iter_mut().flat_map(|end| end.links.values_mut()) {
            let timeout = link.connection.poll_timeout().map(|at| at.duration_since(epoch));
            next = [next, timeout, link.traffic.wake_at].into_iter().flatten().min();
        }
        next
    }

    fn deliver(&mut self, to: Side, from: std::net::SocketAddr, bytes: &[u8], connection: usize) {
        let (now, mut answer) = (self.instant(), Vec::new());
        match self.ends[to as usize].receive(now, from, bytes, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(link) = self.ends[to as usize].links.get_mut(&handle) {
                    link.connection.handle_event(event);
                    self.drive(to, handle);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(incoming),
            Some(DatagramEvent::Response(transmit)) => {
                let size = transmit.size;
                self.send(to, transmit.destination, connection, &answer[..size], None);
            }
            None => {}
        }
    }

    fn accept(&mut self, incoming: Incoming) {
        let first_cid = *incoming.orig_dst_cid();
        let index = self.wirings.iter().position(|wiring| wiring.first_cid == first_cid);
        let index = index.filter(|&index| self.accepted.insert(index));
        let Some(index) = index else {
            self.ends[1].endpoint.ignore(incoming);
            return;
        };
        let mut config = ServerConfig::with_crypto(Arc::clone(&self.wirings[index].server));
        config.transport_config(Arc::clone(&self.transport));
        let (now, mut answer) = (self.instant(), Vec::new());
        let endpoint = &mut self.ends[1].endpoint;
        if let Ok((handle, connection)) =
            endpoint.accept(incoming, now, &mut answer, Some(Arc::new(config)))
        {
            let wiring = &self.wirings[index];
            let link = wiring.link(index, self.suite, connection, &self.schedule, &mut self.rng);
            self.ends[1].links.insert(handle, link);
            self.drive(Side::Server, handle);
        } else {
            // Its first packet was corrupted; the next one may not be.
            self.accepted.remove(&index);
        }
    }

    /// Handles what is due for one end of a connection.
    fn wake(&mut self, side: Side, handle: ConnectionHandle) {
        let (now, virtual_now) = (self.instant(), self.now);
        let Some(index) = self.ends[side as usize].links.get(&handle).map(|link| link.index) else {
            return;
        };
        // QUIC allows no key update and no change of address before the handshake is confirmed.
        let confirmed = self.is_confirmed(index);
        let all_confirmed = (0..self.wirings.len()).all(|index| self.is_confirmed(index));
        let Some(link) = self.ends[side as usize].links.get_mut(&handle) else { return };
        let may_update = self.arrivals.may_update(index, side, link.sender.next_phase());
        let mut due = false;
        if link.connection.poll_timeout().is_some_and(|at| at <= now) {
            link.connection.handle_timeout(now);
            due = true;
        }
        if link.traffic.wake_at.is_some_and(|at| at <= virtual_now) && !confirmed {
            // As in the tunnel: nobody writes before the other end has answered.
            link.traffic.wake_at = Some(virtual_now + Duration::from_millis(1));
        } else if link.traffic.wake_at.is_some_and(|at| at <= virtual_now) {
            link.traffic.write(&mut link.connection, virtual_now);
            if self.auditor.packets > PACKETS_MAX / 2 {
                link.traffic.wake_at = link.traffic.wake_at.max(Some(virtual_now + PATIENCE));
            }
            if self.rng.u32(0..self.schedule.update_one_in) == 0 && may_update {
                link.connection.force_key_update();
            }
            due = true;
            self.switch_pool(side, handle);
            if self.rebinds_left > 0 && all_confirmed && self.rng.u32(0..150) == 0 {
                self.rebinds_left -= 1;
                self.counts.rebinds += 1;
                self.network.rebind();
            }
            if self.resizes_left > 0 && self.rng.u32(0..150) == 0 {
                self.resizes_left -= 1;
                self.counts.resizes += 1;
                let budget_bytes = Schedule::draw_budget(&mut self.rng);
                self.ends[self.rng.usize(0..2)].pool.resize(budget_bytes);
            }
        }
        if due {
            self.note("wake", &[side as u64]);
            self.drive(side, handle);
        }
    }

    /// Takes one end of a live connection out of its pool, or back, as a reload does.
    fn switch_pool(&mut self, side: Side, handle: ConnectionHandle) {
        let End { links, pool, .. } = &mut self.ends[side as usize];
        let Some(link) = links.get_mut(&handle) else { return };
        let has_left = link.pool.pool().is_none();
        if has_left && self.rng.u32(0..20) == 0 {
            link.pool.set(Some(pool.pool.clone()));
        } else if !has_left && self.switches_left > 0 && self.rng.u32(0..100) == 0 {
            self.switches_left -= 1;
            self.counts.switches += 1;
            link.pool.set(None);
        }
    }

    /// Lets one end of a connection send everything it has.
    fn drive(&mut self, side: Side, handle: ConnectionHandle) {
        let (now, batch) = (self.instant(), self.schedule.batch);
        loop {
            self.poll_events(side, handle);
            let end = &mut self.ends[side as usize];
            let Some(link) = end.links.get_mut(&handle) else { return };
            let mut bytes = Vec::new();
            let Some(transmit) = link.connection.poll_transmit(now, batch, &mut bytes) else {
                break;
            };
            let index = link.index;
            let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
            for datagram in bytes[..transmit.size].chunks(segment) {
                let end = &mut self.ends[side as usize];
                let Some(link) = end.links.get_mut(&handle) else { return };
                let seen = self.auditor.datagram(&mut link.sender, datagram);
                self.send(side, transmit.destination, index, datagram, seen);
            }
            for end in 0..2 {
                let steps = self.ends[end].pool.turn(self.now);
                self.note("filler", &[end as u64, steps.into()]);
                if let Some(broken) = self.ends[end].pool.broken_promise() {
                    self.auditor.find(Finding::Accounts(broken));
                }
            }
        }
        let end = &mut self.ends[side as usize];
        if end.links.get(&handle).is_some_and(|link| link.connection.is_drained()) {
            self.retire(side, handle);
        }
    }

    fn poll_events(&mut self, side: Side, handle: ConnectionHandle) {
        let now = self.now;
        let end = &mut self.ends[side as usize];
        let Some(link) = end.links.get_mut(&handle) else { return };
        let mut readable = false;
        loop {
            if let Some(event) = link.connection.poll_endpoint_events() {
                if let Some(answer) = end.endpoint.handle_event(handle, event) {
                    link.connection.handle_event(answer);
                }
            } else if let Some(event) = link.connection.poll() {
                match event {
                    Event::Connected => {
                        link.up = true;
                        link.traffic.begin(&mut link.connection, now);
                    }
                    Event::Stream(StreamEvent::Opened { .. } | StreamEvent::Readable { .. }) => {
                        readable = true;
                    }
                    Event::ConnectionLost { reason } => {
                        link.traffic.wake_at = None;
                        let (path, phase) = (link.connection.stats().path, link.sender.phase());
                        self.endings.push(format!(
                            "{now:?} connection {}, {side:?}, phase {phase}: {reason}; {path:?}",
                            link.index
                        ));
                        // During the handshake, `close` is reported in other words.
                        let ours = matches!(&reason, ConnectionError::ConnectionClosed(close)
                            if close.error_code == TransportErrorCode::APPLICATION_ERROR);
                        if !ours
                            && let ConnectionError::TransportError(_)
                            | ConnectionError::ConnectionClosed(_)
                            | ConnectionError::CidsExhausted = reason
                        {
                            let at = format!("connection {}, {side:?}: {reason}", link.index);
                            self.auditor.find(Finding::WrongBytes(at));
                        }
                    }
                    _ => {}
                }
            } else {
                break;
            }
        }
        if readable {
            link.traffic.read(&mut link.connection);
        }
    }

    fn send(
        &mut self,
        from: Side,
        to: std::net::SocketAddr,
        connection: usize,
        bytes: &[u8],
        seen: Option<ReceivedNumber>,
    ) {
        let (phase, number) = seen.map_or((0, 0), |seen| (seen.phase, seen.number));
        self.note("send", &[from as u64, bytes.len() as u64, phase, number]);
        let datagram = Departure { destination: to, connection, bytes, seen };
        self.network.send(self.now, from, datagram, &mut self.counts);
    }
}

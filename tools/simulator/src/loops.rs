//! Runs the shipped event loops and audits what keypadd-transport puts on the wire.
//!
//! Both ends are loops without a thread, a socket or a clock (`SteppedLoop`). A session has a
//! sparse connection and, once a stream is bulk, a bulk one, and streams move between them.
//! Programs write into unix sockets spliced to streams. Weather, pools, key updates and audits are
//! those of [`run`](crate::run()).

mod path;
mod program;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fastrand::Rng;
use keypadd_keystream::Suite;
use keypadd_pool::{Coverage, Direction};
use keypadd_provider::{Meters, PoolSwitch};
use keypadd_transport::{
    Accepted, ArrivedDatagram, ClientConfig, Connection, Cut, Delivery, Dial, Endpoint,
    EndpointConfig, EndpointSettings, Plan, Purpose, ServerConfig, SteppedLoop, Stream, VarInt,
    Windows, congestion::Control,
};
use quinn_proto::Side;
use sha2::Digest;

use crate::Outcome;
use crate::auditor::Finding;
use crate::bugs::Bug;
use crate::ends::{Wiring, congestion, transport};
use crate::network::SERVER;
use crate::pools::Refill;
use crate::run::PHASES_MIN;
use crate::schedule::{Schedule, Style};
use crate::traffic::mix;

use path::Path;
use program::Program;

/// A run that takes longer than this hangs.
const VIRTUAL_TIME_MAX: Duration = Duration::from_secs(900);
/// As in `run`.
const PACKETS_MAX: u64 = 19_000;
/// A handshake that takes longer is restarted: the server is about to time out.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_millis(4_500);
/// Forwarded connections of a session.
const PAIRS: usize = 3;

/// Small, so that streams wait for credit, which also makes them move.
const WINDOWS: Windows =
    Windows { stream: 96 << 10, first: 1 << 20, connection: 1 << 20, connection_max: 2 << 20 };

const NO_ERROR: VarInt = VarInt::from_u32(0);

/// Runs one seed with one suite through the loops.
pub fn run_loops(suite: Suite, seed: u64) -> Outcome {
    run_loops_with_bug(suite, seed, None)
}

/// Like [`run_loops`], with a bug in both ends.
pub fn run_loops_with_bug(suite: Suite, seed: u64, bug: Option<Bug>) -> Outcome {
    let mut world = World::new(suite, seed, bug);
    if let Err(finding) = world.go() {
        let path = &mut *world.path.borrow_mut();
        let mut links = world.sessions.iter().flat_map(|session| &session.links);
        if links.any(|link| path.arrivals.is_outrun(link.index)) {
            // The run could not reach its goals, as in `run`.
            (path.counts.runs, path.counts.outrun) = (0, 1);
        } else {
            path.auditor.find(finding);
        }
    }
    world.conclude()
}

type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// The result of a task, if it has one yet. Nothing wakes it: it is polled after each round.
fn poll<T>(task: &mut Task<T>) -> Option<T> {
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Both ends of a connection.
struct Link {
    /// Index among all connections of the run.
    index: usize,
    ends: [Connection; 2],
    switches: [PoolSwitch; 2],
}

/// A sparse connection, a bulk one once needed, and the streams forwarded over them.
struct Session {
    links: Vec<Link>,
    programs: Vec<[Program; 2]>,
    splices: Vec<Task<Result<(), Cut>>>,
    bulk_wanted: Vec<Task<()>>,
}

struct World {
    suite: Suite,
    bug: Option<Bug>,
    schedule: Schedule,
    rng: Rng,
    epoch: Instant,
    path: Rc<RefCell<Path>>,
    loops: [SteppedLoop; 2],
    endpoints: [Endpoint; 2],
    meters: [Arc<Meters>; 2],
    sessions: Vec<Session>,
    refill: Refill,
    /// One handshake at a time: the server's next one is assigned the newest connection's keys.
    is_connecting: bool,
    /// Audited packets at which the session ends or is cut off.
    packets_goal: u64,
    rebinds_left: u32,
    resizes_left: u32,
    switches_left: u32,
}

impl World {
    fn new(suite: Suite, seed: u64, bug: Option<Bug>) -> Self {
        let seed = suite.to_string().bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
        let mut rng = Rng::with_seed(seed);
        let schedule = Schedule::draw(&mut rng);
        let epoch = Instant::now();
        let path = Rc::new(RefCell::new(Path::new(&schedule, &mut rng)));
        let ends = [Side::Client, Side::Server].map(|side| {
            let mut config = EndpointConfig::default();
            let mut endpoint_seed = [0; 32];
            rng.fill(&mut endpoint_seed);
            config.rng_seed(Some(endpoint_seed));
            let settings = EndpointSettings {
                config,
                plan: Plan {
                    transport: Arc::new(move |_| transport(&schedule)),
                    sparse_windows: WINDOWS,
                    bulk_windows: WINDOWS,
                    congestion: Control::Other(congestion(&schedule)),
                    flight_max: schedule.window_bytes,
                    ..Plan::plain()
                },
                ..EndpointSettings::plain(Vec::new(), None)
            };
            let address = match side {
                Side::Client => path.borrow().network.client(),
                Side::Server => SERVER,
            };
            let outbox = Rc::clone(&path);
            let outbox = Box::new(move |sent: keypadd_transport::SentDatagrams<'_>| {
                outbox.borrow_mut().send(side, &sent);
            });
            SteppedLoop::new(settings, address, schedule.batch, outbox, epoch)
                .expect("an event loop")
        });
        let [(client, connecting), (server, accepting)] = ends;
        Self {
            suite,
            bug,
            epoch,
            path,
            loops: [client, server],
            endpoints: [connecting, accepting],
            meters: Default::default(),
            sessions: Vec::new(),
            refill: Refill::default(),
            is_connecting: false,
            packets_goal: 0,
            rebinds_left: schedule.rebinds,
            resizes_left: schedule.resizes,
            switches_left: schedule.switches,
            rng,
            schedule,
        }
    }

    fn now(&self) -> Duration {
        self.path.borrow().now
    }

    fn packets(&self) -> u64 {
        self.path.borrow().auditor.packets
    }

    /// Runs the sessions in sequence; one that is cut off overlaps the next.
    fn go(&mut self) -> Result<(), Finding> {
        for nth in 1..=self.schedule.connections {
            self.begin()?;
            let last = nth == self.schedule.connections;
            if nth > 1 {
                self.cut(nth - 2);
            }
            let packets = if last { self.schedule.packets } else { self.rng.u64(100..400) };
            self.packets_goal = self.packets() + packets;
            self.until("a session", |world| {
                let reached = world.packets() >= world.packets_goal;
                (reached && (!last || world.has_seen_enough())).then_some(())
            })?;
        }
        self.programs().for_each(|program| program.finish());
        self.until("the last byte", |world| {
            let ended = world.programs().all(|program| program.has_ended);
            ended.then_some(())
        })?;
        let last = self.sessions.len() - 1;
        self.until("the end of a splice", |world| {
            world.sessions[last].splices.is_empty().then_some(())
        })?;
        for pair in &self.sessions[last].programs {
            for (one, other) in [(0, 1), (1, 0)] {
                if pair[one].written != pair[other].received {
                    return Err(Finding::WrongBytes("a stream is not whole".into()));
                }
            }
        }
        // One by one: `Endpoint::close` closes them in arbitrary order.
        let links = &self.sessions[last].links;
        links.iter().for_each(|link| link.ends[0].close(NO_ERROR, b"over"));
        self.until("idle endpoints", |world| {
            let open = world.endpoints.iter().map(Endpoint::open_connections);
            (open.sum::<usize>() == 0).then_some(())
        })
    }

    /// Completes a handshake, restarting it if the network is too bad.
    fn connect(&mut self, purpose: Purpose) -> Result<Link, Finding> {
        self.is_connecting = true;
        loop {
            let index = self.path.borrow().senders.len();
            let pools = self.path.borrow().pools.each_ref().map(|pool| pool.pool.clone());
            let [client, server] = pools;
            let [of_client, of_server] = self.meters.each_ref().map(Arc::clone);
            let sources = [(client, of_client), (server, of_server)];
            let wiring = Wiring::new(self.suite, &self.schedule, sources, self.bug, &mut self.rng);
            let senders =
                [Side::Client, Side::Server].map(|side| wiring.sender(index, self.suite, side));
            self.path.borrow_mut().senders.push(senders);
            self.endpoints[1].set_server_config(ServerConfig::with_crypto(wiring.server.clone()));
            let config = ClientConfig::new(wiring.client.clone());
            let dial = Dial {
                config,
                address: SERVER,
                server_name: "keypadd",
                purpose,
                home: None,
                rtt: None,
            };
            let mut connecting: Task<_> = Box::pin(self.endpoints[0].connect(dial));
            let server = self.endpoints[1].clone();
            let mut accepting: Task<_> = Box::pin(async move {
                loop {
                    if let Accepted::Connection(connection) = server.accept().await? {
                        return Some(connection);
                    }
                }
            });
            let (mut client, mut server) = (None, None);
            let late = self.now() + HANDSHAKE_TIME_MAX;
            self.until("a handshake", |world| {
                if client.is_none() {
                    client = poll(&mut connecting);
                }
                if server.is_none() {
                    server = poll(&mut accepting);
                }
                let done = client.is_some() && server.is_some();
                (done || matches!(client, Some(Err(_))) || world.now() >= late).then_some(())
            })?;
            if let (Some(Ok(client)), Some(Some(server))) = (client, server) {
                let switches = [Side::Client, Side::Server].map(|side| wiring.switch(side));
                self.is_connecting = false;
                return Ok(Link { index, ends: [client, server], switches });
            }
            self.path.borrow_mut().left_behind.insert(index);
        }
    }

    /// Starts a session with its forwarded connections.
    fn begin(&mut self) -> Result<(), Finding> {
        let link = self.connect(Purpose::Sparse)?;
        let bulk_wanted = link
            .ends
            .iter()
            .cloned()
            .map(|end| -> Task<()> { Box::pin(async move { end.bulk_wanted().await }) });
        let mut session = Session {
            bulk_wanted: bulk_wanted.collect(),
            programs: Vec::new(),
            splices: Vec::new(),
            links: Vec::new(),
        };
        for nth in 0..PAIRS {
            let [client, server] = link.ends.clone();
            let mut opening: Task<Option<Stream>> = Box::pin(async move {
                let stream = client.open_bi().await.ok()?;
                stream.send.write_all(&[7]).await.ok()?;
                Some(stream)
            });
            let mut accepting: Task<Option<Stream>> = Box::pin(async move {
                let mut stream = server.accept_bi().await.ok()?;
                stream.recv.read_exact(&mut [0]).await.ok()?;
                Some(stream)
            });
            let (mut opened, mut accepted) = (None, None);
            self.until("a stream", |_| {
                opened = opened.take().or_else(|| poll(&mut opening));
                accepted = accepted.take().or_else(|| poll(&mut accepting));
                (opened.is_some() && accepted.is_some()).then_some(())
            })?;
            let streams = [opened, accepted].map(Option::flatten);
            // One is always a terminal: keystrokes beside whatever the others carry.
            let styles = if nth == 0 { [Style::Terminal; 2] } else { self.schedule.styles };
            let (programs, sockets) = Program::pair(styles, self.now(), &mut self.rng);
            session.programs.push(programs);
            for (stream, socket) in streams.into_iter().zip(sockets) {
                let stream = stream.ok_or_else(|| Finding::Hang("a stream was lost".into()))?;
                session.splices.push(Box::pin(stream.splice(
                    socket.into(),
                    Delivery::Bounded,
                    "".into(),
                )));
            }
        }
        session.links.push(link);
        self.sessions.push(session);
        Ok(())
    }

    /// Cuts a session off in the middle of writing.
    fn cut(&mut self, nth: usize) {
        let session = &mut self.sessions[nth];
        session.programs.clear();
        session.splices.clear();
        let path = &mut *self.path.borrow_mut();
        for link in &session.links {
            link.ends[0].close(NO_ERROR, b"cut off");
            path.left_behind.insert(link.index);
        }
        path.counts.cut += 1;
    }

    fn programs(&mut self) -> impl Iterator<Item = &mut Program> {
        self.sessions.iter_mut().flat_map(|session| session.programs.iter_mut().flatten())
    }

    /// Whether pools have run dry and refilled, and a connection has gone through several phases.
    fn has_seen_enough(&self) -> bool {
        let path = self.path.borrow();
        let old =
            |link: &Link| path.senders[link.index].iter().all(|end| end.phase() >= PHASES_MIN);
        let mut links = self.sessions.last().into_iter().flat_map(|session| &session.links);
        self.refill.is_done() && links.any(old)
    }

    /// As in `run`: after a third of the run, the fillers bring about what is still missing.
    fn direct_fillers(&mut self) {
        self.refill.observe(self.meters.iter().map(|meters| &**meters));
        let left = self.packets_goal.saturating_sub(self.packets());
        let is_due = self.sessions.len() == self.schedule.connections
            && left <= self.schedule.packets * 2 / 3;
        let order = self.refill.order().filter(|_| is_due);
        self.path.borrow_mut().pools.iter_mut().for_each(|pool| pool.order = order);
    }

    /// Advances time from event to event until the condition yields a value.
    fn until<T>(
        &mut self,
        what: &str,
        mut reached: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Finding> {
        loop {
            self.step()?;
            if let Some(reached) = reached(self) {
                return Ok(reached);
            }
            let next = self.next_event();
            let mut path = self.path.borrow_mut();
            let (now, packets) = (path.now, path.auditor.packets);
            match next {
                Some(next) if now < VIRTUAL_TIME_MAX && packets < PACKETS_MAX => {
                    path.now = now.max(next);
                }
                _ => {
                    let schedule = &self.schedule;
                    let at = format!("no {what} after {now:?}, {packets} packets, {schedule:?}");
                    return Err(Finding::Hang(at));
                }
            }
        }
    }

    fn next_event(&mut self) -> Option<Duration> {
        let epoch = self.epoch;
        let deadlines = self.loops.iter().filter_map(SteppedLoop::deadline);
        // An overdue deadline is handled by the next round.
        let loops = deadlines.map(|at| at.saturating_duration_since(epoch)).min();
        let programs = self.programs().filter_map(|program| program.wake_at).min();
        [self.path.borrow().network.next_arrival(), loops, programs].into_iter().flatten().min()
    }

    /// Handles everything due now.
    fn step(&mut self) -> Result<(), Finding> {
        loop {
            let arrival = self.path.borrow_mut().arrival();
            let Some(flying) = arrival else { break };
            self.loops[flying.to as usize]
                .arrive(ArrivedDatagram::plain(flying.from, &flying.bytes));
            self.settle()?;
        }
        let now = self.now();
        let idles = self.is_connecting || self.packets() >= self.packets_goal;
        for session in 0..self.sessions.len() {
            for pair in 0..self.sessions[session].programs.len() {
                for end in 0..2 {
                    let programs = &mut self.sessions[session].programs[pair];
                    let read = programs[1 - end].received;
                    let program = &mut programs[end];
                    if program.wake_at.is_some_and(|at| at <= now) {
                        program.write(now, read, idles);
                        self.chance(session);
                    }
                }
            }
        }
        self.settle()?;
        self.direct_fillers();
        self.want_bulk()
    }

    /// Runs the loops and lets programs read until nothing moves.
    fn settle(&mut self) -> Result<(), Finding> {
        loop {
            let now = self.epoch + self.now();
            for each in &mut self.loops {
                each.run_until_idle(now).map_err(|error| Finding::Hang(error.to_string()))?;
            }
            for session in &mut self.sessions {
                // The first poll of a splice hands its socket over.
                let mut cut = false;
                session.splices.retain_mut(|splice| {
                    let outcome = poll(splice);
                    cut |= matches!(outcome, Some(Err(_)));
                    outcome.is_none()
                });
                if cut {
                    return Err(Finding::WrongBytes("a splice was cut".into()));
                }
            }
            let mut moved = false;
            self.programs().for_each(|program| moved |= program.read());
            let wrong = self.programs().find_map(|program| program.wrong.take());
            if let Some(wrong) = wrong {
                return Err(Finding::WrongBytes(wrong));
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Opens the bulk connection once a stream needs it.
    fn want_bulk(&mut self) -> Result<(), Finding> {
        let Some(session) = self.sessions.last_mut() else { return Ok(()) };
        if self.is_connecting
            || !session.bulk_wanted.iter_mut().any(|wanted| poll(wanted).is_some())
        {
            return Ok(());
        }
        session.bulk_wanted.clear();
        let nth = self.sessions.len() - 1;
        let bulk = self.connect(Purpose::Bulk)?;
        let session = &mut self.sessions[nth];
        for (sparse, bulk) in session.links[0].ends.iter().zip(&bulk.ends) {
            sparse.attach_bulk(bulk);
        }
        session.links.push(bulk);
        self.path.borrow_mut().counts.bulk += 1;
        Ok(())
    }

    /// Occasionally, beside a write: a key update, a change of address, a change of a pool.
    fn chance(&mut self, session: usize) {
        let path = &mut *self.path.borrow_mut();
        let links = &self.sessions[session].links;
        let link = &links[self.rng.usize(0..links.len())];
        let side = [Side::Client, Side::Server][self.rng.usize(0..2)];
        let is_confirmed = |link: &Link| link.ends[0].stats().frame_rx.handshake_done > 0;
        let phase = path.senders[link.index][side as usize].next_phase();
        // Past its goal a session waits only for pools to be filled again, and early key updates
        // would discard what they have.
        let is_wanted = path.auditor.packets < self.packets_goal || phase < PHASES_MIN;
        let may_update =
            is_wanted && is_confirmed(link) && path.arrivals.may_update(link.index, side, phase);
        if self.rng.u32(0..self.schedule.update_one_in) == 0 && may_update {
            link.ends[side as usize].force_key_update();
        }
        let switch = &link.switches[side as usize];
        let has_left = switch.pool().is_none();
        if has_left && self.rng.u32(0..20) == 0 {
            switch.set(Some(path.pools[side as usize].pool.clone()));
        } else if !has_left && self.switches_left > 0 && self.rng.u32(0..100) == 0 {
            self.switches_left -= 1;
            path.counts.switches += 1;
            switch.set(None);
        }
        // QUIC allows no change of address before the handshake is confirmed.
        let mut all = self.sessions.iter().flat_map(|session| &session.links);
        let all_confirmed = !self.is_connecting && all.all(is_confirmed);
        if self.rebinds_left > 0 && all_confirmed && self.rng.u32(0..150) == 0 {
            self.rebinds_left -= 1;
            path.counts.rebinds += 1;
            path.network.rebind();
        }
        if self.resizes_left > 0 && self.rng.u32(0..150) == 0 {
            self.resizes_left -= 1;
            path.counts.resizes += 1;
            let budget_bytes = Schedule::draw_budget(&mut self.rng);
            path.pools[self.rng.usize(0..2)].resize(budget_bytes);
        }
    }

    /// Adds up the counts and checks the invariants of pools and keys.
    fn conclude(mut self) -> Outcome {
        let bytes: u64 = self.programs().map(|program| program.received).sum();
        let Self { path, loops, endpoints, sessions, meters, .. } = self;
        // The last handle of a connection drops its keys and their pads.
        drop((sessions, endpoints, loops));
        let path = Rc::into_inner(path).expect("the loops are gone");
        let Path { mut auditor, mut counts, mut pools, senders, mut transcript, now, .. } =
            path.into_inner();
        counts.stream_bytes += bytes;
        counts.updates += senders.iter().flatten().map(|end| end.phase()).sum::<u64>();
        for (pool, meters) in pools.iter_mut().zip(&meters) {
            for direction in [Direction::Send, Direction::Receive] {
                counts.hit += meters.packets(direction, Coverage::Hit);
                counts.partial += meters.packets(direction, Coverage::Partial);
                counts.miss += meters.packets(direction, Coverage::Miss);
            }
            counts.dry += meters.exhaustions();
            pool.settle(now);
            let (snapshot, reuse) = (pool.pool.snapshot(), meters.pad_reuse());
            if reuse > 0 || snapshot.filled_bytes > 0 {
                let at = format!("at the end {reuse} pads reused, {snapshot:?}");
                auditor.find(Finding::Accounts(at));
            }
        }
        (counts.packets, counts.blocks) = (auditor.packets, auditor.blocks);
        transcript.update(format!("{counts:?}"));
        Outcome { counts, transcript: transcript.finalize().into(), findings: auditor.findings }
    }
}

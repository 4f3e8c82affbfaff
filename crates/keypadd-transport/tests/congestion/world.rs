//! Runs flows over one emulated line in virtual time: the production event loops, without threads,
//! sockets or a clock.
//!
//! Each flow has its own client and server, with one connection and one stream between two
//! programs.

use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::BinaryHeap,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU64,
    os::unix::net::UnixStream,
    rc::Rc,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use keypadd_keystream::Suite;
use keypadd_transport::{
    Accepted, ArrivedDatagram, Connection, Delivery, Dial, EcnCodepoint, Endpoint, EndpointConfig,
    EndpointSettings, IdleTimeout, Plan, Purpose, SentDatagrams, ServerConfig, SteppedLoop,
    TransportConfig, VarInt, Windows, congestion::Control, mtu_discovery,
};
use socket2::SockRef;
use testbed::line::{Line, LineSettings};

use crate::{
    stepped::{Task, configs, poll},
    trace::Trace,
};

const NO_ERROR: VarInt = VarInt::from_u32(0);

/// Windows too large to be a limit here.
const WINDOW: u32 = 64 << 20;

/// The largest datagram.
pub const MOST: u16 = 1_452;

/// IP and UDP headers, which a line carries too.
pub const HEADERS: usize = 28;

/// Datagrams per send.
const BATCH: usize = 44;

const PING_BYTES: usize = 128;
const PING_INTERVAL: Duration = Duration::from_millis(25);

/// The congestion control and the kind of a connection: what bulk connections carry is acknowledged
/// less often.
pub type Congestion = (Purpose, Control);

/// Traffic of a flow's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The client writes as much as it can.
    Up,
    /// The server does, through a small buffer that is often read dry.
    Down,
    /// Both write as much as they can.
    Both,
    /// The client writes a little at regular intervals, and the server echoes it.
    Ping,
}

/// A datagram in flight.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Instant,
    number: u64,
    /// Flow and end.
    to: (usize, usize),
    from: SocketAddr,
    address: SocketAddr,
    /// Whether it is marked, if it is ECN-capable.
    marked: Option<bool>,
    bytes: Vec<u8>,
}

/// Datagrams in flight, with their destination and arrival time.
struct Wires {
    now: Instant,
    /// To servers, to clients.
    lines: [Line; 2],
    flying: BinaryHeap<Reverse<Flying>>,
    sent: u64,
    /// Interval of the bursts in which ACKs and all other packets to clients arrive.
    compression: Duration,
    epoch: Instant,
    trace: Trace,
}

impl Wires {
    fn send(&mut self, (flow, end): (usize, usize), from: SocketAddr, sent: &SentDatagrams<'_>) {
        for datagram in sent.bytes.chunks(sent.segment_bytes) {
            self.send_one((flow, end), from, sent, datagram);
        }
    }

    fn send_one(
        &mut self,
        (flow, end): (usize, usize),
        from: SocketAddr,
        &SentDatagrams { destination, ecn, .. }: &SentDatagrams<'_>,
        datagram: &[u8],
    ) {
        self.trace.sent(self.now - self.epoch, datagram.len(), destination);
        let Ok(arrivals) = self.lines[end].offer(self.now, datagram.len() + HEADERS) else {
            return;
        };
        for arrival in arrivals {
            let marked = ecn.map(|_| arrival.marked);
            let mut at = arrival.at;
            if end == 1 && !self.compression.is_zero() {
                let bursts = (at - self.epoch).as_nanos() / self.compression.as_nanos() + 1;
                at = self.epoch + self.compression * bursts as u32;
            }
            self.sent += 1;
            self.flying.push(Reverse(Flying {
                at,
                number: self.sent,
                to: (flow, 1 - end),
                from,
                address: destination,
                marked,
                bytes: datagram.to_vec(),
            }));
        }
    }
}

/// One end of a flow.
struct End {
    stepped: SteppedLoop,
    address: Rc<Cell<SocketAddr>>,
    _endpoint: Endpoint,
    connection: Option<Connection>,
    program: UnixStream,
    received: u64,
    written: u64,
    splice: Option<Task<()>>,
}

/// A flow.
pub struct Flow {
    ends: [End; 2],
    traffic: Traffic,
    pub active: bool,
    ping_at: Instant,
    pings: u64,
    /// Round trips of pings with their send times.
    pub round_trips: Vec<(Instant, Duration)>,
}

pub struct World {
    wires: Rc<RefCell<Wires>>,
    pub flows: Vec<Flow>,
    /// Receive window of a stream.
    pub window: u32,
    junk: Vec<u8>,
}

pub fn mbit(rate: f64) -> Option<NonZeroU64> {
    NonZeroU64::new((rate * 1e6) as u64)
}

/// A line at this rate, with half the round trip as delay.
pub fn line(rate: f64, rtt: Duration) -> LineSettings {
    LineSettings { bits_per_second: mbit(rate), delay: rtt / 2, ..LineSettings::default() }
}

impl World {
    /// Lines to servers and to clients.
    pub fn new(there: LineSettings, back: LineSettings, seed: u64) -> Self {
        let epoch = Instant::now();
        let lines = [Line::new(there, seed), Line::new(back, seed + 1)];
        let wires = Wires {
            now: epoch,
            lines,
            flying: BinaryHeap::new(),
            sent: 0,
            compression: Duration::ZERO,
            epoch,
            trace: Trace::new(),
        };
        let wires = Rc::new(RefCell::new(wires));
        Self { wires, flows: Vec::new(), window: WINDOW, junk: vec![0; 1 << 20] }
    }

    pub fn now(&self) -> Instant {
        self.wires.borrow().now
    }

    /// Changes the line to servers.
    pub fn change(&mut self, change: impl FnOnce(&mut LineSettings)) {
        let mut wires = self.wires.borrow_mut();
        let mut settings = wires.lines[0].settings();
        change(&mut settings);
        wires.lines[0].set(settings);
    }

    /// Changes both lines.
    pub fn change_both(&mut self, change: impl Fn(&mut LineSettings)) {
        for line in &mut self.wires.borrow_mut().lines {
            let mut settings = line.settings();
            change(&mut settings);
            line.set(settings);
        }
    }

    /// Gives a flow's client another address. What is sent to its old one is lost from now on.
    pub fn move_client(&mut self, flow: usize, address: Ipv4Addr) {
        let client = &self.flows[flow].ends[0].address;
        client.set((address, client.get().port()).into());
    }

    /// Bytes that a flow's server program has written.
    pub fn written_back(&self, flow: usize) -> u64 {
        self.flows[flow].ends[1].written
    }

    /// Where a flow's server sends.
    pub fn client_address(&self, flow: usize) -> IpAddr {
        self.flows[flow].ends[1].connection.as_ref().unwrap().remote_address().ip()
    }

    /// The largest datagram that a flow's client sends, and its server.
    pub fn datagram_bytes(&self, flow: usize) -> [u16; 2] {
        let ends = self.flows[flow].ends.each_ref();
        ends.map(|end| end.connection.as_ref().unwrap().stats().path.current_mtu)
    }

    pub fn compress_acks(&mut self, interval: Duration) {
        self.wires.borrow_mut().compression = interval;
    }

    /// Queueing delay of a packet that enters now, the longer of both directions.
    pub fn queue(&mut self) -> Duration {
        let now = self.now();
        let wires = &mut self.wires.borrow_mut();
        wires.lines.iter_mut().map(|line| line.queue(now).wait).max().unwrap()
    }

    /// Bytes that have entered the line to servers.
    pub fn offered(&self) -> u64 {
        self.wires.borrow().lines[0].counts().bytes
    }

    /// Bytes that a flow's server program has read.
    pub fn received(&self, flow: usize) -> u64 {
        self.flows[flow].ends[1].received
    }

    /// The 99th percentile of round trips of pings sent since then.
    pub fn trips_p99(&self, flow: usize, since: Instant) -> Duration {
        let trips = self.flows[flow].round_trips.iter().filter(|(sent, _)| *sent >= since);
        let mut trips: Vec<_> = trips.map(|(_, trip)| *trip).collect();
        trips.sort();
        trips[trips.len() * 99 / 100]
    }

    /// Bytes that its client program has read.
    pub fn received_back(&self, flow: usize) -> u64 {
        self.flows[flow].ends[0].received
    }

    /// Lets the server of a flow limit what datagrams cost by this clock of CPU time, until
    /// `until`. Rounds take no time.
    pub fn measure_costs(&mut self, flow: usize, clock: fn() -> Duration, until: Instant) {
        static STANDING: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.flows[flow].ends[1].stepped.use_clocks(clock, until, || *STANDING);
    }

    /// Adds a flow with this congestion control at both ends, and connects it.
    pub fn add(&mut self, (purpose, congestion): Congestion, traffic: Traffic) -> usize {
        let flow = self.flows.len();
        let (config, server) = configs(Suite::AES_256_GCM);
        let port = 1_000 + 2 * flow as u16;
        let addresses = [0, 1]
            .map(|end| Rc::new(Cell::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port + end)))));
        let server_address = addresses[1].get();
        let servers = [None, Some(server)];
        let mut tunnel_sides = Vec::new();
        let mut servers = servers.into_iter();
        let ends = [0, 1].map(|end| {
            let wires = Rc::clone(&self.wires);
            let address = Rc::clone(&addresses[end]);
            let from = Rc::clone(&address);
            let outbox = Box::new(move |sent: SentDatagrams<'_>| {
                wires.borrow_mut().send((flow, end), from.get(), &sent);
            });
            let settings = settings(congestion.clone(), servers.next().unwrap(), self.window);
            let now = self.now();
            let (stepped, endpoint) =
                SteppedLoop::new(settings, address.get(), BATCH, outbox, now).unwrap();
            let (program, tunnel) = UnixStream::pair().unwrap();
            program.set_nonblocking(true).unwrap();
            if traffic == Traffic::Down {
                SockRef::from(&program).set_send_buffer_size(1).unwrap();
            }
            tunnel_sides.push(tunnel);
            End {
                stepped,
                address,
                _endpoint: endpoint,
                connection: None,
                program,
                received: 0,
                written: 0,
                splice: None,
            }
        });
        let mut connecting: Task<_> = Box::pin(ends[0]._endpoint.connect(Dial {
            config,
            address: server_address,
            server_name: "keypadd",
            purpose,
            home: None,
            rtt: None,
        }));
        let accepting = ends[1]._endpoint.clone();
        let mut accepting: Task<_> = Box::pin(async move {
            match accepting.accept().await {
                Some(Accepted::Connection(connection)) => connection,
                other => panic!("{other:?}"),
            }
        });
        let ping_at = self.now();
        let round_trips = Vec::new();
        let active = false;
        self.flows.push(Flow { ends, traffic, active, ping_at, pings: 0, round_trips });
        let (mut client, mut server) = (None, None);
        self.until(|_| {
            client = client.take().or_else(|| poll(&mut connecting));
            server = server.take().or_else(|| poll(&mut accepting));
            client.is_some() && server.is_some()
        });
        let (client, server) = (client.unwrap().unwrap(), server.unwrap());
        let (opener, acceptor) = (client.clone(), server.clone());
        let mut opening: Task<_> = Box::pin(async move {
            let stream = opener.open_bi().await.unwrap();
            stream.send.write_all(&[7]).await.unwrap();
            stream
        });
        let mut accepting: Task<_> = Box::pin(async move {
            let mut stream = acceptor.accept_bi().await.unwrap();
            stream.recv.read_exact(&mut [0]).await.unwrap();
            stream
        });
        let (mut opened, mut accepted) = (None, None);
        self.until(|_| {
            opened = opened.take().or_else(|| poll(&mut opening));
            accepted = accepted.take().or_else(|| poll(&mut accepting));
            opened.is_some() && accepted.is_some()
        });
        let streams = [opened.unwrap(), accepted.unwrap()];
        let this = &mut self.flows[flow];
        let connections = [client, server];
        for (((end, stream), socket), connection) in
            this.ends.iter_mut().zip(streams).zip(tunnel_sides).zip(connections)
        {
            let closed = connection.clone();
            end.connection = Some(connection);
            end.splice = Some(Box::pin(async move {
                if let Err(error) =
                    stream.splice(socket.into(), Delivery::Unbounded, "".into()).await
                {
                    panic!("{error:?}: {:?}", closed.close_reason());
                }
            }));
        }
        this.active = true;
        self.touch(flow, [true; 2]);
        flow
    }

    /// Advances time.
    pub fn run(&mut self, time: Duration) {
        self.watch(time, time, |_| ());
    }

    /// Closes a flow's connection at the client; returns the time until its server knows.
    pub fn close(&mut self, flow: usize) -> Duration {
        let this = &mut self.flows[flow];
        this.active = false;
        let [client, server] = &mut this.ends;
        (client.splice, server.splice) = (None, None);
        client.connection.as_ref().unwrap().close(NO_ERROR, b"");
        let server = server.connection.clone().unwrap();
        let began = self.now();
        self.until(|_| server.close_reason().is_some());
        self.now() - began
    }

    /// Advances time in steps and calls `look` after each, which changes nothing.
    pub fn watch(&mut self, time: Duration, step: Duration, mut look: impl FnMut(&mut Self)) {
        let end = self.now() + time;
        self.touch_all();
        while self.now() < end {
            let next = self.now() + step;
            self.step_until(|world| world.next_event().is_none_or(|at| at > next));
            // Everything due by then has happened.
            self.wires.borrow_mut().now = next;
            look(self);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let flying = self.wires.borrow().flying.peek().map(|Reverse(flying)| flying.at);
        let flows = self.flows.iter().flat_map(|flow| {
            let loops = flow.ends.iter().filter_map(|end| end.stepped.deadline());
            let pings = flow.active && flow.traffic == Traffic::Ping;
            loops.chain(pings.then_some(flow.ping_at))
        });
        flying.into_iter().chain(flows).min()
    }

    fn until(&mut self, reached: impl FnMut(&mut Self) -> bool) {
        self.touch_all();
        self.step_until(reached);
    }

    /// Lets everything happen that somebody outside has brought about.
    fn touch_all(&mut self) {
        for flow in 0..self.flows.len() {
            self.touch(flow, [true; 2]);
        }
    }

    fn step_until(&mut self, mut reached: impl FnMut(&mut Self) -> bool) {
        while !reached(self) {
            let at = self.next_event().expect("an event is pending");
            let now = self.now().max(at);
            self.wires.borrow_mut().now = now;
            let mut touched: Vec<_> = self.flows.iter().map(|flow| [!flow.active; 2]).collect();
            loop {
                let mut wires = self.wires.borrow_mut();
                let due = wires.flying.peek().is_some_and(|Reverse(flying)| flying.at <= now);
                let Some(Reverse(flying)) = due.then(|| wires.flying.pop()).flatten() else {
                    break;
                };
                drop(wires);
                let (flow, nth) = flying.to;
                let end = &mut self.flows[flow].ends[nth];
                if flying.address != end.address.get() {
                    continue;
                }
                let ecn = flying.marked.map(|marked| match marked {
                    true => EcnCodepoint::Ce,
                    false => EcnCodepoint::Ect0,
                });
                let (from, to) = (flying.from, Some(flying.address.ip()));
                end.stepped.arrive(ArrivedDatagram { from, to, ecn, bytes: &flying.bytes });
                touched[flow][nth] = true;
            }
            for (flow, mut touched) in touched.into_iter().enumerate() {
                let this = &self.flows[flow];
                for (touched, end) in touched.iter_mut().zip(&this.ends) {
                    *touched |= end.stepped.deadline().is_some_and(|at| at <= now);
                }
                touched[0] |= this.traffic == Traffic::Ping && this.active && this.ping_at <= now;
                self.touch(flow, touched);
            }
        }
    }

    /// Lets the loops and programs of these ends of a flow do their pending work.
    fn touch(&mut self, flow: usize, mut touched: [bool; 2]) {
        let now = self.now();
        let this = &mut self.flows[flow];
        while touched != [false; 2] {
            for (end, _) in this.ends.iter_mut().zip(touched).filter(|(_, touched)| *touched) {
                end.stepped.run_until_idle(now).unwrap();
                let splice = end.splice.as_mut();
                assert!(splice.is_none_or(|splice| poll(splice).is_none()), "a splice ended");
            }
            touched = this.move_bytes(touched, now, &mut self.junk);
        }
    }
}

impl Flow {
    /// Lets the programs of these ends read and write; returns which of them did.
    fn move_bytes(&mut self, touched: [bool; 2], now: Instant, junk: &mut [u8]) -> [bool; 2] {
        let mut moved = [false; 2];
        if !self.active {
            return moved;
        }
        let echoes = self.traffic == Traffic::Ping;
        for (nth, end) in self.ends.iter_mut().enumerate().filter(|(nth, _)| touched[*nth]) {
            let (reads, writes) = match self.traffic {
                Traffic::Up => (nth == 1, nth == 0),
                Traffic::Down => (nth == 0, nth == 1),
                Traffic::Both => (true, true),
                Traffic::Ping => (true, false),
            };
            // A call that moves less than it could has left nothing, or no room, for another.
            let mut may_have_more = reads;
            while may_have_more {
                match end.program.read(junk) {
                    Ok(0) => panic!("a stream ended"),
                    Ok(bytes) => {
                        end.received += bytes as u64;
                        moved[nth] = true;
                        if echoes && nth == 1 {
                            end.program.write_all(&junk[..bytes]).unwrap();
                        }
                        may_have_more = bytes == junk.len();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let mut has_room = writes;
            while has_room && let Ok(bytes) = end.program.write(junk) {
                end.written += bytes as u64;
                moved[nth] |= bytes > 0;
                has_room = bytes == junk.len();
            }
        }
        if echoes {
            while (self.round_trips.len() as u64) < self.ends[0].received / PING_BYTES as u64 {
                let sent = self.ping_at
                    - PING_INTERVAL * (self.pings - self.round_trips.len() as u64) as u32;
                self.round_trips.push((sent, now - sent));
            }
            if self.ping_at <= now {
                self.ends[0].program.write_all(&junk[..PING_BYTES]).unwrap();
                (self.ping_at, self.pings) = (self.ping_at + PING_INTERVAL, self.pings + 1);
                moved[0] = true;
            }
        }
        moved
    }
}

/// Seeds quinn-proto's random choices, so that a run can be repeated.
const SEED: [u8; 32] = [2; 32];

fn settings(congestion: Control, server: Option<ServerConfig>, window: u32) -> EndpointSettings {
    let windows =
        Windows { stream: window, first: WINDOW, connection: WINDOW, connection_max: WINDOW };
    let transport = |route_bytes| {
        let mut transport = TransportConfig::default();
        transport
            .send_window(u64::from(WINDOW))
            .packet_threshold(128)
            .mtu_discovery_config(Some(mtu_discovery(MOST.min(route_bytes))))
            .keep_alive_interval(Some(Duration::from_secs(3)))
            .max_idle_timeout(Some(IdleTimeout::try_from(Duration::from_secs(30)).unwrap()));
        transport
    };
    let mut config = EndpointConfig::default();
    config.rng_seed(Some(SEED));
    EndpointSettings {
        config,
        plan: Plan {
            transport: Arc::new(transport),
            sparse_windows: windows,
            bulk_windows: windows,
            long_path_bulk_windows: windows,
            congestion,
            flight_max: WINDOW.into(),
            ..Plan::plain()
        },
        ..EndpointSettings::plain(Vec::new(), server)
    }
}

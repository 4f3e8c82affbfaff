//! Tests step by step what ends a stream whose socket has failed, what a direction that moves to another
//! connection sends, and how long one connection's datagrams and deliveries, and strangers' handshakes,
//! hold up another's: the production event loops without threads, UDP sockets or a clock.
#![allow(unreachable_pub, clippy::unwrap_used)]

#[path = "stepped/pair.rs"]
mod pair;
mod stepped;

use std::{
    future::Future,
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    pin::Pin,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use keypadd_keystream::Suite;
use keypadd_transport::{
    ArrivedDatagram, ClientConfig, Connection, Cut, Delivery, Dial, Endpoint, HeldStreams, Lane,
    ReplayBudget, ServerConfig, Splice, Stream, TransferStats, VarInt,
};
use pair::{HOLD, Pair};
use stepped::{Task, configs, poll};

impl Pair {
    /// Two loops without a connection, and their endpoints.
    fn new(server: ServerConfig) -> (Self, [Endpoint; 2]) {
        Self::with(server, |_| ())
    }

    /// Lets this many round trips of that length pass.
    fn round_trips(&mut self, count: u32, rtt: Duration) {
        for _ in 0..count {
            for end in [0, 1] {
                self.run(end);
                self.now += rtt / 2;
            }
        }
    }
}

#[test]
fn a_stream_whose_socket_fails_after_its_end_was_read_ends_when_the_peers_socket_has_it() {
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let connections = pair.connect(&endpoints, client);
    // Receipts are of streams that can be held.
    let held = [(); 2].map(|()| HeldStreams::new(Arc::new(ReplayBudget::new(1 << 20, 1 << 20))));
    for (connection, streams) in connections.iter().zip(&held) {
        connection.hold(streams, 0);
    }
    let streams = pair.open(&connections);
    let mut programs = Vec::new();
    let splices = streams.map(|stream| {
        let (program, socket) = UnixStream::pair().unwrap();
        programs.push(program);
        stream.splice(socket.into(), Delivery::Bounded, "".into())
    });
    let carried = splices[0].carried();
    let mut splices = splices.map(|splice: Splice| -> Task<Result<(), Cut>> { Box::pin(splice) });
    let (mut here, mut there) = (programs.remove(0), programs.remove(0));

    // The answer and its end have arrived, and nobody reads them.
    there.write_all(b"answer").unwrap();
    there.shutdown(Shutdown::Write).unwrap();
    pair.pass(&[0, 1]);
    assert_eq!(carried.to_socket(), 6);
    // The question and its end are read and sent, and have not arrived.
    here.write_all(b"question").unwrap();
    here.shutdown(Shutdown::Write).unwrap();
    pair.pass(&[0]);
    assert_eq!(carried.from_socket(), 8);
    // A socket that is closed with bytes to read resets its other end.
    drop(here);
    pair.run(0);
    assert!(poll(&mut splices[0]).is_none(), "it waits for the receipt");
    assert_eq!(held[0].names().len(), 1);

    pair.pass(&[0, 1]);
    let outcome = poll(&mut splices[0]).expect("it has an outcome");
    let Err(Cut::Local(error)) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(held[0].names().is_empty());
    assert!(matches!(poll(&mut splices[1]), Some(Ok(()))));
}

const LONG_RTT: Duration = Duration::from_millis(40);

/// A spliced stream between two programs.
struct Spliced {
    programs: Vec<UnixStream>,
    carried: Vec<Arc<TransferStats>>,
    _splices: [Splice; 2],
    sent: usize,
}

impl Spliced {
    fn open(pair: &mut Pair, connections: &[Connection; 2]) -> Self {
        let (mut programs, mut carried) = (Vec::new(), Vec::new());
        let splices = pair.open(connections).map(|stream| {
            let (program, socket) = UnixStream::pair().unwrap();
            program.set_nonblocking(true).unwrap();
            programs.push(program);
            let splice = stream.splice(socket.into(), Delivery::Bounded, "".into());
            carried.push(splice.carried());
            splice
        });
        Self { programs, carried, _splices: splices, sent: 0 }
    }

    /// Writes what the socket takes of these bytes in each of some round trips.
    fn write(&mut self, pair: &mut Pair, bytes: &[u8], round_trips: u32) {
        for _ in 0..round_trips {
            while self.sent < bytes.len()
                && let Ok(more) = self.programs[0].write(&bytes[self.sent..])
            {
                self.sent += more;
            }
            pair.round_trips(1, LONG_RTT);
        }
    }

    /// Writes until this many bytes are sent or the congestion window is full; returns how many. The other
    /// end gets them later.
    fn fill(&mut self, pair: &mut Pair, bytes: usize) -> usize {
        let (before, mut stuck) = (self.sent, false);
        while !std::mem::replace(&mut stuck, true) {
            let end = before + bytes;
            while let Ok(more @ 1..) = self.programs[0].write(&vec![1; end - self.sent]) {
                (self.sent, stuck) = (self.sent + more, false);
            }
            pair.pass(&[0]);
        }
        self.sent - before
    }

    /// Reads at the other end meanwhile; returns what has arrived.
    fn write_and_read(&mut self, pair: &mut Pair, bytes: &[u8]) -> Vec<u8> {
        let mut received = Vec::new();
        for _ in 0..200 {
            self.write(pair, bytes, 1);
            let _ = self.programs[1].read_to_end(&mut received);
        }
        received
    }
}

/// A session's two connections.
fn session() -> (Pair, [Connection; 2], [Connection; 2]) {
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let sparse = pair.connect(&endpoints, client.clone());
    let bulk = pair.connect_lane(&endpoints, client, Lane::Bulk);
    sparse.iter().zip(&bulk).for_each(|(sparse, bulk)| sparse.attach_bulk(bulk));
    (pair, sparse, bulk)
}

fn some_bytes() -> Vec<u8> {
    (0_u32..2 << 20).map(|nth| (nth / 251) as u8).collect()
}

#[test]
fn a_direction_that_moves_sends_some_ahead_and_the_rest_when_the_peer_has_followed() {
    const KIB: u64 = 1 << 10;
    let (mut pair, sparse, _bulk) = session();
    let bytes = some_bytes();
    let mut spliced = Spliced::open(&mut pair, &sparse);
    // Nobody reads there: it lacks credit.
    spliced.write(&mut pair, &bytes, 60);
    let ahead = spliced.carried[0].from_socket() - spliced.carried[1].to_socket();
    // What the peer's window holds, what is sent ahead, and what was read and not sent.
    assert!((224 * KIB..=448 * KIB).contains(&ahead), "{ahead}");
    let received = spliced.write_and_read(&mut pair, &bytes);
    assert!(received == bytes, "{} of {}", received.len(), bytes.len());
}

/// A clock by which everything takes a millisecond.
fn slow_clock() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    static READINGS: AtomicU32 = AtomicU32::new(0);
    *EPOCH + READINGS.fetch_add(1, Relaxed) * Duration::from_millis(1)
}

/// Counts, when it is woken, the bytes that programs have received, of each up to `each`.
struct Counter {
    programs: Vec<UnixStream>,
    each: usize,
    counted: AtomicUsize,
}

impl Counter {
    fn count(&self) -> usize {
        let read = |program: &UnixStream| { program }.read(&mut vec![0; self.each]).unwrap_or(0);
        self.programs.iter().map(read).sum()
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.counted.fetch_add(self.count(), Relaxed);
    }
}

/// Streams of a crowd.
const STREAMS: u64 = 200;

/// The window of each.
const SPARSE_WINDOW: u32 = 16 << 10;

/// A connection with many streams that can be held, and a stream of another connection.
struct Crowd {
    pair: Pair,
    endpoints: [Endpoint; 2],
    config: ClientConfig,
    connections: [Connection; 2],
    _others: [Connection; 2],
    held: [HeldStreams; 2],
    /// Of each end's sockets.
    programs: [Vec<UnixStream>; 2],
    splices: [Vec<Splice>; 2],
    other: [Stream; 2],
}

impl Crowd {
    /// Writes a byte into each program of this end.
    fn write(&mut self, end: usize) {
        for program in &mut self.programs[end] {
            program.write_all(b"z").unwrap();
        }
    }

    fn new() -> Self {
        let (config, server) = configs(Suite::AES_128_GCM);
        let (mut pair, endpoints) = Pair::with(server, |settings| {
            settings.sparse_windows.stream = SPARSE_WINDOW;
            settings.streams.unidirectional = 8;
        });
        let [connections, others] = [(); 2].map(|()| pair.connect(&endpoints, config.clone()));
        let budget = || Arc::new(ReplayBudget::new(1 << 20, 1 << 30));
        let held = [(); 2].map(|()| HeldStreams::new(budget()));
        for (connection, streams) in connections.iter().zip(&held) {
            connection.hold(streams, 0);
        }
        let (mut programs, mut splices) =
            ([(); 2].map(|()| Vec::new()), [(); 2].map(|()| Vec::new()));
        for _ in 0..STREAMS {
            for (end, stream) in pair.open(&connections).into_iter().enumerate() {
                let (program, socket) = UnixStream::pair().unwrap();
                program.set_nonblocking(true).unwrap();
                programs[end].push(program);
                splices[end].push(stream.splice(socket.into(), Delivery::Bounded, "".into()));
            }
        }
        let other = pair.open(&others);
        pair.pass(&[0, 1]);
        let _others = others;
        Self { pair, endpoints, config, connections, _others, held, programs, splices, other }
    }

    /// What the server's streams carry.
    fn carried(&self) -> Vec<Arc<TransferStats>> {
        self.splices[1].iter().map(Splice::carried).collect()
    }

    /// What the client has to send arrives in one round, and after it a byte for the other connection.
    /// Before that is read, the server has done only some of what `count` counts, at least `least`, and then all.
    fn holds_up_another_for_a_few(
        self,
        least: u64,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let Self {
            mut pair, other: [near, mut far], splices: _splices, programs: _programs, ..
        } = self;
        pair.loops[1].use_clocks((|| Duration::ZERO, pair.now), slow_clock);
        let progress = Arc::new(Progress { count: Box::new(count), before: 0.into() });
        let mut reading = Box::pin(async move { far.recv.read_exact(&mut [0]).await });
        let waker = Waker::from(Arc::clone(&progress));
        assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        pair.run(0);
        let mut writing: Task<_> = Box::pin(async move { near.send.write_all(&[7]).await });
        while poll(&mut writing).is_none() {
            pair.run(0);
        }
        pair.run(0);
        let arriving = pair.wires.borrow()[1].len();
        assert!((1..16).contains(&arriving), "{arriving}");
        pair.run(1);
        let before = progress.before.load(Relaxed);
        let few = least..STREAMS / 4;
        assert!(few.contains(&before), "{before} of {STREAMS} before the other's byte");
        assert_eq!((progress.count)(), STREAMS);
    }
}

/// Counts what is done when it is woken.
struct Progress {
    count: Box<dyn Fn() -> u64 + Send + Sync>,
    before: AtomicU64,
}

impl Wake for Progress {
    fn wake(self: Arc<Self>) {
        self.before.store((self.count)(), Relaxed);
    }
}

#[test]
fn a_packet_for_many_sockets_holds_up_another_connection_for_a_few_of_them_only() {
    let mut crowd = Crowd::new();
    crowd.write(0);
    let carried = crowd.carried();
    crowd.holds_up_another_for_a_few(1, move || carried.iter().map(|of| of.to_socket()).sum());
}

#[test]
fn receipts_for_many_streams_hold_up_another_connection_for_a_few_of_them_only() {
    let mut crowd = Crowd::new();
    crowd.write(1);
    // Receipts for few bytes wait a second: then all of them are sent at once.
    crowd.pair.pass(&[0, 1]);
    let held = crowd.held[1].clone();
    let handled = move || STREAMS - held.kept_bytes() as u64;
    assert_eq!(handled(), 0);
    crowd.pair.now += Duration::from_secs(1);
    crowd.holds_up_another_for_a_few(1, handled);
}

#[test]
fn many_sockets_with_bytes_to_read_hold_up_another_connection_for_a_few_of_them_only() {
    let mut crowd = Crowd::new();
    crowd.write(1);
    let carried = crowd.carried();
    crowd.holds_up_another_for_a_few(1, move || carried.iter().map(|of| of.from_socket()).sum());
}

#[test]
fn streams_that_end_at_once_hold_up_another_connection_for_a_few_of_them_only() {
    // Receipts of streams that are cut come before their resets.
    let ends: [fn(&mut Crowd); 2] = [
        |crowd| crowd.connections[0].close(VarInt::from_u32(0), b""),
        |crowd| crowd.splices[0].clear(),
    ];
    for (end, least) in ends.into_iter().zip([1, 0]) {
        let mut crowd = Crowd::new();
        end(&mut crowd);
        let programs = std::mem::take(&mut crowd.programs[1]);
        let is_closed = |of: &&UnixStream| matches!({ *of }.read(&mut [0]), Ok(0));
        let closed = move || programs.iter().filter(is_closed).count() as u64;
        crowd.holds_up_another_for_a_few(least, closed);
    }
}

#[test]
fn a_lost_connection_holds_its_streams_a_few_at_a_time_and_has_then_settled() {
    let crowd = Crowd::new();
    crowd.connections[0].close(HOLD, b"");
    let held = crowd.held[1].clone();
    let count = move || held.held() as u64;
    let settled = Arc::new(Progress { count: Box::new(count.clone()), before: 0.into() });
    let (connection, waker) = (crowd.connections[1].clone(), Waker::from(Arc::clone(&settled)));
    let settling: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(async move { connection.settled().await });
    let settling = Mutex::new(settling);
    crowd.holds_up_another_for_a_few(1, move || {
        let _ = settling.lock().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        count()
    });
    assert_eq!(settled.before.load(Relaxed), STREAMS);
}

#[test]
fn directions_that_wait_to_move_hold_up_another_connection_for_a_few_of_them_only() {
    let mut crowd = Crowd::new();
    let bulk = crowd.pair.connect_lane(&crowd.endpoints, crowd.config.clone(), Lane::Bulk);
    crowd.connections.iter().zip(&bulk).for_each(|(sparse, bulk)| sparse.attach_bulk(bulk));
    // Until the path is known to be long: there they are bulk without credit. The peer allows few to move.
    for _ in 0..3 {
        crowd.write(1);
        crowd.pair.round_trips(2, LONG_RTT);
    }
    for program in &mut crowd.programs[1] {
        program.write_all(&[1; 4 * SPARSE_WINDOW as usize]).unwrap();
    }
    crowd.pair.round_trips(5, LONG_RTT);
    crowd.pair.pass(&[0, 1]);
    bulk[0].close(VarInt::from_u32(0), b"");
    let splices: Vec<_> = crowd.splices[1].drain(..).map(|it| Some(Box::pin(it))).collect();
    let splices = Mutex::new(splices);
    crowd.holds_up_another_for_a_few(1, move || {
        let mut splices = splices.lock().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        for splice in splices.iter_mut() {
            splice.take_if(|it| it.as_mut().poll(&mut cx).is_ready());
        }
        splices.iter().filter(|it| it.is_none()).count() as u64
    });
}

#[test]
fn a_window_behind_a_gap_holds_up_another_connection_for_a_part_of_it_only() {
    const BYTES: usize = 900_000;
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let [busy, other] = [(); 2].map(|()| pair.connect(&endpoints, client.clone()));
    let mut spliced = Spliced::open(&mut pair, &busy);
    let [near, mut far] = pair.open(&other);
    let mut fast = spliced.programs.pop().unwrap();
    fast.set_nonblocking(false).unwrap();
    let received = thread::spawn(move || {
        let mut received = Vec::new();
        let _ = fast.read_to_end(&mut received);
        received.len()
    });
    let carried = Arc::clone(&spliced.carried[1]);
    // Until the congestion window is large enough for all of it.
    while spliced.fill(&mut pair, BYTES) < BYTES {
        pair.pass(&[0, 1]);
    }
    pair.pass(&[0, 1]);
    while carried.to_socket() < spliced.sent as u64 {
        pair.pass(&[0, 1]);
        thread::yield_now();
    }

    let before = carried.to_socket();
    // The window may be a little smaller by now.
    let sent = spliced.fill(&mut pair, BYTES) as u64;
    assert!(sent > BYTES as u64 / 2, "{sent}");
    let first = pair.wires.borrow_mut()[1].pop_front().unwrap();
    pair.run(1);
    pair.loops[1].use_clocks((|| Duration::ZERO, pair.now), slow_clock);
    let count = move || carried.to_socket() - before;
    assert_eq!(count(), 0);
    let progress = Arc::new(Progress { count: Box::new(count), before: 0.into() });
    let mut reading = Box::pin(async move { far.recv.read_exact(&mut [0]).await });
    let waker = Waker::from(Arc::clone(&progress));
    assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut writing: Task<_> = Box::pin(async move { near.send.write_all(&[7]).await });
    while poll(&mut writing).is_none() {
        pair.run(0);
    }
    pair.run(0);
    pair.wires.borrow_mut()[1].push_front(first);
    pair.run(1);
    let before = progress.before.load(Relaxed);
    assert!((1..sent / 2).contains(&before), "{before} of {sent} before the other's byte");
    while (progress.count)() < sent {
        pair.pass(&[0, 1]);
        thread::yield_now();
    }
    drop(pair);
    assert_eq!(received.join().unwrap(), spliced.sent);
}

#[test]
fn a_connections_excess_datagrams_wait_until_anothers_are_handled() {
    const BYTES: usize = 200_000;
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let [busy, other] = [(); 2].map(|()| pair.connect(&endpoints, client.clone()));
    let mut programs = Vec::new();
    let _splices = pair.open(&busy).map(|stream| {
        let (program, socket) = UnixStream::pair().unwrap();
        program.set_nonblocking(true).unwrap();
        programs.push(program);
        stream.splice(socket.into(), Delivery::Bounded, "".into())
    });
    let [near, mut far] = pair.open(&other);
    let mut sender = programs.remove(0);
    let counter = Arc::new(Counter { programs, each: 2 * BYTES, counted: AtomicUsize::new(0) });
    // So that the window is large enough for the rest at once.
    sender.write_all(&[1; BYTES]).unwrap();
    pair.pass(&[0, 1]);
    assert_eq!(counter.count(), BYTES);
    pair.loops[1].use_clocks((|| Duration::ZERO, pair.now), slow_clock);
    let mut reading = Box::pin(async move { far.recv.read_exact(&mut [0]).await });
    let waker = Waker::from(Arc::clone(&counter));
    assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

    // All of this arrives in one round, in this order.
    sender.write_all(&[2; BYTES]).unwrap();
    pair.pass(&[0]);
    let datagrams = pair.wires.borrow()[1].len();
    assert!(datagrams > 20, "{datagrams}");
    let mut writing: Task<_> = Box::pin(async move { near.send.write_all(&[7]).await });
    while poll(&mut writing).is_none() {
        pair.run(0);
    }
    pair.run(0);
    pair.run(1);
    let before = counter.counted.load(Relaxed);
    assert!((1..BYTES / 2).contains(&before), "{before} of {BYTES} before the other's byte");
    pair.pass(&[0, 1]);
    assert_eq!(before + counter.count(), BYTES);
}

#[test]
fn datagrams_of_a_connection_beyond_its_room_are_dropped_and_counted() {
    const COPIES: u64 = 20_000;
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let connections = pair.connect(&endpoints, client);
    let [near, _far] = pair.open(&connections);
    pair.pass(&[0, 1]);
    pair.loops[1].use_clocks((|| Duration::ZERO, pair.now), slow_clock);
    let mut writing: Task<_> = Box::pin(async move { near.send.write_all(&[7; 1_000]).await });
    while poll(&mut writing).is_none() {
        pair.run(0);
    }
    pair.run(0);
    let datagram = pair.wires.borrow_mut()[1].pop_front().unwrap();
    for _ in 0..COPIES {
        pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &datagram));
    }
    pair.run(1);
    let dropped = endpoints[1].meter().datagrams_dropped();
    assert!((COPIES / 4..COPIES).contains(&dropped), "{dropped} of {COPIES}");
}

#[test]
fn datagrams_of_many_frames_may_take_less_cpu_time_than_others() {
    const TIMES: usize = 40;
    static CPU: AtomicU64 = AtomicU64::new(0);
    static EACH: AtomicU64 = AtomicU64::new(10);
    let cpu = || Duration::from_micros(CPU.fetch_add(EACH.load(Relaxed), Relaxed));
    let mut crowd = Crowd::new();
    let until = crowd.pair.now + Duration::from_secs(1);
    crowd.pair.loops[1].use_clocks((cpu, until), slow_clock);
    crowd.write(0);
    [0, 1].into_iter().for_each(|end| crowd.pair.run(end));
    // No time passes that would pay for it.
    EACH.store(990, Relaxed);
    let meter = crowd.endpoints[1].meter();
    for _ in 0..TIMES {
        crowd.programs[0][0].write_all(&[7; STREAMS as usize]).unwrap();
        [0, 1].into_iter().for_each(|end| crowd.pair.run(end));
    }
    assert_eq!(meter.datagrams_dropped(), 0);
    for _ in 0..TIMES {
        crowd.write(0);
        [0, 1].into_iter().for_each(|end| crowd.pair.run(end));
    }
    assert!(meter.datagrams_dropped() > 0);
}

#[test]
fn a_source_that_was_read_dry_does_not_wait_for_the_window() {
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let connections = pair.connect(&endpoints, client);
    let mut programs = Vec::new();
    let _splices = pair.open(&connections).map(|stream| {
        let (program, socket) = UnixStream::pair().unwrap();
        programs.push(program);
        stream.splice(socket.into(), Delivery::Bounded, "".into())
    });
    let window = || connections[0].stats().path.cwnd;
    pair.pass(&[0, 1]);
    let initial = window();
    programs[0].write_all(&[7; 100_000]).unwrap();
    pair.pass(&[0, 1]);
    let grown = window();
    assert!(grown > 2 * initial, "{initial}, {grown}");
    // Bulk, and less than the window.
    programs[0].write_all(&[7; 20_000]).unwrap();
    pair.pass(&[0, 1]);
    assert_eq!(window(), grown);
}

#[test]
fn newcomers_handshakes_wait_until_a_peers_datagrams_are_answered_and_then_continue_one_by_one() {
    const NEWCOMERS: usize = 7;
    let (config, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let peer = pair.connect(&endpoints, config.clone());
    let [near, _far] = pair.open(&peer);
    let near = Arc::new(near);
    pair.pass(&[0, 1]);
    pair.loops[1].use_clocks((|| Duration::ZERO, pair.now), slow_clock);

    let client = endpoints[0].clone();
    let dial = |config| {
        let (server_name, address) = ("keypadd", pair.addresses[1]);
        let dial = Dial { config, address, server_name, lane: Lane::Sparse, rtt: None };
        let client = client.clone();
        Box::pin(async move { client.connect(dial).await.unwrap() })
    };
    let mut newcomers: Vec<Task<Connection>> =
        (0..NEWCOMERS).map(|_| -> Task<_> { dial(config.clone()) }).collect();
    // First they knock, then they prove their keys: all of it arrives before a round.
    for flight in ["first", "second"] {
        for newcomer in &mut newcomers {
            assert!(poll(newcomer).is_none());
        }
        pair.run(0);
        // Two are acknowledged immediately.
        for _ in 0..2 {
            let near = Arc::clone(&near);
            let mut writing: Task<_> = Box::pin(async move { near.send.write_all(&[7]).await });
            while poll(&mut writing).is_none() {
                pair.run(0);
            }
            pair.run(0);
        }
        let mut arrived = std::mem::take(&mut pair.wires.borrow_mut()[1]);
        // A round receives at least 16.
        arrived.rotate_right(2);
        assert!(arrived.len() >= NEWCOMERS + 2, "{flight}");
        for datagram in arrived {
            pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &datagram));
        }
        // What each round sends.
        let mut sent = Vec::new();
        while pair.loops[1].run_round(pair.now).unwrap() {
            let total = pair.wires.borrow()[0].len();
            sent.push(total - sent.iter().sum::<usize>());
        }
        assert_eq!(sent[0], 1, "{flight}: the acknowledgment, in {sent:?}");
        let most = sent.iter().max().unwrap();
        assert!(sent.len() > NEWCOMERS && *most < NEWCOMERS, "{flight}: one by one, in {sent:?}");
    }
    pair.pass(&[0, 1]);
    assert!(newcomers.iter_mut().all(|newcomer| poll(newcomer).is_some()));
}

#[test]
fn a_path_that_drops_what_could_be_marked_carries_a_connection_after_a_few_probe_timeouts() {
    for drops in [[true, true], [true, false], [false, true]] {
        let (client, server) = configs(Suite::AES_128_GCM);
        let (mut pair, endpoints) = Pair::new(server);
        pair.drops_capable.set(drops);
        let began = pair.now;
        let connections = pair.connect(&endpoints, client);
        let took = pair.now - began;
        assert!(took < Duration::from_secs(4), "{drops:?}: {took:?}");
        pair.open(&connections);
    }
}

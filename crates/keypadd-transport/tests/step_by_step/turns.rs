//! Tests how long one connection's datagrams and deliveries, and strangers' handshakes, hold up
//! another's.

use std::{
    future::Future,
    io::{Read, Write},
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
    ArrivedDatagram, ClientConfig, Connection, Delivery, Dial, Endpoint, HeldStreams, Purpose,
    Splice, Stream, TransferStats, VarInt,
};

use crate::{
    LONG_RTT, Spliced, hold,
    pair::{HOLD, Pair},
    stepped::{Task, configs, poll},
};

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
            settings.plan.sparse_windows.stream = SPARSE_WINDOW;
            settings.plan.streams.unidirectional = 8;
        });
        let [connections, others] = [(); 2].map(|()| pair.connect(&endpoints, config.clone()));
        let held = hold(&connections);
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

    /// What the client has to send arrives in one round, and after it a byte for the other
    /// connection. Before that is read, the server has done only some of what `count` counts, at
    /// least `least`, and then all.
    fn holds_up_another_for_a_few(
        self,
        least: u64,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let Self {
            mut pair, other: [near, mut far], splices: _splices, programs: _programs, ..
        } = self;
        pair.loops[1].use_clocks(|| Duration::ZERO, pair.now, slow_clock);
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
    let bulk = crowd.pair.connect_for(&crowd.endpoints, crowd.config.clone(), Purpose::Bulk);
    crowd.connections.iter().zip(&bulk).for_each(|(sparse, bulk)| sparse.attach_bulk(bulk));
    // Until the path is known to be long: there they are bulk without credit. The peer allows few
    // to move.
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
    pair.loops[1].use_clocks(|| Duration::ZERO, pair.now, slow_clock);
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
    pair.loops[1].use_clocks(|| Duration::ZERO, pair.now, slow_clock);
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
    pair.loops[1].use_clocks(|| Duration::ZERO, pair.now, slow_clock);
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
    crowd.pair.loops[1].use_clocks(cpu, until, slow_clock);
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
fn datagrams_that_take_what_their_suite_takes_are_not_dropped() {
    static CPU: AtomicU64 = AtomicU64::new(0);
    static EACH: AtomicU64 = AtomicU64::new(0);
    let cpu = || Duration::from_micros(CPU.fetch_add(EACH.load(Relaxed), Relaxed));
    // 3DES, one block at a time; without knowing that, it looks like an attack.
    for (opening, are_dropped) in [(118, false), (0, true)] {
        let (client, server) = configs(Suite::AES_128_GCM);
        let (mut pair, endpoints) = Pair::with(server, |settings| {
            settings.plan.opening_cost = Arc::new(move |_| Duration::from_micros(opening));
        });
        let connections = pair.connect(&endpoints, client);
        let [near, _far] = pair.open(&connections);
        pair.pass(&[0, 1]);
        pair.loops[1].use_clocks(cpu, pair.now + Duration::from_secs(60), slow_clock);
        let mut writing: Task<_> = Box::pin(async move { near.send.write_all(&[7; 1_000]).await });
        while poll(&mut writing).is_none() {
            pair.run(0);
        }
        pair.run(0);
        let datagram = pair.wires.borrow_mut()[1].pop_front().unwrap();
        // The shortest takes what those do that find precomputed keystream. No time passes that
        // would pay for the others.
        for each in std::iter::once(1).chain(std::iter::repeat_n(130, 1_000)) {
            EACH.store(each, Relaxed);
            pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &datagram));
            pair.run(1);
        }
        let dropped = endpoints[1].meter().costly_datagrams_dropped();
        assert_eq!(dropped > 0, are_dropped, "{opening}");
    }
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
    pair.loops[1].use_clocks(|| Duration::ZERO, pair.now, slow_clock);

    let client = endpoints[0].clone();
    let dial = |config| {
        let (server_name, address) = ("keypadd", pair.addresses[1]);
        let dial =
            Dial { config, address, server_name, purpose: Purpose::Sparse, home: None, rtt: None };
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

/// A stranger's first datagram on its way to the server, and that server's count of dropped ones.
fn knock() -> (Pair, Vec<u8>, impl Fn() -> u64) {
    let (config, server) = configs(Suite::AES_128_GCM);
    let (mut pair, [client, server]) = Pair::new(server);
    let (server_name, address) = ("keypadd", pair.addresses[1]);
    let dial =
        Dial { config, address, server_name, purpose: Purpose::Sparse, home: None, rtt: None };
    let mut connecting: Task<_> =
        Box::pin(async move { client.connect(dial).await.map(drop).unwrap() });
    assert!(poll(&mut connecting).is_none());
    pair.run(0);
    let first = pair.wires.borrow_mut()[1].pop_front().unwrap();
    (pair, first, move || server.meter().datagrams_dropped())
}

#[test]
fn a_strangers_datagrams_that_take_too_much_cpu_time_are_dropped() {
    static CPU: AtomicU64 = AtomicU64::new(0);
    static EACH: AtomicU64 = AtomicU64::new(2);
    let cpu = || Duration::from_micros(CPU.fetch_add(EACH.load(Relaxed), Relaxed));
    let (mut pair, first, dropped) = knock();
    pair.loops[1].use_clocks(cpu, pair.now + Duration::from_secs(60), slow_clock);
    let mut knock = |times| {
        for _ in 0..times {
            pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &first));
            pair.run(1);
        }
        dropped()
    };
    // What is usual is learned first.
    assert_eq!(knock(10), 0);
    EACH.store(2_000, Relaxed);
    // 20 ms are in advance.
    let dropped = knock(100);
    assert!((80..95).contains(&dropped), "{dropped}");
}

#[test]
fn a_connection_that_is_new_has_little_cpu_time_in_advance() {
    static CPU: AtomicU64 = AtomicU64::new(0);
    static EACH: AtomicU64 = AtomicU64::new(2);
    let cpu = || Duration::from_micros(CPU.fetch_add(EACH.load(Relaxed), Relaxed));
    let (config, server) = configs(Suite::AES_128_GCM);
    let (mut pair, [client, server]) = Pair::new(server);
    pair.loops[1].use_clocks(cpu, pair.now + Duration::from_secs(60), slow_clock);
    let (server_name, address) = ("keypadd", pair.addresses[1]);
    let dial =
        Dial { config, address, server_name, purpose: Purpose::Sparse, home: None, rtt: None };
    let mut connecting: Task<_> = Box::pin(async move { client.connect(dial).await.unwrap() });
    assert!(poll(&mut connecting).is_none());
    [0, 1, 0].into_iter().for_each(|end| pair.run(end));
    let last = pair.wires.borrow()[1].back().unwrap().clone();
    pair.run(1);
    // No time passes that would pay for them.
    EACH.store(1_200, Relaxed);
    for _ in 0..20 {
        pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &last));
        pair.run(1);
    }
    let dropped = server.meter().datagrams_dropped();
    assert!((15..19).contains(&dropped), "{dropped} of 20 that take 1 ms beyond the usual each");
}

#[test]
fn a_strangers_datagram_that_is_longer_than_handshakes_have_begins_none() {
    let (mut pair, first, dropped) = knock();
    let long = [first.clone(), vec![0; 400]].concat();
    pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &long));
    pair.run(1);
    assert!(dropped() == 1 && pair.wires.borrow()[0].is_empty());
    pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &first));
    pair.run(1);
    assert!(!pair.wires.borrow()[0].is_empty());
}

#[test]
fn a_datagram_that_is_longer_than_peers_are_told_is_ignored() {
    let (mut pair, _, dropped) = knock();
    for (bytes, expected) in [(1_472, 0), (1_473, 1)] {
        pair.loops[1].arrive(ArrivedDatagram::plain(pair.addresses[0], &vec![0x40; bytes]));
        pair.run(1);
        assert_eq!(dropped(), expected, "{bytes}");
    }
}

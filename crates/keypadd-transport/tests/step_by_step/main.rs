//! Tests step by step what ends a stream whose socket has failed, what a direction that moves to
//! another connection sends, and what a window and a path do to it: the production event loops
//! without threads, UDP sockets or a clock.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod networks;
#[path = "../stepped/pair.rs"]
mod pair;
#[path = "../stepped/mod.rs"]
mod stepped;
mod turns;

use std::{
    cell::Cell,
    fs,
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use keypadd_keystream::Suite;
use keypadd_transport::{
    Connection, Cut, Delivery, Dial, Endpoint, HeldStreams, Purpose, ReplayBudget, ServerConfig,
    Splice, TransferStats, VarInt,
};
use pair::Pair;
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

/// Lets both ends of a connection hold its streams.
fn hold(ends: &[Connection; 2]) -> [HeldStreams; 2] {
    ends.each_ref().map(|end| {
        let streams =
            HeldStreams::new(Arc::new(ReplayBudget::new(16 << 20, 1 << 30, Arc::default())));
        end.hold(&streams, 0);
        streams
    })
}

#[test]
fn a_stream_whose_socket_fails_after_its_end_was_read_ends_when_the_peers_socket_has_it() {
    let (client, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let connections = pair.connect(&endpoints, client);
    // Receipts are of streams that can be held.
    let held = hold(&connections);
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

    /// Writes until this many bytes are sent or the congestion window is full; returns how many.
    /// The other end gets them later.
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
    let bulk = pair.connect_for(&endpoints, client, Purpose::Bulk);
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

#[test]
fn a_splice_has_two_descriptors_however_long_a_peer_lets_its_directions_wait() {
    let (client, server) = configs(Suite::AES_128_GCM);
    let is_server = Cell::new(false);
    let (mut pair, endpoints) = Pair::with(server, |settings| {
        if !is_server.replace(true) {
            settings.plan.streams.unidirectional = 0;
        }
    });
    let sparse = pair.connect(&endpoints, client.clone());
    let bulk = pair.connect_for(&endpoints, client, Purpose::Bulk);
    sparse.iter().zip(&bulk).for_each(|(sparse, bulk)| sparse.attach_bulk(bulk));
    let (mut programs, mut sockets) = (Vec::new(), Vec::new());
    let _splices = pair.open(&sparse).map(|stream| {
        let (program, socket) = UnixStream::pair().unwrap();
        program.set_nonblocking(true).unwrap();
        programs.push(program);
        // Identifies the socket, whichever descriptor refers to it.
        sockets.push(fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap());
        stream.splice(socket.into(), Delivery::Bounded, "".into())
    });
    let mut most = 0;
    // Both directions become bulk: the client's moves, and the server's cannot.
    for _ in 0..200 {
        for program in &mut programs {
            while program.write(&[7; 64 << 10]).is_ok() {}
            while program.read(&mut [0; 64 << 10]).is_ok() {}
        }
        pair.round_trips(1, LONG_RTT);
        let open = fs::read_dir("/proc/self/fd").unwrap();
        // Other tests are closing theirs at the same time.
        let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        most = most.max(open.filter(|of| *of == sockets[1]).count());
    }
    assert_eq!(most, 2);
}

#[test]
fn a_download_ends_at_both_ends_if_its_program_leaves_as_soon_as_it_has_nothing_more_to_send() {
    let (mut pair, sparse, _bulk) = session();
    let held = hold(&sparse);
    let bytes = some_bytes();
    let mut spliced = Spliced::open(&mut pair, &sparse);
    // Until most arrives over the bulk connection.
    let mut received = 0;
    while received < bytes.len() - (400 << 10) {
        spliced.write(&mut pair, &bytes, 1);
        received += spliced.programs[1].read(&mut [0; 64 << 10]).unwrap_or(0);
    }
    // The rest and its end arrive and are acknowledged, and nobody reads them.
    spliced.write(&mut pair, &bytes, 10);
    assert_eq!(spliced.sent, bytes.len());
    spliced.programs[0].shutdown(Shutdown::Write).unwrap();
    pair.round_trips(3, LONG_RTT);
    let program = spliced.programs.remove(1);
    program.shutdown(Shutdown::Write).unwrap();
    for end in [1, 0] {
        pair.run(end);
    }
    // The receipt for its end arrives after it has left.
    let receipt = std::mem::take(&mut pair.wires.borrow_mut()[1]);
    drop(program);
    pair.run(1);
    pair.wires.borrow_mut()[1] = receipt;
    pair.round_trips(100, LONG_RTT);
    assert_eq!(held.map(|held| held.names().len()), [0, 0]);
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

#[test]
fn the_end_of_an_attempt_that_nobody_answers_is_not_waited_for() {
    let (config, server) = configs(Suite::AES_128_GCM);
    let (mut pair, [client, _server]) = Pair::new(server);
    let (server_name, address) = ("keypadd", pair.addresses[1]);
    let dial =
        Dial { config, address, server_name, purpose: Purpose::Sparse, home: None, rtt: None };
    let dialing = client.clone();
    let mut connecting: Task<_> = Box::pin(async move { dialing.connect(dial).await.is_err() });
    assert!(poll(&mut connecting).is_none());
    pair.pass(&[0]);
    let before = pair.wires.borrow()[1].len();
    assert!(before > 0 && client.open_connections() == 1);
    client.close(VarInt::from_u32(0), b"");
    pair.run(0);
    assert!(pair.wires.borrow()[1].len() > before, "the peer is told");
    assert_eq!((poll(&mut connecting), client.open_connections()), (Some(true), 0));
}

#[test]
fn a_peer_that_acknowledges_nothing_is_sent_no_more_until_it_does() {
    const WRITES: usize = 40_000;
    let (config, server) = configs(Suite::AES_128_GCM);
    let (mut pair, endpoints) = Pair::new(server);
    let connections = pair.connect(&endpoints, config);
    let [mut near, far] = pair.open(&connections);
    pair.pass(&[0, 1]);
    let far = Arc::new(far);
    for _ in 0..WRITES {
        let far = Arc::clone(&far);
        let mut writing: Task<_> = Box::pin(async move { far.send.write_all(&[7]).await });
        while poll(&mut writing).is_none() {
            pair.run(1);
        }
        pair.run(1);
    }
    let sent = pair.wires.borrow()[0].len();
    assert!((30_000..36_000).contains(&sent), "{sent} of {WRITES} packets");
    let mut reading: Task<_> = Box::pin(async move {
        let mut bytes = vec![0; WRITES];
        near.recv.read_exact(&mut bytes).await.unwrap();
        bytes.iter().all(|byte| *byte == 7)
    });
    let mut complete = None;
    for _ in 0..1_000 {
        pair.pass(&[0, 1]);
        complete = complete.or_else(|| poll(&mut reading));
        if complete.is_some() {
            break;
        }
    }
    assert_eq!(complete, Some(true), "everything arrives once it does");
}

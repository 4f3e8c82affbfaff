//! Tests that a connection sends in its own epoch only, and that its end keeps nobody waiting.
#![allow(unreachable_pub, clippy::unwrap_used)]

#[path = "stepped/pair.rs"]
mod pair;
mod stepped;

use std::{
    collections::VecDeque,
    future::Future,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Waker},
};

use keypadd_keystream::Suite;
use keypadd_transport::{
    ClientConfig, Connection, Delivery, Dial, Egress, Endpoint, Purpose, VarInt,
};
use pair::{HOLD, Pair};
use stepped::{Task, configs, poll};

const SERVER: usize = 1;

/// The server's egress, whose epochs the test begins.
#[derive(Debug, Default)]
struct Epochs(AtomicU64);

impl Epochs {
    fn begin(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Egress for Epochs {
    fn epoch(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn may_send(&self, epoch: u64) -> bool {
        epoch == self.epoch()
    }
}

/// A pair whose server accepts so many clients.
fn pair(connections_max: usize) -> (Pair, [Endpoint; 2], ClientConfig, Arc<Epochs>) {
    let (client, server) = configs(Suite::AES_128_GCM);
    let epochs = Arc::<Epochs>::default();
    let (pair, endpoints) = Pair::with(server, |settings| {
        if settings.server.is_some() {
            settings.egress = Arc::<Epochs>::clone(&epochs);
            settings.plan.connections_max = connections_max;
        }
    });
    (pair, endpoints, client, epochs)
}

/// Lets ten seconds pass at the server, and at the client as well or not.
fn assert_server_sends_nothing(pair: &mut Pair, with_client: bool) {
    for _ in 0..50 {
        if with_client {
            pair.run(0);
        }
        pair.pass(&[SERVER]);
        assert!(pair.wires.borrow()[0].is_empty());
    }
}

#[test]
fn a_connection_of_an_earlier_epoch_sends_nothing_and_its_slow_target_gets_all() {
    // More than a socket takes, and less than a socket and a stream.
    let message: Vec<u8> = (0..320 << 10).map(|nth: u32| (nth / 251) as u8).collect();
    let (mut pair, endpoints, config, epochs) = pair(2);
    let before = pair.connect(&endpoints, config.clone());
    let mut programs = Vec::new();
    let splices = pair.open(&before).map(|stream| {
        let (program, socket) = UnixStream::pair().unwrap();
        program.set_nonblocking(true).unwrap();
        programs.push(program);
        stream.splice(socket.into(), Delivery::Unbounded, "".into())
    });
    let [mut near, _splice] = splices.map(|splice| -> Task<_> { Box::pin(splice) });
    let [mut sender, mut slow] = <[UnixStream; 2]>::try_from(programs).unwrap();
    slow.shutdown(Shutdown::Write).unwrap();
    let mut sent = 0;
    while sent < message.len() {
        sent += sender.write(&message[sent..]).unwrap_or(0);
        pair.pass(&[0, SERVER]);
    }
    sender.shutdown(Shutdown::Write).unwrap();
    pair.pass(&[0, SERVER]);
    assert!(poll(&mut near).is_some_and(|outcome| outcome.is_ok()), "all is acknowledged");

    let [here, there] = pair.open(&before);
    epochs.begin();
    for (end, stream) in [(SERVER, &there), (0, &here)] {
        let mut writing = Box::pin(stream.send.write_all(&[7; 1_000]));
        let mut context = Context::from_waker(Waker::noop());
        while writing.as_mut().poll(&mut context).is_pending() {
            pair.run(end);
        }
    }
    assert!(!pair.wires.borrow()[SERVER].is_empty(), "it gets something to answer");
    assert_server_sends_nothing(&mut pair, true);
    before[SERVER].close(VarInt::from_u32(1), b"");
    // Without the client, whose packets would be answered by a stateless reset.
    assert_server_sends_nothing(&mut pair, false);

    assert_eq!(endpoints[SERVER].open_connections(), 1, "it is still being delivered");
    let after = pair.connect(&endpoints, config);
    pair.open(&after);
    let mut received = Vec::new();
    while slow.read_to_end(&mut received).is_err() {
        pair.pass(&[0, SERVER]);
    }
    assert!(received == message, "{} of {}", received.len(), message.len());
    pair.pass(&[0, SERVER]);
    assert_eq!(endpoints[SERVER].open_connections(), 1);
}

/// Begins a handshake; what the server answers does not arrive yet.
fn knock(pair: &mut Pair, endpoints: &[Endpoint; 2], config: &ClientConfig) -> Task<Connection> {
    let (client, address, config) = (endpoints[0].clone(), pair.addresses[SERVER], config.clone());
    let (server_name, purpose) = ("keypadd", Purpose::Sparse);
    let dial = Dial { config, address, server_name, purpose, home: None, rtt: None };
    let mut connecting: Task<_> = Box::pin(async move { client.connect(dial).await.unwrap() });
    assert!(poll(&mut connecting).is_none());
    pair.loops[0].run_until_idle(pair.now).unwrap();
    pair.run(SERVER);
    connecting
}

/// So many handshakes that another client has to prove its address.
const HALF_OPEN: usize = 8;

#[test]
fn half_open_handshakes_of_an_earlier_epoch_hold_no_place_and_get_no_answer() {
    let (mut pair, endpoints, config, epochs) = pair(16);
    let _half_open: Vec<_> =
        (0..HALF_OPEN).map(|_| knock(&mut pair, &endpoints, &config)).collect();
    assert_eq!(endpoints[SERVER].open_connections(), HALF_OPEN);
    let answers = std::mem::take(&mut pair.wires.borrow_mut()[0]);
    epochs.begin();
    let mut newcomer = knock(&mut pair, &endpoints, &config);
    assert_eq!(endpoints[SERVER].open_connections(), 1);
    pair.run(0);
    assert!(poll(&mut newcomer).is_some(), "it is answered at once");

    // They go on with answers from before, and get no more.
    pair.run(SERVER);
    pair.wires.borrow_mut()[0] = answers;
    pair.run(0);
    assert!(pair.wires.borrow()[SERVER].len() >= HALF_OPEN);
    let is_handshake = |datagram: &Vec<u8>| datagram[0] & 0x80 != 0;
    pair.run(SERVER);
    assert!(!pair.wires.borrow()[0].iter().any(is_handshake));
    assert_eq!(endpoints[SERVER].open_connections(), 1);
}

/// Whether a client is asked to show that it receives at its address (RFC 9000 17.2.5).
fn is_retry(datagram: &[u8]) -> bool {
    datagram[0] & 0xf0 == 0xf0
}

#[test]
fn a_token_of_an_earlier_epoch_proves_no_address() {
    for another_epoch in [false, true] {
        let (mut pair, endpoints, config, epochs) = pair(16);
        let crowd = |pair: &mut Pair| -> Vec<_> {
            let half_open = (0..HALF_OPEN).map(|_| knock(pair, &endpoints, &config)).collect();
            pair.wires.borrow_mut()[0].clear();
            half_open
        };
        let _half_open = crowd(&mut pair);
        let _newcomer = knock(&mut pair, &endpoints, &config);
        assert!(pair.wires.borrow()[0].iter().all(|datagram| is_retry(datagram)));
        pair.run(0);
        let with_token = std::mem::take(&mut pair.wires.borrow_mut()[SERVER]);
        assert!(!with_token.is_empty());
        let _later = another_epoch.then(|| {
            epochs.begin();
            crowd(&mut pair)
        });
        pair.wires.borrow_mut()[SERVER] = with_token;
        pair.run(SERVER);
        let answers = std::mem::take(&mut pair.wires.borrow_mut()[0]);
        assert!(!answers.is_empty());
        assert_eq!(answers.iter().any(|datagram| is_retry(datagram)), another_epoch);
    }
}

#[test]
fn a_thousand_epochs_leave_every_place_free() {
    let (mut pair, endpoints, config, epochs) = pair(2);
    for _ in 0..1_000 {
        let connections = pair.connect(&endpoints, config.clone());
        let half_open = knock(&mut pair, &endpoints, &config);
        epochs.begin();
        connections[SERVER].close(HOLD, b"");
        connections[0].close(HOLD, b"");
        drop(half_open);
        pair.loops[0].run_until_idle(pair.now).unwrap();
        // What is on its way is lost: a client that gives up would begin a handshake to say so.
        *pair.wires.borrow_mut() = [VecDeque::new(), VecDeque::new()];
    }
    for _ in 0..100 {
        pair.pass(&[0, SERVER]);
    }
    assert_eq!(endpoints.each_ref().map(Endpoint::open_connections), [0, 0]);
}

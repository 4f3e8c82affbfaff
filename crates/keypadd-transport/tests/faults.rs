//! Tests that a panic in a loop's work for a stream ends that stream's connection, and no other.
//!
//! The panics come from the wakers of tasks that wait for the stream, which the loop calls.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod pair;

use std::{
    any::Any,
    future::Future,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use keypadd_transport::{Connection, ConnectionError, Delivery, SpinShare, Stream, VarInt};
use pair::Pair;
use tokio::time::timeout;
use tracing::Level;

/// Longer than anything here takes; reaching it means a hang.
const HANG: Duration = Duration::from_secs(60);

/// A waker that panics, once.
#[derive(Default)]
struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        assert!(self.0.swap(true, SeqCst), "test fault in a stream's handling");
    }
}

/// Errors logged by this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a keystroke and waits for its echo.
fn swap_a_byte([near, far]: &mut [UnixStream; 2]) {
    near.write_all(b"k").unwrap();
    far.read_exact(&mut [0]).unwrap();
    far.write_all(b"k").unwrap();
    near.read_exact(&mut [0]).unwrap();
}

/// A future that a control task awaits at the server's end of a stream, and the event that
/// completes it.
struct Fault {
    what: &'static str,
    begin: fn(&Pair, [Stream; 2], &mut Context<'_>) -> Kept,
}

/// Kept because dropping it would end the stream in another way.
type Kept = Box<dyn Any>;

/// Polls once, which hands the waker to the loop.
fn wait<F: Future + 'static>(future: F, cx: &mut Context<'_>) -> Kept {
    let mut future = Box::pin(future);
    assert!(future.as_mut().poll(cx).is_pending());
    Box::new(future)
}

const FAULTS: [Fault; 3] = [
    Fault {
        what: "a reader is woken",
        begin: |pair, [client, mut server], cx| {
            let reading = wait(async move { server.recv.read_exact(&mut [0]).await }, cx);
            pair.control.block_on(client.send.write_all(&[1])).unwrap();
            Box::new((client, reading))
        },
    },
    Fault {
        what: "a writer is woken",
        begin: |_, [client, server], cx| {
            let writing = wait(async move { server.send.write_all(&[1]).await }, cx);
            Box::new((client, writing))
        },
    },
    Fault {
        what: "a splice has ended",
        begin: |pair, [client, server], cx| {
            let (far, spliced) = UnixStream::pair().unwrap();
            let splicing = wait(server.splice(spliced.into(), Delivery::Unbounded, "".into()), cx);
            let (near, spliced) = UnixStream::pair().unwrap();
            pair.control.spawn(client.splice(spliced.into(), Delivery::Unbounded, "".into()));
            let mut programs = [near, far];
            swap_a_byte(&mut programs);
            programs.iter().for_each(|program| program.shutdown(Shutdown::Write).unwrap());
            splicing
        },
    },
];

#[test]
fn a_panic_in_a_streams_handling_ends_its_connection_and_no_other() {
    let log = tracing_subscriber::fmt().with_max_level(Level::ERROR).with_ansi(false);
    log.with_writer(|| Log).init();
    let pair = Pair::new(SpinShare::percent(0));
    let other = pair.connect();
    let mut programs = pair.splice(pair.open(&other));
    swap_a_byte(&mut programs);

    for (before, Fault { what, begin }) in FAULTS.into_iter().enumerate() {
        let failing = pair.connect();
        let streams = pair.open(&failing);
        let waker = Waker::from(Arc::new(Panics::default()));
        let _kept = begin(&pair, streams, &mut Context::from_waker(&waker));
        let closed = |connection: &Connection| {
            let closed = async { timeout(HANG, connection.closed()).await };
            pair.control.block_on(closed).expect(what)
        };
        assert_eq!(closed(&failing[1]), ConnectionError::LocallyClosed, "{what}");
        // The client learns from a stateless reset once it sends something.
        failing[0].close(VarInt::from_u32(0), b"");

        // Check the other connection, its statistics, new connections and the log.
        let sent = other[1].stats().udp_tx.datagrams;
        while other[1].stats().udp_tx.datagrams == sent {
            swap_a_byte(&mut programs);
        }
        assert!(other.iter().all(|end| end.close_reason().is_none()), "{what}");
        let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
        assert_eq!(log.lines().count(), before + 1, "{what}: {log}");
    }

    pair.server.close(VarInt::from_u32(7), b"over");
    let idle = async { timeout(HANG, pair.server.wait_idle()).await };
    pair.control.block_on(idle).expect("the server ends");
}

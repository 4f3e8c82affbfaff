//! Runs the binary over an emulated line that marks packets that have waited (ECN, RFC 3168) and
//! has a long queue, between two namespaces: marks leave, arrive and are obeyed, and a path that
//! clears or drops what could be marked carries the same bytes.
//!
//! As root: `cargo test --test ecn -- --ignored`. Verdicts rest on counts and exact bytes, and the
//! same line without marks is the control.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use testbed::line::QueueBound;
use testbed::path::{Ecn, EcnCounts};
use testbed::tunnel::{Arm, Kind, SERVICE_PORT, Tunnel};
use testbed::{Cleanup, End, LineCounts, LineSettings, TwoHosts};

/// What an upload carries: a second of the line.
const BYTES: usize = 6 << 20;

/// A connection that does not move for this long hangs.
const HANG: Duration = Duration::from_secs(60);

/// 50 Mbit/s and 20 ms, some 85 packets in a round trip; marks what has waited 1 ms.
fn line() -> LineSettings {
    LineSettings {
        bits_per_second: NonZeroU64::new(50_000_000),
        delay: Duration::from_millis(10),
        queue: QueueBound { packets: 500, ..QueueBound::UNBOUNDED },
        mark_above: Some(Duration::from_millis(1)),
        ..<_>::default()
    }
}

/// What an upload did.
#[derive(Debug)]
struct Figures {
    line: LineCounts,
    ecn: EcnCounts,
    /// Marked packets that the far host's kernel received (`InCEPkts`).
    received_marked: u64,
    /// What the near daemon took for lost.
    lost: u64,
}

impl Figures {
    /// The share of the packets that waited so long that the line marked them, or would have.
    fn waited_share(&self) -> f64 {
        self.line.marked as f64 / self.line.arriving as f64
    }
}

/// Uploads through a tunnel with these flags, on a path that treats ECN like this.
fn upload(flags: &str, ecn: Ecn) -> Figures {
    let cleanup = Arc::new(Cleanup::default());
    let directory = tempfile::tempdir().unwrap();
    let (hosts, path) = TwoHosts::by_path(1500, 1).unwrap();
    for end in [End::Near, End::Far] {
        path.renew(end, line(), 1);
        path.set_ecn(end, ecn);
    }
    let text: Arc<Vec<u8>> = Arc::new(text());
    let service = hosts.far.inside(|| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, SERVICE_PORT)).map_err(|error| error.to_string())
    });
    serve(service.unwrap(), Arc::clone(&text));

    let kind = Kind::keypadd(Path::new(env!("CARGO_BIN_EXE_keypadd")), flags);
    kind.prepare(directory.path()).unwrap();
    let arm = Arm { name: "keypadd".into(), kind };
    let carries = |address| exact_bytes(address, &[]).is_some();
    let ports = (10_000, 20_000);
    let tunnel = Tunnel::open(&cleanup, &hosts, &arm, directory.path(), ports, &carries).unwrap();
    let address = tunnel.address;
    let exact = hosts.near.inside(|| Ok(exact_bytes(address, &text))).unwrap();
    assert_eq!(exact, Some(text.len() as u64), "{flags} {ecn:?}");

    let status = directory.path().join("Near.run");
    let figures = Figures {
        line: path.counts(End::Near),
        ecn: path.ecn_counts(End::Near),
        received_marked: hosts.far.inside(|| Ok(kernel_counter("InCEPkts"))).unwrap(),
        lost: lost_packets(&status),
    };
    drop(tunnel);
    cleanup.run();
    println!("{flags} {ecn:?}: {:.3} waited, {figures:?}", figures.waited_share());
    figures
}

fn text() -> Vec<u8> {
    let mut text = vec![0; BYTES];
    fastrand::Rng::with_seed(1).fill(&mut text);
    text
}

/// Answers each connection with the number of bytes that came and are right.
fn serve(listener: TcpListener, text: Arc<Vec<u8>>) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, text) = (stream.unwrap(), Arc::clone(&text));
            thread::spawn(move || {
                let mut received = Vec::new();
                stream.set_read_timeout(Some(HANG))?;
                stream.read_to_end(&mut received)?;
                let right = if text.starts_with(&received) { received.len() } else { 0 };
                stream.write_all(&(right as u64).to_be_bytes())
            });
        }
    });
}

/// Sends a text to the service; returns its answer.
fn exact_bytes(address: SocketAddr, text: &[u8]) -> Option<u64> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(HANG)).ok()?;
    stream.write_all(text).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).ok()?;
    Some(u64::from_be_bytes(answer))
}

/// A counter of this thread's network namespace (RFC 4293 names; `IpExt` in the kernel).
fn kernel_counter(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut rows = text.lines().filter(|row| row.starts_with("IpExt:"));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut both = std::iter::zip(names.split(' '), values.split(' '));
    both.find(|(it, _)| *it == name).unwrap().1.parse().unwrap()
}

/// Packets that the daemon with this directory for its control socket took for lost.
fn lost_packets(directory: &Path) -> u64 {
    let mut status = Command::new(env!("CARGO_BIN_EXE_keypadd"));
    status.args(["status", "--json"]).env("RUNTIME_DIRECTORY", directory);
    let document = status.output().unwrap().stdout;
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    document["daemons"][0]["sessions"][0]["lost_packets"].as_u64().unwrap()
}

#[test]
#[ignore = "needs root"]
fn cubic_obeys_marks_and_loses_nothing_where_it_overflows_a_queue_without_them() {
    let marked = upload("--congestion cubic", Ecn::Pass);
    assert!(marked.ecn.marked > 0 && marked.received_marked > 0, "{marked:?}");
    assert_eq!((marked.line.queue_full, marked.lost), (0, 0), "{marked:?}");
    let cleared = upload("--congestion cubic", Ecn::Clear);
    assert!(cleared.line.queue_full > 0, "{cleared:?}");
    assert_eq!((cleared.ecn.marked, cleared.received_marked), (0, 0), "{cleared:?}");
}

#[test]
#[ignore = "needs root"]
fn the_default_obeys_marks_and_has_fewer_packets_wait() {
    let [marked, cleared] = [Ecn::Pass, Ecn::Clear].map(|ecn| upload("", ecn));
    assert!(marked.ecn.marked > 0 && marked.received_marked > 0, "{marked:?}");
    assert_eq!((cleared.ecn.marked, cleared.received_marked), (0, 0), "{cleared:?}");
    assert!(marked.waited_share() < 0.5 * cleared.waited_share(), "{marked:?} {cleared:?}");
}

#[test]
#[ignore = "needs root"]
fn a_path_that_drops_what_could_be_marked_carries_a_tunnel() {
    let dropped = upload("", Ecn::Drop);
    assert!(dropped.ecn.capable > 0, "{dropped:?}");
    assert_eq!(dropped.received_marked, 0, "{dropped:?}");
}

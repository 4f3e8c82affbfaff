//! Measures the cost of the event loops without a tunnel around them: an echo of 128 bytes and a
//! transfer of 16 MiB, each over a stream that is spliced to a TCP connection at both ends.
//!
//! Runs two endpoints of one loop each in this process, over loopback, with AES-256-GCM and no
//! pool. Each byte crosses TCP, QUIC and TCP again; an echo does so twice. Echoes run with polling
//! off, at its default and at a whole core: the difference is the cost of waking a thread.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

#[path = "../crates/keypadd-transport/tests/pair/mod.rs"]
mod pair;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use keypadd_transport::{Connection, Delivery, SpinShare};
use pair::Pair;

/// A keystroke and its overhead.
const ECHO_BYTES: usize = 128;

/// A transfer; its receiver answers with one byte.
const BULK_BYTES: usize = 16 << 20;

/// Two connected TCP sockets, without Nagle's algorithm.
fn tcp_pair() -> [TcpStream; 2] {
    let pair = || -> io::Result<_> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let connected = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        connected.set_nodelay(true)?;
        accepted.set_nodelay(true)?;
        Ok([connected, accepted])
    };
    pair().expect("TCP over loopback")
}

/// A connection between two endpoints, and one stream spliced at both ends.
struct Tunnel {
    /// The program's socket at the near end.
    near: TcpStream,
    _connections: [Connection; 2],
    _pair: Pair,
}

impl Tunnel {
    /// Runs `program` on the socket at the far end.
    fn new(spin: SpinShare, program: fn(TcpStream) -> io::Result<()>) -> Self {
        let pair = Pair::new(spin);
        let connections = pair.connect();

        let [mut near, near_spliced] = tcp_pair();
        let [far, far_spliced] = tcp_pair();
        thread::spawn(move || program(far));
        let opened = pair.control.block_on(connections[0].open_bi()).expect("a stream");
        pair.control.spawn(opened.splice(near_spliced.into(), Delivery::Unbounded, "".into()));
        // The peer sees a stream only once it carries a byte.
        near.write_all(&[0]).expect("a first byte");
        let taken = pair.control.block_on(connections[1].accept_bi()).expect("the stream");
        pair.control.spawn(taken.splice(far_spliced.into(), Delivery::Unbounded, "".into()));
        near.read_exact(&mut [0]).expect("an answer");
        Self { near, _connections: connections, _pair: pair }
    }
}

/// Echoes everything.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; ECHO_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => stream.write_all(&buffer[..bytes])?,
        }
    }
}

/// Answers the first byte and then each transfer with one byte.
fn sink(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut left = 1;
    loop {
        let wanted = left.min(buffer.len());
        match stream.read(&mut buffer[..wanted])? {
            0 => return Ok(()),
            bytes => left -= bytes,
        }
        if left == 0 {
            stream.write_all(&[0])?;
            left = BULK_BYTES;
        }
    }
}

fn echoes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("echo");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    let default = SpinShare::default();
    for spin in [SpinShare::percent(0), default, SpinShare::percent(100)] {
        let id = BenchmarkId::new(format!("{ECHO_BYTES} bytes"), format!("spin {spin} %"));
        group.bench_function(id, |bencher| {
            let mut tunnel = Tunnel::new(spin, echo);
            let mut bytes = [7; ECHO_BYTES];
            bencher.iter(|| {
                tunnel.near.write_all(&bytes).expect("sent");
                tunnel.near.read_exact(&mut bytes).expect("echoed");
            });
        });
    }
}

fn bulk(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bulk");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    group.sample_size(10).throughput(Throughput::Bytes(BULK_BYTES as u64));
    group.bench_function(format!("{} MiB", BULK_BYTES >> 20), |bencher| {
        let mut tunnel = Tunnel::new(SpinShare::default(), sink);
        let bytes = vec![7; BULK_BYTES];
        bencher.iter(|| {
            tunnel.near.write_all(&bytes).expect("sent");
            tunnel.near.read_exact(&mut [0]).expect("arrived");
        });
    });
}

criterion_group!(transport, echoes, bulk);
criterion_main!(transport);

//! What the event loops cost, without a tunnel around them: an echo of 128 bytes and a transfer of 16 MiB,
//! each over a stream that is spliced to a TCP connection at both ends.
//!
//! Two endpoints of one loop each, in this process, over loopback, with AES-256-GCM and no pool. Each
//! byte crosses TCP, QUIC and TCP again; an echo does so twice. Echoes run with polling off, at its
//! default and at a whole core: the difference is what waking a thread costs.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{
    AllowList, CryptoSettings, KeyExchange, Meters, PoolSwitch, PrivateKey, PublicKey,
    client_config, server_config,
};
use keypadd_transport::{
    Accepted, ClientConfig, Connection, Delivery, Egress, Endpoint, EndpointConfig,
    EndpointSettings, Lane, ServerConfig, SpinShare, Streams, TransportConfig, VarInt, Windows,
    congestion::CubicConfig,
};
use tokio::runtime::Runtime;

/// A keystroke and what belongs to it.
const ECHO_BYTES: usize = 128;

/// A transfer; its receiver answers with one byte.
const BULK_BYTES: usize = 16 << 20;

/// Of a stream and of a connection, as a tunnel has them.
const WINDOWS: Windows =
    Windows { stream: 2 << 20, connection: 64 << 20, connection_max: 64 << 20 };
const SEND_WINDOW_BYTES: u32 = 16 << 20;

const NO_ERROR: VarInt = VarInt::from_u32(0);

#[derive(Debug)]
struct Anybody;

impl AllowList for Anybody {
    fn allows(&self, _: &PublicKey) -> bool {
        true
    }
}

#[derive(Debug)]
struct Unrestricted;

impl Egress for Unrestricted {
    fn may_send(&self) -> bool {
        true
    }
}

/// An endpoint of one loop on loopback.
fn endpoint(server: Option<ServerConfig>, spin: SpinShare) -> Endpoint {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a UDP port");
    let transport = |_| {
        let mut transport = TransportConfig::default();
        transport.send_window(2 * u64::from(SEND_WINDOW_BYTES));
        transport
    };
    let endpoint = Endpoint::start(EndpointSettings {
        sockets: vec![socket],
        config: EndpointConfig::default(),
        server,
        transport: Arc::new(transport),
        streams: Streams { bidirectional: 1, unidirectional: 1 },
        sparse_windows: WINDOWS,
        bulk_windows: WINDOWS,
        growth: 0,
        congestion: Arc::new(CubicConfig::default()),
        flight_max: SEND_WINDOW_BYTES.into(),
        connections_max: 1,
        egress: Arc::new(Unrestricted),
        inspect: Arc::new(|_| None),
        cut_code: NO_ERROR,
        drop_code: NO_ERROR,
        goodbye_code: None,
        spin,
    });
    endpoint.expect("an endpoint")
}

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

/// A connection between two endpoints, and a stream of it that is spliced at both ends.
struct Tunnel {
    /// A program's end at the near side.
    near: TcpStream,
    _connections: [Connection; 2],
    _endpoints: [Endpoint; 2],
    _control: Runtime,
}

impl Tunnel {
    /// At the far side `program` has the other end.
    fn new(spin: SpinShare, program: fn(TcpStream) -> io::Result<()>) -> Self {
        let control = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let control = control.expect("a runtime");
        let key = || Arc::new(PrivateKey::generate().expect("randomness"));
        let keys = [key(), key()];
        let [connecting, accepting] = keys.each_ref().map(|key| CryptoSettings {
            key: Arc::clone(key),
            suites: vec![Suite::default().protection()],
            kex: vec![KeyExchange::X25519.into()],
            pool: PoolSwitch::default(),
            cipher_engine: CipherEngine::default(),
            meters: Arc::new(Meters::default()),
        });
        let accepting = server_config(&accepting, Arc::new(Anybody)).expect("a server");
        let connecting = client_config(&connecting, keys[1].public()).expect("a client");
        let listening = endpoint(Some(ServerConfig::with_crypto(accepting)), spin);
        let client = endpoint(None, spin);
        let address = listening.local_addr();
        let connect =
            client.connect(ClientConfig::new(connecting), address, "keypadd", Lane::Sparse);
        let accept = async {
            match listening.accept().await {
                Some(Accepted::Connection(connection)) => connection,
                other => panic!("{other:?}"),
            }
        };
        let (connected, accepted) = control.block_on(async { tokio::join!(connect, accept) });
        let connections = [connected.expect("connected"), accepted];

        let [mut near, near_spliced] = tcp_pair();
        let [far, far_spliced] = tcp_pair();
        thread::spawn(move || program(far));
        let opened = control.block_on(connections[0].open_bi()).expect("a stream");
        control.spawn(opened.splice(near_spliced.into(), Delivery::Unbounded));
        // The first byte shows the stream to the other end.
        near.write_all(&[0]).expect("a first byte");
        let taken = control.block_on(connections[1].accept_bi()).expect("the stream");
        control.spawn(taken.splice(far_spliced.into(), Delivery::Unbounded));
        near.read_exact(&mut [0]).expect("its answer");
        let _endpoints = [client, listening];
        Self { near, _connections: connections, _endpoints, _control: control }
    }
}

/// Sends back whatever comes.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; ECHO_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => stream.write_all(&buffer[..bytes])?,
        }
    }
}

/// Answers a first byte and then each transfer with one byte.
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

//! Provides test ends: echo targets, clients that check echoes, free ports and polling. Knows no
//! daemon.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a machine that is not stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Retries until it succeeds.
pub(crate) fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A UDP and TCP port that nothing else gets: below the kernel's ephemeral range (ip(7)), and
/// handed out only once.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(15_000);
    loop {
        let port = NEXT.fetch_add(1, Relaxed);
        let everywhere = (Ipv4Addr::UNSPECIFIED, port);
        if TcpListener::bind(everywhere).is_ok() && UdpSocket::bind(everywhere).is_ok() {
            return port;
        }
        assert!(port < 30_000, "no port is free");
    }
}

/// Starts an echo server at a free port of this address.
pub(crate) fn echo(ip: &str) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut back = stream.try_clone().unwrap();
            thread::spawn(move || io::copy(&mut stream, &mut back));
        }
    });
    address
}

/// Starts an echo server at the path of a unix socket.
pub(crate) fn echo_at(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut back = stream.try_clone().unwrap();
            thread::spawn(move || io::copy(&mut stream, &mut back));
        }
    });
}

/// Whether bytes are echoed, leaving the connection open.
pub(crate) fn echoes(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 5];
    stream.write_all(b"hello").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && &answer == b"hello"
}

/// The kernel's numbers of the sockets that listen on this port of 127.0.0.1 or all IPv4 addresses, of `tcp` or
/// `udp` (proc_net_tcp in the kernel's documentation).
pub(crate) fn listening_sockets(protocol: &str, port: u16) -> Vec<String> {
    let table = std::fs::read_to_string(format!("/proc/net/{protocol}")).unwrap();
    let state = if protocol == "tcp" { "0A" } else { "07" };
    let listens = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].ends_with(&format!(":{port:04X}")) && words[3] == state
    };
    let inode = |line: &str| line.split_whitespace().nth(9).unwrap().to_owned();
    table.lines().skip(1).filter(listens).map(inode).collect()
}

/// Connects through the tunnel to this local port; `None` until that works.
pub(crate) fn through(port: u16) -> Option<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).ok().filter(echoes)
}

/// Sends bytes and a half-close to a TCP address or unix socket path; returns the answer.
pub(crate) fn exchange(place: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
    if place.starts_with('/') {
        let mut stream = UnixStream::connect(place)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(bytes)?;
        stream.shutdown(Shutdown::Write)?;
        return rest(&mut stream);
    }
    exchange_on(TcpStream::connect(place)?, bytes)
}

/// Like [`exchange`], on an open connection.
pub(crate) fn exchange_on(mut stream: TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)?;
    rest(&mut stream)
}

/// Reads to the end of the stream.
pub(crate) fn rest(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a daemon's metrics.
pub(crate) fn scrape(port: u16) -> String {
    get(port, "/metrics")
}

/// The response of a daemon's metrics port, with status line and headers.
pub(crate) fn get(port: u16, path: &str) -> String {
    get_as(port, path, "*/*")
}

/// Like [`get`], with this `Accept` header.
pub(crate) fn get_as(port: u16, path: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n").unwrap();
    String::from_utf8(rest(&mut stream).unwrap()).unwrap()
}

/// Asks a SOCKS5 proxy for a target given in wire format (RFC 1928); returns the connection and
/// reply.
pub(crate) fn ask_proxy(proxy: &str, address: &[u8], port: u16) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"\x05\x01\x00").unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    let request = [b"\x05\x01\x00", address, &port.to_be_bytes()].concat();
    stream.write_all(&request).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((reply[0], &reply[2..]), (5, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
    (stream, reply[1])
}

/// 127.0.0.1 in SOCKS5 wire format.
pub(crate) const IPV4_LOOPBACK: &[u8] = b"\x01\x7f\x00\x00\x01";

/// ::1 in SOCKS5 wire format.
pub(crate) const IPV6_LOOPBACK: &[u8] = b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01";

/// A host name in SOCKS5 wire format.
pub(crate) fn by_name(name: &str) -> Vec<u8> {
    [&[3, name.len() as u8], name.as_bytes()].concat()
}

/// Varying bytes, so that loss and reordering are noticed.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let step = |_| {
        // xorshift32 (Marsaglia).
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(step).collect()
}

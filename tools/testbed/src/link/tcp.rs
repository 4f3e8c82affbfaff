//! Relays TCP connections over a line, for arms without a tunnel.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use super::{Forwarder, ForwarderState, LOOK_UP, Way, headers, spawn, wait_for, wake_on_time};

/// Bytes per read, and maximum pieces in transit: 16 MiB each way.
const PIECE_BYTES: usize = 16 << 10;
const PIECES: usize = 1 << 10;

/// Payload of a packet on an Ethernet path, and bytes of TCP's header with timestamps.
const SEGMENT_BYTES: usize = 1448;
const HEADER_BYTES: usize = 32;

/// Starts a relay on the loopback of `to`.
pub(super) fn start(ways: &[Arc<Way>; 2], to: SocketAddr) -> io::Result<Forwarder> {
    let listener = TcpListener::bind((to.ip(), 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let shared = Arc::new(ForwarderState::default());
    let (ways, of) = (ways.clone(), Arc::clone(&shared));
    spawn(move || {
        while !of.is_over() {
            match listener.accept() {
                Ok((near, _)) => {
                    let (ways, of) = (ways.clone(), Arc::clone(&of));
                    // A connection that cannot be relayed is closed, which its client sees.
                    let _ = spawn(move || drop(join(near, &ways, to, &of)));
                }
                Err(_) => thread::sleep(ACCEPT_EVERY),
            }
        }
    })?;
    Ok(Forwarder { address, shared })
}

/// Polling interval for new connections; much less than a round trip over any line.
const ACCEPT_EVERY: std::time::Duration = std::time::Duration::from_millis(1);

/// Relays one connection, after the round trip in which TCP opens one.
fn join(
    near: TcpStream,
    ways: &[Arc<Way>; 2],
    to: SocketAddr,
    shared: &Arc<ForwarderState>,
) -> io::Result<()> {
    let header_bytes = headers(to, HEADER_BYTES);
    for line in ways {
        wait_for(
            line.take(Instant::now(), header_bytes).unwrap_or_else(|busy| Instant::now() + busy),
        );
    }
    let far = TcpStream::connect(to)?;
    for stream in [&near, &far] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_UP))?;
    }
    let pairs = [(near.try_clone()?, far.try_clone()?), (far, near)];
    for (way, (from, to)) in pairs.into_iter().enumerate() {
        let (underway, arriving) = sync_channel(PIECES);
        let (line, of) = (Arc::clone(&ways[way]), Arc::clone(shared));
        spawn(move || read(from, way, &line, header_bytes, &of, &underway))?;
        let shared = Arc::clone(shared);
        spawn(move || write(to, &shared, &arriving))?;
    }
    Ok(())
}

/// Reads to the end, and enqueues data as the line has room.
fn read(
    mut from: TcpStream,
    way: usize,
    line: &Way,
    header_bytes: usize,
    shared: &ForwarderState,
    underway: &SyncSender<(Instant, Vec<u8>)>,
) {
    wake_on_time();
    let mut buffer = vec![0; PIECE_BYTES];
    while !shared.is_over() {
        let len = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        shared.count(way, len);
        let on_the_line = len + len.div_ceil(SEGMENT_BYTES) * header_bytes;
        let due = loop {
            match line.take(Instant::now(), on_the_line) {
                Ok(due) => break due,
                Err(busy) => thread::sleep(busy),
            }
        };
        if underway.send((due, buffer[..len].to_vec())).is_err() {
            return;
        }
    }
}

/// Writes what the line delivers, then shuts down.
fn write(mut to: TcpStream, shared: &ForwarderState, arriving: &Receiver<(Instant, Vec<u8>)>) {
    wake_on_time();
    while !shared.is_over() {
        let (due, piece) = match arriving.recv_timeout(LOOK_UP) {
            Ok(arriving) => arriving,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
        };
        wait_for(due);
        if to.write_all(&piece).is_err() {
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

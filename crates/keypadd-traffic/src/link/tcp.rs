//! Relays TCP connections over a line, for arms without a tunnel.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::{Forwarder, ForwarderState, LOOK_UP, Line, headers, spawn, wait_for, wake_on_time};

/// Bytes per read, and maximum pieces in transit: 16 MiB each way.
const PIECE_BYTES: usize = 16 << 10;
const PIECES: usize = 1 << 10;

/// Payload of a packet on an Ethernet path, and bytes of TCP's header with timestamps.
const SEGMENT_BYTES: usize = 1448;
const HEADER_BYTES: usize = 32;

/// Starts a relay on the loopback of `to`.
pub(super) fn start(line: Arc<Line>, to: SocketAddr) -> io::Result<Forwarder> {
    let listener = TcpListener::bind((to.ip(), 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let shared = Arc::new(ForwarderState::default());
    let of = Arc::clone(&shared);
    spawn(move || {
        while !of.is_over() {
            match listener.accept() {
                Ok((near, _)) => {
                    let (line, of) = (Arc::clone(&line), Arc::clone(&of));
                    // A connection that cannot be relayed is closed, which its client sees.
                    let _ = spawn(move || drop(join(near, &line, to, &of)));
                }
                Err(_) => thread::sleep(ACCEPT_EVERY),
            }
        }
    })?;
    Ok(Forwarder { address, shared })
}

/// Polling interval for new connections; much less than a round trip over any line.
const ACCEPT_EVERY: Duration = Duration::from_millis(1);

/// Relays one connection, after the round trip in which TCP opens one.
fn join(
    near: TcpStream,
    line: &Arc<Line>,
    to: SocketAddr,
    shared: &Arc<ForwarderState>,
) -> io::Result<()> {
    let header_bytes = headers(to, HEADER_BYTES);
    for way in &line.ways {
        let taken = way.take_of_stream(Instant::now(), header_bytes);
        wait_for(taken.map_or_else(Instant::now, |(due, _)| due));
    }
    let clients_at = line.clients_at();
    let far = connect(clients_at, to)?;
    for stream in [&near, &far] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_UP))?;
    }
    let pairs = [(near.try_clone()?, far.try_clone()?), (far, near)];
    for (way, (from, to)) in pairs.into_iter().enumerate() {
        let (underway, arriving) = sync_channel(PIECES);
        let half = Half { line: Arc::clone(line), shared: Arc::clone(shared), way, clients_at };
        let other_half = half.clone();
        spawn(move || half.read(from, header_bytes, &underway))?;
        spawn(move || other_half.write(to, &arriving))?;
    }
    Ok(())
}

/// Connects from an address of this host, if one is given.
fn connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// One direction of a connection.
#[derive(Clone)]
struct Half {
    line: Arc<Line>,
    shared: Arc<ForwarderState>,
    way: usize,
    /// The client's address when the connection was opened.
    clients_at: Option<IpAddr>,
}

impl Half {
    /// Whether the client still has its address. Without it the connection is reset, once both of
    /// its halves have let go of their sockets.
    fn is_here(&self, sockets: &TcpStream) -> bool {
        let is_here = self.line.clients_at() == self.clients_at;
        if !is_here {
            let _ = SockRef::from(sockets).set_linger(Some(Duration::ZERO));
        }
        is_here
    }

    /// Reads to the end, and enqueues data as the line has room.
    fn read(
        &self,
        mut from: TcpStream,
        header_bytes: usize,
        underway: &SyncSender<(Instant, Vec<u8>)>,
    ) {
        wake_on_time();
        let mut buffer = vec![0; PIECE_BYTES];
        while !self.shared.is_over() && self.is_here(&from) {
            let len = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            };
            self.shared.count(self.way, len);
            let on_the_line = len + len.div_ceil(SEGMENT_BYTES) * header_bytes;
            let (due, wait) = loop {
                match self.line.ways[self.way].take_of_stream(Instant::now(), on_the_line) {
                    Some(taken) => break taken,
                    None => thread::sleep(LOOK_UP),
                }
                if self.shared.is_over() || !self.is_here(&from) {
                    return;
                }
            };
            if underway.send((due, buffer[..len].to_vec())).is_err() {
                return;
            }
            thread::sleep(wait);
        }
    }

    /// Writes what the line delivers, then shuts down.
    fn write(&self, mut to: TcpStream, arriving: &Receiver<(Instant, Vec<u8>)>) {
        wake_on_time();
        while !self.shared.is_over() {
            let arrived = arriving.recv_timeout(LOOK_UP);
            if !self.is_here(&to) {
                return;
            }
            let (due, piece) = match arrived {
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
}

//! Relays datagrams over a line.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use super::{
    Forwarder, ForwarderState, LOOK_UP, Line, UNDERWAY, headers, spawn, wait_for, wake_on_time,
};

/// Larger than any datagram.
const BUFFER_BYTES: usize = 1 << 16;

/// Requested socket buffer size, so that only the line loses packets; the kernel may grant less.
const SOCKET_BYTES: usize = 4 << 20;

/// Length of a UDP header.
const HEADER_BYTES: usize = 8;

/// Maximum client addresses: each has a thread. Datagrams of further ones are lost.
const CLIENTS: usize = 64;

/// A datagram on the line, with its arrival time, socket and destination.
struct InFlight {
    due: Instant,
    from: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// One direction of a relay.
#[derive(Clone)]
struct OneWay {
    way: usize,
    line: Arc<Line>,
    header_bytes: usize,
    shared: Arc<ForwarderState>,
    underway: SyncSender<InFlight>,
}

/// Starts a relay on the loopback of `to`, or, for hosts elsewhere, on an address the system
/// chooses. Like a NAT it has a port per client address: answers go to the right socket, and a
/// client with two sockets gets its datagrams in order.
pub(super) fn start(line: Arc<Line>, to: SocketAddr) -> io::Result<Forwarder> {
    let near = Arc::new(bind(to.ip())?);
    near.set_read_timeout(Some(LOOK_UP))?;
    let address = near.local_addr()?;
    let shared = Arc::new(ForwarderState::default());
    let one_way = |way: usize| {
        let (underway, arriving) = sync_channel(UNDERWAY);
        let writer = Arc::clone(&shared);
        spawn(move || write(&writer, &arriving))?;
        let (line, shared) = (Arc::clone(&line), Arc::clone(&shared));
        let header_bytes = headers(to, HEADER_BYTES);
        Ok::<_, io::Error>(OneWay { way, line, header_bytes, shared, underway })
    };
    let [there, back] = [one_way(0)?, one_way(1)?];
    spawn(move || read_near(&near, to, &there, &back))?;
    Ok(Forwarder { address, shared })
}

/// A socket on this address that loses nothing in a burst.
fn bind(ip: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((ip, 0))?;
    let buffers = socket2::SockRef::from(&socket);
    buffers.set_recv_buffer_size(SOCKET_BYTES)?;
    buffers.set_send_buffer_size(SOCKET_BYTES)?;
    Ok(socket)
}

/// Reads what clients send and forwards it from one port per client.
fn read_near(near: &Arc<UdpSocket>, to: SocketAddr, there: &OneWay, back: &OneWay) {
    let mut ports: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let (mut buffer, mut clients_at) = (vec![0; BUFFER_BYTES], there.line.clients_at());
    while !there.shared.is_over() {
        // Timeout without a datagram.
        let Ok((len, client)) = near.recv_from(&mut buffer) else { continue };
        there.shared.count(there.way, len);
        let moved = there.line.clients_at();
        if moved != clients_at {
            (ports, clients_at) = (HashMap::new(), moved);
        }
        let port = match ports.get(&client) {
            Some(port) => Some(Arc::clone(port)),
            None if ports.len() < CLIENTS => open_port(near, client, clients_at, to, back).ok(),
            None => None,
        };
        match port {
            Some(port) => {
                there.carry(&port, to, &buffer[..len]);
                ports.insert(client, port);
            }
            None => there.shared.count_lost(there.way),
        }
    }
}

/// Opens a port towards the server, at `clients_at`, whose answers go to `client` until the clients
/// move.
fn open_port(
    near: &Arc<UdpSocket>,
    client: SocketAddr,
    clients_at: Option<IpAddr>,
    to: SocketAddr,
    back: &OneWay,
) -> io::Result<Arc<UdpSocket>> {
    let port = bind(clients_at.unwrap_or_else(|| to.ip()))?;
    port.set_read_timeout(Some(LOOK_UP))?;
    port.connect(to)?;
    let port = Arc::new(port);
    let (near, from, back) = (Arc::clone(near), Arc::clone(&port), back.clone());
    spawn(move || {
        let mut buffer = vec![0; BUFFER_BYTES];
        while !back.shared.is_over() {
            // Timeout, or the server is not up yet.
            let received = from.recv(&mut buffer);
            if back.line.clients_at() != clients_at {
                return;
            }
            let Ok(len) = received else { continue };
            back.shared.count(back.way, len);
            back.carry(&near, client, &buffer[..len]);
        }
    })?;
    Ok(port)
}

impl OneWay {
    /// Enqueues a datagram.
    fn carry(&self, from: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8]) {
        let taken = self.line.ways[self.way].take(Instant::now(), bytes.len() + self.header_bytes);
        let sent = taken.map(|due| {
            let from = Arc::clone(from);
            self.underway.try_send(InFlight { due, from, to, bytes: bytes.to_vec() })
        });
        if !matches!(sent, Some(Ok(()))) {
            self.shared.count_lost(self.way);
        }
    }
}

/// Sends what a line delivers.
fn write(shared: &ForwarderState, arriving: &Receiver<InFlight>) {
    wake_on_time();
    while !shared.is_over() {
        let InFlight { due, from, to, bytes } = match arriving.recv_timeout(LOOK_UP) {
            Ok(arriving) => arriving,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        wait_for(due);
        // What cannot be sent is lost, as datagrams are.
        let _ = from.send_to(&bytes, to);
    }
}

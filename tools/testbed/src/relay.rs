//! Relays UDP between clients and one server over a bad network: loss, delay, jitter,
//! reordering, duplication, corruption, black holes, changes of the clients' addresses and cuts.
//!
//! Everything can be changed while it runs. The fate of the n-th datagram of a direction depends
//! only on the seed and the [`LineSettings`] in force, which count the bytes of datagrams. Like a
//! NAT the relay has a port per client address; a daemon has an address per connection. It also
//! plays an on-path attacker: it records datagrams and injects given ones, from the addresses that
//! the ends know. Understands nothing of the payload.

#[cfg(test)]
mod tests;
mod way;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use socket2::SockRef;
use tokio::{net::UdpSocket, sync::watch, task::JoinSet};

use crate::line::LineSettings;

pub use way::Counts;
use way::Way;

/// Requested socket buffer size, so that only the line loses packets; the kernel may grant less.
const SOCKET_BYTES: usize = 4 << 20;

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer = 0,
    /// From the server.
    ToClient = 1,
}

/// A datagram between a client and the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    /// The client's address.
    pub client: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// A running relay. Dropping it ends it and loses what is in transit.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<RelayState>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct RelayState {
    server: SocketAddr,
    /// The socket that the clients know.
    front: UdpSocket,
    /// By client, the socket that the server knows; replaced by a rebind.
    backs: Mutex<BTreeMap<SocketAddr, watch::Sender<Arc<UdpSocket>>>>,
    ways: [Way; 2],
}

impl Relay {
    /// Starts a relay to `server` on a free port of the same family's loopback. Needs a tokio
    /// runtime, on which it runs.
    pub async fn start(server: SocketAddr, seed: u64) -> io::Result<Self> {
        let front = bind_beside(server)?;
        let address = front.local_addr()?;
        let ways = [Direction::ToServer, Direction::ToClient]
            .map(|way| Way::new(seed.wrapping_add(way as u64)));
        let shared = Arc::new(RelayState { server, front, backs: Mutex::default(), ways });
        let mut tasks = JoinSet::new();
        tasks.spawn(way::carry_to_server(Arc::clone(&shared)));
        Ok(Self { shared, address, _tasks: tasks })
    }

    /// The address for clients to send to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The addresses that have sent something.
    pub fn clients(&self) -> Vec<SocketAddr> {
        lock(&self.shared.backs).keys().copied().collect()
    }

    /// Changes the settings of a direction; datagrams in transit arrive as already decided.
    pub fn set(&self, direction: Direction, settings: LineSettings) {
        self.way(direction).set(settings);
    }

    /// Changes the settings of both directions.
    pub fn set_both(&self, settings: LineSettings) {
        self.set(Direction::ToServer, settings);
        self.set(Direction::ToClient, settings);
    }

    /// Gives each client another port towards the server, as a NAT does after losing its state.
    /// What the server sends to the old ports is lost. Needs a tokio runtime.
    pub fn rebind(&self) -> io::Result<()> {
        for back in lock(&self.shared.backs).values() {
            back.send_replace(Arc::new(bind_beside(self.shared.server)?));
        }
        Ok(())
    }

    /// What happened to the datagrams so far.
    pub fn counts(&self, direction: Direction) -> Counts {
        self.way(direction).counts()
    }

    /// Keeps copies of the last `datagrams_max` datagrams sent in this direction from now on, as
    /// they were sent; 0 stops and drops the copies.
    pub fn record(&self, direction: Direction, datagrams_max: usize) {
        self.way(direction).record(datagrams_max);
    }

    /// The copies kept, oldest first.
    pub fn recorded(&self, direction: Direction) -> Vec<Datagram> {
        self.way(direction).recorded()
    }

    /// Takes the copies, oldest first.
    pub fn take_recorded(&self, direction: Direction) -> Vec<Datagram> {
        self.way(direction).take_recorded()
    }

    /// Sends this as if the other end had, bypassing impairments and counts. Never waits:
    /// `WouldBlock` if the socket's buffer is full, `NotConnected` if the client has not sent
    /// anything.
    pub fn inject(&self, direction: Direction, datagram: &Datagram) -> io::Result<()> {
        self.shared.send(direction, datagram)
    }

    fn way(&self, direction: Direction) -> &Way {
        &self.shared.ways[direction as usize]
    }
}

impl RelayState {
    fn send(&self, direction: Direction, datagram: &Datagram) -> io::Result<()> {
        let Datagram { client, bytes } = datagram;
        let back = lock(&self.backs).get(client).map(|back| Arc::clone(&back.borrow()));
        let back = back.ok_or(io::ErrorKind::NotConnected)?;
        let (socket, to) = match direction {
            Direction::ToServer => (&*back, self.server),
            Direction::ToClient => (&self.front, *client),
        };
        // Not through tokio, which has yet to learn that a new socket is ready.
        SockRef::from(socket).send_to(bytes, &to.into())?;
        Ok(())
    }

    /// Gives a client that is new a port towards the server; returns where to watch that port.
    fn open_back(&self, client: SocketAddr) -> io::Result<Option<watch::Receiver<Arc<UdpSocket>>>> {
        let mut backs = lock(&self.backs);
        if backs.contains_key(&client) {
            return Ok(None);
        }
        let (back, rebound) = watch::channel(Arc::new(bind_beside(self.server)?));
        backs.insert(client, back);
        Ok(Some(rebound))
    }
}

/// Binds a socket on the loopback address from which `server` is reachable, which loses nothing in
/// a burst.
fn bind_beside(server: SocketAddr) -> io::Result<UdpSocket> {
    let ip: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let socket = std::net::UdpSocket::bind((ip, 0))?;
    let buffers = SockRef::from(&socket);
    buffers.set_recv_buffer_size(SOCKET_BYTES)?;
    buffers.set_send_buffer_size(SOCKET_BYTES)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Relays UDP between one client and one server over a bad network: loss, delay, jitter,
//! reordering, duplication, corruption, black holes, changes of the client's address and cuts.
//!
//! Everything can be changed while it runs. The fate of the n-th datagram of a direction depends
//! only on the seed and the [`LineSettings`] in force, which count the bytes of datagrams. The
//! relay also plays an on-path attacker: it records datagrams and injects given ones, from the
//! addresses that the ends know. Understands nothing of the payload.

#[cfg(test)]
mod tests;
mod way;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use socket2::SockRef;
use tokio::{net::UdpSocket, sync::watch, task::JoinSet};

use crate::line::LineSettings;

pub use way::Counts;
use way::Way;

/// Requested socket buffer size, so that only the line loses packets; the kernel may grant less.
const BUFFER_BYTES: usize = 4 << 20;

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer = 0,
    /// From the server.
    ToClient = 1,
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
    /// The last address to send to the front socket.
    client: Mutex<Option<SocketAddr>>,
    /// The socket that the client knows.
    front: UdpSocket,
    /// The socket that the server knows; replaced by a rebind.
    back: watch::Sender<Arc<UdpSocket>>,
    ways: [Way; 2],
}

impl Relay {
    /// Starts a relay to `server` on a free port of the same family's loopback. Needs a tokio
    /// runtime, on which it runs.
    pub async fn start(server: SocketAddr, seed: u64) -> io::Result<Self> {
        let front = bind_beside(server).await?;
        let address = front.local_addr()?;
        let (back, _) = watch::channel(Arc::new(bind_beside(server).await?));
        let ways = [Direction::ToServer, Direction::ToClient]
            .map(|way| Way::new(seed.wrapping_add(way as u64)));
        let shared = Arc::new(RelayState { server, client: Mutex::default(), front, back, ways });
        let mut tasks = JoinSet::new();
        tasks.spawn(way::carry_to_server(Arc::clone(&shared)));
        tasks.spawn(way::carry_to_client(Arc::clone(&shared)));
        Ok(Self { shared, address, _tasks: tasks })
    }

    /// The address for the client to send to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The client's address: the source of the last datagram, if there was one.
    pub fn client(&self) -> Option<SocketAddr> {
        *lock(&self.shared.client)
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

    /// Gives the client another port towards the server, as a NAT does after losing its state. What
    /// the server sends to the old port is lost.
    pub async fn rebind(&self) -> io::Result<()> {
        let socket = bind_beside(self.shared.server).await?;
        self.shared.back.send_replace(Arc::new(socket));
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
    pub fn recorded(&self, direction: Direction) -> Vec<Vec<u8>> {
        self.way(direction).recorded()
    }

    /// Takes the copies, oldest first.
    pub fn take_recorded(&self, direction: Direction) -> Vec<Vec<u8>> {
        self.way(direction).take_recorded()
    }

    /// Sends this as if the other end had, bypassing impairments and counts. Never waits:
    /// `WouldBlock` if the socket's buffer is full, `NotConnected` before a client has sent
    /// anything.
    pub fn inject(&self, direction: Direction, datagram: &[u8]) -> io::Result<()> {
        self.shared.send(direction, datagram)
    }

    fn way(&self, direction: Direction) -> &Way {
        &self.shared.ways[direction as usize]
    }
}

impl RelayState {
    fn send(&self, direction: Direction, datagram: &[u8]) -> io::Result<()> {
        match direction {
            Direction::ToServer => {
                let back = Arc::clone(&self.back.borrow());
                back.try_send_to(datagram, self.server)?;
            }
            Direction::ToClient => {
                let client = lock(&self.client).ok_or(io::ErrorKind::NotConnected)?;
                self.front.try_send_to(datagram, client)?;
            }
        }
        Ok(())
    }
}

/// Binds a socket on the loopback address from which `server` is reachable.
async fn bind_beside(server: SocketAddr) -> io::Result<UdpSocket> {
    let loopback = match server {
        SocketAddr::V4(_) => "127.0.0.1:0",
        SocketAddr::V6(_) => "[::1]:0",
    };
    let socket = UdpSocket::bind(loopback).await?;
    let buffers = SockRef::from(&socket);
    buffers.set_recv_buffer_size(BUFFER_BYTES)?;
    buffers.set_send_buffer_size(BUFFER_BYTES)?;
    Ok(socket)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

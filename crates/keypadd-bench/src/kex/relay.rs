//! What is between two ends: holds every datagram back for the same time, and counts.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How long each datagram is held back: long beside what a handshake computes.
pub(super) const HELD_BACK: Duration = Duration::from_millis(20);

/// Larger than any datagram.
const BUFFER_BYTES: usize = 1 << 16;

/// What went one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) bytes: u64,
    pub(super) datagrams: u64,
}

/// A relay for one connection. Dropped, it is gone.
pub(super) struct Relay {
    address: SocketAddr,
    seen: Arc<Mutex<[Seen; 2]>>,
    /// Held, so that it ends with the relay.
    _task: JoinSet<()>,
}

impl Relay {
    /// Passes on to `server` what comes, and back to where it came from what answers.
    pub(super) async fn start(server: SocketAddr) -> io::Result<Self> {
        let any_port = (Ipv4Addr::LOCALHOST, 0);
        let (near, far) = (UdpSocket::bind(any_port).await?, UdpSocket::bind(any_port).await?);
        far.connect(server).await?;
        let address = near.local_addr()?;
        let seen = Arc::new(Mutex::new([Seen::default(); 2]));
        let counting = Arc::clone(&seen);
        let mut task = JoinSet::new();
        task.spawn(async move {
            // A socket of our own on loopback that fails takes the handshake with it.
            let _ = pass_on(Arc::new(near), Arc::new(far), &counting).await;
        });
        Ok(Self { address, seen, _task: task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has come: from the client, and from the server.
    pub(super) fn seen(&self) -> [Seen; 2] {
        *lock(&self.seen)
    }
}

async fn pass_on(
    near: Arc<UdpSocket>,
    far: Arc<UdpSocket>,
    seen: &Mutex<[Seen; 2]>,
) -> io::Result<()> {
    let (mut client, mut held) = (None, JoinSet::new());
    let (mut from_client, mut from_server) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let (way, datagram) = tokio::select! {
            received = near.recv_from(&mut from_client) => {
                let (len, from) = received?;
                client = Some(from);
                (0, from_client[..len].to_vec())
            }
            received = far.recv(&mut from_server) => (1, from_server[..received?].to_vec()),
        };
        let due = Instant::now() + HELD_BACK;
        {
            let seen = &mut lock(seen)[way];
            seen.bytes += datagram.len() as u64;
            seen.datagrams += 1;
        }
        let (near, far) = (Arc::clone(&near), Arc::clone(&far));
        held.spawn(async move {
            sleep_until(due).await;
            // What does not go through is lost, as datagrams are.
            let _ = match (way, client) {
                (1, Some(client)) => near.send_to(&datagram, client).await,
                _ => far.send(&datagram).await,
            };
        });
        while held.try_join_next().is_some() {}
    }
}

/// The mutex guards numbers, which no panic can leave half changed.
fn lock(seen: &Mutex<[Seen; 2]>) -> MutexGuard<'_, [Seen; 2]> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

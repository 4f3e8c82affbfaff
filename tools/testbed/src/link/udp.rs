//! Relays datagrams over a line.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{Forwarder, LOOK_UP, Shared, UNDERWAY, Way, headers, spawn, wait_for, wake_on_time};

/// Larger than any datagram.
const BUFFER_BYTES: usize = 1 << 16;

/// Asked for as socket buffers, so that loss is the line's; the kernel may grant less.
const SOCKET_BYTES: usize = 4 << 20;

/// Of UDP's header.
const HEADER_BYTES: usize = 8;

/// The two sockets: the one that the client knows, and the one that the server knows.
struct Ends {
    near: UdpSocket,
    far: UdpSocket,
    /// Whoever sent last.
    client: Mutex<Option<SocketAddr>>,
}

/// Starts a relay on the loopback of `to`, or, towards hosts elsewhere, where the system chooses.
pub(super) fn start(ways: &[Arc<Way>; 2], to: SocketAddr) -> io::Result<Forwarder> {
    let bind = || {
        let socket = UdpSocket::bind((to.ip(), 0))?;
        socket.set_read_timeout(Some(LOOK_UP))?;
        let buffers = socket2::SockRef::from(&socket);
        buffers.set_recv_buffer_size(SOCKET_BYTES)?;
        buffers.set_send_buffer_size(SOCKET_BYTES)?;
        Ok::<_, io::Error>(socket)
    };
    let (near, far) = (bind()?, bind()?);
    far.connect(to)?;
    let address = near.local_addr()?;
    let ends = Arc::new(Ends { near, far, client: Mutex::new(None) });
    let shared = Arc::new(Shared::default());
    for (way, line) in ways.iter().enumerate() {
        let (underway, arriving) = sync_channel(UNDERWAY);
        let (line, from, of) = (Arc::clone(line), Arc::clone(&ends), Arc::clone(&shared));
        let header_bytes = headers(to, HEADER_BYTES);
        spawn(move || from.read(way, &line, header_bytes, &of, &underway))?;
        let (ends, shared) = (Arc::clone(&ends), Arc::clone(&shared));
        spawn(move || ends.write(way, &shared, &arriving))?;
    }
    Ok(Forwarder { address, shared })
}

impl Ends {
    /// Reads what goes one way and hands it to the line.
    fn read(
        &self,
        way: usize,
        line: &Way,
        header_bytes: usize,
        shared: &Shared,
        underway: &SyncSender<(Instant, Vec<u8>)>,
    ) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while !shared.is_over() {
            let received = match way {
                0 => self.near.recv_from(&mut buffer).map(|(len, from)| {
                    *self.client() = Some(from);
                    len
                }),
                _ => self.far.recv(&mut buffer),
            };
            // Nothing came for a while, or the other end is not there yet.
            let Ok(len) = received else { continue };
            shared.count(way, len);
            let taken = line.take(Instant::now(), len + header_bytes).ok();
            let taken = taken.map(|due| underway.try_send((due, buffer[..len].to_vec())));
            if !matches!(taken, Some(Ok(()))) {
                shared.count_lost(way);
            }
        }
    }

    /// Sends on what the line has carried.
    fn write(&self, way: usize, shared: &Shared, arriving: &Receiver<(Instant, Vec<u8>)>) {
        wake_on_time();
        while !shared.is_over() {
            let (due, datagram) = match arriving.recv_timeout(LOOK_UP) {
                Ok(arriving) => arriving,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            wait_for(due);
            // What does not go through is lost, as datagrams are.
            let _ = match (way, *self.client()) {
                (0, _) => self.far.send(&datagram),
                (_, Some(client)) => self.near.send_to(&datagram, client),
                _ => Ok(0),
            };
        }
    }

    /// The guarded address is whole at any moment.
    fn client(&self) -> std::sync::MutexGuard<'_, Option<SocketAddr>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

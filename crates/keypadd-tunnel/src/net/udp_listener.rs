//! A UDP socket that listens, and the copies of it that event loops have.
//!
//! A loop closes its copy a little after the owner of the socket has closed its own. Until then the
//! address cannot be bound again, and whoever wants to waits here.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keypadd_transport::SocketLease;
use tokio::sync::watch;

/// The ports of sockets that their owners have closed, each with a channel that closes when the
/// last event loop has closed its copy.
static CLOSING: Mutex<Vec<(u16, watch::Receiver<()>)>> = Mutex::new(Vec::new());

/// A UDP socket that listens.
///
/// Fields drop in declaration order: the socket closes before the channel that reports it.
#[derive(Debug)]
pub(crate) struct UdpListener {
    socket: UdpSocket,
    /// Shared with the loops that have a copy.
    open: Arc<watch::Sender<()>>,
}

impl UdpListener {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        Self { socket, open: Arc::default() }
    }

    /// A copy for an event loop.
    pub(crate) fn copy(&self) -> io::Result<(UdpSocket, SocketLease)> {
        Ok((self.socket.try_clone()?, Arc::clone(&self.open) as SocketLease))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl AsFd for UdpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        let Ok(address) = self.local_addr() else { return };
        let mut closing = closing();
        closing.retain(|(_, open)| open.has_changed().is_ok());
        closing.push((address.port(), self.open.subscribe()));
    }
}

/// Waits until the sockets of a port that their owners have closed are closed in every event loop;
/// returns whether there were any.
pub(crate) async fn closed(port: u16) -> bool {
    let of_port: Vec<_> = {
        let closing = closing();
        let open = closing.iter().filter(|(at, open)| *at == port && open.has_changed().is_ok());
        open.map(|(_, open)| open.clone()).collect()
    };
    let found = !of_port.is_empty();
    for mut open in of_port {
        while open.changed().await.is_ok() {}
    }
    found
}

/// A panic cannot leave the list half changed.
fn closing() -> MutexGuard<'static, Vec<(u16, watch::Receiver<()>)>> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bind_waits_for_closing_copies_but_not_for_sockets_in_use() {
        let listener = UdpListener::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        let (copy, lease) = listener.copy().unwrap();
        assert!(!closed(port).await, "it is in use");
        drop(listener);
        let waiting = tokio::spawn(closed(port));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop((copy, lease));
        assert!(waiting.await.unwrap());
        assert!(!closed(port).await, "nothing is left");
    }
}

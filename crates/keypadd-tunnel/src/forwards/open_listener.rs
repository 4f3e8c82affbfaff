//! Owns the sockets that a server listens on for a remote forward. They outlive their session if
//! the client's next one continues the forward, so that no connection is refused in between.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
};

use keypadd_transport::SocketLease;
use tokio::sync::{Mutex, mpsc};

use crate::{
    forwards::{
        incomplete::Unread,
        listener_group::{Accepted, Bound, ListenerGroup},
        origin::Origin,
    },
    handover::HandedSocket,
    limits::descriptors::Descriptors,
    net::forwarded_socket::ForwardedSocket,
    sessions::session::LiveSession,
};

/// The sockets of one remote forward, closed on drop.
#[derive(Debug)]
pub(crate) struct OpenListener {
    listeners: ListenerGroup,
    /// Connections that came back; locked by the accepting session: the next one waits until that
    /// has stopped.
    accepting: Mutex<mpsc::UnboundedReceiver<Accepted>>,
    returned: mpsc::UnboundedSender<Accepted>,
    pub(crate) bound: Vec<Bound>,
    /// The port; 0 for a unix socket.
    pub(crate) port: u16,
    /// The permitted addresses; none for a unix socket.
    pub(crate) addresses: Vec<IpAddr>,
    _descriptors: Descriptors,
}

/// An accepted connection. If its session moves to another connection before it has a stream, it
/// goes back to the listener.
#[derive(Debug)]
pub(crate) struct AcceptedSocket {
    socket: Option<ForwardedSocket>,
    origin: Origin,
    returned: mpsc::UnboundedSender<Accepted>,
    session: Arc<LiveSession>,
}

impl OpenListener {
    pub(crate) fn new(
        listeners: ListenerGroup,
        addresses: Vec<IpAddr>,
        descriptors: Descriptors,
    ) -> Arc<Self> {
        let (returned, receiver) = mpsc::unbounded_channel();
        let (bound, port) = (listeners.bound(), listeners.port());
        let accepting = Mutex::new(receiver);
        Arc::new(Self {
            listeners,
            accepting,
            returned,
            bound,
            port,
            addresses,
            _descriptors: descriptors,
        })
    }

    /// Accepts a connection for this session.
    pub(crate) async fn accept(&self, session: &Arc<LiveSession>) -> io::Result<AcceptedSocket> {
        let mut requeued = self.accepting.lock().await;
        let (socket, origin) = tokio::select! {
            biased;
            Some(accepted) = requeued.recv() => accepted,
            accepted = self.listeners.accept() => accepted?,
        };
        let (returned, session) = (self.returned.clone(), Arc::clone(session));
        Ok(AcceptedSocket { socket: Some(socket), origin, returned, session })
    }

    /// Duplicate descriptors of its UDP sockets, for an event loop.
    pub(crate) fn udp_sockets(&self) -> io::Result<Vec<(UdpSocket, SocketLease)>> {
        self.listeners.udp_sockets()
    }

    /// The sockets, for the process that takes over.
    pub(crate) fn hand_over(&self) -> impl Iterator<Item = io::Result<HandedSocket>> {
        self.listeners.hand_over()
    }
}

impl AcceptedSocket {
    /// The connection to forward, with its origin.
    pub(crate) fn into_accepted(mut self) -> Option<Accepted> {
        Some((self.socket.take()?, self.origin))
    }

    /// Where it comes from, if it has an address.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        self.origin.source()
    }

    /// Reads its PROXY header once: a connection that went back to the listener keeps it.
    ///
    /// # Errors
    /// The connection does not begin with a header, ends, or has not sent a whole header in time or
    /// before a newer connection needed its room.
    pub(crate) async fn read_header(&mut self, unread: Unread) -> io::Result<()> {
        match &mut self.socket {
            Some(socket) => self.origin.read_header(socket, unread).await,
            None => Ok(()),
        }
    }

    /// Completes when it fails.
    pub(crate) async fn failed(&self) -> io::Error {
        match &self.socket {
            Some(socket) => socket.failed().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for AcceptedSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && self.session.leaves_listeners()
        {
            // If the listener has been closed in the meantime, the connection is reset.
            let _ = self.returned.send((socket, self.origin));
        }
    }
}

//! Accepts on the sockets that one forward listens on, and says where they are bound.
//!
//! Knows neither how a socket is bound nor who may listen there.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    task::{Context, Poll},
};

use keypadd_transport::SocketLease;
use serde::{Serialize, Serializer};
use socket2::SockRef;
use tokio::net::TcpListener;

use crate::{
    addresses::{socket_path::SocketPath, target::UDP},
    forwards::origin::Origin,
    handover::{HandedSocket, SocketRecord},
    net::{
        forwarded_socket::ForwardedSocket, udp_listener::UdpListener,
        unix_listener::UnixPathListener,
    },
};

/// One listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Udp(UdpListener),
    Unix(UnixPathListener),
}

/// Where a listening socket is bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// A UDP address and port.
    Udp(SocketAddr),
    /// A unix socket.
    Unix(SocketPath),
}

impl Bound {
    /// Its port; a unix socket has none.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) | Self::Udp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }

    /// Whether the two cannot be bound at the same time.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix(one), Self::Unix(other)) => one == other,
            (Self::Tcp(one), Self::Tcp(other)) | (Self::Udp(one), Self::Udp(other)) => {
                let all = |ip: IpAddr| ip.is_unspecified();
                one.port() == other.port()
                    && (one.ip() == other.ip() || all(one.ip()) || all(other.ip()))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Udp(address) => write!(f, "{UDP}:{address}"),
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Listener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match self {
            Self::Tcp(listener) => listener
                .poll_accept(cx)
                .map_ok(|(stream, from)| (stream.into(), Origin::new(Some(from)))),
            // Its datagrams belong to flows.
            Self::Udp(_) => Poll::Pending,
            Self::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|stream| (stream.into(), Origin::default()))
            }
        }
    }

    /// Another descriptor of the socket, for the process that follows.
    fn hand_over(&self) -> io::Result<HandedSocket> {
        Ok(match self {
            Self::Tcp(listener) => HandedSocket {
                record: SocketRecord::Tcp(listener.local_addr()?),
                socket: listener.as_fd().try_clone_to_owned()?,
            },
            Self::Udp(socket) => HandedSocket {
                record: SocketRecord::UdpForward(socket.local_addr()?),
                socket: socket.as_fd().try_clone_to_owned()?,
            },
            Self::Unix(listener) => HandedSocket {
                record: SocketRecord::Unix(listener.file().clone()),
                socket: listener.try_clone()?,
            },
        })
    }

    /// Where it is bound.
    pub(crate) fn bound(&self) -> io::Result<Bound> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Bound::Tcp),
            Self::Udp(socket) => socket.local_addr().map(Bound::Udp),
            Self::Unix(listener) => Ok(Bound::Unix(listener.path().clone())),
        }
    }

    /// A socket that has a port.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(listener) => Some(listener.as_fd()),
            Self::Udp(socket) => Some(socket.as_fd()),
            Self::Unix(_) => None,
        }
    }
}

/// All sockets that one forward listens on; closed on drop.
#[derive(Debug, Default)]
pub(crate) struct ListenerGroup(Vec<Arc<Listener>>);

/// A connection and whom it is between.
pub(crate) type Accepted = (ForwardedSocket, Origin);

impl ListenerGroup {
    /// A forward's sockets.
    pub(crate) fn new(listeners: Vec<Arc<Listener>>) -> Self {
        Self(listeners)
    }

    /// Accepts a connection on any of the sockets.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|cx| {
            let mut polled = self.0.iter().map(|listener| listener.poll_accept(cx));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Other descriptors of its UDP sockets, for an event loop.
    pub(crate) fn udp_sockets(&self) -> io::Result<Vec<(UdpSocket, SocketLease)>> {
        let udp = self.0.iter().filter_map(|listener| match &**listener {
            Listener::Udp(socket) => Some(socket.copy()),
            Listener::Tcp(_) | Listener::Unix(_) => None,
        });
        udp.collect()
    }

    /// How many descriptors its sockets take: those of UDP two, one of them in an event loop.
    pub(crate) fn descriptors(&self) -> usize {
        let of_socket = |listener: &Arc<Listener>| match **listener {
            Listener::Udp(_) => 2,
            Listener::Tcp(_) | Listener::Unix(_) => 1,
        };
        self.0.iter().map(of_socket).sum()
    }

    /// The port, the same for all sockets; 0 for a unix socket.
    pub(crate) fn port(&self) -> u16 {
        self.bound().iter().find_map(Bound::port).unwrap_or(0)
    }

    /// The sockets, for the process that follows.
    pub(crate) fn hand_over(&self) -> impl Iterator<Item = io::Result<HandedSocket>> {
        self.0.iter().map(|listener| listener.hand_over())
    }

    /// The bound addresses.
    pub(crate) fn bound(&self) -> Vec<Bound> {
        self.0.iter().filter_map(|listener| listener.bound().ok()).collect()
    }

    /// Its socket that is bound to this address.
    pub(crate) fn listener_at(&self, wanted: &Bound) -> Option<Arc<Listener>> {
        let found = self.0.iter().find(|one| one.bound().is_ok_and(|bound| bound == *wanted));
        found.cloned()
    }

    /// Whether it is in the way of a socket that is to be bound.
    pub(crate) fn overlaps(&self, wanted: &Bound) -> bool {
        self.bound().iter().any(|bound| bound.overlaps(wanted))
    }

    /// Sets whether sockets of this user may be bound beside those of this group.
    pub(crate) fn share_ports(&self, shared: bool) -> io::Result<()> {
        let mut sockets = self.0.iter().filter_map(|one| one.socket());
        sockets.try_for_each(|socket| SockRef::from(&socket).set_reuse_port(shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_overlap_any_address_with_the_same_port() {
        let tcp = |text: &str| Bound::Tcp(text.parse().unwrap());
        let udp = |text: &str| Bound::Udp(text.parse().unwrap());
        let unix = |text: &str| Bound::Unix(text.parse().unwrap());
        for (one, other, overlap) in [
            (tcp("127.0.0.1:80"), tcp("127.0.0.1:80"), true),
            (tcp("127.0.0.1:80"), tcp("127.0.0.1:81"), false),
            (tcp("127.0.0.1:80"), tcp("[::1]:80"), false),
            (tcp("[::]:80"), tcp("127.0.0.1:80"), true),
            (tcp("10.0.0.1:80"), tcp("0.0.0.0:80"), true),
            (udp("[::]:80"), udp("127.0.0.1:80"), true),
            (udp("127.0.0.1:80"), tcp("127.0.0.1:80"), false),
            (unix("/a"), unix("/a"), true),
            (unix("/a"), unix("/b"), false),
            (unix("/a"), tcp("127.0.0.1:80"), false),
        ] {
            assert_eq!(one.overlaps(&other), overlap, "{one:?} {other:?}");
            assert_eq!(other.overlaps(&one), overlap);
        }
    }
}

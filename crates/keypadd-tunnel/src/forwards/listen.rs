//! Binds the sockets of a forward's listen address, on either end.
//!
//! Knows no sessions; whether a client may listen there is decided before (`permits`).

use std::{
    fmt,
    future::poll_fn,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
    sync::Arc,
    task::{Context, Poll},
};

use keypadd_transport::SocketLease;
use serde::{Serialize, Serializer};
use socket2::SockRef;
use tokio::net::TcpListener;

use crate::{
    addresses::{
        forward::{Bind, Listen},
        socket_path::SocketPath,
        target::{LOOPBACK, UDP},
    },
    error::{BindAddress, BindError},
    forwards::{origin::Origin, spare_sockets::SpareSockets},
    handover::{HandedSocket, Handover, SocketRecord},
    net::{
        bind::{Inherited, listen_tcp, listen_udp, no_such_family},
        forwarded_socket::ForwardedSocket,
        lookup::{Lookups, resolve},
        udp_listener::{UdpListener, closed},
        unix_listener::UnixPathListener,
    },
};

/// Attempts to find a port that is free in both families, for port 0.
const ANY_PORT_TRIES: usize = 16;

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
    fn port(&self) -> Option<u16> {
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

    fn bound(&self) -> io::Result<Bound> {
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

/// Binds a listen address that this end has configured itself: all its sockets or none. With port 0 it takes
/// those that the old process had for the same forward of the same client.
pub(crate) async fn bind_own(
    listen: &Listen,
    forward: (&str, &str),
    handover: &Handover,
    spare: &mut SpareSockets,
) -> Result<ListenerGroup, BindError> {
    let unknown = |source| BindError { address: BindAddress::Name(listen.clone()), source };
    let (bound, port) = match listen {
        Listen::Tcp { bind, port } => {
            let addresses = addresses_of(bind, *port, &Lookups::default()).await;
            let addresses = addresses.map_err(unknown)?;
            let inherited = |address| match port {
                0 => handover.take_chosen(forward, address, false).map(Into::into),
                _ => handover.take_tcp(address),
            };
            (bind_tcp(&addresses, *port, &inherited, spare), *port)
        }
        Listen::Udp { bind, port } => {
            let addresses = addresses_of(bind, *port, &Lookups::default()).await;
            let addresses = addresses.map_err(unknown)?;
            let inherited = |address| match port {
                0 => handover.take_chosen(forward, address, true).map(Into::into),
                _ => handover.take_udp_forward(address),
            };
            (bind_udp(&addresses, *port, &inherited, spare).await, *port)
        }
        Listen::Unix(path) => return bind_unix(path, handover, handover.take_unix(path)),
    };
    bound.map_err(|BindError { address, source }| BindError {
        address,
        source: handover.explain(source, port),
    })
}

/// The addresses to bind.
pub(crate) async fn addresses_of(
    bind: &Bind,
    port: u16,
    lookups: &Lookups,
) -> io::Result<Vec<IpAddr>> {
    Ok(match bind {
        Bind::Loopback => LOOPBACK.to_vec(),
        Bind::All => vec![Ipv6Addr::UNSPECIFIED.into()],
        Bind::Host(host) => {
            resolve(host, port, lookups).await?.iter().map(SocketAddr::ip).collect()
        }
    })
}

/// Binds a unix socket, or takes that of the old process; its file is removed with the listener.
pub(crate) fn bind_unix(
    path: &SocketPath,
    handover: &Handover,
    inherited: Option<UnixListener>,
) -> Result<ListenerGroup, BindError> {
    UnixPathListener::bind(path, handover, inherited)
        .map(|listener| ListenerGroup(vec![Arc::new(Listener::Unix(listener))]))
        .map_err(|source| BindError { address: BindAddress::Unix(path.clone()), source })
}

/// Binds all of these addresses or none, for port 0 to one port that is free on all of them. Skips
/// a family that the host does not have.
pub(crate) fn bind_tcp(
    addresses: &[IpAddr],
    port: u16,
    inherited: Inherited<'_>,
    spare: &mut SpareSockets,
) -> Result<ListenerGroup, BindError> {
    bind_all(addresses, port, BindAddress::Tcp, &mut |address| {
        let bind = |shared| listen_tcp(address, inherited, shared);
        spare.listener(&Bound::Tcp(address), bind, Listener::Tcp)
    })
}

/// The same for UDP. If the address is in use, waits until event loops have closed the sockets that this
/// process has given up there.
pub(crate) async fn bind_udp(
    addresses: &[IpAddr],
    port: u16,
    inherited: &(dyn Fn(SocketAddr) -> Option<UdpSocket> + Sync),
    spare: &mut SpareSockets,
) -> Result<ListenerGroup, BindError> {
    loop {
        let bound = bind_all(addresses, port, BindAddress::Udp, &mut |address| {
            let bind = |shared| listen_udp(address, inherited, shared);
            let listener = |socket| Listener::Udp(UdpListener::new(socket));
            spare.listener(&Bound::Udp(address), bind, listener)
        });
        let in_use =
            bound.as_ref().is_err_and(|error| error.source.kind() == io::ErrorKind::AddrInUse);
        if !in_use || !closed(port).await {
            return bound;
        }
    }
}

fn bind_all(
    addresses: &[IpAddr],
    port: u16,
    at: fn(SocketAddr) -> BindAddress,
    bind: Binds<'_>,
) -> Result<ListenerGroup, BindError> {
    let tries = if port == 0 { ANY_PORT_TRIES } else { 1 };
    let mut result = bind_addresses(addresses, port, at, &mut *bind);
    for _ in 1..tries {
        match &result {
            // The port was free in one family only: try another.
            Err(error) if error.source.kind() == io::ErrorKind::AddrInUse => {
                result = bind_addresses(addresses, port, at, &mut *bind);
            }
            _ => break,
        }
    }
    result
}

/// Binds one address.
type Binds<'b> = &'b mut dyn FnMut(SocketAddr) -> io::Result<Arc<Listener>>;

fn bind_addresses(
    addresses: &[IpAddr],
    mut port: u16,
    at: fn(SocketAddr) -> BindAddress,
    bind: Binds<'_>,
) -> Result<ListenerGroup, BindError> {
    let mut listeners = Vec::new();
    let mut missing = None;
    for &address in addresses {
        let address = SocketAddr::new(address, port);
        let failed = |source| BindError { address: at(address), source };
        match bind(address) {
            Ok(listener) => {
                port = listener.bound().map_err(failed)?.port().unwrap_or(port);
                listeners.push(listener);
            }
            Err(source) if no_such_family(&source) => missing = Some(failed(source)),
            Err(source) => return Err(failed(source)),
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(ListenerGroup(listeners)),
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

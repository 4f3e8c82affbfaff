//! Binds the sockets of a forward's listen address, on either end.
//!
//! Knows no sessions; whether a client may listen there is decided before (`permits`).

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::unix::net::UnixListener,
    sync::Arc,
};

use crate::{
    addresses::{
        forward::{Bind, Listen},
        socket_path::SocketPath,
        target::LOOPBACK,
    },
    error::{BindAddress, BindError},
    forwards::{
        listener_group::{Bound, Listener, ListenerGroup},
        spare_sockets::SpareSockets,
    },
    handover::Handover,
    net::{
        bind::{Inherited, listen_tcp, listen_udp, no_such_family},
        lookup::{Lookups, resolve},
        udp_listener::{UdpListener, closed},
        unix_listener::UnixPathListener,
    },
};

/// Attempts to find a port that is free in both families, for port 0.
const ANY_PORT_TRIES: usize = 16;

/// Binds a listen address that this end has configured itself: all its sockets or none. With port 0
/// it takes those that the old process had for the same forward of the same client.
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
    UnixPathListener::bind(path, handover.suspension(), inherited)
        .map(|listener| ListenerGroup::new(vec![Arc::new(Listener::Unix(listener))]))
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

/// Binds UDP sockets at all of these addresses or none, for port 0 at one port that is free on all
/// of them. If one is in use, waits until event loops have closed the sockets that this process has
/// given up there.
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
        _ => Ok(ListenerGroup::new(listeners)),
    }
}

//! Local listeners of forwards: every socket that a bind address stands for.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tokio::net::TcpListener;

use crate::{
    error::BindError,
    forward::{Bind, Goal, Listen, LocalForward},
    lookup::{Lookups, resolve},
    socket::{listen_tcp, no_such_family},
    target::LOOPBACK,
};

/// Tries for a port that is free in both families, when any port will do.
const ANY_PORT_TRIES: usize = 16;

/// Binds all sockets of a forward, or none. A family that the host does not have is left out.
pub(crate) async fn bind_forward(forward: &LocalForward) -> Result<Vec<TcpListener>, BindError> {
    let (bind, port) = match (&forward.listen, &forward.goal) {
        (Listen::Tcp { bind, port }, Goal::Tcp(_)) => (bind, *port),
        (Listen::Unix(path), _) | (_, Goal::Unix(path)) => {
            let source = io::ErrorKind::Unsupported.into();
            return Err(BindError { address: format!("unix {path}"), source });
        }
    };
    let addresses: Vec<IpAddr> = match bind {
        Bind::Loopback => LOOPBACK.to_vec(),
        Bind::All => vec![Ipv6Addr::UNSPECIFIED.into()],
        Bind::Host(host) => resolve(host, port, &Lookups::default())
            .await
            .map_err(|source| BindError { address: format!("tcp {host}"), source })?
            .iter()
            .map(SocketAddr::ip)
            .collect(),
    };
    let tries = if port == 0 { ANY_PORT_TRIES } else { 1 };
    let mut result = bind_addresses(&addresses, port);
    for _ in 1..tries {
        match &result {
            // The port was free in one family and taken in the other: draw another.
            Err(error) if error.source.kind() == io::ErrorKind::AddrInUse => {
                result = bind_addresses(&addresses, port);
            }
            _ => break,
        }
    }
    result
}

fn bind_addresses(addresses: &[IpAddr], mut port: u16) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::new();
    let mut missing = None;
    for &address in addresses {
        let address = SocketAddr::new(address, port);
        let failed = |source| BindError { address: format!("tcp {address}"), source };
        match listen_tcp(address) {
            Ok(listener) => {
                port = listener.local_addr().map_err(failed)?.port();
                listeners.push(listener);
            }
            Err(source) if no_such_family(&source) => missing = Some(failed(source)),
            Err(source) => return Err(failed(source)),
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

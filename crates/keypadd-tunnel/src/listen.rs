//! Local listeners of forwards: every socket that a bind address stands for.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tokio::net::TcpListener;

use crate::{
    error::BindError,
    forward::{Bind, LocalForward},
    lookup::{Lookups, resolve},
    socket::{listen_tcp, no_such_family},
    target::LOOPBACK,
};

/// Tries for a port that is free in both families, when any port will do.
const ANY_PORT_TRIES: usize = 16;

/// Binds all sockets of a forward, or none. A family that the host does not have is left out.
pub(crate) async fn bind_forward(forward: &LocalForward) -> Result<Vec<TcpListener>, BindError> {
    let addresses: Vec<IpAddr> = match &forward.bind {
        Bind::Loopback => LOOPBACK.to_vec(),
        Bind::All => vec![Ipv6Addr::UNSPECIFIED.into()],
        Bind::Host(host) => resolve(host, forward.port, &Lookups::default())
            .await
            .map_err(|source| BindError { address: format!("tcp {host}"), source })?
            .iter()
            .map(SocketAddr::ip)
            .collect(),
    };
    let tries = if forward.port == 0 { ANY_PORT_TRIES } else { 1 };
    let mut result = bind_addresses(&addresses, forward.port);
    for _ in 1..tries {
        match &result {
            // The port was free in one family and taken in the other: draw another.
            Err(error) if error.source.kind() == io::ErrorKind::AddrInUse => {
                result = bind_addresses(&addresses, forward.port);
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

//! Describes an attempt to connect to a server, and why it failed.

use std::{net::SocketAddr, time::Duration};

use quinn_proto::{ClientConfig, ConnectError, ConnectionError};

use crate::{
    cid::{Purpose, ServerId},
    not_sent::NotSent,
};

/// An attempt to connect to a server.
#[derive(Debug)]
pub struct Dial {
    /// The client's configuration.
    pub config: ClientConfig,
    /// The server's address.
    pub address: SocketAddr,
    /// The server's name, for TLS.
    pub server_name: &'static str,
    /// What the connection is for.
    pub purpose: Purpose,
    /// The server to reach at that address, if a balancer is there.
    pub home: Option<ServerId>,
    /// The path's round trip, if known (RFC 9002 6.2.2): the first packet is resent after three.
    pub rtt: Option<Duration>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectingError {
    /// No attempt was made: the address or the configuration is invalid.
    #[error(transparent)]
    NotTried(#[from] ConnectError),
    /// This host does not let the handshake's datagrams out.
    #[error(transparent)]
    NotSent(#[from] NotSent),
    /// The handshake failed.
    #[error(transparent)]
    Failed(#[from] ConnectionError),
}

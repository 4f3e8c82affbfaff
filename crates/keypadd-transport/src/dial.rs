//! Describes an attempt to connect to a server.

use std::{net::SocketAddr, time::Duration};

use quinn_proto::ClientConfig;

use crate::cid::Purpose;

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
    /// The path's round trip, if known (RFC 9002 6.2.2): the first packet is resent after three.
    pub rtt: Option<Duration>,
}

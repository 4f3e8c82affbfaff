//! Parses the pattern of a permit: hosts and ports of TCP or UDP, or the path of a unix socket.
//!
//! `--permit-open` and `--permit-listen` use the same patterns; how they are compared is in `open`
//! and `listen`.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use keypadd_network::{PortRange, PortRangeError};
use thiserror::Error;

use crate::addresses::{
    socket_path::{SocketPath, SocketPathError, is_path},
    target::{AddressError, Host, Protocol, UDP, incomplete, same_name, split_host_port},
};

/// The pattern of one permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Hosts and ports.
    Ports(Protocol, HostPattern, PortRange),
    /// Exactly this unix socket.
    Unix(SocketPath),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    Any,
    Net(IpNet),
    One(Host),
}

/// A permit that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("permit `{pattern}`: {cause}")]
pub struct PermitError {
    /// The text as given.
    pub pattern: String,
    /// What is wrong.
    pub cause: PermitFault,
}

/// What is wrong with a permit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PermitFault {
    /// The host is not valid, or a part is missing.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The ports are neither valid nor `*`.
    #[error(transparent)]
    Ports(#[from] PortRangeError),
    /// A network that is not `ADDRESS/BITS`.
    #[error("`{0}` is not a network, as in 10.0.0.0/8 or [fd00::/8]")]
    Network(String),
    /// A wildcard within a name.
    #[error("`{0}`: `*` matches a whole host, not part of one")]
    Wildcard(String),
    /// `udp` in another place.
    #[error("`udp:` goes first, as in udp:resolver:53 or udp:5353")]
    Udp,
    /// The path is not valid for a unix socket.
    #[error(transparent)]
    Path(#[from] SocketPathError),
}

impl PermitFault {
    /// The text that the message quotes, if any, which may be part of the permit.
    pub fn quoted(&self) -> Option<&str> {
        match self {
            Self::Udp => None,
            Self::Network(text) | Self::Wildcard(text) => Some(text),
            Self::Address(error) => Some(error.quoted()),
            Self::Ports(error) => Some(error.quoted()),
            Self::Path(error) => Some(error.quoted()),
        }
    }
}

impl Pattern {
    /// Parses `HOST:PORT`, `HOST:*`, `*:PORT`, `CIDR:PORT` or `*:*`, where PORT may be a range such
    /// as 8000-8010, each with `udp:` before it for UDP, or `/PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, PermitFault> {
        if is_path(text) {
            return Ok(Self::Unix(text.parse()?));
        }
        let (protocol, text) = protocol_of(text)?;
        let (host, port) = split_host_port(text)?;
        let ports = PortRange::of_permit(port.ok_or_else(|| incomplete(text))?)?;
        let host = match host {
            "*" => HostPattern::Any,
            host if host.contains('*') => return Err(PermitFault::Wildcard(host.into())),
            host if host.contains('/') => {
                let net: IpNet = host.parse().map_err(|_| PermitFault::Network(host.into()))?;
                HostPattern::Net(net.trunc())
            }
            host => HostPattern::One(host.parse()?),
        };
        Ok(Self::Ports(protocol, host, ports))
    }

    /// The host pattern, if the protocol is the same and the port matches.
    pub(crate) fn hosts_of_port(&self, protocol: Protocol, port: u16) -> Option<&HostPattern> {
        match self {
            Self::Ports(of, host, permitted) if *of == protocol && permitted.contains(port) => {
                Some(host)
            }
            Self::Ports(..) | Self::Unix(_) => None,
        }
    }

    /// Whether it is this unix socket.
    pub(crate) fn is_socket(&self, path: &SocketPath) -> bool {
        matches!(self, Self::Unix(permitted) if permitted == path)
    }
}

impl HostPattern {
    /// One of the hosts: the first address of a network, none for any host.
    pub(crate) fn example(&self) -> Option<Host> {
        match self {
            Self::Any => None,
            Self::Net(net) => Some(Host::Address(net.addr())),
            Self::One(host) => Some(host.clone()),
        }
    }
}

/// Splits off the protocol: TCP unless the text begins with `udp:`.
pub(crate) fn protocol_of(text: &str) -> Result<(Protocol, &str), PermitFault> {
    let (protocol, rest) = match text.strip_prefix(UDP).and_then(|rest| rest.strip_prefix(':')) {
        Some(rest) if is_path(rest) => return Err(PermitFault::Udp),
        Some(rest) => (Protocol::Udp, rest),
        None => (Protocol::Tcp, text),
    };
    // A host of that name can be written as `udp.`.
    match rest.split(':').any(|field| field == UDP) {
        true => Err(PermitFault::Udp),
        false => Ok((protocol, rest)),
    }
}

/// One of the ports: `any` for any port.
pub(crate) fn example_port(ports: PortRange, any: u16) -> u16 {
    if ports == PortRange::ANY { any } else { *ports.ports().start() }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, host, ports) = match self {
            Self::Ports(protocol, host, ports) => (protocol, host, ports),
            Self::Unix(path) => return path.fmt(f),
        };
        if *protocol == Protocol::Udp {
            write!(f, "{UDP}:")?;
        }
        match host {
            HostPattern::Any => f.write_str("*")?,
            HostPattern::Net(net @ IpNet::V6(_)) => write!(f, "[{net}]")?,
            HostPattern::Net(net) => net.fmt(f)?,
            HostPattern::One(Host::Address(IpAddr::V6(address))) => write!(f, "[{address}]")?,
            HostPattern::One(host) => host.fmt(f)?,
        }
        write!(f, ":{ports}")
    }
}

/// Whether two hosts are the same text, ignoring case and a final dot of names.
pub(crate) fn same_host(one: &Host, other: &Host) -> bool {
    match (one, other) {
        (Host::Name(one), Host::Name(other)) => same_name(one, other),
        (one, other) => one == other,
    }
}

//! Parses forwards as OpenSSH does (ssh(1)): `-L` and `-R` `[bind:]port:host:hostport`, with the
//! path of a unix socket in place of either end, and `-D [bind:]port`. For UDP, which ssh does not
//! have, it is `[bind:]port:udp:host:hostport`.
//!
//! Without a bind address a forward listens on loopback, in both families; an empty one or `*`
//! means all addresses. Port 0 is any free port (the ready line says which). `-W host:port` is a
//! plain [`Target`].

use std::{fmt, net::IpAddr, str::FromStr};

use thiserror::Error;

use crate::addresses::{
    socket_path::{SocketPath, SocketPathError, is_path},
    target::{AddressError, Host, Target, UDP, parse_port},
};

/// The addresses that a forward's TCP port is bound on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// 127.0.0.1 and ::1.
    Loopback,
    /// All addresses of both families.
    All,
    /// This address, or the addresses of this name when it is bound.
    Host(Host),
}

/// Where a forward listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP port.
    Tcp {
        /// The addresses to bind.
        bind: Bind,
        /// The port; 0 for any free one.
        port: u16,
    },
    /// A UDP port.
    Udp {
        /// The addresses to bind.
        bind: Bind,
        /// The port; 0 for any free one.
        port: u16,
    },
    /// A unix socket.
    Unix(SocketPath),
}

impl Listen {
    /// Whether the system chooses the port.
    pub(crate) fn is_any_port(&self) -> bool {
        matches!(self, Self::Tcp { port: 0, .. } | Self::Udp { port: 0, .. })
    }
}

/// The destination of a forward: what the other end connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A TCP port.
    Tcp(Target),
    /// A UDP port.
    Udp(Target),
    /// A unix socket.
    Unix(SocketPath),
}

/// A local forward (`-L`): the client listens, the server connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalForward {
    /// Where the client listens.
    pub listen: Listen,
    /// What the server connects to.
    pub destination: Destination,
}

/// A remote forward (`-R`): the server listens, the client connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteForward {
    /// Where the server listens.
    pub listen: Listen,
    /// What the client connects to.
    pub destination: Destination,
}

/// A dynamic forward (`-D`): the client is a SOCKS proxy, the server connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicForward {
    /// The addresses to bind.
    pub bind: Bind,
    /// The TCP port; 0 for any free one.
    pub port: u16,
}

/// A forward to the server's bench service. It has no text form to parse.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BenchForward {
    /// Where the client listens: the service gets the connections, or the datagrams.
    pub listen: Listen,
}

/// Which connections of `-L` and `-R` begin with a header of the PROXY protocol. `-D` has none: the
/// programs that use it send none, and the targets that they choose expect none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProxyHeaders {
    /// Connections made to targets: the header tells where they come from.
    pub send: bool,
    /// Connections that listeners accept, on either end.
    pub accept: bool,
}

/// Any forward. Displays with its flag, as in status and logs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Forward {
    /// `-L`
    Local(LocalForward),
    /// `-R`
    Remote(RemoteForward),
    /// `-D`
    Dynamic(DynamicForward),
    /// For measurements; no flag.
    Bench(BenchForward),
}

impl Forward {
    /// Where this end listens for it.
    pub fn listens_here(&self) -> Option<Listen> {
        match self {
            Self::Local(forward) => Some(forward.listen.clone()),
            Self::Bench(forward) => Some(forward.listen.clone()),
            Self::Dynamic(DynamicForward { bind, port }) => {
                Some(Listen::Tcp { bind: bind.clone(), port: *port })
            }
            Self::Remote(_) => None,
        }
    }
}

/// A forward that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("forward `{forward}`: {cause}")]
pub struct ForwardError {
    /// The text as given.
    pub forward: String,
    /// What is wrong.
    pub cause: ForwardFault,
}

/// What is wrong with a forward.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ForwardFault {
    /// Not the fields of `-L` and `-R`.
    #[error(
        "expected [BIND:]PORT:HOST:HOSTPORT, with IPv6 addresses in brackets, or a /PATH in place \
         of either end"
    )]
    Fields,
    /// Not the fields of a UDP forward.
    #[error("a UDP forward is [BIND:]PORT:udp:HOST:HOSTPORT, as in 5353:udp:resolver:53")]
    UdpFields,
    /// Not the fields of `-D`.
    #[error("expected [BIND:]PORT, with IPv6 addresses in brackets")]
    DynamicFields,
    /// A host or a port is not valid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A path is not valid for a unix socket.
    #[error(transparent)]
    Path(#[from] SocketPathError),
}

impl ForwardFault {
    /// The text that the message quotes, if any, which may be part of the forward.
    pub fn quoted(&self) -> Option<&str> {
        match self {
            Self::Fields | Self::UdpFields | Self::DynamicFields => None,
            Self::Address(error) => Some(error.quoted()),
            Self::Path(error) => Some(error.quoted()),
        }
    }
}

impl FromStr for LocalForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (listen, destination) = ends(text).map_err(|cause| error(text, cause))?;
        Ok(Self { listen, destination })
    }
}

impl FromStr for RemoteForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (listen, destination) = ends(text).map_err(|cause| error(text, cause))?;
        Ok(Self { listen, destination })
    }
}

impl FromStr for DynamicForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (bind, port) = match fields(text).as_deref() {
            Some(&[port]) => (Ok(Bind::Loopback), port),
            Some(&[bind, port]) => (parse_bind(bind), port),
            _ => return Err(error(text, ForwardFault::DynamicFields)),
        };
        let bind = bind.map_err(|cause| error(text, cause.into()))?;
        let port = listen_port(port).map_err(|cause| error(text, cause.into()))?;
        Ok(Self { bind, port })
    }
}

fn error(text: &str, cause: ForwardFault) -> ForwardError {
    ForwardError { forward: text.into(), cause }
}

fn ends(text: &str) -> Result<(Listen, Destination), ForwardFault> {
    let tcp = |bind, port| Ok::<_, ForwardFault>(Listen::Tcp { bind, port: listen_port(port)? });
    let udp = |bind, port| Ok::<_, ForwardFault>(Listen::Udp { bind, port: listen_port(port)? });
    let unix = |path: &str| path.parse::<SocketPath>();
    let target = |host: &str, port| {
        Ok::<_, AddressError>(Target { host: host.parse()?, port: parse_port(port)? })
    };
    Ok(match fields(text).ok_or(ForwardFault::Fields)?[..] {
        [port, UDP, host, host_port] if !is_path(port) => {
            (udp(Bind::Loopback, port)?, Destination::Udp(target(host, host_port)?))
        }
        [bind, port, UDP, host, host_port] => {
            (udp(parse_bind(bind)?, port)?, Destination::Udp(target(host, host_port)?))
        }
        // A host of that name can be written as `udp.`.
        ref fields if fields.contains(&UDP) => return Err(ForwardFault::UdpFields),
        [listen, destination] if is_path(destination) => {
            let listen = match is_path(listen) {
                true => Listen::Unix(unix(listen)?),
                false => tcp(Bind::Loopback, listen)?,
            };
            (listen, Destination::Unix(unix(destination)?))
        }
        [path, host, host_port] if is_path(path) => {
            (Listen::Unix(unix(path)?), Destination::Tcp(target(host, host_port)?))
        }
        [bind, port, path] if is_path(path) => {
            (tcp(parse_bind(bind)?, port)?, Destination::Unix(unix(path)?))
        }
        [port, host, host_port] => {
            (tcp(Bind::Loopback, port)?, Destination::Tcp(target(host, host_port)?))
        }
        [bind, port, host, host_port] => {
            (tcp(parse_bind(bind)?, port)?, Destination::Tcp(target(host, host_port)?))
        }
        _ => return Err(ForwardFault::Fields),
    })
}

/// Parses a port to listen on; 0 is allowed.
fn listen_port(text: &str) -> Result<u16, AddressError> {
    if text == "0" { Ok(0) } else { parse_port(text) }
}

/// Parses a bind address: empty or `*` means all addresses, `localhost` both loopback addresses.
pub(crate) fn parse_bind(text: &str) -> Result<Bind, AddressError> {
    match text {
        "" | "*" => Ok(Bind::All),
        text => Ok(match text.parse()? {
            host if Host::is_localhost(&host) => Bind::Loopback,
            host => Bind::Host(host),
        }),
    }
}

/// Splits at colons outside brackets and removes the brackets; `None` if they do not match.
fn fields(text: &str) -> Option<Vec<&str>> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let after = match rest.strip_prefix('[') {
            Some(bracketed) => {
                let (field, after) = bracketed.split_once(']')?;
                fields.push(field);
                after
            }
            None => {
                let end = rest.find(':').unwrap_or(rest.len());
                fields.push(&rest[..end]);
                &rest[end..]
            }
        };
        match after.strip_prefix(':') {
            Some(next) => rest = next,
            None if after.is_empty() => return Some(fields),
            None => return None,
        }
    }
}

impl fmt::Display for Bind {
    /// Writes what comes before a port, with its colon; nothing for loopback.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => Ok(()),
            Self::All => f.write_str("*:"),
            Self::Host(Host::Address(IpAddr::V6(address))) => write!(f, "[{address}]:"),
            Self::Host(host) => write!(f, "{host}:"),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { bind, port } => write!(f, "{bind}{port}"),
            Self::Udp { bind, port } => write!(f, "{UDP}:{bind}{port}"),
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(target) => target.fmt(f),
            Self::Udp(target) => write!(f, "{UDP}:{target}"),
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl fmt::Display for LocalForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_ends(f, &self.listen, &self.destination)
    }
}

impl fmt::Display for RemoteForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_ends(f, &self.listen, &self.destination)
    }
}

/// Writes both ends of a forward. The protocol of both is written once.
fn write_ends(
    f: &mut fmt::Formatter<'_>,
    listen: &Listen,
    destination: &Destination,
) -> fmt::Result {
    match listen {
        Listen::Udp { bind, port } => write!(f, "{bind}{port}:{destination}"),
        listen => write!(f, "{listen}:{destination}"),
    }
}

impl fmt::Display for DynamicForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.bind, self.port)
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(forward) => write!(f, "-L {forward}"),
            Self::Remote(forward) => write!(f, "-R {forward}"),
            Self::Dynamic(forward) => write!(f, "-D {forward}"),
            Self::Bench(BenchForward { listen }) => write!(f, "bench {listen}"),
        }
    }
}

#[cfg(test)]
mod tests;

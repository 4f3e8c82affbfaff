//! Forwards as OpenSSH writes them (ssh(1)): `-L` and `-R` as `[bind:]port:host:hostport`, with the
//! path of a unix socket in place of either end, and `-D [bind:]port`.
//!
//! Loopback, in both families, unless a bind address is given; an empty one or `*` is every
//! address. Port 0 is any free port (the ready line says which). Text only: sockets are bound in
//! `listen` and connected to in `dial`, and `-W host:port` is a plain [`Target`].

use std::{fmt, net::IpAddr, str::FromStr};

use thiserror::Error;

use crate::spec::{
    socket_path::{SocketPath, SocketPathError, is_path},
    target::{AddressError, Host, Target, parse_port},
};

/// The addresses that a forward's TCP port is bound on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// 127.0.0.1 and ::1.
    Loopback,
    /// Every address of both families.
    All,
    /// This address, or what this name resolves to when it is bound.
    Host(Host),
}

/// Where a forward listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP port.
    Tcp {
        /// On these addresses.
        bind: Bind,
        /// The port; 0 for any that is free.
        port: u16,
    },
    /// A unix socket.
    Unix(SocketPath),
}

/// What a forward is connected to at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// A TCP port.
    Tcp(Target),
    /// A unix socket.
    Unix(SocketPath),
}

/// A local forward (`-L`): what connects to it here is connected to the goal from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalForward {
    /// Where the client listens.
    pub listen: Listen,
    /// What the server connects to.
    pub goal: Goal,
}

/// A remote forward (`-R`): what connects to it there is connected to the goal from here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteForward {
    /// Where the server listens.
    pub listen: Listen,
    /// What the client connects to.
    pub goal: Goal,
}

/// A dynamic forward (`-D`): a SOCKS proxy here, whose targets are connected to from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicForward {
    /// On these addresses.
    pub bind: Bind,
    /// The TCP port; 0 for any that is free.
    pub port: u16,
}

/// A listener here whose connections go to the bench service of the server. No text makes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BenchForward {
    /// On these addresses.
    pub bind: Bind,
    /// The TCP port; 0 for any that is free.
    pub port: u16,
}

/// Any forward. Shown with its flag, as figures and logs name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Forward {
    /// `-L`
    Local(LocalForward),
    /// `-R`
    Remote(RemoteForward),
    /// `-D`
    Dynamic(DynamicForward),
    /// For measurements.
    Bench(BenchForward),
}

/// Why a text is no forward.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("forward `{forward}`: {cause}")]
pub struct ForwardError {
    /// The text as given.
    pub forward: String,
    /// What is wrong with it.
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
    /// Not the fields of `-D`.
    #[error("expected [BIND:]PORT, with IPv6 addresses in brackets")]
    DynamicFields,
    /// A host or a port that cannot be one.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A path that cannot be a unix socket's.
    #[error(transparent)]
    Path(#[from] SocketPathError),
}

impl FromStr for LocalForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (listen, goal) = ends(text).map_err(|cause| of(text, cause))?;
        Ok(Self { listen, goal })
    }
}

impl FromStr for RemoteForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (listen, goal) = ends(text).map_err(|cause| of(text, cause))?;
        Ok(Self { listen, goal })
    }
}

impl FromStr for DynamicForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (bind, port) = match fields(text).as_deref() {
            Some(&[port]) => (Ok(Bind::Loopback), port),
            Some(&[bind, port]) => (parse_bind(bind), port),
            _ => return Err(of(text, ForwardFault::DynamicFields)),
        };
        let bind = bind.map_err(|cause| of(text, cause.into()))?;
        let port = listen_port(port).map_err(|cause| of(text, cause.into()))?;
        Ok(Self { bind, port })
    }
}

fn of(text: &str, cause: ForwardFault) -> ForwardError {
    ForwardError { forward: text.into(), cause }
}

fn ends(text: &str) -> Result<(Listen, Goal), ForwardFault> {
    let tcp = |bind, port| Ok::<_, ForwardFault>(Listen::Tcp { bind, port: listen_port(port)? });
    let unix = |path: &str| path.parse::<SocketPath>();
    let target = |host: &str, port| {
        Ok::<_, AddressError>(Target { host: host.parse()?, port: parse_port(port)? })
    };
    Ok(match fields(text).ok_or(ForwardFault::Fields)?[..] {
        [listen, goal] if is_path(goal) => {
            let listen = match is_path(listen) {
                true => Listen::Unix(unix(listen)?),
                false => tcp(Bind::Loopback, listen)?,
            };
            (listen, Goal::Unix(unix(goal)?))
        }
        [path, host, host_port] if is_path(path) => {
            (Listen::Unix(unix(path)?), Goal::Tcp(target(host, host_port)?))
        }
        [bind, port, path] if is_path(path) => {
            (tcp(parse_bind(bind)?, port)?, Goal::Unix(unix(path)?))
        }
        [port, host, host_port] => {
            (tcp(Bind::Loopback, port)?, Goal::Tcp(target(host, host_port)?))
        }
        [bind, port, host, host_port] => {
            (tcp(parse_bind(bind)?, port)?, Goal::Tcp(target(host, host_port)?))
        }
        _ => return Err(ForwardFault::Fields),
    })
}

/// A port to listen on: 0 is any.
fn listen_port(text: &str) -> Result<u16, AddressError> {
    if text == "0" { Ok(0) } else { parse_port(text) }
}

/// A bind address: empty or `*` is every address, `localhost` both of loopback.
pub(crate) fn parse_bind(text: &str) -> Result<Bind, AddressError> {
    match text {
        "" | "*" => Ok(Bind::All),
        text => Ok(match text.parse()? {
            host if Host::is_localhost(&host) => Bind::Loopback,
            host => Bind::Host(host),
        }),
    }
}

/// Splits at colons outside brackets and takes the brackets off; `None` where they do not match.
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
    /// As it stands before a port, with its colon; loopback needs no words.
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
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(target) => target.fmt(f),
            Self::Unix(path) => path.fmt(f),
        }
    }
}

impl fmt::Display for LocalForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.listen, self.goal)
    }
}

impl fmt::Display for RemoteForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.listen, self.goal)
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
            Self::Bench(BenchForward { bind, port }) => write!(f, "bench {bind}{port}"),
        }
    }
}

#[cfg(test)]
mod tests;

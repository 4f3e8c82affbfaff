//! Defines the errors of binding and connecting, by who can fix them.
//!
//! The program maps each variant to an exit code and a hint.

use std::{fmt, io, net::SocketAddr};

use keypadd_provider::Refusal;
use keypadd_transport::{ConnectionError, TransportErrorCode};
use thiserror::Error;

use crate::{
    addresses::{
        forward::{Listen, RemoteForward},
        servers::ServerAddresses,
        socket_path::SocketPath,
        target::{ServerAddress, Target},
    },
    sessions::session_end::{SessionEnd, Shown, printable},
    wire::{CloseCode, ListenCode, StreamCode},
};

pub(crate) mod unreachable;

use self::unreachable::{Cause, Failure, Tried, joined};

/// A local address could not be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// Where.
    pub address: BindAddress,
    /// The error of the system.
    pub source: io::Error,
}

/// Where a socket was to be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// At a UDP port that the system chooses.
    AnyUdpPort,
    /// At this UDP port.
    Udp(SocketAddr),
    /// At this TCP port.
    Tcp(SocketAddr),
    /// At the addresses of a name, which cannot be looked up.
    Name(Listen),
    /// At this path.
    Unix(SocketPath),
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyUdpPort => f.write_str("udp port"),
            Self::Udp(address) => write!(f, "udp {address}"),
            Self::Tcp(address) => write!(f, "tcp {address}"),
            Self::Name(listen @ Listen::Tcp { .. }) => write!(f, "tcp {listen}"),
            Self::Name(listen) => listen.fmt(f),
            Self::Unix(path) => write!(f, "unix {path}"),
        }
    }
}

/// The handshake failed: the two ends do not accept each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuthError {
    /// One end refuses the other's key, suites or key exchanges.
    #[error("{}", worded(.0))]
    Refused(Refusal),
    /// The handshake failed in another way.
    #[error("the handshake failed: {0}")]
    Handshake(String),
    /// The server says that it goes on with connections that are held, and does not prove that it
    /// holds them: it may be somebody who has a key of the server.
    #[error("this server says that it holds this client's connections, but does not prove it")]
    NotResumed,
}

/// What a client's user reads of a refusal.
fn worded(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NotPinned(key) => {
            format!("SERVER KEY MISMATCH: expected another key, got {key}")
        }
        Refusal::KeyNotAllowed(key) => format!("the server does not allow this key: {key}"),
        Refusal::KeyExpired(key) => {
            format!("the server's valid-until for this key has passed: {key}")
        }
        Refusal::NoCommonSuite { .. } | Refusal::NoCommonKeyExchange { .. } => {
            printable(&refusal.to_string())
        }
    }
}

/// Why a client failed. Exhaustive on purpose: a new variant does not compile until somebody has
/// written its hint, or why it needs none.
#[derive(Debug, Error)]
pub enum ClientError {
    /// A local address could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The ends do not accept each other. Retrying does not help.
    #[error("{server}: {cause}")]
    Auth {
        /// The server.
        server: ServerAddress,
        /// Why the handshake failed.
        cause: AuthError,
    },
    /// The server has as many sessions of this key as it allows.
    #[error("{server}: {cause}")]
    TooManySessions {
        /// The server.
        server: ServerAddress,
        /// What the server says.
        cause: String,
    },
    /// The inviting host does not pair with this one.
    #[error("{server}: {cause}")]
    NotPaired {
        /// The inviting host.
        server: ServerAddress,
        /// Why not.
        cause: String,
    },
    /// No connection to the server could be made.
    #[error("cannot reach {server}: {}", joined(.tried))]
    Unreachable {
        /// The server.
        server: ServerAddresses,
        /// What was tried, in order of preference.
        tried: Vec<Tried>,
    },
    /// An established session ended.
    #[error("connection to {server} lost: {cause}")]
    Lost {
        /// The server.
        server: ServerAddresses,
        /// Why it ended.
        cause: SessionEnd,
    },
    /// The time of the peer is over: it is not connected to.
    #[error("{server}: not connecting: the peer's valid-until has passed")]
    Expired {
        /// The server.
        server: ServerAddresses,
    },
    /// The server could not connect to the target, or the target reset the connection.
    #[error("{target}: {code}")]
    Refused {
        /// The target.
        target: Target,
        /// The code from the server.
        code: StreamCode,
    },
    /// A remote forward failed on the server.
    #[error("remote forward -R {forward} failed on the server: {code}")]
    NotListening {
        /// The forward.
        forward: RemoteForward,
        /// The code from the server.
        code: ListenCode,
    },
    /// Standard input or output failed.
    #[error("standard input or output failed: {0}")]
    Local(#[source] io::Error),
}

impl ClientError {
    /// All that was tried failed together.
    pub(crate) fn unreachable(server: ServerAddresses, cause: Cause) -> Self {
        let failures = vec![Failure { at: None, cause }];
        Self::Unreachable { server, tried: vec![Tried { server: None, is_here: false, failures }] }
    }

    /// Whether it lasts until somebody changes a setting or closes a session.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Auth { .. }
                | Self::TooManySessions { .. }
                | Self::NotPaired { .. }
                | Self::Expired { .. }
        )
    }
}

/// Why one attempt to connect failed.
#[derive(Debug, Error)]
pub(crate) enum ConnectFailure {
    /// The ends do not accept each other.
    #[error(transparent)]
    Auth(AuthError),
    /// The server has too many sessions of this key.
    #[error("{0}")]
    TooMany(String),
    /// The inviting host does not pair with this one.
    #[error("{0}")]
    NotPaired(String),
    /// Another address may work.
    #[error(transparent)]
    Unreachable(Cause),
}

/// Why this end, a server, has refused the client; `None` if the handshake failed in another way.
pub(crate) fn refused_here(error: &ConnectionError) -> Option<Refusal> {
    match error {
        ConnectionError::TransportError(error) => Refusal::parse(&error.reason),
        _ => None,
    }
}

impl ConnectFailure {
    /// The refusal by the server that was tried, or why it could not be reached.
    pub(crate) fn refusal(self, server: ServerAddress) -> Result<ClientError, Cause> {
        Ok(match self {
            Self::Auth(cause) => ClientError::Auth { server, cause },
            Self::TooMany(cause) => ClientError::TooManySessions { server, cause },
            Self::NotPaired(cause) => ClientError::NotPaired { server, cause },
            Self::Unreachable(cause) => return Err(cause),
        })
    }

    /// Classifies the error of a connection that did not become a session.
    pub(crate) fn of(error: &ConnectionError) -> Self {
        let (code, reason) = match error {
            ConnectionError::TransportError(error) => (error.code, error.reason.clone()),
            ConnectionError::ConnectionClosed(close) => {
                (close.error_code, String::from_utf8_lossy(&close.reason).into_owned())
            }
            ConnectionError::ApplicationClosed(close)
                if close.error_code == CloseCode::KeyFull.value().into() =>
            {
                return Self::TooMany(printable(&String::from_utf8_lossy(&close.reason)));
            }
            ConnectionError::ApplicationClosed(close)
                if close.error_code == CloseCode::Shutdown.value().into() =>
            {
                return Self::Unreachable(Cause::Busy);
            }
            ConnectionError::Reset => return Self::Unreachable(Cause::Forgotten),
            error => return Self::Unreachable(Cause::Connection(error.clone())),
        };
        if code == TransportErrorCode::CONNECTION_REFUSED {
            return Self::Unreachable(Cause::Busy);
        }
        // CRYPTO_ERROR (RFC 9000 20.1): a TLS alert.
        if !(0x100..0x200).contains(&u64::from(code)) {
            return Self::Unreachable(Cause::Connection(error.clone()));
        }
        let is_ours = matches!(error, ConnectionError::TransportError(_));
        Self::Auth(match Refusal::parse(&reason) {
            // Only this end can say that the server's key is not the pinned one.
            Some(refusal) if is_ours || !matches!(refusal, Refusal::NotPinned(_)) => {
                AuthError::Refused(refusal)
            }
            _ if is_ours && !reason.is_empty() => AuthError::Handshake(printable(&reason)),
            _ => AuthError::Handshake(Shown(error).to_string()),
        })
    }
}

#[cfg(test)]
mod tests;

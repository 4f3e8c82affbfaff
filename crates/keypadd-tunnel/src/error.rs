//! Defines the errors of binding and connecting, by who can fix them.
//!
//! The program maps each variant to an exit code and a hint.

use std::io;

use keypadd_transport::{ConnectionError, TransportErrorCode};
use thiserror::Error;

use crate::{
    addresses::{
        forward::RemoteForward,
        servers::ServerAddresses,
        target::{ServerAddress, Target},
    },
    sessions::session_end::{SessionEnd, Shown, printable},
    wire::{CloseCode, ListenCode, StreamCode},
};

/// A local address could not be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// The address, with its protocol.
    pub address: String,
    /// The error of the system.
    pub source: io::Error,
}

/// The handshake failed: the two ends do not accept each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The server's key is not the expected one.
    #[error("SERVER KEY MISMATCH: expected another key, got {0}")]
    ServerKey(String),
    /// This end's key is not in the server's list.
    #[error("the server does not allow this key: {0}")]
    KeyNotAllowed(String),
    /// This end's key is in the server's list, and its time is over.
    #[error("the server's valid-until for this key has passed: {0}")]
    KeyExpired(String),
    /// The ends have no suite in common.
    #[error("{0}")]
    NoCommonSuite(String),
    /// The ends have no key exchange in common.
    #[error("{0}")]
    NoCommonKeyExchange(String),
    /// The handshake failed in another way.
    #[error("the handshake failed: {0}")]
    Handshake(String),
}

/// Why a client failed.
#[derive(Debug, Error)]
#[non_exhaustive]
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
    #[error("cannot reach {server}: {cause}")]
    Unreachable {
        /// The server.
        server: ServerAddresses,
        /// Why not.
        cause: String,
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
    /// Fatal: no other address of this server will help.
    #[error(transparent)]
    Auth(AuthError),
    /// The server has too many sessions of this key.
    #[error("{0}")]
    TooMany(String),
    /// The inviting host does not pair with this one.
    #[error("{0}")]
    NotPaired(String),
    /// The server does not know the connection any more: another attempt may work.
    #[error("the server has given up the handshake for others, or has restarted")]
    Forgotten,
    /// Another address may work.
    #[error("{0}")]
    Unreachable(String),
}

// Prefixes of the handshake's refusals, in keypadd-provider.
const KEY_NOT_ALLOWED: &str = "key not allowed: ";
const KEY_EXPIRED: &str = "key expired: ";
const NO_COMMON_SUITE: &str = "no common suite: ";
const NO_COMMON_KEX: &str = "no common key exchange: ";
const SERVER_KEY: &str = "server key not pinned: ";

/// Why a handshake failed on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
    /// The client proved this key, which is not listed.
    KeyNotAllowed(String),
    /// The client proved this key, which is listed, and its time is over.
    KeyExpired(String),
    /// The client offers no allowed suite or key exchange: both lists.
    NothingInCommon(String),
    /// Another reason that needs no action.
    Other(String),
}

impl HandshakeFailure {
    pub(crate) fn of(error: &ConnectionError) -> Self {
        if let ConnectionError::TransportError(error) = error {
            if let Some(key) = error.reason.strip_prefix(KEY_NOT_ALLOWED) {
                return Self::KeyNotAllowed(printable(key));
            }
            if let Some(key) = error.reason.strip_prefix(KEY_EXPIRED) {
                return Self::KeyExpired(printable(key));
            }
            if [NO_COMMON_SUITE, NO_COMMON_KEX].iter().any(|words| error.reason.starts_with(words))
            {
                return Self::NothingInCommon(printable(&error.reason));
            }
        }
        Self::Other(Shown(error).to_string())
    }
}

impl ConnectFailure {
    /// The refusal by the server that was tried, or why it could not be reached.
    pub(crate) fn refusal(self, server: ServerAddress) -> Result<ClientError, String> {
        Ok(match self {
            Self::Auth(cause) => ClientError::Auth { server, cause },
            Self::TooMany(cause) => ClientError::TooManySessions { server, cause },
            Self::NotPaired(cause) => ClientError::NotPaired { server, cause },
            Self::Forgotten | Self::Unreachable(_) => return Err(self.to_string()),
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
            ConnectionError::Reset => return Self::Forgotten,
            error => return Self::Unreachable(Shown(error).to_string()),
        };
        if code == TransportErrorCode::CONNECTION_REFUSED {
            // The code says no more, and comes without a reason.
            return Self::Unreachable(
                "the server accepts no new connections now: it has too many, or is shutting down"
                    .into(),
            );
        }
        // CRYPTO_ERROR (RFC 9000 20.1): a TLS alert.
        if !(0x100..0x200).contains(&u64::from(code)) {
            return Self::Unreachable(Shown(error).to_string());
        }
        let is_ours = matches!(error, ConnectionError::TransportError(_));
        let reason = printable(&reason);
        Self::Auth(if is_ours && let Some(key) = reason.strip_prefix(SERVER_KEY) {
            AuthError::ServerKey(key.into())
        } else if let Some(key) = reason.strip_prefix(KEY_NOT_ALLOWED) {
            AuthError::KeyNotAllowed(key.into())
        } else if let Some(key) = reason.strip_prefix(KEY_EXPIRED) {
            AuthError::KeyExpired(key.into())
        } else if reason.starts_with(NO_COMMON_SUITE) {
            AuthError::NoCommonSuite(reason)
        } else if reason.starts_with(NO_COMMON_KEX) {
            AuthError::NoCommonKeyExchange(reason)
        } else if reason.is_empty() || !is_ours {
            AuthError::Handshake(Shown(error).to_string())
        } else {
            AuthError::Handshake(reason)
        })
    }
}

#[cfg(test)]
mod tests;

//! What can go wrong, told apart by who can mend it.
//!
//! The program turns each variant into its exit code and a hint; the texts here name the thing and
//! the value.

use std::io;

use keypadd_transport::{ConnectionError, TransportErrorCode};
use thiserror::Error;

use crate::{
    sessions::session::{Lost, Shown, printable},
    spec::{
        forward::RemoteForward,
        target::{ServerAddress, Target},
    },
    wire::{ListenCode, StreamCode},
};

/// A local address could not be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// The address, with its protocol.
    pub address: String,
    /// What the system said.
    pub source: io::Error,
}

/// The two ends do not accept each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The server has another key than the one asked for.
    #[error("the server has another key: {0}")]
    ServerKey(String),
    /// The server does not list this end's key.
    #[error("the server does not allow this key: {0}")]
    KeyNotAllowed(String),
    /// No suite that both ends accept.
    #[error("{0}")]
    NoCommonSuite(String),
    /// No key exchange that both ends accept.
    #[error("{0}")]
    NoCommonKeyExchange(String),
    /// The handshake failed in another way.
    #[error("the handshake failed: {0}")]
    Handshake(String),
}

/// Why a client cannot do what it was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A local address is not to be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The ends do not accept each other; trying again does not help.
    #[error("{server}: {cause}")]
    Auth {
        /// The server asked for.
        server: ServerAddress,
        /// What was not accepted.
        cause: AuthError,
    },
    /// No session with the server came about.
    #[error("cannot reach {server}: {cause}")]
    Unreachable {
        /// The server asked for.
        server: ServerAddress,
        /// What stood in the way.
        cause: String,
    },
    /// A session that was up has ended.
    #[error("connection to {server} lost: {cause}")]
    Lost {
        /// The server asked for.
        server: ServerAddress,
        /// What ended it.
        cause: Lost,
    },
    /// The server did not connect to the target, or the target ended the connection early.
    #[error("{target}: {code}")]
    Refused {
        /// The target asked for.
        target: Target,
        /// What the server said.
        code: StreamCode,
    },
    /// The server does not listen for a remote forward.
    #[error("the server does not listen for -R {forward}: {code}")]
    NotListening {
        /// The forward asked for.
        forward: RemoteForward,
        /// What the server said.
        code: ListenCode,
    },
    /// Standard input or output failed.
    #[error("standard input or output failed: {0}")]
    Local(#[source] io::Error),
}

/// Why one attempt to connect failed.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// Not to be tried again, on any address.
    Auth(AuthError),
    /// Another address may do.
    Failed(String),
}

// How the handshake words what it refuses, in keypadd-provider.
const KEY_NOT_ALLOWED: &str = "key not allowed: ";
const NO_COMMON_SUITE: &str = "no common suite: ";
const NO_COMMON_KEX: &str = "no common key exchange: ";
const SERVER_KEY: &str = "server key not pinned: ";

/// What a handshake that failed on this server says of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// The client proved a key that is not listed: its text.
    Key(String),
    /// The client offers no suite, or no key exchange, that is allowed: both lists.
    Offer(String),
    /// Anything else; nobody needs to act on it.
    Other(String),
}

impl Stranger {
    pub(crate) fn of(error: &ConnectionError) -> Self {
        if let ConnectionError::TransportError(error) = error {
            if let Some(key) = error.reason.strip_prefix(KEY_NOT_ALLOWED) {
                return Self::Key(printable(key));
            }
            if [NO_COMMON_SUITE, NO_COMMON_KEX].iter().any(|words| error.reason.starts_with(words))
            {
                return Self::Offer(printable(&error.reason));
            }
        }
        Self::Other(Shown(error).to_string())
    }
}

impl Attempt {
    /// Sorts the error of a connection that never became a session.
    pub(crate) fn of(error: &ConnectionError) -> Self {
        let (code, reason) = match error {
            ConnectionError::TransportError(error) => (error.code, error.reason.clone()),
            ConnectionError::ConnectionClosed(close) => {
                (close.error_code, String::from_utf8_lossy(&close.reason).into_owned())
            }
            error => return Self::Failed(Shown(error).to_string()),
        };
        if code == TransportErrorCode::CONNECTION_REFUSED {
            return Self::Failed("the server takes no more connections".into());
        }
        // CRYPTO_ERROR (RFC 9000 20.1): a TLS alert.
        if !(0x100..0x200).contains(&u64::from(code)) {
            return Self::Failed(Shown(error).to_string());
        }
        let reason = printable(&reason);
        Self::Auth(if let Some(key) = reason.strip_prefix(SERVER_KEY) {
            AuthError::ServerKey(key.into())
        } else if let Some(key) = reason.strip_prefix(KEY_NOT_ALLOWED) {
            AuthError::KeyNotAllowed(key.into())
        } else if reason.starts_with(NO_COMMON_SUITE) {
            AuthError::NoCommonSuite(reason)
        } else if reason.starts_with(NO_COMMON_KEX) {
            AuthError::NoCommonKeyExchange(reason)
        } else if reason.is_empty() {
            AuthError::Handshake(Shown(error).to_string())
        } else {
            AuthError::Handshake(reason)
        })
    }
}

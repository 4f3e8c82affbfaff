//! Why a session ended, as text and as the code that the peer is sent.

use std::fmt;

use keypadd_provider::KeyFault;
use keypadd_transport::ConnectionError;
use thiserror::Error;

use crate::{clock::jump::Jump, sessions::control::ControlError, wire::CloseCode};

/// Why a session ended.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Lost {
    /// The connection failed, or the peer closed it.
    #[error("{}", Shown(.0))]
    Connection(ConnectionError),
    /// Its keys must not be used any more.
    #[error(transparent)]
    Key(KeyFault),
    /// The peer violated the control protocol.
    #[error(transparent)]
    Control(ControlError),
    /// A clock of this host jumped.
    #[error("{0}")]
    Clock(Jump),
    /// The same run of the client opened a newer session.
    #[error("replaced by a newer session of the same client")]
    Replaced,
    /// The client's key was removed from the list.
    #[error("the key is no longer listed")]
    Unlisted,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Shutdown,
}

impl Lost {
    /// The code sent to the peer when this end closes the connection.
    pub(crate) fn code(&self) -> CloseCode {
        match self {
            // Nothing is sent after a jump: the egress gate is shut.
            Self::Connection(_) | Self::Shutdown | Self::Clock(_) => CloseCode::Shutdown,
            Self::Key(_) => CloseCode::KeyFault,
            Self::Control(_) => CloseCode::Protocol,
            Self::Replaced => CloseCode::Replaced,
            Self::Unlisted => CloseCode::Unlisted,
        }
    }
}

/// Shows a connection error on one line. Control characters in the peer's text become `?`.
pub(crate) struct Shown<'a>(pub(crate) &'a ConnectionError);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
                write!(f, "closed by peer: {}", printable(&String::from_utf8_lossy(&close.reason)))
            }
            ConnectionError::TimedOut => f.write_str("timeout"),
            error => f.write_str(&printable(&error.to_string())),
        }
    }
}

/// Replaces control characters by `?`, so that a peer's text is safe to print on a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

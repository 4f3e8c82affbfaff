//! Defines the errors in bytes received from the peer.

use thiserror::Error;

use crate::addresses::{socket_path::SocketPathError, target::AddressError};

/// Bytes that cannot be decoded. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame's body is shorter than its fields.
    #[error("control frame of type {kind} is too short")]
    ShortFrame {
        /// The frame's type.
        kind: u8,
    },
    /// A stream of an unknown kind.
    #[error("stream of unknown kind {0}")]
    UnknownKind(u8),
    /// A `listen` frame for neither a TCP port, a UDP port nor a unix socket.
    #[error("listener of unknown kind {0}")]
    UnknownListen(u8),
    /// A network that is neither IPv4 nor IPv6.
    #[error("network of unknown family {0}")]
    UnknownFamily(u8),
    /// A network whose length is not possible, or whose address has bits behind it.
    #[error("malformed network")]
    BadPrefix,
    /// A header without a host or a path.
    #[error("stream header without a host")]
    NoHost,
    /// A header with an unused field that is not 0.
    #[error("stream header with a nonzero unused field")]
    NotZero,
    /// A host or a path is not UTF-8.
    #[error("host or path is not UTF-8")]
    NotText,
    /// A host or a port is not valid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A path is not valid for a unix socket.
    #[error(transparent)]
    Path(#[from] SocketPathError),
}

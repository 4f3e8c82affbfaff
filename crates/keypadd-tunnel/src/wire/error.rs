//! Why bytes of the peer could not be decoded.

use thiserror::Error;

use crate::spec::{socket_path::SocketPathError, target::AddressError};

/// Why bytes of the peer make no sense. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A known frame whose body is shorter than its fields.
    #[error("control frame of type {kind} is too short")]
    ShortFrame {
        /// The frame's type.
        kind: u8,
    },
    /// A stream of a kind that is not known.
    #[error("stream of unknown kind {0}")]
    UnknownKind(u8),
    /// A `listen` for something that is neither a TCP port nor a unix socket.
    #[error("listener of unknown kind {0}")]
    UnknownListen(u8),
    /// A header without a host or a path.
    #[error("stream header without a host")]
    NoHost,
    /// A header with something where nothing belongs.
    #[error("stream header whose empty fields are not 0")]
    NotZero,
    /// A host that is not text.
    #[error("a host or a path that is not UTF-8")]
    NotText,
    /// A host or a port that cannot be one.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A path that cannot be a unix socket's.
    #[error(transparent)]
    Path(#[from] SocketPathError),
}

//! The bytes that the two ends say to each other inside QUIC streams.
//!
//! The first bidirectional stream that the client opens is the control stream: frames of
//! `u16 length | u8 type | body`, the length being the body's, big-endian. Types that are not known
//! are skipped, so that later versions may say more. Every other stream starts with a header of
//! four bytes and perhaps a host or a path, and is answered by one byte 0, or by a reset whose
//! code says why not. Everything here is a total function on bytes: no sockets, no panics.

mod code;
mod frame;
mod header;

use thiserror::Error;

use crate::{socket_path::SocketPathError, target::AddressError};

pub use code::{CloseCode, ListenCode, StreamCode};
pub use frame::{FRAME_HEAD_BYTES, Frame, FrameHead, Instance, SessionToken};
pub use header::{CONNECTED, STREAM_HEAD_BYTES, StreamHead, StreamHeader};

/// Version of the control protocol that this end speaks.
pub const VERSION: u8 = 1;

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

#[cfg(test)]
mod tests;

//! Describes why a spliced stream has ended, in the tunnel's stream codes.

use std::io;

use keypadd_transport::{ReadError, VarInt, WriteError};
use thiserror::Error;

use crate::wire::StreamCode;

/// Why a splice ended before both directions were finished.
#[derive(Debug, Error)]
pub(crate) enum SpliceError {
    /// The local connection, or standard input or output, failed.
    #[error(transparent)]
    Local(#[from] io::Error),
    /// The other end reset the stream.
    #[error("reset by the other end: {0}")]
    Remote(StreamCode),
    /// The QUIC connection is lost.
    #[error("connection lost")]
    Lost,
}

impl From<keypadd_transport::Cut> for SpliceError {
    fn from(error: keypadd_transport::Cut) -> Self {
        match error {
            keypadd_transport::Cut::Local(error) => Self::Local(error),
            keypadd_transport::Cut::Remote(code) => Self::Remote(code.into()),
            _ => Self::Lost,
        }
    }
}

impl From<ReadError> for SpliceError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Remote(code.into()),
            ReadError::Lost(_) => Self::Lost,
        }
    }
}

impl From<WriteError> for SpliceError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Remote(code.into()),
            WriteError::Lost => Self::Lost,
        }
    }
}

impl From<VarInt> for StreamCode {
    fn from(code: VarInt) -> Self {
        Self::from_value(code.into_inner())
    }
}

impl From<StreamCode> for VarInt {
    fn from(code: StreamCode) -> Self {
        // Our codes are small, and the peer's were decoded from a VarInt.
        Self::from_u64(code.value()).unwrap_or_default()
    }
}

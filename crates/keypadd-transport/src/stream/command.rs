//! What the handles of a stream ask of the loop that has it.

use std::sync::Arc;

use bytes::Bytes;
use quinn_proto::{StreamId, VarInt};
use tokio::sync::oneshot;

use super::WriteError;
use crate::{
    held::HeldStream,
    replay::Receipt,
    socket::Socket,
    splice::{SpliceConnection, SpliceState},
};

/// A request about a stream.
pub(crate) enum StreamCommand {
    Write {
        bytes: Bytes,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    /// Its reader has taken the buffered data.
    Read,
    Splice(SpliceRequest),
    Resume(ResumeRequest),
    /// Reset both directions.
    Reset(VarInt),
}

/// A request to splice a stream to a socket.
pub(crate) struct SpliceRequest {
    /// Sent before the socket's bytes.
    pub(crate) first: Bytes,
    /// Sent after `first`, as if it were the socket's first bytes.
    pub(crate) preface: Bytes,
    pub(crate) socket: Socket,
    pub(crate) state: Arc<SpliceState>,
}

/// A request to continue a stream of an earlier connection.
pub(crate) struct ResumeRequest {
    pub(crate) held: HeldStream,
    /// How much the peer's socket has accepted.
    pub(crate) receipt: Receipt,
    pub(crate) attached: oneshot::Sender<()>,
}

/// Sends commands about streams to a connection's loop.
pub(crate) trait StreamCommands: SpliceConnection {
    fn send(&self, id: StreamId, command: StreamCommand);
}

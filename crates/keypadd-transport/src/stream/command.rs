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
    Splice {
        /// Sent before the socket's bytes.
        first: Bytes,
        /// Sent after that, as if it were the socket's first bytes.
        preface: Bytes,
        socket: Socket,
        state: Arc<SpliceState>,
    },
    /// Continue a stream of an earlier connection; the peer has written this much.
    Resume {
        held: HeldStream,
        receipt: Receipt,
        attached: oneshot::Sender<()>,
    },
    /// Reset both directions.
    Reset(VarInt),
}

impl StreamCommand {
    /// Ends what a command carries if its stream is gone, or is in a state that knows no such
    /// command.
    pub(crate) fn gone(self) {
        match self {
            // Its caller is told that the stream is gone.
            Self::Write { bytes: _, reply } => drop(reply),
            // The connection's end has told the reader.
            Self::Read => {}
            // Its caller is told that the stream is cut; the socket is reset.
            Self::Splice { first: _, preface: _, socket, state } => drop((socket, state)),
            // It is held as before.
            Self::Resume { held, receipt: _, attached } => drop((held, attached)),
            // There is nothing to reset.
            Self::Reset(_) => {}
        }
    }
}

/// Sends commands about streams to a connection's loop.
pub(crate) trait StreamCommands: SpliceConnection {
    fn send(&self, id: StreamId, command: StreamCommand);
}

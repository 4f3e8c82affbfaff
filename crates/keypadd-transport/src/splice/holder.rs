//! Names a stream across the connections of its session, and holds it while there is none.

use std::fmt;

use quinn_proto::{StreamId, VarInt};

use super::{Cut, Registered};
use crate::replay::Replay;

/// The name of a stream in all connections of a session: the number of the connection that opened
/// it, and its ID there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName {
    /// Number of the connection within its session; it grows.
    pub epoch: u32,
    /// The stream's ID (RFC 9000 2.1).
    pub stream: u64,
}

impl StreamName {
    pub(crate) fn new(epoch: u32, id: StreamId) -> Self {
        Self { epoch, stream: VarInt::from(id).into_inner() }
    }

    /// Whether the server opened it first (RFC 9000 2.1).
    pub fn is_of_server(self) -> bool {
        self.stream & 1 == 1
    }
}

/// One direction without a connection.
pub(crate) enum Parked {
    ToStream(Replay),
    /// The splice's state counts the bytes written.
    ToSocket,
}

/// Holds splices while their session has no connection.
pub(crate) trait Holder: fmt::Debug + Send + Sync {
    /// Parks one direction; fails with the reason if the splice is cut.
    fn park(&self, name: StreamName, registered: &Registered, parked: Parked) -> Result<(), Cut>;

    /// Announces that a direction of a splice has ended.
    fn notify(&self, name: StreamName);

    /// Forgets a splice that has ended.
    fn forget(&self, name: StreamName);
}

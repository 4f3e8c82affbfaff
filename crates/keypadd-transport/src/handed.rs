//! Describes a held stream, so that another process can continue it.
//!
//! A description is a record, the bytes that may have to be sent again, and the socket; nothing
//! about a connection, its keys or its pads. Knows no processes and no format but serde's.

use std::{net::TcpStream, os::fd::OwnedFd, os::unix::net::UnixStream, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    replay::{Replay, ReplayBudget, ReplayRecord},
    socket::Socket,
    splice::{Delivery, Label, Reply, SpliceRecord, SpliceState, StreamName},
};

/// A held stream on its way to another process.
#[derive(Debug)]
pub struct HandedStream {
    /// Everything but its bytes and its descriptor.
    pub record: StreamRecord,
    /// What was sent and has no receipt, in order.
    pub unreceipted: Vec<Bytes>,
    /// The socket.
    pub socket: OwnedFd,
    /// The descriptors of its label.
    pub descriptors: Arc<[OwnedFd]>,
}

/// The state of a held stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRecord {
    epoch: u32,
    stream: u64,
    label: String,
    /// Whether the socket is a unix socket, not TCP.
    unix: bool,
    unbounded: bool,
    splice: SpliceRecord,
    /// `None` once the peer has everything, including the end.
    to_stream: Option<ReplayRecord>,
}

impl StreamRecord {
    /// The text of the label that it was spliced with.
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl HandedStream {
    pub(crate) fn new(
        StreamName { epoch, stream }: StreamName,
        state: &SpliceState,
        socket: Socket,
        to_stream: Option<&Replay>,
    ) -> Self {
        let (to_stream, unreceipted) = to_stream.map(Replay::record).unzip();
        let record = StreamRecord {
            epoch,
            stream,
            label: state.label().text.to_string(),
            unix: matches!(socket, Socket::Unix(_)),
            unbounded: state.delivery == Delivery::Unbounded,
            splice: state.record(),
            to_stream,
        };
        Self {
            record,
            unreceipted: unreceipted.unwrap_or_default(),
            socket: socket.into(),
            descriptors: Arc::clone(&state.label().descriptors),
        }
    }

    /// Its name.
    pub fn name(&self) -> StreamName {
        StreamName { epoch: self.record.epoch, stream: self.record.stream }
    }

    /// Restores the parts of a held stream; `None` if the socket is gone.
    pub(crate) fn restore(
        self,
        reply: Reply,
        budget: &Arc<ReplayBudget>,
    ) -> Option<(Arc<SpliceState>, Socket, Option<Replay>)> {
        let Self { record, unreceipted, socket, descriptors } = self;
        let socket = match record.unix {
            true => Socket::from(UnixStream::from(socket)),
            false => Socket::from(TcpStream::from(socket)),
        };
        socket.prepare().ok()?;
        let delivery = if record.unbounded { Delivery::Unbounded } else { Delivery::Bounded };
        let label = Label { text: record.label.into(), descriptors };
        let state = SpliceState::restore(&record.splice, delivery, label, reply);
        let to_stream = record
            .to_stream
            .map(|record| Replay::restore(&record, unreceipted, Arc::clone(budget)));
        Some((state, socket, to_stream))
    }
}

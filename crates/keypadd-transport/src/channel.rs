//! Holds the state of each stream of a connection: a control stream, a spliced socket, or a
//! migration.
//!
//! Opening, ending and migrating streams is the driver's job.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use mio::Token;
use quinn_proto::{ConnectionError, StreamId};
use tokio::sync::oneshot;

use crate::{
    announcement::{Announcement, Continuation},
    receipts::ReceiptReader,
    splice::{DELIVERY_TIME, LINGER, SpliceState},
    stream::{ReadError, Stopped, StreamBuffer, WriteError},
    to_socket::ToSocket,
    to_stream::ToStream,
};

pub(crate) enum Channel {
    /// A control task reads and writes the stream.
    Controlled(Controlled),
    /// The stream carries one or both directions of a socket.
    Spliced(Box<Spliced>),
    /// A stream of the sibling connection continues here; its head is still arriving.
    Announced(Announcement),
    /// The head has been read; the sibling is still delivering the bytes before it. Has the stream
    /// and the offset until the sibling is known.
    Awaiting(Option<(StreamId, u64)>),
    /// The peer's receipts.
    Receipts(ReceiptReader),
}

/// A stream that a control task reads and writes.
pub(crate) struct Controlled {
    pub(crate) received: Arc<StreamBuffer>,
    pub(crate) unwritten: VecDeque<(Bytes, oneshot::Sender<Result<(), WriteError>>)>,
    /// Bytes so far in each direction.
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Where the peer's direction continues, once the stream is spliced.
    pub(crate) continuation: Option<Continuation>,
}

impl Controlled {
    pub(crate) fn new(received: Arc<StreamBuffer>) -> Self {
        Self { received, unwritten: VecDeque::new(), written: 0, read: 0, continuation: None }
    }

    /// Passes received data on to the reader, as far as it has room.
    pub(crate) fn receive(&mut self, mut stream: quinn_proto::RecvStream<'_>) {
        let Ok(mut chunks) = stream.read(true) else { return };
        loop {
            match chunks.next(self.received.room()) {
                Ok(Some(chunk)) if chunk.bytes.is_empty() => return,
                Ok(Some(chunk)) => {
                    self.read += chunk.bytes.len() as u64;
                    self.received.push(&chunk.bytes);
                }
                Ok(None) => return self.received.finish(),
                Err(quinn_proto::ReadError::Reset(code)) => {
                    return self.received.fail(ReadError::Reset(code));
                }
                Err(quinn_proto::ReadError::Blocked) => return,
            }
        }
    }

    /// The connection is lost: tells the control tasks.
    pub(crate) fn lose(&self, reason: &ConnectionError) {
        self.received.fail(ReadError::Lost(reason.clone()));
        self.received.stop(Stopped::Lost);
    }

    /// Writes queued data, as far as the stream accepts it.
    pub(crate) fn send(&mut self, mut stream: quinn_proto::SendStream<'_>) {
        while let Some((bytes, _)) = self.unwritten.front_mut() {
            let outcome = match stream.write(bytes) {
                Ok(written) => {
                    self.written += written as u64;
                    if written < bytes.len() {
                        bytes::Buf::advance(bytes, written);
                        continue;
                    }
                    Ok(())
                }
                Err(quinn_proto::WriteError::Blocked) => return,
                Err(quinn_proto::WriteError::Stopped(code)) => Err(WriteError::Stopped(code)),
                Err(quinn_proto::WriteError::ClosedStream) => Err(WriteError::Lost),
            };
            if let Some((_, reply)) = self.unwritten.pop_front() {
                let _ = reply.send(outcome);
            }
        }
    }
}

/// The directions of a socket that one stream carries.
pub(crate) struct Spliced {
    pub(crate) state: Arc<SpliceState>,
    /// The socket's token in the loop.
    pub(crate) token: Token,
    pub(crate) to_stream: Outgoing,
    pub(crate) to_socket: Option<ToSocket>,
}

/// The direction from a socket to a stream.
#[expect(clippy::large_enum_variant, reason = "it is in the box of a splice")]
pub(crate) enum Outgoing {
    Here(ToStream),
    /// The direction has moved to the sibling; the peer has not followed yet.
    Leaving,
    /// The direction has ended, or another stream carries it.
    Gone,
}

impl Spliced {
    /// Carries a direction that comes from another connection.
    pub(crate) fn sending(to_stream: ToStream) -> Self {
        Self {
            state: Arc::clone(&to_stream.state),
            token: to_stream.registered.token,
            to_stream: Outgoing::Here(to_stream),
            to_socket: None,
        }
    }

    /// Carries a direction that comes from another connection.
    pub(crate) fn receiving(to_socket: ToSocket) -> Self {
        Self {
            state: Arc::clone(&to_socket.state),
            token: to_socket.registered.token,
            to_stream: Outgoing::Gone,
            to_socket: Some(to_socket),
        }
    }

    /// The direction to the stream, if this stream carries it.
    pub(crate) fn to_stream(&self) -> Option<&ToStream> {
        let Outgoing::Here(to_stream) = &self.to_stream else { return None };
        Some(to_stream)
    }

    /// The direction to the stream, if this stream carries it.
    pub(crate) fn to_stream_mut(&mut self) -> Option<&mut ToStream> {
        let Outgoing::Here(to_stream) = &mut self.to_stream else { return None };
        Some(to_stream)
    }

    /// Takes the direction to the stream, which moves to the sibling.
    pub(crate) fn leave(&mut self) -> Option<ToStream> {
        match std::mem::replace(&mut self.to_stream, Outgoing::Leaving) {
            Outgoing::Here(to_stream) => Some(to_stream),
            other @ (Outgoing::Leaving | Outgoing::Gone) => {
                self.to_stream = other;
                None
            }
        }
    }

    /// Whether neither direction uses this stream any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.to_stream, Outgoing::Gone) && self.to_socket.is_none()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.to_socket.as_ref()?.deadline()
    }

    /// Parks its directions.
    pub(crate) fn park(self) {
        if let Outgoing::Here(to_stream) = self.to_stream {
            to_stream.park();
        }
        if let Some(to_socket) = self.to_socket {
            to_socket.park();
        }
    }

    /// Whether its socket has failed, and the peer has what was read before.
    pub(crate) fn is_failed_and_delivered(&self) -> bool {
        let is_delivered = || match self.to_stream() {
            Some(to_stream) => to_stream.is_delivered(),
            None => self.state.is_to_stream_done(),
        };
        self.state.failed_at().is_some() && is_delivered()
    }

    /// When it ends at the latest if its socket has failed.
    pub(crate) fn lingers_until(&self) -> Option<Instant> {
        let failed_at = self.state.failed_at()?;
        let until = failed_at + DELIVERY_TIME;
        // Without it, the direction to the stream is on another one, which ends both.
        let Some(to_stream) = self.to_stream() else { return Some(until) };
        let since = match to_stream.is_unfinished() {
            true => to_stream.sent_at.max(failed_at),
            false => to_stream.sent_at,
        };
        Some(until.min(since + LINGER))
    }
}

impl Channel {
    pub(crate) fn spliced(&self) -> Option<&Spliced> {
        let Self::Spliced(spliced) = self else { return None };
        Some(spliced)
    }

    pub(crate) fn spliced_mut(&mut self) -> Option<&mut Spliced> {
        let Self::Spliced(spliced) = self else { return None };
        Some(spliced)
    }
}

/// How a stream queues to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// First.
    Sparse,
    /// Behind sparse streams, in full batches.
    Bulk,
}

/// What decides when a stream sends and ends.
pub(crate) trait Scheduled {
    /// How it queues, if it may have something to send.
    fn class(&self) -> Option<Class>;

    /// When it ends at the latest, if its socket has failed.
    fn lingers_until(&self) -> Option<Instant>;

    /// Whether its socket has failed, and the peer has what was read before.
    fn is_failed_and_delivered(&self) -> bool;
}

impl Scheduled for Channel {
    fn class(&self) -> Option<Class> {
        let to_stream = self.spliced()?.to_stream().filter(|to_stream| to_stream.may_send())?;
        Some(if to_stream.is_bulk() { Class::Bulk } else { Class::Sparse })
    }

    fn lingers_until(&self) -> Option<Instant> {
        self.spliced()?.lingers_until()
    }

    fn is_failed_and_delivered(&self) -> bool {
        self.spliced().is_some_and(Spliced::is_failed_and_delivered)
    }
}

//! Reads a socket into a stream, with backpressure.
//!
//! Reads no more than can be sent now: the rest stays in the kernel's buffer, so TCP slows the
//! sender down.

mod progress;
mod write;

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn_proto::SendStream;

use self::{
    progress::{Burst, Input, Output},
    write::{Written, write, write_some},
};
use crate::{
    replay::{Receipt, Replay},
    socket::{SPARSE_BYTES, Socket},
    splice::{Cut, Parked, Registered, SpliceState},
    unanswered::Unanswered,
};

/// Bytes that a direction may send before the peer has followed its move: what start-up sends
/// meanwhile.
pub(crate) const AHEAD_BYTES: usize = 128 << 10;

/// The direction from a socket to a stream.
pub(crate) struct ToStream {
    pub(crate) state: Arc<SpliceState>,
    pub(crate) registered: Arc<Registered>,
    input: Input,
    output: Output,
    /// A read that returns less than requested does not mean that the socket is empty: an end or
    /// urgent data follows, or, in a unix socket, what came with a descriptor.
    reads_on: bool,
    /// Unsent bytes before the socket's own, such as the head of a stream that continues another.
    head: Bytes,
    /// Read and not yet accepted by the stream; `replay` has it already.
    unsent: Bytes,
    /// Carried by an earlier connection but not yet written by the peer; sent after `unsent`.
    again: VecDeque<Bytes>,
    /// Keeps what is sent, if the splice can be held.
    replay: Option<Replay>,
    /// Until the peer has followed a move (`migrate`): bytes that may still be sent ahead of that.
    ahead: Option<usize>,
    burst: Burst,
    unanswered: Unanswered,
    /// Bytes of the stream so far, including what was written before the splice.
    pub(crate) offset: u64,
    pub(crate) sent_at: Instant,
}

impl ToStream {
    /// Begins after `offset` bytes of the stream. `replay` keeps what is sent.
    pub(crate) fn new(
        state: Arc<SpliceState>,
        registered: Arc<Registered>,
        replay: Option<Replay>,
        offset: u64,
        now: Instant,
    ) -> Self {
        let reads_on = registered.socket.is_unix();
        Self {
            state,
            registered,
            input: Input::Ready,
            output: Output::Open,
            reads_on,
            head: Bytes::new(),
            unsent: Bytes::new(),
            again: VecDeque::new(),
            replay,
            ahead: None,
            burst: Burst::default(),
            unanswered: Unanswered::default(),
            offset,
            sent_at: now,
        }
    }

    /// Sends this before the socket's bytes.
    pub(crate) fn after(self, first: Bytes) -> Self {
        Self { head: first, ..self }
    }

    /// Sends this as if it were the socket's first bytes: after a loss it is sent again like them.
    pub(crate) fn with_preface(mut self, preface: Bytes) -> Self {
        if let Some(replay) = &mut self.replay {
            replay.push(&preface);
        }
        Self { unsent: preface, ..self }
    }

    /// Sends this before what the socket has from now on: an earlier connection has carried it, and
    /// the peer has not written it.
    pub(crate) fn with_again(self, again: VecDeque<Bytes>) -> Self {
        Self { again, ..self }
    }

    /// Continues on another connection's stream, which begins with `head`: up to `ahead` bytes
    /// until the peer has followed. The new registration reports again whatever is ready.
    pub(crate) fn move_to(
        &mut self,
        registered: Arc<Registered>,
        head: Bytes,
        ahead: usize,
        now: Instant,
    ) {
        (self.registered, self.head, self.sent_at) = (registered, head, now);
        (self.ahead, self.offset) = (Some(ahead), 0);
        self.input.moved();
        self.output.credited();
        self.burst.moved();
    }

    /// Whether the peer has yet to follow a move.
    pub(crate) fn is_moving(&self) -> bool {
        self.ahead.is_some()
    }

    /// The peer has followed.
    pub(crate) fn followed(&mut self) {
        self.ahead = None;
        self.input.room_again();
    }

    fn socket(&self) -> &Socket {
        &self.registered.socket
    }

    pub(crate) fn on_ready(&mut self, event: &mio::event::Event, now: Instant) {
        if event.is_readable() || event.is_error() {
            self.input.reported();
        }
        if self.input != Input::Dry {
            self.burst.goes_on(now);
        }
        self.reads_on |= event.is_read_closed() || event.is_error() || event.is_priority();
    }

    /// The stream may have credit again.
    pub(crate) fn unblock(&mut self) {
        self.output.credited();
    }

    /// Whether there may be something to send.
    pub(crate) fn may_send(&self) -> bool {
        let has_some = || self.has_more() || self.input == Input::Ready;
        self.output == Output::Open
            && (!self.head.is_empty() || (self.ahead != Some(0) && has_some()))
    }

    /// Whether there is something to send before reading the socket: bytes, or an end that an
    /// earlier connection has carried.
    fn has_more(&self) -> bool {
        self.has_unsent() || !self.again.is_empty() || self.has_ended()
    }

    /// Whether the socket has reported its end.
    fn has_ended(&self) -> bool {
        self.replay.as_ref().is_some_and(Replay::has_ended)
    }

    /// Whether bytes were read that the stream has not accepted.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether it queues behind sparse streams.
    pub(crate) fn is_bulk(&self) -> bool {
        self.burst.exceeds_sparse() || self.unsent.len() > SPARSE_BYTES
    }

    /// How many of the bytes that it has just sent are bulk data.
    pub(crate) fn bulk_bytes(&mut self, sent: usize) -> usize {
        self.unanswered.add(sent, self.state.carried.to_socket())
    }

    /// Whether it belongs on the session's bulk connection. The peer follows one move at a time.
    pub(crate) fn wants_bulk(&self, rtt: Duration) -> bool {
        self.output.is_unfinished()
            && !self.is_moving()
            && self.head.is_empty()
            && self.burst.is_bulk(self.output == Output::Blocked, rtt)
    }

    /// Whether it may belong there in a few round trips.
    pub(crate) fn wants_bulk_soon(&self, rtt: Duration) -> bool {
        self.burst.is_bulk_soon(rtt)
    }

    /// Whether it has been idle since `since`, with nothing left to send.
    pub(crate) fn is_idle_since(&self, since: Instant) -> bool {
        self.output.is_unfinished()
            && !self.is_moving()
            && self.input == Input::Dry
            && !self.has_more()
            && self.sent_at <= since
    }

    /// Gives the stream up to `bytes`; returns how many it accepted. Reads up to `read` from the
    /// socket if nothing is left.
    pub(crate) fn send(
        &mut self,
        stream: &mut SendStream<'_>,
        bytes: usize,
        read: usize,
        now: Instant,
        rtt: Duration,
    ) -> Result<usize, Cut> {
        if !self.head.is_empty() {
            let Written { bytes: sent, left_some } = write(stream, &mut self.head)?;
            self.output.given(left_some);
            self.offset += sent as u64;
            return Ok(sent);
        }
        let most = self.ahead.unwrap_or(usize::MAX);
        if most == 0 {
            return Ok(0);
        }
        let (bytes, read) = (bytes.min(most), read.min(most));
        if self.unsent.is_empty() {
            if let Some(piece) = self.again.pop_front() {
                self.burst.add(piece.len());
                self.unsent = piece;
            } else if self.has_ended() {
                self.finish(stream);
                return Ok(0);
            } else if !self.read(read, stream, now, rtt)? {
                return Ok(0);
            }
        }
        let Written { bytes: sent, left_some } = write_some(stream, &mut self.unsent, bytes)?;
        self.output.given(left_some);
        self.offset += sent as u64;
        self.ahead = self.ahead.map(|ahead| ahead.saturating_sub(sent));
        self.sent_at = now;
        Ok(sent)
    }

    /// Reads up to `bytes` from the socket; returns whether there are any to send.
    fn read(
        &mut self,
        bytes: usize,
        stream: &mut SendStream<'_>,
        now: Instant,
        rtt: Duration,
    ) -> Result<bool, Cut> {
        debug_assert_eq!(self.input, Input::Ready);
        let bytes = match &mut self.replay {
            Some(replay) => {
                // It may have moved here since a receipt arrived.
                replay.release(self.state.peer_receipt()).map_err(|_| Cut::Lost)?;
                replay.begin(now, rtt);
                bytes.min(replay.room())
            }
            None => bytes,
        };
        if bytes == 0 {
            self.input = Input::Full;
            return Ok(false);
        }
        match self.socket().read(bytes) {
            Ok(read) if read.is_empty() => {
                if self.state.failed_at().is_some() || self.state.was_reset(self.socket()) {
                    self.input = Input::Drained;
                    return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
                }
                self.state.carried.socket_ended();
                if let Some(replay) = &mut self.replay {
                    replay.finish();
                }
                self.finish(stream);
                Ok(false)
            }
            Ok(read) => {
                self.state.carried.add_from_socket(read.len());
                self.burst.add(read.len());
                if read.len() < bytes && !self.reads_on {
                    // A stream socket that returns less than requested is empty (epoll(7)).
                    self.ran_dry(now);
                }
                if let Some(replay) = &mut self.replay {
                    replay.push(&read);
                }
                self.unsent = read;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ran_dry(now);
                Ok(false)
            }
            Err(error) => {
                self.input = Input::Drained;
                Err(error.into())
            }
        }
    }

    /// Whether the peer's socket is known to have accepted all that this one delivered before it
    /// failed.
    pub(crate) fn is_delivered(&self) -> bool {
        let is_drained = self.input == Input::Drained;
        let has_nothing_to_send = is_drained && self.head.is_empty() && !self.has_more();
        let delivered = match &self.replay {
            Some(replay) => replay.is_empty(),
            None => self.state.carried.from_socket() == 0,
        };
        has_nothing_to_send && delivered
    }

    /// Whether there may be more to send, now or with credit.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.output.is_unfinished() && (self.input != Input::Drained || self.has_more())
    }

    /// Ends the stream; while the peer has yet to follow a move, when it has.
    fn finish(&mut self, stream: &mut SendStream<'_>) {
        if self.is_moving() {
            self.ahead = Some(0);
            return;
        }
        self.output = Output::Finishing;
        // A stream that has been stopped in the meantime is cut by the event that reports it.
        let _ = stream.finish();
    }

    fn ran_dry(&mut self, now: Instant) {
        self.input = Input::Dry;
        self.burst.pauses(now);
    }

    /// The peer's QUIC has acknowledged the stream up to its end. Returns whether this direction
    /// has finished; one that can be held finishes only when the peer's socket has accepted
    /// everything.
    pub(crate) fn acknowledged(&mut self) -> bool {
        self.output.acknowledged() && self.replay.is_none() && self.done()
    }

    /// The connection is gone for good. Returns whether this direction has finished: the peer's
    /// QUIC has everything, or has said goodbye and wants no more.
    pub(crate) fn is_done_at_end(&self, goodbye: bool) -> bool {
        let has_everything = match self.output {
            Output::Open | Output::Blocked => false,
            Output::Finishing => goodbye,
            Output::Acknowledged => true,
        };
        has_everything && self.done()
    }

    fn done(&self) -> bool {
        self.state.to_stream_done(&self.registered.socket);
        true
    }

    /// The peer has written more to its socket, or gives up. Returns whether this direction has
    /// finished.
    pub(crate) fn on_receipt(&mut self, now: Instant, rtt: Duration) -> Result<bool, Cut> {
        let receipt = self.state.peer_receipt();
        if receipt == Receipt::GIVEN_UP {
            // If the peer still lacked something, it has also stopped the stream.
            self.replay = None;
            return Ok(self.output == Output::Acknowledged && self.done());
        }
        let Some(replay) = &mut self.replay else { return Ok(false) };
        let written_all = replay.release(receipt).map_err(|_| Cut::Lost)?;
        replay.follow(now, rtt);
        self.input.room_again();
        Ok(written_all && self.done())
    }

    /// The connection is lost: another one may continue.
    pub(crate) fn park(self) {
        if let Some(replay) = self.replay {
            self.state.park(&self.registered, Parked::ToStream(replay));
        } else {
            self.state.cut(Cut::Lost);
        }
    }
}

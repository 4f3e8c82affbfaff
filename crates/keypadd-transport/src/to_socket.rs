//! Delivers a stream to a socket, with backpressure.
//!
//! Takes bytes from the stream only as the socket accepts them, so the peer gets credit at the
//! socket's pace. Data already acknowledged to the peer is still delivered after the connection is
//! lost, if the other direction had finished.

mod order;
mod progress;

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    num::NonZeroU64,
    sync::Arc,
    time::Instant,
};

use bytes::{Buf, Bytes};
use quinn_proto::{RecvStream, StreamId};

pub(crate) use self::progress::ReceiptDue;
use self::{
    order::Order,
    progress::{Acceptance, Course, Reported},
};
use crate::{
    announcement::Continuation,
    reassembly::OutOfOrder,
    replay::Receipt,
    splice::{Cut, DELIVERY_TIME, Delivery, Parked, Registered, SpliceState},
    time_share::TimeShare,
    unanswered::Unanswered,
};

/// Bytes to take from a stream for one write, until the socket has accepted that many at once.
const TAKEN_BYTES_MIN: usize = 16 << 10;

/// Most bytes to take for one write: about what `SLICES` packets hold.
const TAKEN_BYTES_MAX: usize = 90 << 10;

/// Bytes that a socket gets in a round whatever the share. Writing what follows takes much longer
/// than reading the clock.
const UNTIMED_BYTES: u64 = 256 << 10;

/// Slices of one write.
const SLICES: usize = 64;

/// The progress of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The delivery waits for the socket or the stream.
    Partly,
    /// The delivery waits for the next round.
    UpToShare,
    /// The socket has accepted everything and the end.
    Whole,
    /// The socket has accepted everything up to the offset from which this stream continues.
    UpToMove(StreamId),
}

/// What was received before the stream was spliced.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    /// Whether the stream ends after them.
    pub(crate) is_finished: bool,
}

/// The direction from a stream to a socket.
pub(crate) struct ToSocket {
    pub(crate) state: Arc<SpliceState>,
    pub(crate) registered: Arc<Registered>,
    course: Course,
    acceptance: Acceptance,
    /// When the socket last refused bytes.
    refused_at: Option<Instant>,
    /// Taken from the stream and not yet accepted by the socket.
    undelivered: VecDeque<Bytes>,
    take_bytes: usize,
    order: Order,
    unanswered: Unanswered,
    /// Bytes taken from the stream so far, including what was read before the splice.
    pub(crate) offset: u64,
    /// Bytes that the socket has accepted since the splice began, over all connections.
    written: u64,
    reported: Reported,
    /// The connection is gone; without progress the splice ends at this time.
    give_up_at: Option<Instant>,
}

impl ToSocket {
    pub(crate) fn new(
        state: Arc<SpliceState>,
        registered: Arc<Registered>,
        Received { bytes, is_finished }: Received,
        offset: u64,
    ) -> Self {
        Self {
            written: state.local_receipt().bytes,
            reported: Reported::new(state.local_receipt()),
            state,
            registered,
            course: if is_finished { Course::Ends } else { Course::Open },
            acceptance: Acceptance::Accepts,
            refused_at: None,
            undelivered: if bytes.is_empty() { VecDeque::new() } else { [bytes].into() },
            take_bytes: TAKEN_BYTES_MIN,
            order: Order::default(),
            unanswered: Unanswered::default(),
            offset,
            give_up_at: None,
        }
    }

    /// Another stream continues there; returns false if this one cannot end there.
    pub(crate) fn set_continuation(&mut self, continuation: Continuation) -> bool {
        self.course.set_continuation(continuation, self.offset)
    }

    /// Continues from another connection's stream, with a registration there. Receipts start over:
    /// the peer may have missed those of the connection before.
    pub(crate) fn move_to(&mut self, registered: Arc<Registered>, offset: u64) {
        self.registered = registered;
        self.acceptance.became_writable();
        (self.course, self.offset, self.order) = (Course::Open, offset, Order::default());
        self.reported = Reported::new(Receipt::default());
    }

    pub(crate) fn on_ready(&mut self, event: &mio::event::Event) {
        if event.is_writable() {
            self.acceptance.became_writable();
        }
    }

    /// Whether the socket has become writable while bytes wait.
    pub(crate) fn waits_to_write(&self) -> bool {
        self.acceptance != Acceptance::Refuses && !self.undelivered.is_empty()
    }

    /// The socket has failed: it accepts nothing more.
    pub(crate) fn block(&mut self, now: Instant) {
        (self.acceptance, self.refused_at) = (Acceptance::Refuses, Some(now));
    }

    /// Whether bytes wait for the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        self.acceptance != Acceptance::Accepts
    }

    /// Whether bytes wait, or have waited since then.
    pub(crate) fn was_blocked(&self, since: Instant) -> bool {
        self.is_blocked() || self.refused_at.is_some_and(|at| at >= since)
    }

    /// How many of the bytes that it has just taken are bulk data.
    pub(crate) fn bulk_bytes(&mut self, taken: usize) -> usize {
        self.unanswered.add(taken, self.state.carried.from_socket())
    }

    /// Moves bytes from the stream to the socket, as far as both and the share of the round allow:
    /// what has waited behind a gap may be the whole window.
    pub(crate) fn deliver(
        &mut self,
        mut stream: RecvStream<'_>,
        out_of_order: &Arc<OutOfOrder>,
        share: &mut TimeShare,
        now: Instant,
    ) -> Result<Delivered, Cut> {
        let before = (self.offset, self.undelivered.len());
        let delivered = self.deliver_some(&mut stream, share, now)?;
        if delivered == Delivered::Partly {
            let is_fruitless = before == (self.offset, 0) && self.undelivered.is_empty();
            if self.order.delivered(is_fruitless, self.offset, out_of_order) {
                return self.deliver_some(&mut stream, share, now);
            }
        }
        Ok(delivered)
    }

    fn deliver_some(
        &mut self,
        stream: &mut RecvStream<'_>,
        share: &mut TimeShare,
        now: Instant,
    ) -> Result<Delivered, Cut> {
        let untimed = self.offset + UNTIMED_BYTES;
        loop {
            if !self.flush(now)? {
                self.order.collect_behind_gap(stream)?;
                return Ok(Delivered::Partly);
            }
            let bytes = match self.course {
                Course::Ends => {
                    self.end()?;
                    return Ok(Delivered::Whole);
                }
                _ if self.offset >= untimed && share.is_used_up_by_now() => {
                    return Ok(Delivered::UpToShare);
                }
                Course::Continues(Continuation { offset, at }) if offset == self.offset => {
                    return Ok(Delivered::UpToMove(at));
                }
                Course::Continues(Continuation { offset, .. }) => {
                    (offset - self.offset).min(self.take_bytes as u64) as usize
                }
                Course::Open => self.take_bytes,
            };
            let taken = self.order.take(stream, bytes, &mut self.undelivered)?;
            self.offset += taken.bytes as u64;
            if taken.is_end && !self.course.set_end() {
                return Err(Cut::Lost);
            }
            if taken.bytes == 0 && !taken.is_end {
                // With the connection gone, nothing follows what was delivered.
                return match self.give_up_at {
                    Some(_) => Err(Cut::Lost),
                    None => Ok(Delivered::Partly),
                };
            }
        }
    }

    /// Passes the end on, which an earlier connection may have carried.
    fn end(&mut self) -> io::Result<()> {
        if !self.state.local_receipt().end {
            self.state.carried.stream_ended();
            self.state.shut_down(&self.registered.socket)?;
            self.state.set_local_receipt(Receipt { bytes: self.written, end: true });
        }
        self.state.to_socket_done(&self.registered.socket);
        Ok(())
    }

    /// Writes what was taken; returns whether all of it was accepted.
    fn flush(&mut self, now: Instant) -> Result<bool, Cut> {
        while !self.undelivered.is_empty() {
            if self.acceptance == Acceptance::Refuses {
                self.block(now);
                return Ok(false);
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut offered = 0;
            let count = self.undelivered.len().min(SLICES);
            for (slice, bytes) in slices.iter_mut().zip(&self.undelivered) {
                *slice = IoSlice::new(bytes);
                offered += bytes.len();
            }
            match self.registered.socket.write(&slices[..count]) {
                Ok(written) => {
                    self.acceptance = Acceptance::Accepts;
                    self.written += written as u64;
                    self.state.set_local_receipt(Receipt { bytes: self.written, end: false });
                    self.drop_written(written);
                    if written == offered {
                        self.take_bytes = (self.take_bytes * 2).min(TAKEN_BYTES_MAX);
                    } else {
                        self.take_bytes = TAKEN_BYTES_MIN;
                    }
                    if let Some(at) = &mut self.give_up_at {
                        *at = now + DELIVERY_TIME;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.block(now);
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn drop_written(&mut self, mut bytes: usize) {
        while let Some(first) = self.undelivered.front_mut() {
            if first.len() > bytes {
                first.advance(bytes);
                return;
            }
            bytes -= first.len();
            self.undelivered.pop_front();
        }
    }

    /// Whether to tell the peer what the socket has accepted. `keeps` is how many bytes of a
    /// stream the peer has memory for, if that is little.
    pub(crate) fn receipt_due(&mut self, keeps: Option<NonZeroU64>) -> ReceiptDue {
        match self.state.can_be_held() {
            true => self.reported.due(self.state.local_receipt(), keeps),
            false => ReceiptDue::Not,
        }
    }

    /// The receipt to send now, if it says more than the last one.
    pub(crate) fn take_receipt(&mut self) -> Option<Receipt> {
        self.reported.take(self.state.local_receipt())
    }

    /// The connection is lost: another one will bring what the socket has not accepted.
    pub(crate) fn park(self) {
        self.state.park(&self.registered, Parked::ToSocket);
    }

    /// The connection is gone: what has arrived is still delivered if the other direction has
    /// finished.
    pub(crate) fn connection_lost(&mut self, now: Instant) {
        self.give_up_at = Some(now + DELIVERY_TIME);
    }

    /// When the socket must have accepted a byte.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state.delivery {
            Delivery::Bounded => self.give_up_at,
            Delivery::Unbounded => None,
        }
    }
}

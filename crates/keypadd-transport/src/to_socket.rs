//! Delivers a stream to a socket, with backpressure.
//!
//! Takes bytes from the stream only as the socket accepts them, so the peer gets credit at the
//! socket's pace. Data already acknowledged to the peer is still delivered after the connection is
//! lost, if the other direction had finished.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
    time::Instant,
};

use bytes::{Buf, Bytes};
use quinn_proto::RecvStream;

use crate::{
    reassembly::{OutOfOrder, Reassembly},
    replay::Receipt,
    splice::{Cut, DELIVERY_TIME, Delivery, Parked, Registered, SpliceState},
    time_share::TimeShare,
    unanswered::Unanswered,
};

/// Bytes to take from a stream for one write, until the socket has accepted that many at once.
const TAKEN_BYTES_MIN: usize = 16 << 10;

/// Most bytes to take for one write: about what `SLICES` packets hold.
const TAKEN_BYTES_MAX: usize = 90 << 10;

/// Bytes that a socket gets in a round whatever the share. Writing what follows takes much longer than
/// reading the clock.
const UNTIMED_BYTES: u64 = 256 << 10;

/// Bytes written before the peer must be told immediately.
const RECEIPT_BYTES: u64 = 128 << 10;

/// Slices of one write.
const SLICES: usize = 64;

/// Deliveries in a row that find nothing in order before the stream is read in order of arrival. A
/// reordered packet causes fewer; reading in order is cheaper.
const FRUITLESS_MAX: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The peer has finished; the socket has not accepted everything yet.
    Ending,
}

/// The progress of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// It waits for the socket or the stream.
    Partly,
    /// It waits for the next round.
    UpToShare,
    /// The socket has accepted everything and the end.
    Whole,
    /// It has accepted everything up to the offset from which another stream continues.
    UpToMove,
}

/// Whether to tell the peer what a socket has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiptDue {
    Not,
    Later,
    Now,
}

/// The direction from a stream to a socket.
pub(crate) struct ToSocket {
    pub(crate) state: Arc<SpliceState>,
    pub(crate) registered: Arc<Registered>,
    stage: Stage,
    writable: bool,
    /// When the socket last refused bytes; they still wait if `is_blocked`.
    blocked_at: Option<Instant>,
    is_blocked: bool,
    /// Taken from the stream and not yet accepted by the socket.
    undelivered: VecDeque<Bytes>,
    take_bytes: usize,
    fruitless: u32,
    unanswered: Unanswered,
    /// Set for a stream that is read in order of arrival.
    reassembly: Option<Box<Reassembly>>,
    /// Bytes taken from the stream so far, including what was read before the splice.
    pub(crate) offset: u64,
    /// Bytes that the socket has accepted since the splice began, over all connections.
    written: u64,
    /// How many of those bytes, and whether the end, the peer was told about.
    receipted: Receipt,
    /// A receipt is due later.
    receipt_waits: bool,
    /// The offset from which another stream continues (`migrate`).
    moves_at: Option<u64>,
    /// The connection is gone; without progress the splice ends at this time.
    give_up_at: Option<Instant>,
}

impl ToSocket {
    pub(crate) fn new(
        state: Arc<SpliceState>,
        registered: Arc<Registered>,
        (received, finished): (Bytes, bool),
        offset: u64,
    ) -> Self {
        Self {
            written: state.local_receipt().bytes,
            receipted: state.local_receipt(),
            receipt_waits: false,
            state,
            registered,
            stage: if finished { Stage::Ending } else { Stage::Open },
            writable: true,
            blocked_at: None,
            is_blocked: false,
            undelivered: if received.is_empty() { VecDeque::new() } else { [received].into() },
            take_bytes: TAKEN_BYTES_MIN,
            fruitless: 0,
            unanswered: Unanswered::default(),
            reassembly: None,
            offset,
            moves_at: None,
            give_up_at: None,
        }
    }

    /// Another stream continues from this offset; returns false if this one is already beyond it.
    pub(crate) fn set_moves_at(&mut self, offset: u64) -> bool {
        let possible = offset >= self.offset && self.moves_at.is_none();
        if possible {
            self.moves_at = Some(offset);
        }
        possible
    }

    /// Continues from another connection's stream, with a registration there. Receipts start over:
    /// the peer may have missed those of the connection before.
    pub(crate) fn move_to(&mut self, registered: Arc<Registered>, offset: u64) {
        self.registered = registered;
        (self.writable, self.moves_at, self.offset) = (true, None, offset);
        (self.fruitless, self.reassembly) = (0, None);
        (self.receipted, self.receipt_waits) = (Receipt::default(), false);
    }

    pub(crate) fn on_ready(&mut self, event: &mio::event::Event) {
        self.writable |= event.is_writable();
    }

    /// Whether the socket has become writable while bytes wait.
    pub(crate) fn waits_to_write(&self) -> bool {
        self.writable && !self.undelivered.is_empty()
    }

    /// The socket has failed: it accepts nothing more.
    pub(crate) fn block(&mut self, now: Instant) {
        (self.writable, self.is_blocked, self.blocked_at) = (false, true, Some(now));
    }

    /// Whether bytes wait for the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether bytes wait, or have waited since then.
    pub(crate) fn was_blocked(&self, since: Instant) -> bool {
        self.is_blocked || self.blocked_at.is_some_and(|at| at >= since)
    }

    /// How many of the bytes that it has just taken are bulk data.
    pub(crate) fn bulk_bytes(&mut self, taken: usize) -> usize {
        self.unanswered.add(taken, self.state.carried.from_socket())
    }

    /// Moves bytes from the stream to the socket, as far as both and the share of the round allow: what has
    /// waited behind a gap may be the whole window.
    pub(crate) fn deliver(
        &mut self,
        mut stream: RecvStream<'_>,
        out_of_order: &Arc<OutOfOrder>,
        share: &mut TimeShare,
        now: Instant,
    ) -> Result<Delivered, Cut> {
        let before = (self.offset, self.undelivered.len());
        let delivered = self.deliver_some(&mut stream, share, now)?;
        if delivered == Delivered::Partly && self.reassembly.is_none() {
            let fruitless = before == (self.offset, 0) && self.undelivered.is_empty();
            self.fruitless = if fruitless { self.fruitless + 1 } else { 0 };
            if self.fruitless == FRUITLESS_MAX {
                let reassembly = Reassembly::new(self.offset, Arc::clone(out_of_order));
                self.reassembly = Some(Box::new(reassembly));
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
                if let Some(reassembly) = &mut self.reassembly {
                    collect(stream, 0, reassembly)?;
                }
                return Ok(Delivered::Partly);
            }
            if self.stage == Stage::Ending {
                // An earlier connection may have carried the end.
                if !self.state.local_receipt().end {
                    self.state.carried.stream_ended();
                    self.state.shut_down(&self.registered.socket)?;
                    self.state.set_local_receipt(Receipt { bytes: self.written, end: true });
                }
                self.state.to_socket_done(&self.registered.socket);
                return Ok(Delivered::Whole);
            }
            if self.offset >= untimed && share.is_used_up_by_now() {
                return Ok(Delivered::UpToShare);
            }
            let bytes = match self.moves_at {
                Some(end) if end == self.offset => return Ok(Delivered::UpToMove),
                Some(end) => (end - self.offset).min(self.take_bytes as u64) as usize,
                None => self.take_bytes,
            };
            let taken = match &mut self.reassembly {
                Some(reassembly) => take_in_order(stream, bytes, reassembly, &mut self.undelivered),
                None => take(stream, bytes, &mut self.undelivered),
            };
            match taken {
                // The peer must not finish a stream that it has said continues elsewhere.
                Ok(TakenBytes { is_end: true, .. }) if self.moves_at.is_some() => {
                    return Err(Cut::Lost);
                }
                Ok(TakenBytes { bytes, is_end }) => {
                    self.offset += bytes as u64;
                    if is_end {
                        self.stage = Stage::Ending;
                    } else if bytes == 0 {
                        // With the connection gone, nothing follows what was delivered.
                        return match self.give_up_at {
                            Some(_) => Err(Cut::Lost),
                            None => Ok(Delivered::Partly),
                        };
                    }
                }
                Err(cut) => return Err(cut),
            }
        }
    }

    /// Writes what was taken; returns whether all of it was accepted.
    fn flush(&mut self, now: Instant) -> Result<bool, Cut> {
        while !self.undelivered.is_empty() {
            if !self.writable {
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
                    self.is_blocked = false;
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
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

    /// Whether to tell the peer what the socket has accepted: now, later, or not. Says "later" only
    /// once.
    pub(crate) fn receipt_due(&mut self) -> ReceiptDue {
        let given = self.state.local_receipt();
        if given == self.receipted || !self.state.can_be_held() {
            return ReceiptDue::Not;
        }
        if given.end || given.bytes >= self.receipted.bytes + RECEIPT_BYTES {
            return ReceiptDue::Now;
        }
        match std::mem::replace(&mut self.receipt_waits, true) {
            true => ReceiptDue::Not,
            false => ReceiptDue::Later,
        }
    }

    /// The receipt to send now, if it says more than the last one.
    pub(crate) fn take_receipt(&mut self) -> Option<Receipt> {
        let given = self.state.local_receipt();
        self.receipt_waits = false;
        (given != std::mem::replace(&mut self.receipted, given)).then_some(given)
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

struct TakenBytes {
    bytes: usize,
    /// No bytes follow.
    is_end: bool,
}

/// Takes up to `bytes` from the stream.
fn take(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    into: &mut VecDeque<Bytes>,
) -> Result<TakenBytes, Cut> {
    // A stream that was read to its end is not read again, so this one was reset here.
    let Ok(mut chunks) = stream.read(true) else { return Err(Cut::Lost) };
    let mut taken = TakenBytes { bytes: 0, is_end: false };
    while taken.bytes < bytes && into.len() < SLICES {
        match chunks.next(bytes - taken.bytes) {
            Ok(Some(chunk)) => {
                taken.bytes += chunk.bytes.len();
                into.push_back(chunk.bytes);
            }
            // quinn-proto reports this only once.
            Ok(None) => {
                taken.is_end = true;
                break;
            }
            Err(quinn_proto::ReadError::Reset(code)) => return Err(Cut::Remote(code)),
            Err(quinn_proto::ReadError::Blocked) => break,
        }
    }
    Ok(taken)
}

/// Takes up to `bytes` from a stream that is read in order of arrival.
fn take_in_order(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    reassembly: &mut Reassembly,
    into: &mut VecDeque<Bytes>,
) -> Result<TakenBytes, Cut> {
    collect(stream, bytes, reassembly)?;
    let mut taken = 0;
    while taken < bytes
        && into.len() < SLICES
        && let Some(next) = reassembly.take(bytes - taken)
    {
        taken += next.len();
        into.push_back(next);
    }
    Ok(TakenBytes { bytes: taken, is_end: reassembly.is_over() })
}

/// Reads what has arrived of a stream until this many bytes are in order; behind a gap all of it,
/// so that no piece waits in quinn-proto.
fn collect(
    stream: &mut RecvStream<'_>,
    bytes: usize,
    reassembly: &mut Reassembly,
) -> Result<(), Cut> {
    if reassembly.is_whole() {
        return Ok(());
    }
    let Ok(mut chunks) = stream.read(false) else { return Err(Cut::Lost) };
    while reassembly.has_gap() || reassembly.bytes() < bytes as u64 {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => reassembly.insert(chunk.offset, chunk.bytes),
            Ok(None) => {
                reassembly.set_whole();
                break;
            }
            Err(quinn_proto::ReadError::Reset(code)) => return Err(Cut::Remote(code)),
            Err(quinn_proto::ReadError::Blocked) => break,
        }
    }
    Ok(())
}

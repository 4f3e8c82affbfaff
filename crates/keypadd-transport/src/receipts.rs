//! Encodes, collects and reads the receipts of a connection's streams: how much of each the
//! receiver's socket has accepted.
//!
//! Each end sends its receipts over a unidirectional stream, 16 bytes each: the ID of the stream
//! that carried the bytes on this connection, and the [`Receipt`]. Those for few bytes wait for up
//! to a second, so that a connection with keystrokes sends few; a peer that has no memory for more
//! gets them sooner. Knows no sockets.

use std::{
    num::NonZeroU64,
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use quinn_proto::{RecvStream, SendStream, StreamId, VarInt};
use rustc_hash::FxHashMap;

use crate::{
    announcement::{HEAD_BYTES, RECEIPTS},
    replay::Receipt,
};

/// Bytes of a receipt.
const RECORD_BYTES: usize = 16;

/// How long a receipt for few bytes waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// How long one waits whose peer has no memory for more before it gets it.
const DELAY_SOON: Duration = Duration::from_millis(50);

/// Most receipts that may wait for the peer to read some, several for each stream that it may have.
/// A peer that reads none gets no more, and its own streams do not end.
const WAITING_MAX: usize = 1 << 17;

/// Receipts, and pieces of the stream, to read at once: others may be due before the rest.
const READ_AT_ONCE: usize = 256;

/// The receipts that this end has to send.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    /// The stream that carries them.
    pub(crate) stream: Option<StreamId>,
    /// How many bytes of a stream this end has memory for, if that is little: the peer is told
    /// before there are receipts.
    keeps: Option<NonZeroU64>,
    unsent: BytesMut,
    due: FxHashMap<StreamId, Receipt>,
    /// Streams whose receipts wait, and until when.
    later: Vec<StreamId>,
    at: Option<Instant>,
}

impl Receipts {
    /// This end has little memory, for so many bytes of a stream.
    pub(crate) fn set_keeps(&mut self, bytes: Option<NonZeroU64>) {
        self.keeps = bytes;
    }

    pub(crate) fn keeps(&self) -> Option<NonZeroU64> {
        self.keeps
    }

    pub(crate) fn add(&mut self, id: StreamId, receipt: Option<Receipt>) {
        if let Some(receipt) = receipt
            && (self.due.len() < WAITING_MAX || self.due.contains_key(&id))
        {
            self.due.insert(id, receipt);
        }
    }

    /// Requests the stream's receipt a little later.
    pub(crate) fn add_later(&mut self, id: StreamId, now: Instant) {
        self.add_at(id, now + DELAY);
    }

    /// Requests the stream's receipt soon.
    pub(crate) fn add_soon(&mut self, id: StreamId, now: Instant) {
        self.add_at(id, now + DELAY_SOON);
    }

    fn add_at(&mut self, id: StreamId, at: Instant) {
        self.later.push(id);
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The streams whose receipts are due.
    pub(crate) fn take_later(&mut self, now: Instant) -> Vec<StreamId> {
        match self.at {
            Some(at) if at <= now => {
                self.at = None;
                std::mem::take(&mut self.later)
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Whether there is something to send.
    pub(crate) fn wait(&self) -> bool {
        let head_waits = self.stream.is_none() && self.keeps.is_some();
        head_waits || !self.unsent.is_empty() || !self.due.is_empty()
    }

    /// Starts the stream with its head.
    pub(crate) fn begin(&mut self, stream: StreamId) {
        self.stream = Some(stream);
        self.unsent.extend_from_slice(&RECEIPTS.to_be_bytes());
        self.unsent.extend_from_slice(&self.keeps.map_or(0, NonZeroU64::get).to_be_bytes());
    }

    /// Sends as much as there is credit for.
    pub(crate) fn send(&mut self, mut stream: SendStream<'_>) {
        // Only once the earlier ones are sent: a later receipt for the same stream replaces one.
        if self.unsent.len() < HEAD_BYTES + 1 {
            for (id, receipt) in self.due.drain() {
                self.unsent.extend_from_slice(&VarInt::from(id).into_inner().to_be_bytes());
                self.unsent.extend_from_slice(&receipt.encode().to_be_bytes());
            }
        }
        while !self.unsent.is_empty() {
            match stream.write(&self.unsent) {
                Ok(written) => self.unsent.advance(written),
                // No credit, or the peer has stopped the stream.
                Err(_) => return,
            }
        }
    }
}

/// Reads the peer's receipts.
#[derive(Debug, Default)]
pub(crate) struct ReceiptReader {
    bytes: [u8; RECORD_BYTES],
    length: usize,
    /// Read and not handled.
    read: Vec<(StreamId, Receipt)>,
}

impl ReceiptReader {
    /// The next receipt that has arrived.
    pub(crate) fn next(&mut self, stream: RecvStream<'_>) -> Option<(StreamId, Receipt)> {
        if self.read.is_empty() {
            self.read(stream);
            self.keep_highest();
        }
        self.read.pop()
    }

    fn read(&mut self, mut stream: RecvStream<'_>) {
        let Ok(mut chunks) = stream.read(true) else { return };
        for _ in 0..READ_AT_ONCE {
            let room = READ_AT_ONCE.saturating_sub(self.read.len()) * RECORD_BYTES;
            match chunks.next(room) {
                Ok(Some(chunk)) if !chunk.bytes.is_empty() => self.take(&chunk.bytes),
                _ => return,
            }
        }
    }

    /// Of several receipts for one stream, the highest says all.
    fn keep_highest(&mut self) {
        if self.read.len() > 1 {
            let mut highest = FxHashMap::<_, Receipt>::default();
            for (id, receipt) in self.read.drain(..) {
                let known = highest.entry(id).or_default();
                *known = Receipt::decode(known.encode().max(receipt.encode()));
            }
            self.read.extend(highest.drain());
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(RECORD_BYTES - self.length));
            self.bytes[self.length..self.length + now.len()].copy_from_slice(now);
            (self.length, bytes) = (self.length + now.len(), rest);
            if self.length == RECORD_BYTES {
                self.length = 0;
                let (id, receipt) = self.bytes.split_at(8);
                let number = |part: &[u8]| part.try_into().map(u64::from_be_bytes).unwrap_or(0);
                // No stream has the highest ID.
                let id = VarInt::from_u64(number(id)).unwrap_or(VarInt::MAX);
                self.read.push((id.into(), Receipt::decode(number(receipt))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> StreamId {
        StreamId::from(VarInt::from_u32(number))
    }

    #[test]
    fn receipts_arrive_however_their_bytes_are_cut() {
        let receipts = [(4, 0), (7, 1), (4, u64::MAX), (9, 1 << 62)];
        let mut sent = Vec::new();
        for (number, receipt) in receipts {
            sent.extend(u64::from(number).to_be_bytes());
            sent.extend(receipt.to_be_bytes());
        }
        for piece in 1..=sent.len() {
            let mut reader = ReceiptReader::default();
            sent.chunks(piece).for_each(|bytes| reader.take(bytes));
            let received = |(number, receipt)| (id(number), Receipt::decode(receipt));
            assert_eq!(reader.read, receipts.map(received));
        }
    }

    #[test]
    fn the_highest_of_several_receipts_for_one_stream_is_kept() {
        let receipt = |bytes, end| Receipt { bytes, end };
        let read = vec![
            (id(4), receipt(1, false)),
            (id(8), receipt(7, false)),
            (id(4), receipt(2, true)),
            (id(4), receipt(2, false)),
        ];
        let mut reader = ReceiptReader { read, ..<_>::default() };
        reader.keep_highest();
        reader.read.sort_by_key(|(id, _)| *id);
        assert_eq!(reader.read, [(id(4), receipt(2, true)), (id(8), receipt(7, false))]);
    }

    #[test]
    fn receipts_that_nobody_takes_are_bounded() {
        let mut receipts = Receipts::default();
        for number in 0..2 * WAITING_MAX as u32 {
            receipts.add(id(number), Some(Receipt { bytes: 1, end: true }));
        }
        assert_eq!(receipts.due.len(), WAITING_MAX);
    }

    #[test]
    fn an_end_with_little_memory_says_so_before_it_has_a_receipt_to_send() {
        let mut receipts = Receipts::default();
        assert!(!receipts.wait());
        receipts.set_keeps(NonZeroU64::new(4 << 10));
        assert!(receipts.wait());
        receipts.begin(id(2));
        assert_eq!(receipts.unsent[..8], RECEIPTS.to_be_bytes());
        assert_eq!(receipts.unsent[8..], (4_u64 << 10).to_be_bytes());
        receipts.unsent.clear();
        assert!(!receipts.wait());
    }

    #[test]
    fn a_receipt_for_few_bytes_waits_a_second_and_no_longer() {
        let (mut receipts, now) = (Receipts::default(), Instant::now());
        receipts.add_later(id(4), now);
        receipts.add_later(id(8), now + DELAY / 2);
        assert_eq!(receipts.deadline(), Some(now + DELAY));
        assert!(receipts.take_later(now + DELAY / 2).is_empty());
        assert_eq!(receipts.take_later(now + DELAY), [id(4), id(8)]);
        receipts.add_later(id(4), now);
        receipts.add_soon(id(4), now);
        assert_eq!(receipts.take_later(now + DELAY_SOON), [id(4), id(4)], "all that wait, at once");
        assert_eq!(receipts.deadline(), None);
    }
}

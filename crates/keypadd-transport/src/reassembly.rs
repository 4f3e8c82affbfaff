//! Puts a stream with gaps back in order, as packet loss leaves it.
//!
//! quinn-proto can do so too, but returns no credit for data behind a gap, and closes the
//! connection when a stream has over 1,024 separate pieces, which 10 % loss on a long fast path
//! exceeds. A stream read in order of arrival has credit for a round trip however long a repair
//! takes, and the data that waits here counts against the connection's window. Knows bytes and
//! offsets.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;

/// Shorter pieces are copied, so that none keeps a buffer of many packets.
const COPIED_BYTES: usize = 512;

/// Data behind gaps, over all streams of a connection.
#[derive(Debug, Default)]
pub(crate) struct OutOfOrder {
    bytes: AtomicU64,
    pieces: AtomicU64,
}

impl OutOfOrder {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn pieces(&self) -> u64 {
        self.pieces.load(Relaxed)
    }
}

/// The part of one stream that has arrived out of order. Pieces never overlap: quinn-proto delivers
/// each byte once.
#[derive(Debug)]
pub(crate) struct Reassembly {
    out_of_order: Arc<OutOfOrder>,
    /// The offset up to which the stream was taken.
    next: u64,
    pieces: BTreeMap<u64, Bytes>,
    bytes: u64,
    /// End of the last piece.
    end: u64,
    /// Whether the whole stream has arrived.
    whole: bool,
}

impl Reassembly {
    /// For a stream that was taken up to `next`.
    pub(crate) fn new(next: u64, out_of_order: Arc<OutOfOrder>) -> Self {
        Self { out_of_order, next, pieces: BTreeMap::new(), bytes: 0, end: next, whole: false }
    }

    /// Whether bytes are missing before those that have arrived.
    pub(crate) fn has_gap(&self) -> bool {
        self.end - self.next > self.bytes
    }

    /// Bytes that have arrived and were not taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn insert(&mut self, offset: u64, bytes: Bytes) {
        if bytes.is_empty() || offset < self.next {
            return;
        }
        let bytes = if bytes.len() < COPIED_BYTES { Bytes::copy_from_slice(&bytes) } else { bytes };
        let length = bytes.len() as u64;
        self.end = self.end.max(offset + length);
        self.bytes += length;
        self.out_of_order.bytes.fetch_add(length, Relaxed);
        self.out_of_order.pieces.fetch_add(1, Relaxed);
        self.pieces.insert(offset, bytes);
    }

    /// Takes the next bytes in order, at most `bytes_max`.
    pub(crate) fn take(&mut self, bytes_max: usize) -> Option<Bytes> {
        let first = self.pieces.first_entry().filter(|first| *first.key() == self.next)?;
        let mut bytes = first.remove();
        if bytes.len() > bytes_max {
            let rest = bytes.split_off(bytes_max);
            self.pieces.insert(self.next + bytes_max as u64, rest);
        } else {
            self.out_of_order.pieces.fetch_sub(1, Relaxed);
        }
        let length = bytes.len() as u64;
        self.next += length;
        self.bytes -= length;
        self.out_of_order.bytes.fetch_sub(length, Relaxed);
        Some(bytes)
    }

    /// Records that everything up to the stream's end has arrived.
    pub(crate) fn set_whole(&mut self) {
        self.whole = true;
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether everything up to the stream's end was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.whole && self.pieces.is_empty()
    }
}

impl Drop for Reassembly {
    fn drop(&mut self) {
        self.out_of_order.bytes.fetch_sub(self.bytes, Relaxed);
        self.out_of_order.pieces.fetch_sub(self.pieces.len() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, length: usize) -> Bytes {
        (offset..offset + length as u64).map(|at| at as u8).collect()
    }

    fn take_all(reassembly: &mut Reassembly, bytes_max: usize) -> Vec<u8> {
        std::iter::from_fn(|| reassembly.take(bytes_max)).flatten().collect()
    }

    #[test]
    fn pieces_in_any_order_come_out_in_theirs() {
        for bytes_max in [1, 600, 10_000] {
            let out_of_order = Arc::<OutOfOrder>::default();
            let mut reassembly = Reassembly::new(100, Arc::clone(&out_of_order));
            reassembly.insert(1_100, piece(1_100, 1_000));
            reassembly.insert(2_100, piece(2_100, 7));
            assert!(reassembly.has_gap());
            assert_eq!(take_all(&mut reassembly, bytes_max), []);
            reassembly.insert(100, piece(100, 1_000));
            assert!(!reassembly.has_gap());
            reassembly.insert(3_000, piece(3_000, 10));
            assert!(reassembly.has_gap());
            assert_eq!(take_all(&mut reassembly, bytes_max), piece(100, 2_007));
            assert_eq!((out_of_order.bytes(), out_of_order.pieces()), (10, 1));
            drop(reassembly);
            assert_eq!((out_of_order.bytes(), out_of_order.pieces()), (0, 0));
        }
    }

    #[test]
    fn a_stream_is_over_once_its_last_byte_was_taken() {
        let mut reassembly = Reassembly::new(0, Arc::default());
        reassembly.insert(0, piece(0, 10));
        reassembly.set_whole();
        assert!(!reassembly.is_over());
        assert_eq!(take_all(&mut reassembly, 4), piece(0, 10));
        assert!(reassembly.is_over());
    }
}

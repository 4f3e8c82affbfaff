//! Encodes and reads the header of a unidirectional stream: which stream it continues
//! (`driver/carrier/migrate.rs`), or that it carries receipts (`receipts`).

use std::num::NonZeroU64;

use bytes::Bytes;
use quinn_proto::{RecvStream, StreamId, VarInt};

/// Length of the head, in big-endian: a stream's ID and an offset, 8 bytes each. In that of
/// receipts the second number is how many bytes of a stream their sender has memory for, or 0 if
/// that is no less than what it gets a receipt for at once.
pub(crate) const HEAD_BYTES: usize = 16;

/// In the head's ID field, marks a stream of receipts instead of a continued stream; no stream has
/// this ID.
pub(crate) const RECEIPTS: u64 = 1 << 63;

/// Where a direction continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continuation {
    pub(crate) offset: u64,
    pub(crate) at: StreamId,
}

/// What a stream carries, according to its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// A direction that another stream has carried up to this offset.
    Continuation(StreamId, u64),
    /// The peer's receipts, and how many bytes of a stream it has memory for, if that is little.
    Receipts(Option<NonZeroU64>),
}

/// The part of a stream's head that has arrived.
#[derive(Debug, Default)]
pub(crate) struct Announcement {
    bytes: [u8; HEAD_BYTES],
    length: usize,
}

impl Announcement {
    pub(crate) fn encode(origin: StreamId, offset: u64) -> Bytes {
        let origin = VarInt::from(origin).into_inner();
        Bytes::from([origin.to_be_bytes(), offset.to_be_bytes()].concat())
    }

    /// Reads more; `None` until the head is complete. Fails if the stream ends before that.
    pub(crate) fn read(&mut self, mut stream: RecvStream<'_>) -> Result<Option<Announced>, ()> {
        let mut chunks = stream.read(true).map_err(drop)?;
        while self.length < HEAD_BYTES {
            match chunks.next(HEAD_BYTES - self.length) {
                Ok(Some(chunk)) => self.take(&chunk.bytes),
                Err(quinn_proto::ReadError::Blocked) => return Ok(None),
                Ok(None) | Err(quinn_proto::ReadError::Reset(_)) => return Err(()),
            }
        }
        self.whole().map(Some)
    }

    /// Takes the next bytes, no more than are missing.
    fn take(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    /// Parses the complete head. Fails on an ID that no stream can have (RFC 9000 16).
    fn whole(&self) -> Result<Announced, ()> {
        let number = |from: usize| {
            let bytes = self.bytes[from..from + 8].try_into().expect("8 of 16 bytes");
            u64::from_be_bytes(bytes)
        };
        if number(0) == RECEIPTS {
            return Ok(Announced::Receipts(NonZeroU64::new(number(8))));
        }
        let origin = VarInt::from_u64(number(0)).map_err(drop)?;
        Ok(Announced::Continuation(StreamId::from(origin), number(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_which_stream_continues_and_where() {
        let id = StreamId::from(VarInt::from_u32(0x1234));
        let head = Announcement::encode(id, 1 << 40);
        assert_eq!(head.len(), HEAD_BYTES);
        assert_eq!(&head[..8], &0x1234_u64.to_be_bytes());
        assert_eq!(&head[8..], &(1_u64 << 40).to_be_bytes());
    }

    fn read_in_pieces(head: &[u8], bytes: usize) -> Result<Announced, ()> {
        let mut announcement = Announcement::default();
        head.chunks(bytes).for_each(|piece| announcement.take(piece));
        announcement.whole()
    }

    #[test]
    fn a_head_in_pieces_of_any_size_says_what_was_written_or_is_refused() {
        let last = VarInt::MAX.into_inner();
        let streams = [(0, true), (last, true), (last + 1, false), (u64::MAX, false)];
        for (origin, is_stream) in streams {
            for offset in [0, 1 << 40, u64::MAX] {
                let head = [origin.to_be_bytes(), offset.to_be_bytes()].concat();
                for bytes in 1..=HEAD_BYTES {
                    let read = read_in_pieces(&head, bytes);
                    assert_eq!(read.is_ok(), is_stream, "{origin}");
                    if let Ok(Announced::Continuation(id, at)) = read {
                        assert_eq!(Announcement::encode(id, at), head);
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_of_receipts_names_no_stream() {
        for keeps in [0, 1, 4 << 10, u64::MAX] {
            let head = [RECEIPTS.to_be_bytes(), keeps.to_be_bytes()].concat();
            let announced = Announced::Receipts(NonZeroU64::new(keeps));
            assert_eq!(read_in_pieces(&head, 5), Ok(announced));
        }
    }
}

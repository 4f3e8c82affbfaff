//! The states of the direction from a stream to a socket. Knows offsets and times, no sockets and
//! no streams.

use std::num::NonZeroU64;

use crate::{announcement::Continuation, replay::Receipt};

/// Bytes written before the peer must be told immediately.
const RECEIPT_BYTES: u64 = 128 << 10;

/// What follows the bytes that were taken from the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// More may come.
    Open,
    /// Another stream continues from an offset (`migrate`).
    Continues(Continuation),
    /// The peer has finished; the socket has not accepted everything yet.
    Ends,
}

impl Course {
    /// The peer says where another stream continues. Returns false if this one, taken up to
    /// `offset`, is already beyond that, or has ended or continues elsewhere.
    pub(super) fn set_continuation(&mut self, continuation: Continuation, offset: u64) -> bool {
        let is_possible = *self == Self::Open && continuation.offset >= offset;
        if is_possible {
            *self = Self::Continues(continuation);
        }
        is_possible
    }

    /// The peer has finished the stream. Returns false if it had said that another one continues.
    pub(super) fn set_end(&mut self) -> bool {
        let is_possible = matches!(self, Self::Open | Self::Ends);
        if is_possible {
            *self = Self::Ends;
        }
        is_possible
    }
}

/// Whether the socket accepts bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acceptance {
    Accepts,
    /// The socket refused bytes, which wait.
    Refuses,
    /// The socket has become writable; the bytes that it refused still wait.
    AcceptsAgain,
}

impl Acceptance {
    /// The system reports that it may accept bytes.
    pub(super) fn became_writable(&mut self) {
        if *self == Self::Refuses {
            *self = Self::AcceptsAgain;
        }
    }
}

/// Whether to tell the peer what a socket has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReceiptDue {
    Not,
    Later,
    Soon,
    Now,
}

/// What the peer was told that the socket has accepted.
#[derive(Debug)]
pub(super) struct Reported {
    receipt: Receipt,
    /// The most urgent answer of [`Reported::due`] since that.
    said: ReceiptDue,
}

impl Reported {
    pub(super) fn new(receipt: Receipt) -> Self {
        Self { receipt, said: ReceiptDue::Not }
    }

    /// Whether to tell the peer that the socket has accepted this much. `keeps` is how many bytes
    /// of a stream the peer has memory for, if that is little. Says "later" and "soon" only once.
    pub(super) fn due(&mut self, accepted: Receipt, keeps: Option<NonZeroU64>) -> ReceiptDue {
        if accepted == self.receipt {
            return ReceiptDue::Not;
        }
        if accepted.end || accepted.bytes >= self.receipt.bytes + RECEIPT_BYTES {
            return ReceiptDue::Now;
        }
        let is_half = |keeps: NonZeroU64| {
            accepted.bytes >= self.receipt.bytes.saturating_add(keeps.get() / 2)
        };
        let due = if keeps.is_some_and(is_half) { ReceiptDue::Soon } else { ReceiptDue::Later };
        if due <= self.said {
            return ReceiptDue::Not;
        }
        self.said = due;
        due
    }

    /// The receipt to send now, if it says more than the last one.
    pub(super) fn take(&mut self, accepted: Receipt) -> Option<Receipt> {
        let before = std::mem::replace(self, Self::new(accepted));
        (accepted != before.receipt).then_some(accepted)
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::{StreamId, VarInt};

    use super::*;

    fn at(offset: u64) -> Continuation {
        Continuation { offset, at: StreamId::from(VarInt::from_u32(3)) }
    }

    #[test]
    fn a_stream_continues_once_and_not_before_what_was_taken() {
        let (mut course, continues) = (Course::Open, Course::Continues(at(5)));
        assert!(!course.set_continuation(at(4), 5));
        assert_eq!(course, Course::Open);
        assert!(course.set_continuation(at(5), 5));
        assert!(!course.set_continuation(at(6), 5));
        assert_eq!(course, continues);
        assert!(!course.set_end());
        assert_eq!(course, continues);
    }

    #[test]
    fn a_stream_that_has_ended_continues_nowhere() {
        let mut course = Course::Open;
        assert!(course.set_end());
        assert_eq!(course, Course::Ends);
        assert!(!course.set_continuation(at(5), 5));
        assert!(course.set_end());
    }

    #[test]
    fn a_writable_socket_still_has_bytes_waiting_that_it_refused() {
        let all = [Acceptance::Accepts, Acceptance::Refuses, Acceptance::AcceptsAgain];
        let writable = all.map(|mut acceptance| {
            acceptance.became_writable();
            acceptance
        });
        let again = Acceptance::AcceptsAgain;
        assert_eq!(writable, [Acceptance::Accepts, again, again]);
    }

    #[test]
    fn a_receipt_for_much_or_the_end_is_due_at_once_and_one_for_less_soon_or_later_once() {
        let receipt = |bytes, end| Receipt { bytes, end };
        let mut reported = Reported::new(receipt(10, false));
        let mut due = |bytes, end| reported.due(receipt(bytes, end), NonZeroU64::new(2_000));
        assert_eq!(due(10, false), ReceiptDue::Not);
        assert_eq!(due(11, false), ReceiptDue::Later);
        assert_eq!(due(1_009, false), ReceiptDue::Not);
        assert_eq!(due(1_010, false), ReceiptDue::Soon);
        assert_eq!(due(9 + RECEIPT_BYTES, false), ReceiptDue::Not);
        assert_eq!(due(10 + RECEIPT_BYTES, false), ReceiptDue::Now);
        assert_eq!(due(11, true), ReceiptDue::Now);
        assert_eq!(reported.take(receipt(11, false)), Some(receipt(11, false)));
        assert_eq!(reported.take(receipt(11, false)), None);
        let much = receipt(10 + RECEIPT_BYTES, false);
        assert_eq!(reported.due(much, None), ReceiptDue::Later, "what waited was told");
        assert_eq!(reported.due(much, Some(NonZeroU64::MAX)), ReceiptDue::Not);
    }
}

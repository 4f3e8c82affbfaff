//! Counts what a stream has carried one way since it last carried anything the other way, to tell
//! requests and their answers from bulk data.
//!
//! Knows no times: how fast bytes come is counted in `spin`.

use crate::socket::SPARSE_BYTES;

/// A direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

/// The last bytes of a stream, all of them in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered {
    way: Way,
    bytes: usize,
}

impl Unanswered {
    pub(crate) fn new() -> Self {
        Self { way: Way::In, bytes: 0 }
    }

    /// Counts bytes; returns how many of them are bulk. Up to [`SPARSE_BYTES`] without an answer are
    /// a message, for whose answer somebody may wait.
    pub(crate) fn add(&mut self, way: Way, bytes: usize) -> usize {
        if bytes > 0 && way != self.way {
            *self = Self { way, bytes: 0 };
        }
        self.bytes = self.bytes.saturating_add(bytes);
        bytes.min(self.bytes.saturating_sub(SPARSE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_not_bulk_however_many_they_are() {
        for (request, answer) in [(1, 1), (1024, 1024), (64, SPARSE_BYTES), (SPARSE_BYTES, 64)] {
            let mut unanswered = Unanswered::new();
            for _ in 0..1000 {
                assert_eq!(unanswered.add(Way::In, request), 0);
                // An answer of several packets.
                assert_eq!(unanswered.add(Way::Out, answer / 2), 0);
                assert_eq!(unanswered.add(Way::Out, answer - answer / 2), 0);
            }
        }
    }

    #[test]
    fn what_follows_a_message_without_an_answer_is_bulk() {
        for way in [Way::In, Way::Out] {
            let mut unanswered = Unanswered::new();
            assert_eq!(unanswered.add(way, SPARSE_BYTES - 1), 0);
            assert_eq!(unanswered.add(way, 3), 2);
            assert_eq!(unanswered.add(way, 1400), 1400);
            assert_eq!(unanswered.add(way, 64 << 10), 64 << 10);
        }
    }

    #[test]
    fn an_empty_read_is_no_answer() {
        let mut unanswered = Unanswered::new();
        assert_eq!(unanswered.add(Way::In, SPARSE_BYTES), 0);
        assert_eq!(unanswered.add(Way::Out, 0), 0);
        assert_eq!(unanswered.add(Way::In, 1), 1);
    }
}

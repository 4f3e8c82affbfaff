//! Counts what one direction of a splice has carried since the other carried anything, to tell
//! requests and their answers from bulk data.
//!
//! Knows no times: how fast bytes come is counted in `spin`.

use crate::socket::SPARSE_BYTES;

/// The bytes of a direction that have had no answer yet.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    bytes: usize,
    /// What the other direction had carried when they began.
    answers: u64,
}

impl Unanswered {
    /// Counts bytes, given what the other direction has carried in all; returns how many of them
    /// are bulk. Up to [`SPARSE_BYTES`] without an answer are a message, for whose answer somebody
    /// may wait.
    pub(crate) fn add(&mut self, bytes: usize, answers: u64) -> usize {
        if answers != self.answers {
            *self = Self { bytes: 0, answers };
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
            let [mut there, mut back] = [Unanswered::default(), Unanswered::default()];
            let (mut asked, mut answered) = (0, 0);
            for _ in 0..1000 {
                assert_eq!(there.add(request, answered), 0);
                asked += request as u64;
                // An answer of several packets.
                for bytes in [answer / 2, answer - answer / 2] {
                    assert_eq!(back.add(bytes, asked), 0);
                    answered += bytes as u64;
                }
            }
        }
    }

    #[test]
    fn what_follows_a_message_without_an_answer_is_bulk() {
        let mut unanswered = Unanswered::default();
        for answers in [0, 1] {
            assert_eq!(unanswered.add(SPARSE_BYTES - 1, answers), 0);
            assert_eq!(unanswered.add(3, answers), 2);
            assert_eq!(unanswered.add(1400, answers), 1400);
            assert_eq!(unanswered.add(64 << 10, answers), 64 << 10);
        }
    }
}

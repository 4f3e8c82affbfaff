//! Tracks which packet numbers of one receive direction have been opened.
//!
//! A ring of bits as in RFC 6479. It spans key phases, as packet numbers do. quinn detects
//! duplicates only after decryption, so without this every replay would be decrypted and cost
//! keystream.

/// Words of the ring; one is always partly filled, so the window is one word shorter.
const WORDS: usize = 32;

/// Numbers below the newest that are tracked; older ones are refused. quinn itself drops packets
/// more than 128 late.
pub(crate) const WINDOW_PACKETS: u64 = (WORDS as u64 - 1) * 64;

/// The set of opened numbers.
#[derive(Debug, Default)]
pub(crate) struct ReplayWindow {
    /// One above the newest number opened; zero before the first.
    end: u64,
    ring: [u64; WORDS],
}

impl ReplayWindow {
    /// Whether the number was opened before, or is too old to know.
    pub(crate) fn refuses(&self, packet_number: u64) -> bool {
        if packet_number >= self.end {
            return false;
        }
        self.end - packet_number > WINDOW_PACKETS
            || self.ring[word(packet_number)] & bit(packet_number) != 0
    }

    /// Marks a number as opened. Call only after its tag has verified: a forgery must not move the
    /// window.
    pub(crate) fn mark(&mut self, packet_number: u64) {
        if packet_number >= self.end {
            let newest_word = self.end.saturating_sub(1) / 64;
            let entered = packet_number / 64 - newest_word;
            for step in 1..=entered.min(WORDS as u64) {
                self.ring[((newest_word + step) % WORDS as u64) as usize] = 0;
            }
            self.end = packet_number + 1;
        }
        self.ring[word(packet_number)] |= bit(packet_number);
    }
}

fn word(packet_number: u64) -> usize {
    (packet_number / 64 % WORDS as u64) as usize
}

fn bit(packet_number: u64) -> u64 {
    1 << (packet_number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn window_agrees_with_a_set(steps in prop::collection::vec((0u64..4, 0u64..3000), 1..400)) {
            let (mut window, mut set) = (ReplayWindow::default(), BTreeSet::new());
            let mut newest = 0u64;
            for (kind, distance) in steps {
                let number = match kind {
                    0 => newest + distance % 3,
                    1 => newest + distance,
                    _ => newest.saturating_sub(distance),
                };
                let end = set.last().map_or(0, |last| last + 1);
                let expected =
                    set.contains(&number) || (number < end && end - number > WINDOW_PACKETS);
                prop_assert_eq!(window.refuses(number), expected, "{} of {}", number, end);
                if !expected {
                    window.mark(number);
                    set.insert(number);
                    newest = newest.max(number);
                }
            }
        }
    }

    #[test]
    fn a_jump_over_the_whole_ring_forgets_everything_older() {
        let mut window = ReplayWindow::default();
        window.mark(5);
        window.mark((1 << 62) - 1);
        assert!(window.refuses(5) && window.refuses((1 << 62) - 1));
        assert!(window.refuses((1 << 62) - 1 - WINDOW_PACKETS - 1));
        assert!(!window.refuses((1 << 62) - 1 - WINDOW_PACKETS + 1));
    }
}

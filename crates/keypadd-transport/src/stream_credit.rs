//! Limits how many streams a peer may have open (RFC 9000 4.6), few at first and more as it opens
//! them.
//!
//! `quinn-proto` allocates state in advance for every stream that the peer may open, even before
//! the peer has proved a key. With 1,024 streams each way that is 130 KiB per connection. So an
//! idle connection allows few. Knows counts only.

use quinn_proto::VarInt;

/// The highest limit for which `quinn-proto` announces each freed stream; with higher ones it waits
/// for an eighth of them.
pub(crate) const ANNOUNCES_EACH: VarInt = VarInt::from_u32(7);

/// Streams of a kind that a new connection may open: with one more, `quinn-proto`'s tables would be
/// twice as large.
const FIRST: u32 = 14;

/// Streams of one kind that the peer may have open at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamCredit {
    current: u32,
    max: u32,
}

impl StreamCredit {
    pub(crate) fn new(max: u32) -> Self {
        Self { current: FIRST.min(max), max }
    }

    /// The current limit.
    pub(crate) fn current(self) -> VarInt {
        self.current.into()
    }

    /// The new limit if it changes, with this many streams open. Doubles once half of it is used,
    /// so that a peer that opens many does not have to wait.
    pub(crate) fn grow(&mut self, open: u64) -> Option<VarInt> {
        let before = self.current;
        while self.current < self.max && open >= u64::from(self.current / 2) {
            self.current = self.current.saturating_mul(2).min(self.max);
        }
        (self.current != before).then(|| self.current())
    }

    /// Whether the peer may have run out of streams because freed ones are unannounced, with this
    /// many open.
    pub(crate) fn is_short(self, open: u64) -> bool {
        let current = u64::from(self.current);
        open + current / 8 >= current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_small_at_first_and_stays_ahead_of_what_is_open_up_to_its_limit() {
        let mut stream_credit = StreamCredit::new(1025);
        assert_eq!(stream_credit.current(), VarInt::from_u32(FIRST));
        assert_eq!(stream_credit.grow(1), None);
        assert_eq!(stream_credit.grow(8), Some(VarInt::from_u32(28)));
        assert_eq!(stream_credit.grow(8), None);
        assert_eq!(stream_credit.grow(100), Some(VarInt::from_u32(224)));
        assert_eq!(stream_credit.grow(1000), Some(VarInt::from_u32(1025)));
        assert_eq!(stream_credit.grow(1025), None);
    }

    #[test]
    fn a_peer_is_short_once_all_that_is_left_may_be_unannounced() {
        let mut stream_credit = StreamCredit::new(1024);
        stream_credit.grow(1024);
        assert!(
            !stream_credit.is_short(895)
                && stream_credit.is_short(896)
                && stream_credit.is_short(1024)
        );
        assert!(StreamCredit::new(1).is_short(1) && !StreamCredit::new(1).is_short(0));
    }

    #[test]
    fn a_small_limit_is_never_passed() {
        let mut stream_credit = StreamCredit::new(1);
        assert_eq!(stream_credit.current(), VarInt::from_u32(1));
        assert_eq!(stream_credit.grow(1), None);
        assert_eq!(StreamCredit::new(0).current(), VarInt::from_u32(0));
    }
}

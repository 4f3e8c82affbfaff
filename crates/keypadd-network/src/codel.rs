//! Keeps the packets of a queue from waiting for long (CoDel: RFC 8289): if they have all waited
//! for too long for a while, their senders are told so by a loss or a mark, more often the longer
//! it lasts.
//!
//! Pure: the caller has the queue and passes the time.

use std::time::{Duration, Instant};

/// How long packets may wait all the time (RFC 8289 4.3).
pub(crate) const TARGET: Duration = Duration::from_millis(5);

/// How long they may wait longer: what a round trip over the Internet takes, so that senders can
/// have answered (RFC 8289 4.3).
const INTERVAL: Duration = Duration::from_millis(100);

/// The state of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoDel {
    /// When it is enough, if packets wait for too long until then.
    enough_at: Option<Instant>,
    /// Whether senders are being told.
    tells: bool,
    /// How often they have been told, since that began.
    count: u32,
    /// How often they had been told when that began.
    count_at_start: u32,
    /// When they are told next, or would have been.
    next_at: Option<Instant>,
}

impl CoDel {
    /// Whether the sender of the first packet is to be told, which has waited for so long before
    /// others of so many bytes.
    pub(crate) fn tells(
        &mut self,
        waited: Duration,
        (behind, packet_bytes): (usize, usize),
        now: Instant,
    ) -> bool {
        let is_enough = self.is_enough(waited, behind <= packet_bytes, now);
        match (self.tells, is_enough) {
            (_, false) => {
                self.tells = false;
                false
            }
            (true, true) => {
                let Some(at) = self.next_at.filter(|at| *at <= now) else { return false };
                self.count += 1;
                self.next_at = Some(self.after(at));
                true
            }
            (false, true) => {
                self.tells = true;
                // It was so a moment ago: how often it took then is a better guess than once.
                let recent = self.next_at.is_some_and(|at| now < at + 16 * INTERVAL);
                let told = self.count - self.count_at_start;
                self.count = if recent && told > 1 { told } else { 1 };
                self.count_at_start = self.count;
                self.next_at = Some(self.after(now));
                true
            }
        }
    }

    /// Whether packets have waited too long for a while. A queue of one packet is as short as it
    /// gets.
    fn is_enough(&mut self, waited: Duration, is_short: bool, now: Instant) -> bool {
        if waited < TARGET || is_short {
            self.enough_at = None;
            return false;
        }
        now >= *self.enough_at.get_or_insert(now + INTERVAL)
    }

    /// The next time after this one (RFC 8289 4.4).
    fn after(&self, at: Instant) -> Instant {
        at + INTERVAL.div_f64(f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BACKLOG: (usize, usize) = (100_000, 1_400);

    /// Times in milliseconds at which senders are told while packets wait for 20 ms.
    fn told(codel: &mut CoDel, start: Instant, ms: std::ops::Range<u32>) -> Vec<u32> {
        ms.filter(|ms| codel.tells(20 * MS, BACKLOG, start + *ms * MS)).collect()
    }

    #[test]
    fn a_queue_that_stays_long_is_told_more_and_more_often() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        // 100 ms, then after 100, 71, 58, 50 and 45 ms.
        assert_eq!(told(&mut codel, start, 0..430), [100, 200, 271, 329, 379, 424]);
    }

    #[test]
    fn a_queue_that_is_short_once_within_the_interval_is_left_alone() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        for ms in 0..1_000 {
            let waited = if ms % 90 == 0 { 4 * MS } else { 50 * MS };
            assert!(!codel.tells(waited, BACKLOG, start + ms * MS));
        }
        for ms in 1_000..2_000 {
            assert!(!codel.tells(50 * MS, (1_400, 1_400), start + ms * MS), "a packet behind it");
        }
    }

    #[test]
    fn what_helped_a_moment_ago_is_where_it_begins_again() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        assert_eq!(told(&mut codel, start, 0..430).len(), 6);
        assert!(!codel.tells(Duration::ZERO, BACKLOG, start + 430 * MS));
        // Not after 100 ms, but after 100 / sqrt(5).
        assert_eq!(told(&mut codel, start, 500..650), [600, 645]);
        assert!(!codel.tells(Duration::ZERO, BACKLOG, start + 650 * MS));
        assert_eq!(told(&mut codel, start, 10_000..10_250), [10_100, 10_200]);
    }
}

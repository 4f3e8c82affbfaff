//! Keeps the packets of a queue from waiting for long (CoDel: RFC 8289): if they have all waited
//! for too long for a while, their senders are signaled by a loss or a mark, more often the longer
//! it lasts.
//!
//! Pure: the caller has the queue and passes the time.

use std::time::{Duration, Instant};

/// How long packets may wait all the time (RFC 8289 4.3).
pub(crate) const TARGET: Duration = Duration::from_millis(5);

/// The target is at least one part in this many of the interval (RFC 8289 3.2).
const INTERVAL_SHARE: u32 = 20;

/// How long they may wait longer: what a round trip over the Internet takes, so that senders can
/// have answered (RFC 8289 4.3).
const INTERVAL: Duration = Duration::from_millis(100);

/// The longest interval, however long a path's round trip takes.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How long packets may wait on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    target: Duration,
    interval: Duration,
}

impl Patience {
    /// On a path whose round trip takes so long.
    pub(crate) fn of(rtt: Duration) -> Self {
        let interval = rtt.clamp(INTERVAL, INTERVAL_MAX);
        Self { target: TARGET.max(interval / INTERVAL_SHARE), interval }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::of(INTERVAL)
    }
}

/// The state of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoDel {
    /// When it is enough, if packets wait for too long until then.
    enough_at: Option<Instant>,
    /// Whether senders are being signaled.
    is_signaling: bool,
    /// How often they have been, since that began.
    count: u32,
    /// How often they had been when that began.
    count_at_start: u32,
    /// When they are next, or would have been.
    next_at: Option<Instant>,
}

impl CoDel {
    /// Whether the sender of the first packet is to be signaled. The packet has waited for so long,
    /// before others of so many bytes.
    pub(crate) fn signals(
        &mut self,
        waited: Duration,
        (behind, packet_bytes): (usize, usize),
        patience: Patience,
        now: Instant,
    ) -> bool {
        let Patience { interval, .. } = patience;
        let is_enough = self.is_enough(waited, behind <= packet_bytes, patience, now);
        match (self.is_signaling, is_enough) {
            (_, false) => {
                self.is_signaling = false;
                false
            }
            (true, true) => {
                let Some(at) = self.next_at.filter(|at| *at <= now) else { return false };
                self.count += 1;
                self.next_at = Some(self.after(at, interval));
                true
            }
            (false, true) => {
                self.is_signaling = true;
                // It was so a moment ago: what it took then is a better guess than once.
                let recent = self.next_at.is_some_and(|at| now < at + 16 * interval);
                let before = self.count - self.count_at_start;
                self.count = if recent && before > 1 { before } else { 1 };
                self.count_at_start = self.count;
                self.next_at = Some(self.after(now, interval));
                true
            }
        }
    }

    /// Whether packets have waited too long for a while. A queue of one packet is as short as it
    /// gets.
    fn is_enough(
        &mut self,
        waited: Duration,
        is_short: bool,
        Patience { target, interval }: Patience,
        now: Instant,
    ) -> bool {
        if waited < target || is_short {
            self.enough_at = None;
            return false;
        }
        now >= *self.enough_at.get_or_insert(now + interval)
    }

    /// The next time after this one (RFC 8289 4.4).
    fn after(&self, at: Instant, interval: Duration) -> Instant {
        at + interval.div_f64(f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BACKLOG: (usize, usize) = (100_000, 1_400);

    /// Times in milliseconds at which senders are signaled while packets wait for 40 ms.
    fn signaled(codel: &mut CoDel, start: Instant, ms: std::ops::Range<u32>) -> Vec<u32> {
        signaled_by(codel, Patience::default(), start, ms)
    }

    fn signaled_by(
        codel: &mut CoDel,
        patience: Patience,
        start: Instant,
        ms: std::ops::Range<u32>,
    ) -> Vec<u32> {
        ms.filter(|ms| codel.signals(40 * MS, BACKLOG, patience, start + *ms * MS)).collect()
    }

    #[test]
    fn senders_that_answer_later_are_signaled_later() {
        let start = Instant::now();
        let signaled = |rtt: u32| {
            let patience = Patience::of(rtt * MS);
            signaled_by(&mut CoDel::default(), patience, start, 0..1_500)
        };
        assert_eq!(signaled(600), [600, 1_200]);
        assert_eq!(signaled(20), signaled(100), "senders are further away than the other end");
        // 40 ms are nothing where a round trip takes a second.
        assert_eq!(signaled(1_000), signaled(5_000));
        assert!(signaled(1_000).is_empty());
    }

    #[test]
    fn a_queue_that_stays_long_is_signaled_more_and_more_often() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        // 100 ms, then after 100, 71, 58, 50 and 45 ms.
        assert_eq!(signaled(&mut codel, start, 0..430), [100, 200, 271, 329, 379, 424]);
    }

    #[test]
    fn a_queue_that_is_short_once_within_the_interval_is_left_alone() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        for ms in 0..1_000 {
            let waited = if ms % 90 == 0 { 4 * MS } else { 50 * MS };
            assert!(!codel.signals(waited, BACKLOG, Patience::default(), start + ms * MS));
        }
        for ms in 1_000..2_000 {
            let one = (1_400, 1_400);
            assert!(
                !codel.signals(50 * MS, one, Patience::default(), start + ms * MS),
                "one behind"
            );
        }
    }

    #[test]
    fn what_helped_a_moment_ago_is_where_it_begins_again() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        assert_eq!(signaled(&mut codel, start, 0..430).len(), 6);
        assert!(!codel.signals(Duration::ZERO, BACKLOG, Patience::default(), start + 430 * MS));
        // Not after 100 ms, but after 100 / sqrt(5).
        assert_eq!(signaled(&mut codel, start, 500..650), [600, 645]);
        assert!(!codel.signals(Duration::ZERO, BACKLOG, Patience::default(), start + 650 * MS));
        assert_eq!(signaled(&mut codel, start, 10_000..10_250), [10_100, 10_200]);
    }
}

//! Measures ACK aggregation: how long a link such as Wi-Fi or cable holds ACKs before it delivers
//! them in a burst.
//!
//! Evenly paced packets then see any delay up to that time without a queue (draft-ietf-ccwg-bbr
//! 5.5.9). Knows times only.

use std::time::{Duration, Instant};

use crate::{
    constants::{ACK_BURST_MAX, ACK_GAP_MIN, ACK_GAP_TIME, ACK_WAIT_MAX, ACK_WAIT_MIN},
    extremes::Windowed,
};

#[derive(Clone, Debug)]
pub(super) struct AckBursts {
    began: Option<Instant>,
    latest: Option<Instant>,
    shortest_gap: Windowed,
}

impl AckBursts {
    pub(super) fn new() -> Self {
        Self { began: None, latest: None, shortest_gap: Windowed::min(ACK_GAP_TIME) }
    }

    /// Records an ACK of a flow that sends continuously and gets one every `usual_gap`.
    pub(super) fn acked(&mut self, now: Instant, usual_gap: Duration) {
        let Some(latest) = self.latest.replace(now) else {
            self.began = Some(now);
            return;
        };
        let gap = now.saturating_duration_since(latest);
        if gap >= ACK_GAP_MIN {
            self.began = Some(now);
            self.shortest_gap.insert(now, gap.saturating_sub(usual_gap));
        } else if self
            .began
            .is_some_and(|began| now.saturating_duration_since(began) > ACK_BURST_MAX)
        {
            self.shortest_gap.insert(now, Duration::ZERO);
        }
    }

    /// Records that a pause of the sender itself has ended.
    pub(super) fn interrupt(&mut self) {
        (self.began, self.latest) = (None, None);
    }

    /// The longest time that an ACK waits for the next burst; zero if ACKs are not held.
    pub(super) fn wait(&self) -> Duration {
        match self.shortest_gap.get() {
            Duration::MAX => Duration::ZERO,
            gap if gap < ACK_WAIT_MIN => Duration::ZERO,
            gap => gap.min(ACK_WAIT_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// The wait after a second of ACKs, `count` of them every `interval`.
    fn wait(interval: Duration, count: u32, usual_gap: Duration) -> Duration {
        let (start, mut bursts) = (Instant::now(), AckBursts::new());
        for nth in 0..(Duration::from_secs(1).as_micros() / interval.as_micros()) as u32 {
            for of_burst in 0..count {
                bursts.acked(start + interval * nth + 20 * US * of_burst, usual_gap);
            }
        }
        bursts.wait()
    }

    #[test]
    fn acks_in_bursts_wait_for_each_other() {
        let waits = wait(10_000 * US, 20, 240 * US);
        assert!(waits > 9_000 * US && waits <= 10_000 * US, "{waits:?}");
    }

    #[test]
    fn acks_that_come_as_packets_do_wait_for_nothing() {
        // At 100, 20 and 2 Mbit/s.
        for gap in [240 * US, 1_160 * US, 11_600 * US] {
            assert_eq!(wait(gap, 1, gap), Duration::ZERO);
        }
    }

    #[test]
    fn a_thread_that_is_late_now_and_then_is_no_burst() {
        let (mut now, mut bursts) = (Instant::now(), AckBursts::new());
        for nth in 0..5_000 {
            now += if nth % 100 == 0 { 8_000 * US } else { 240 * US };
            bursts.acked(now, 240 * US);
        }
        assert_eq!(bursts.wait(), Duration::ZERO);
    }
}

//! Lowers the window for a round trip or a few: to drain this flow's own queue and see the shortest round trip
//! again, or to test whether competing flows keep the queue full.

use std::time::{Duration, Instant};

use super::{RateController, Round};
use crate::{
    ACK_DELAY,
    crowd::{EMPTY, FALL, TEST_SHARE},
};

/// Interval at which this flow's queue is drained, by this many times its content.
const DRAIN_INTERVAL: Duration = Duration::from_secs(2);

/// The first intervals after start-up, on a path that is not long: as long as a flow takes others' queue for a part of
/// the path, they have too little.
const EARLY_INTERVALS: [Duration; 4] = [
    Duration::from_millis(125),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
];
const DRAIN_DEPTH: f64 = 2.5;

/// On a long path, where a deeper one would show: the bottleneck idles after its queue is empty, and while the gap
/// travels round the path, the queue is longer by as much.
const LONG_DRAIN_DEPTH: f64 = 1.25;

/// At the end of start-up: others keep a queue too, whose delay must not be taken for the path's. They take a while
/// to give way, so this one lasts as long as the delay falls.
const FIRST_DRAIN_DEPTH: f64 = 6.0;

/// A test that finds the queue empty leaves it so for this many of the shortest round trips.
const LINGER: u32 = 3;

/// The window is below the usual one until a packet sent within it is acknowledged, or for as long as the delay falls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dip {
    pub(super) window: u64,
    pub(super) rounds: u32,
    falling: Option<Falling>,
    /// Whether it tests for competing flows.
    is_test: bool,
}

/// The delay of the last packet that waited less, and when that was known.
#[derive(Clone, Copy, Debug)]
struct Falling {
    delay: Duration,
    measured: Instant,
}

impl RateController {
    /// Records the delay of a packet that was sent within a dip; returns whether this one was.
    pub(super) fn sample_dip(
        &mut self,
        now: Instant,
        sent: Instant,
        flight: u64,
        delay: Duration,
    ) -> bool {
        let Some(dip) = self.dip else { return false };
        if flight > dip.window + self.mtu && dip.rounds <= 3 {
            return false;
        }
        match dip.falling {
            Some(last) if sent < last.measured => {}
            Some(last) if delay < last.delay.mul_f64(FALL) => {
                let falling = Some(Falling { delay, measured: now });
                self.dip = Some(Dip { falling, ..dip });
            }
            // So that another flow of ours that tests, too, sees the queue empty.
            Some(last)
                if dip.is_test
                    && self.is_empty(last.delay)
                    && now < last.measured + LINGER * self.floor() => {}
            Some(last) => self.end_dip(now, dip, last.delay.min(delay)),
            None => self.end_dip(now, dip, delay),
        }
        true
    }

    fn end_dip(&mut self, now: Instant, dip: Dip, delay: Duration) {
        self.dip = None;
        // A queue that is being drained is no room to grow into.
        self.hold = self.hold.max(2);
        self.postpone_drain(now);
        if dip.is_test {
            let carries = self.carried_bytes(self.rate);
            if self.crowd.tested(now, self.is_empty(delay), carries, self.mtu) {
                self.set_window(self.window_at(self.rate));
            } else {
                self.follow_crowd();
            }
        }
        self.round = Some(Round::new(now));
    }

    /// Whether a test with this delay has found the queue empty.
    fn is_empty(&self, delay: Duration) -> bool {
        let most = self.queue_delay(self.rate).mul_f64(EMPTY) + ACK_DELAY;
        self.avoidable(delay) <= most
    }

    /// Tests for competing flows: leaves most of what the path carries at this rate in flight.
    pub(super) fn test(&mut self, now: Instant, rate: f64, delay: Duration) {
        let window = ((self.carried_bytes(rate) * TEST_SHARE) as u64).max(self.window_min());
        let falling = Some(Falling { delay, measured: now });
        self.dip = Some(Dip { window, rounds: 0, falling, is_test: true });
    }

    pub(super) fn postpone_drain(&mut self, now: Instant) {
        let early = EARLY_INTERVALS.get(self.drains).filter(|_| !self.is_long());
        let (interval, trips) = early.map_or((DRAIN_INTERVAL, 10), |interval| (*interval, 5));
        self.drain_at = Some(now + interval.max(trips * self.floor()));
    }

    pub(super) fn drain_if_due(&mut self, now: Instant) {
        if now >= *self.drain_at.get_or_insert(now + DRAIN_INTERVAL) {
            self.drains += 1;
            self.drain(now, if self.is_long() { LONG_DRAIN_DEPTH } else { DRAIN_DEPTH }, None);
        }
    }

    /// Drains this flow's queue at the end of start-up, and what others of ours keep.
    pub(super) fn first_drain(&mut self, now: Instant) {
        self.drains = 0;
        let falling = Falling { delay: Duration::MAX, measured: now };
        self.drain(now, FIRST_DRAIN_DEPTH, Some(falling));
    }

    /// Drains this many times the queue's content, so that the shortest round trip is seen (ProbeRTT of
    /// draft-ietf-ccwg-bbr 5.3.4, less deep and more often; flows of ours drain together).
    ///
    /// Where the least window keeps a queue, the round trip without one is not seen, and stays what it was.
    fn drain(&mut self, now: Instant, depth: f64, falling: Option<Falling>) {
        let depth = (depth * self.queue_bytes(self.rate)) as u64;
        let window = self.window.saturating_sub(depth).max(self.window / 2);
        if window < self.window_min() {
            self.floor.insert(now, self.floor());
        }
        let window = window.max(self.window_min());
        self.dip = Some(Dip { window, rounds: 0, falling, is_test: false });
    }
}

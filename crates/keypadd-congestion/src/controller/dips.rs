//! Lowers the window for a round trip or a few: to drain this flow's own queue and see the shortest
//! round trip again, or to test whether competing flows keep the queue full. Knows when a dip
//! begins and ends, not what the window is otherwise.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    RateController,
    mode::{Dip, Falling, Mode},
    round::Round,
};
use crate::constants::{
    ACK_DELAY, DIP_ROUNDS, DRAIN_DEPTH, DRAIN_INTERVAL, DRAIN_LEAST_PART, DRAIN_TRIPS,
    EARLY_INTERVALS_MS, EARLY_TRIPS, EFFECT_ROUNDS, EMPTY_SHARE, FALL, FIRST_DRAIN_DEPTH,
    LINGER_TRIPS, LONG_DRAIN_DEPTH, TEST_SHARE,
};

/// When the next drain is due, and how many there were since the one at the end of start-up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drains {
    due: Option<Instant>,
    count: usize,
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
        let Some(dip) = self.mode.dip() else { return false };
        if flight > dip.window + self.mtu && dip.rounds <= DIP_ROUNDS {
            return false;
        }
        let lingers = |last: Falling| {
            matches!(self.mode, Mode::Test(..))
                && self.is_empty(last.delay)
                && now < last.measured + LINGER_TRIPS * self.path.floor()
        };
        match dip.falling {
            Some(last) if sent < last.measured => {}
            Some(last) if delay < last.delay.mul_f64(FALL) => {
                if let Some(dip) = self.mode.dip_mut() {
                    dip.falling = Some(Falling { delay, measured: now });
                }
            }
            // So that another flow of ours that tests, too, sees the queue empty.
            Some(last) if lingers(last) => {}
            Some(last) => self.end_dip(now, last.delay.min(delay)),
            None => self.end_dip(now, delay),
        }
        true
    }

    /// Ends the dip, whose packets have shown this delay.
    fn end_dip(&mut self, now: Instant, delay: Duration) {
        // A queue that is being drained is no room to grow into.
        self.growth.hold(EFFECT_ROUNDS);
        self.postpone_drain(now);
        match mem::replace(&mut self.mode, Mode::Cruise) {
            Mode::Compete(competition) | Mode::CompeteDrain(competition, _) => {
                self.mode = Mode::Compete(competition);
            }
            Mode::Test(mut competition, _) => {
                let carries = self.carried_bytes(self.rate);
                if competition.tested(now, self.is_empty(delay), carries, self.mtu) {
                    self.suspicion.leave(now, competition.window());
                    self.set_window(self.window_at(self.rate));
                } else {
                    self.mode = Mode::Compete(competition);
                    self.follow_competition();
                }
            }
            Mode::StartUp { .. } | Mode::Settle | Mode::Cruise | Mode::Drain(_) => {}
        }
        self.round = Some(Round::new(now));
    }

    /// Whether a test with this delay has found the queue empty.
    fn is_empty(&self, delay: Duration) -> bool {
        let most = self.queue_delay(self.rate).mul_f64(EMPTY_SHARE) + ACK_DELAY;
        self.avoidable(delay) <= most
    }

    /// Whether to test for competing flows, at the end of a round with this delay.
    pub(super) fn is_test_due(&mut self, now: Instant, delay: Duration) -> bool {
        let floor = self.path.floor();
        let loses = self.suspicion.has_lost(now, floor + delay);
        let competition = self.mode.competition_mut();
        competition.is_some_and(|competition| competition.is_test_due(now, floor, delay, loses))
    }

    /// Tests for competing flows: leaves most of what the path carries at this rate in flight.
    pub(super) fn test(&mut self, now: Instant, rate: f64, delay: Duration) {
        let window = ((self.carried_bytes(rate) * TEST_SHARE) as u64).max(self.window_min());
        let falling = Some(Falling { delay, measured: now });
        self.mode.test(Dip { window, rounds: 0, falling });
    }

    pub(super) fn postpone_drain(&mut self, now: Instant) {
        let early = EARLY_INTERVALS_MS.get(self.drains.count).filter(|_| !self.path.is_long());
        let (interval, trips) = match early {
            Some(ms) => (Duration::from_millis(*ms), EARLY_TRIPS),
            None => (DRAIN_INTERVAL, DRAIN_TRIPS),
        };
        self.drains.due = Some(now + interval.max(trips * self.path.floor()));
    }

    pub(super) fn drain_if_due(&mut self, now: Instant) {
        if now >= *self.drains.due.get_or_insert(now + DRAIN_INTERVAL) {
            self.drains.count += 1;
            self.drain(now, if self.path.is_long() { LONG_DRAIN_DEPTH } else { DRAIN_DEPTH }, None);
        }
    }

    /// Drains this flow's queue at the end of start-up, and what others of ours keep.
    pub(super) fn first_drain(&mut self, now: Instant) {
        self.drains.count = 0;
        let falling = Falling { delay: Duration::MAX, measured: now };
        self.drain(now, FIRST_DRAIN_DEPTH, Some(falling));
    }

    /// Drains this many times the queue's content, so that the shortest round trip is seen
    /// (ProbeRTT of draft-ietf-ccwg-bbr 5.3.4, less deep and more often; flows of ours drain
    /// together).
    ///
    /// Where the least window keeps a queue, the round trip without one is not seen, and stays what
    /// it was.
    fn drain(&mut self, now: Instant, depth: f64, falling: Option<Falling>) {
        let depth = (depth * self.queue_bytes(self.rate)) as u64;
        let window = self.window.saturating_sub(depth).max(self.window / DRAIN_LEAST_PART);
        if window < self.window_min() {
            self.path.keep_floor(now);
        }
        let window = window.max(self.window_min());
        self.mode.drain(Dip { window, rounds: 0, falling });
    }
}

//! Detects competing flows that keep the queue full, and shares with them as CUBIC does (RFC 9438).
//!
//! A flow that keeps the queue short starves next to one that fills it. If the delay persists
//! although this flow's window would let the queue drain, the window is CUBIC's until tests find
//! the queue empty again (like Copa's mode switch, NSDI 2018 section 4). Only losses near the
//! longest delay count, when the queue may have overflowed: others are taken as random.
//!
//! In a queue shorter than the round trip, CUBIC's sawtooth (RFC 9438 4.6) often ends below the
//! delay that counts, and a test may find the queue empty although others are there. So a short
//! delay only slows detection down, two tests have to agree, and after them a smaller delay
//! suffices to compete again, with at most the same window.
//!
//! Several flows of ours that compete see each other's queue. So a flow joins another's test, and a
//! test lasts as long as the delay falls.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, Cubic, CubicConfig},
};

use crate::{
    constants::{
        COMPETE_SHARE, CONFIRM_INTERVAL, CUBIC_BETA, EMPTY_TESTS, FALL, FULL_SHARE, JOIN_PART,
        PEAK_TIME, RATE_TIME, RECENT_TRIPS, STANDS, STANDS_AGAIN, STANDS_LEAK, STANDS_MORE,
        STANDS_ROUNDS, STANDS_TIME, STANDS_TIME_AGAIN, STANDS_TIME_MAX, SUSPICION, TEST_INTERVAL,
        TEST_TRIPS,
    },
    extremes::Windowed,
};

/// Whether others fill the queue, and the window for competing with them.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    rounds: u32,
    since: Option<Instant>,
    /// The highest recent rate: usually that before the delay made it shrink.
    rate: f64,
    rate_at: Option<Instant>,
    cubic: Option<Cubic>,
    longest: Windowed,
    delay: Duration,
    /// At the end of the last round.
    round_delay: Duration,
    /// When a loss last counted.
    lost_at: Option<Instant>,
    test_at: Option<Instant>,
    /// Tests in succession that found the queue empty.
    empty: u32,
    /// When competition last ended, and with what window.
    left: Option<(Instant, u64)>,
}

impl Crowd {
    pub(super) fn new() -> Self {
        Self {
            rounds: 0,
            since: None,
            rate: 0.0,
            rate_at: None,
            cubic: None,
            longest: Windowed::max(PEAK_TIME),
            delay: Duration::ZERO,
            round_delay: Duration::ZERO,
            lost_at: None,
            test_at: None,
            empty: 0,
            left: None,
        }
    }

    /// Whether the window is CUBIC's.
    pub(super) fn is_found(&self) -> bool {
        self.cubic.is_some()
    }

    /// CUBIC's window.
    pub(super) fn window(&self) -> u64 {
        self.cubic.as_ref().map_or(0, Controller::window)
    }

    /// The window when competition ended, if that was recently.
    fn left_window(&self, now: Instant) -> Option<u64> {
        let (at, window) = self.left?;
        (now.saturating_duration_since(at) < SUSPICION).then_some(window)
    }

    /// The rate of the last call of [`Self::reference_rate`].
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// The highest recent rate, including this one. A flow that others have slowed down accepts a
    /// longer queue and would not see theirs.
    pub(super) fn reference_rate(&mut self, now: Instant, rate: f64) -> f64 {
        let is_old = self.rate_at.is_none_or(|at| now.saturating_duration_since(at) > RATE_TIME);
        if rate >= self.rate || (is_old && self.since.is_none() && self.left_window(now).is_none())
        {
            (self.rate, self.rate_at) = (rate, Some(now));
        }
        self.rate
    }

    /// Ends a round of this rate, round trip and delay; `usual` is the delay of this flow's own
    /// queue at [`Self::reference_rate`].
    pub(super) fn round(
        &mut self,
        now: Instant,
        (rate, rtt): (f64, Duration),
        (delay, usual): (Duration, Duration),
        mtu: u64,
    ) {
        let left = self.left_window(now);
        let (stands, (time, trips)) = match left {
            Some(_) => (STANDS_AGAIN, STANDS_TIME_AGAIN),
            None => (STANDS, STANDS_TIME),
        };
        if delay <= usual.mul_f64(stands) + STANDS_MORE {
            self.rounds = self.rounds.saturating_sub(STANDS_LEAK);
            if self.rounds == 0 {
                self.since = None;
            }
            return;
        }
        self.rounds += 1;
        let since = *self.since.get_or_insert(now);
        let time = (trips * rtt.saturating_sub(delay)).clamp(time, STANDS_TIME_MAX);
        let stood = now.saturating_duration_since(since);
        if stood >= time && (self.rounds >= STANDS_ROUNDS || stood >= STANDS_TIME_MAX) {
            let most = self.rate.max(rate) * rtt.as_secs_f64();
            let window = left.map_or(COMPETE_SHARE * most, |left| most.min(left as f64));
            self.start(now, window, mtu);
            self.longest = Windowed::max(PEAK_TIME);
            (self.test_at, self.empty) = (None, 0);
        }
    }

    /// Starts CUBIC with this window, as after a loss.
    fn start(&mut self, now: Instant, window: f64, mtu: u64) {
        let mut config = CubicConfig::default();
        config.initial_window((window / CUBIC_BETA) as u64);
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let mut cubic = Cubic::new(Arc::new(config), now, mtu);
        // Leave slow start.
        cubic.on_congestion_event(now, now, false, 0);
        self.cubic = Some(cubic);
    }

    /// Records the queue delay of a packet.
    pub(super) fn sample(&mut self, now: Instant, delay: Duration) {
        self.delay = delay;
        self.longest.insert(now, delay);
    }

    pub(super) fn acked(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        limited: bool,
        rtt: &RttEstimator,
    ) {
        if let Some(cubic) = &mut self.cubic {
            cubic.on_ack(now, sent, bytes, limited, rtt);
        }
    }

    pub(super) fn lost(&mut self, now: Instant, sent: Instant, persistent: bool, bytes: u64) {
        if let Some(cubic) = &mut self.cubic
            && self.delay >= self.longest.get().mul_f64(FULL_SHARE)
        {
            cubic.on_congestion_event(now, sent, persistent, bytes);
            self.lost_at = Some(now);
        }
    }

    /// Whether to test again that others keep the queue full, at the end of a round with this
    /// delay.
    pub(super) fn is_test_due(&mut self, now: Instant, floor: Duration, delay: Duration) -> bool {
        let interval = if self.empty == 0 { TEST_INTERVAL } else { CONFIRM_INTERVAL };
        let interval = interval.max(TEST_TRIPS * floor);
        let at = *self.test_at.get_or_insert_with(|| now + interval);
        let former = std::mem::replace(&mut self.round_delay, delay);
        let recent = RECENT_TRIPS * (floor + delay);
        let loses = self.lost_at.is_some_and(|lost| now.saturating_duration_since(lost) < recent);
        let joins = self.empty == 0
            && delay < former.mul_f64(FALL)
            && !loses
            && at < now + interval / JOIN_PART;
        self.cubic.is_some() && (at <= now || joins)
    }

    /// Ends a test that found the queue empty or not; returns whether nobody else fills it. If
    /// others may, CUBIC starts again from what the path `carries` without a queue: its window may
    /// have grown large against another flow of ours.
    pub(super) fn tested(&mut self, now: Instant, empty: bool, carries: f64, mtu: u64) -> bool {
        self.test_at = None;
        self.empty = if empty { self.empty + 1 } else { 0 };
        if self.empty < EMPTY_TESTS {
            if empty && carries < self.window() as f64 {
                self.start(now, carries, mtu);
            }
            return false;
        }
        (self.left, self.rate_at) = (Some((now, self.window())), Some(now));
        self.leave();
        true
    }

    pub(super) fn leave(&mut self) {
        (self.rounds, self.since, self.cubic) = (0, None, None);
    }
}

//! Detects competing flows that keep the queue full, and shares with them as CUBIC does (RFC 9438).
//!
//! A flow that keeps the queue short starves next to one that fills it. If the delay persists
//! although this flow's window would let the queue drain, the window is CUBIC's until a test finds
//! the queue empty again (like Copa's mode switch, NSDI 2018 section 4). Only losses near the
//! longest delay count, when the queue may have overflowed: others are taken as random.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, Cubic, CubicConfig},
};

use super::extremes::Windowed;

/// Rounds of standing delay despite a window that would let the queue drain, and their least
/// duration.
const ROUNDS: u32 = 6;
const TIME: Duration = Duration::from_millis(200);

/// Time between tests, also in round trips.
const TEST_INTERVAL: Duration = Duration::from_secs(6);
const TEST_ROUNDS: u32 = 24;

/// Share of this flow's rate before the others came that it starts competing with.
const SHARE: f64 = 0.8;

/// Share of what the path carries in its shortest round trip that a test leaves in flight.
pub(super) const TEST_SHARE: f64 = 0.5;

/// Time over which a full queue's delay is measured.
const PEAK_TIME: Duration = Duration::from_secs(5);

/// Losses at this share of the longest delay count.
const FULL: f64 = 0.75;

/// CUBIC's window after a loss (RFC 9438 4.6).
const CUBIC_BETA: f64 = 0.7;

/// Whether others fill the queue, and the window for competing with them.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    rounds: u32,
    since: Option<Instant>,
    /// The rate before the delay made it shrink.
    rate: f64,
    cubic: Option<Cubic>,
    longest: Windowed,
    delay: Duration,
    test_at: Option<Instant>,
}

impl Crowd {
    pub(super) fn new() -> Self {
        Self {
            rounds: 0,
            since: None,
            rate: 0.0,
            cubic: None,
            longest: Windowed::max(PEAK_TIME),
            delay: Duration::ZERO,
            test_at: None,
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

    /// Ends a round with this rate and round trip; returns whether the delay persisted although it
    /// should not have.
    pub(super) fn round(
        &mut self,
        now: Instant,
        stood: bool,
        (rate, rtt): (f64, Duration),
        mtu: u64,
    ) {
        if !stood {
            (self.rounds, self.since, self.rate) = (0, None, rate);
            return;
        }
        self.rounds += 1;
        let since = *self.since.get_or_insert(now);
        if self.rounds >= ROUNDS && now.saturating_duration_since(since) >= TIME {
            let window = SHARE * self.rate.max(rate) * rtt.as_secs_f64();
            let mut config = CubicConfig::default();
            config.initial_window((window / CUBIC_BETA) as u64);
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            let mut cubic = Cubic::new(Arc::new(config), now, mtu);
            // Leave slow start.
            cubic.on_congestion_event(now, now, false, 0);
            self.cubic = Some(cubic);
            self.longest = Windowed::max(PEAK_TIME);
            self.test_at = None;
        }
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
            && self.delay >= self.longest.get().mul_f64(FULL)
        {
            cubic.on_congestion_event(now, sent, persistent, bytes);
        }
    }

    /// Whether to test again that others keep the queue full.
    pub(super) fn is_test_due(&mut self, now: Instant, rtt: Duration) -> bool {
        let at = *self.test_at.get_or_insert_with(|| now + TEST_INTERVAL.max(TEST_ROUNDS * rtt));
        self.cubic.is_some() && at <= now
    }

    /// Ends a test; `empty` means that nobody else fills the queue.
    pub(super) fn tested(&mut self, empty: bool) {
        self.test_at = None;
        if empty {
            self.leave();
        }
    }

    pub(super) fn leave(&mut self) {
        (self.rounds, self.since, self.cubic) = (0, None, None);
    }
}

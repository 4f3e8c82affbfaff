//! What was measured in one round trip, by which the next window is set.

use std::time::{Duration, Instant};

use crate::constants::{FEW_SAMPLES, HEADER_BYTES, MANY_ACKS, ROUND_MIN};

/// Measurements of one round trip. Rates are in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) began: Instant,
    /// Samples with most of a window in flight, and what they show.
    pub(super) samples: u32,
    pub(super) rtt_min: Duration,
    rtt_sum: Duration,
    pub(super) rate: f64,
    rate_sum: f64,
    /// The least queueing delay of the forward path.
    pub(super) forward_min: Duration,
    /// Bytes acknowledged since the time beside it, and the highest rate of a part of the round.
    acked: (u64, Instant),
    pub(super) acked_rate: f64,
    /// Whether the window was used.
    pub(super) full: bool,
    /// Bytes sent: in all, and in pure ACKs.
    sent: u64,
    acks: u64,
}

impl Round {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            began,
            samples: 0,
            rtt_min: Duration::MAX,
            rtt_sum: Duration::ZERO,
            rate: 0.0,
            rate_sum: 0.0,
            forward_min: Duration::MAX,
            acked: (0, began),
            acked_rate: 0.0,
            full: false,
            sent: 0,
            acks: 0,
        }
    }

    /// Counts a packet, which is a pure ACK if it is not counted in flight.
    pub(super) fn sent(&mut self, bytes: u64, is_counted: bool) {
        let bytes = bytes + HEADER_BYTES;
        self.sent += bytes;
        self.acks += if is_counted { 0 } else { bytes };
    }

    /// Counts acknowledged bytes, in parts at least this long. Sending pauses when start-up's
    /// window is cut: the whole round's rate would be too low.
    pub(super) fn acked(&mut self, now: Instant, bytes: u64, part: Duration) {
        let (acked, since) = &mut self.acked;
        *acked += bytes;
        let elapsed = now.saturating_duration_since(*since);
        if elapsed >= part.max(ROUND_MIN) {
            self.acked_rate = self.acked_rate.max(*acked as f64 / elapsed.as_secs_f64());
            self.acked = (0, now);
        }
    }

    pub(super) fn sample(&mut self, rtt: Duration, rate: f64) {
        self.samples += 1;
        self.rtt_min = self.rtt_min.min(rtt);
        self.rtt_sum += rtt;
        self.rate = self.rate.max(rate);
        self.rate_sum += rate;
    }

    /// Takes the mean rate if samples are few. Not while packets are lost: the excess of the
    /// highest makes up for those.
    pub(super) fn settle_rate(&mut self) {
        if self.samples < FEW_SAMPLES {
            self.rate = self.rate_sum / f64::from(self.samples.max(1));
        }
    }

    pub(super) fn rtt_mean(&self) -> Duration {
        self.rtt_sum / self.samples.max(1)
    }

    pub(super) fn has_many_acks(&self, mtu: u64) -> bool {
        self.acks > mtu && MANY_ACKS * self.acks > self.sent
    }
}

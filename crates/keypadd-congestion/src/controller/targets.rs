//! Sets how long a path's queue is to be, which delays are those of an empty one, and the window
//! that follows.

use std::time::Duration;

use super::{RateController, round::Round};
use crate::constants::{
    EMPTY_PART, FEW_FLOWS_PACKETS, MEAN_NOISE, NEAR, PACKET_TIME_MAX, QUEUE_DELAY, QUEUE_DELAY_MAX,
    QUEUE_DELAY_MIN, QUEUE_DELAY_NEAR, QUEUE_RATE, RATE_MIN, RTT_NOISE, RTT_NOISE_PART,
    STANDS_TARGETS,
};

impl RateController {
    /// Bytes that the path carries in that time at this rate.
    pub(super) fn carried_bytes(&self, rate: f64) -> f64 {
        rate * self.path.base().as_secs_f64()
    }

    /// Target delay of the queue at this rate.
    pub(super) fn queue_delay(&self, rate: f64) -> Duration {
        let delay = QUEUE_DELAY * (QUEUE_RATE / rate.max(RATE_MIN)).sqrt().sqrt();
        let delay = delay.clamp(QUEUE_DELAY_MIN, QUEUE_DELAY_MAX);
        let least = if self.path.floor() < NEAR { QUEUE_DELAY_NEAR } else { 0.0 };
        // No less than a packet takes.
        let packet = (self.mtu as f64 / rate.max(RATE_MIN)).min(PACKET_TIME_MAX);
        Duration::from_secs_f64(delay.max(least).max(packet))
    }

    /// Target size of the queue at this rate, in bytes.
    pub(super) fn queue_bytes(&self, rate: f64) -> f64 {
        rate * self.queue_delay(rate).as_secs_f64()
    }

    /// The window that carries this rate and keeps the queue.
    pub(super) fn window_at(&self, rate: f64) -> f64 {
        self.carried_bytes(rate) + self.queue_bytes(rate)
    }

    /// Delays up to this are those of an empty queue.
    pub(super) fn empty_delay(&self, rate: f64) -> Duration {
        let target = self.queue_delay(rate);
        (target / EMPTY_PART).max(self.path.floor() / RTT_NOISE).min(target / RTT_NOISE_PART)
    }

    /// Whether packets of a long path waited in a queue on average. Bursts, as after many losses,
    /// leave it empty now and then, so that the least round trip does not show it.
    pub(super) fn is_mostly_queued(&self, round: &Round, target: Duration) -> bool {
        let mean = round.rtt_mean().saturating_sub(self.path.base());
        self.path.is_long()
            && mean > (STANDS_TARGETS * target).max(self.path.floor().mul_f64(MEAN_NOISE))
    }

    /// What is left of a delay without the queue that a few flows keep on a slow line.
    pub(super) fn avoidable(&self, delay: Duration) -> Duration {
        let least = (FEW_FLOWS_PACKETS * self.mtu) as f64 / self.suspicion.rate();
        let least = Duration::try_from_secs_f64(least).unwrap_or_default();
        delay.saturating_sub(least.saturating_sub(self.path.base()))
    }
}

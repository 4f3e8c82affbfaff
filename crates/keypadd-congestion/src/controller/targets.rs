//! Sets how long a path's queue is to be, which delays are those of an empty one, and the window that follows.

use std::time::Duration;

use super::{NEAR, RateController, round::Round};

/// Queue delay to keep at [`QUEUE_RATE`], in bytes per second (300 Mbit/s). It falls with the
/// fourth root of the rate: a flow with less than its share accepts a longer queue than one with
/// more, so that our flows converge.
const QUEUE_DELAY: f64 = 0.002;
const QUEUE_RATE: f64 = 37.5e6;
const QUEUE_DELAY_MIN: f64 = 0.001;
const QUEUE_DELAY_MAX: f64 = 0.010;

/// The least of it where threads that wait for a core look like a queue ([`NEAR`]).
const QUEUE_DELAY_NEAR: f64 = 0.004;

/// The longest time of a packet to allow for; slower lines are of no use.
const PACKET_TIME_MAX: f64 = 0.1;

/// Packets that a few flows may keep in flight on a slow line before each takes the others for some that fill the queue.
const FEW_FLOWS_PACKETS: u64 = 13;

/// The least round trip of a round varies by one part in this many without a queue.
const NOISE: u32 = 200;

/// The mean of a round's round trips varies by this share of the floor without a queue.
const MEAN_NOISE: f64 = 0.03;

impl RateController {
    /// Bytes that the path carries in that time at this rate.
    pub(super) fn carried_bytes(&self, rate: f64) -> f64 {
        rate * self.base().as_secs_f64()
    }

    /// Target delay of the queue at this rate.
    pub(super) fn queue_delay(&self, rate: f64) -> Duration {
        let delay = QUEUE_DELAY * (QUEUE_RATE / rate.max(1.0)).sqrt().sqrt();
        let delay = delay.clamp(QUEUE_DELAY_MIN, QUEUE_DELAY_MAX);
        let least = if self.floor() < NEAR { QUEUE_DELAY_NEAR } else { 0.0 };
        // No less than a packet takes.
        let packet = (self.mtu as f64 / rate.max(1.0)).min(PACKET_TIME_MAX);
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
        (target / 4).max(self.floor() / NOISE).min(target / 2)
    }

    /// Whether packets of a long path waited in a queue on average. Bursts, as after many losses, leave it
    /// empty now and then, so that the least round trip does not show it.
    pub(super) fn is_mostly_queued(&self, round: &Round, target: Duration) -> bool {
        let mean = round.rtt_mean().saturating_sub(self.base());
        self.is_long() && mean > (2 * target).max(self.floor().mul_f64(MEAN_NOISE))
    }

    /// What is left of a delay without the queue that a few flows keep on a slow line.
    pub(super) fn avoidable(&self, delay: Duration) -> Duration {
        let least = (FEW_FLOWS_PACKETS * self.mtu) as f64 / self.crowd.rate();
        let least = Duration::try_from_secs_f64(least).unwrap_or_default();
        delay.saturating_sub(least.saturating_sub(self.base()))
    }
}

//! Tells which part of a round trip is a queue of this flow: what its path takes without one, and
//! what the return path and held ACKs add. Knows delays, no window.

use std::time::{Duration, Instant};

use super::queues::Queues;
use crate::{
    ack_bursts::AckBursts,
    constants::{ACK_WAIT_SHARE, FLOOR_TIME, LONG_PATH, SMOOTHING},
    extremes::Windowed,
};

/// What round trips show of a path.
#[derive(Clone, Debug)]
pub(super) struct Path {
    shortest: Windowed,
    /// The recent mean; zero before the first round trip is known.
    pub(super) smoothed: Duration,
    pub(super) ack_bursts: AckBursts,
    pub(super) queues: Queues,
}

impl Path {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self {
            shortest: Windowed::min(FLOOR_TIME),
            smoothed: Duration::ZERO,
            ack_bursts: AckBursts::new(),
            queues: Queues::new(),
        }
    }

    pub(super) fn sample(&mut self, now: Instant, rtt: Duration) {
        self.shortest.insert(now, rtt);
        self.smoothed = match self.smoothed {
            Duration::ZERO => rtt,
            smoothed => ((SMOOTHING - 1) * smoothed + rtt) / SMOOTHING,
        };
    }

    /// Takes the shortest round trip as measured now.
    pub(super) fn keep_floor(&mut self, now: Instant) {
        self.shortest.insert(now, self.floor());
    }

    /// The shortest round trip.
    pub(super) fn floor(&self) -> Duration {
        self.shortest.get()
    }

    pub(super) fn is_long(&self) -> bool {
        self.floor() > LONG_PATH
    }

    /// The round trip without a queue on the forward path.
    pub(super) fn unqueued(&self) -> Duration {
        self.floor() + self.queues.back()
    }

    /// The round trip without a queue on the forward path, of packets whose ACKs wait longest.
    pub(super) fn base(&self) -> Duration {
        let floor = self.floor();
        self.unqueued() + self.ack_bursts.wait().mul_f64(ACK_WAIT_SHARE).min(floor)
    }

    /// The queueing delay of packets with this round trip, of which `forward` was on the forward
    /// path.
    pub(super) fn delay(&self, rtt: Duration, forward: Duration) -> Duration {
        self.queues.counted(rtt.saturating_sub(self.base()), forward)
    }
}

//! Tells the queueing delay of the return path from that of the forward path, by what the peer's
//! clock shows, so that a flow gives way to its own queue only. Knows delays, no window.

use std::time::{Duration, Instant};

use crate::constants::{BACK_STANDING, BACK_STANDING_MAX, BACK_VARYING_MAX, WAITS_TIME};

/// How long packets wait in queues on each way of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Of the last question on the forward path, above the least.
    pub forward: Duration,
    /// Of the last few answers on the return path the least, above the least of all.
    pub back: Duration,
    /// The least of the last few round trips less their wait on the forward path.
    pub round_trip: Duration,
}

/// What is known of the queues of both paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues {
    /// Queueing delay of the forward path; [`Duration::MAX`] where round trips show it.
    forward: Duration,
    /// Queueing delay of the return path to allow for.
    back: Duration,
    /// When they were last measured.
    measured: Option<Instant>,
}

impl Queues {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self { forward: Duration::MAX, back: Duration::ZERO, measured: None }
    }

    pub(super) fn forward(&self) -> Duration {
        self.forward
    }

    pub(super) fn back(&self) -> Duration {
        self.back
    }

    /// Takes a measurement. `least` is a round trip without a queue but this flow's least one;
    /// `None` if others may keep a queue, which could then not be told from one of the return path.
    pub(super) fn measure(&mut self, now: Instant, waits: Waits, least: Option<Duration>) {
        let stands = least.map(|least| waits.round_trip.saturating_sub(least));
        (self.forward, self.back) = match stands {
            Some(stands) if BACK_STANDING.contains(&stands) => {
                (waits.forward, stands.min(BACK_STANDING_MAX))
            }
            _ => (Duration::MAX, waits.back.min(BACK_VARYING_MAX)),
        };
        self.measured = Some(now);
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.measured.is_some_and(|at| now.saturating_duration_since(at) > WAITS_TIME) {
            *self = Self::new();
        }
    }

    /// How much of a delay above what is allowed for counts, if `forward` of it was on the forward
    /// path. What the return path takes beyond [`BACK_STANDING_MAX`] may be caused by this flow's
    /// ACKs.
    pub(super) fn counted(&self, delay: Duration, forward: Duration) -> Duration {
        let excess = (delay + self.back).saturating_sub(BACK_STANDING_MAX);
        delay.min(forward.max(excess))
    }
}

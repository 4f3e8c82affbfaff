//! Ends start-up at a queue (HyStart++, RFC 9406).

use std::time::{Duration, Instant};

use super::{RateController, mode::Mode, queues::Queues, round::Round};
use crate::constants::{DOUBLING, FULL_DELAY, NEAR, START_UP_SAMPLES};

impl RateController {
    /// Whether a packet with this round trip has waited so long that start-up must not send faster.
    /// Threads that wait for a core cause such delays too; a slow line's packets take longer than
    /// [`NEAR`].
    pub(super) fn waits_long(&self, rtt: Duration) -> bool {
        let floor = self.path.floor();
        floor >= NEAR
            && rtt.saturating_sub(self.path.queues.back()).saturating_sub(floor) > self.full_delay()
    }

    fn full_delay(&self) -> Duration {
        self.path.floor().max(FULL_DELAY)
    }

    /// Ends start-up by HyStart++ (RFC 9406) if all packets of a round have waited, and the rate is
    /// not what doubling predicts from a round trip ago. (RFC 9406 4.2 continues more slowly
    /// instead.) Without the second condition, delayed ACKs would look like a queue. A round of a
    /// slow line has too few samples: there it is enough that packets wait long, for a while.
    pub(super) fn leaves_start_up_on_delay(
        &mut self,
        now: Instant,
        rtt: Duration,
        rate_before: f64,
    ) -> bool {
        let (Mode::StartUp { waits_since }, Some(round)) = (&self.mode, self.round) else {
            return false;
        };
        let delay = round.rtt_min.saturating_sub(self.path.unqueued());
        let doubles = self.flight.rate > DOUBLING * rate_before;
        let all_wait = round.samples >= START_UP_SAMPLES
            && delay > self.queue_delay(round.rate)
            && (!doubles || delay > self.full_delay());
        let waits_since = self.waits_long(rtt).then(|| waits_since.unwrap_or(now));
        let is_full = |since| now.saturating_duration_since(since) >= FULL_DELAY;
        if !all_wait && !waits_since.is_some_and(is_full) {
            self.mode = Mode::StartUp { waits_since };
            return false;
        }
        self.mode = Mode::Settle;
        // The excess is being lost now if the queue is short.
        self.losses.settle();
        self.rate = round.rate;
        self.suspicion.reference_rate(now, round.rate);
        let carried = round.rate * self.path.unqueued().as_secs_f64();
        self.set_window(carried + self.queue_bytes(round.rate));
        self.round = Some(Round::new(now));
        self.path.queues = Queues::new();
        true
    }
}

//! Decides at the end of each round how large the window is next, and in which mode. Knows what was
//! measured in the round, not how.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{RateController, mode::Mode, round::Round};
use crate::{
    competition::Competition,
    constants::{
        ARRIVING_MIN, EFFECT_ROUNDS, GROWTH_MAX, HOLD_ROUNDS, HOLD_RTT_MIN, HOLD_TIME, LOSS_MEMORY,
        SHRINKAGE_MAX, STANDS_MORE, STANDS_TARGETS,
    },
    losses::Verdict,
};

impl RateController {
    pub(super) fn end_round(&mut self, now: Instant) {
        let Some(mut round) = self.round.replace(Round::new(now)) else { return };
        self.growth.end_round();
        if let Some(dip) = self.mode.dip_mut() {
            dip.rounds += 1;
            return;
        }
        if round.samples == 0 {
            return;
        }
        let loses = self.lost_at.is_some_and(|at| now.saturating_duration_since(at) < LOSS_MEMORY);
        if !self.mode.is_start_up() && !loses {
            round.settle_rate();
        }
        let delay = self.path.delay(round.rtt_min, round.forward_min);
        let target = self.queue_delay(round.rate);
        let former_rate = mem::replace(&mut self.rate, round.rate);
        if matches!(self.mode, Mode::Settle) {
            self.mode = Mode::Cruise;
            if round.full && round.acked_rate > 0.0 {
                self.settle(now, &round, delay);
                return;
            }
        }
        if self.mode.competes() {
            self.losses.forget();
            self.follow_competition();
            if self.is_test_due(now, delay) {
                // While another tests, this flow has more than its share.
                self.test(now, self.rate.min(former_rate), delay);
            }
            return;
        }
        let mut stands = delay > STANDS_TARGETS * target + STANDS_MORE;
        if !self.mode.is_start_up() {
            stands &= self.suspect(now, &round, delay);
        }
        if stands {
            self.losses.forget();
        } else if let Verdict::Cut { rate, share } =
            self.losses.round(round.rate, self.mtu, self.mode.is_start_up())
        {
            self.cut(rate, share);
            return;
        }
        if !self.mode.is_start_up() {
            self.follow(&round, delay, target, loses);
            self.drain_if_due(now);
        }
    }

    /// Takes the window that the round after start-up shows to be the path's.
    fn settle(&mut self, now: Instant, round: &Round, delay: Duration) {
        self.rate = round.acked_rate / (1.0 - self.losses.random_share()).max(ARRIVING_MIN);
        self.set_window(self.window_at(self.rate));
        self.growth.release(EFFECT_ROUNDS);
        // A policer keeps no queue.
        if delay > self.empty_delay(self.rate) {
            self.first_drain(now);
        }
        self.losses.settle();
    }

    /// Competes from now on if this round's delay shows that others keep the queue full. Returns
    /// whether any of it is avoidable.
    fn suspect(&mut self, now: Instant, round: &Round, delay: Duration) -> bool {
        let reference = self.suspicion.reference_rate(now, round.rate);
        let usual = self.queue_delay(reference);
        let mut avoidable = self.avoidable(delay.min(round.forward_min));
        if round.has_many_acks(self.mtu) {
            avoidable = Duration::ZERO;
        }
        let found = self.suspicion.round(now, (round.rate, round.rtt_min), (avoidable, usual));
        if let Some(window) = found {
            self.mode = Mode::Compete(Competition::new(now, window, self.mtu));
        }
        !avoidable.is_zero()
    }

    /// Reduces the window to this share: the path takes this rate.
    fn cut(&mut self, rate: f64, share: f64) {
        let mut window = self.window as f64 * share;
        if self.mode.is_start_up() {
            // It has doubled since what was lost was sent.
            window = window.min(self.window_at(rate));
            self.mode = Mode::Settle;
        }
        self.set_window(window);
        let rounds = HOLD_TIME.as_secs_f64() / self.path.smoothed.as_secs_f64().max(HOLD_RTT_MIN);
        self.growth.restart((rounds as u32).clamp(EFFECT_ROUNDS, HOLD_ROUNDS));
    }

    /// Follows the window that the round's rate and delay ask for.
    fn follow(&mut self, round: &Round, delay: Duration, target: Duration, loses: bool) {
        let window = self.window as f64;
        let carried = self.carried_bytes(round.rate);
        let queue = self.queue_bytes(round.rate);
        let is_quiet =
            delay <= self.empty_delay(round.rate) && !self.is_mostly_queued(round, target);
        if !is_quiet {
            self.growth.reset_step();
        }
        let mut next = carried + queue * self.growth.boost();
        next = next.clamp(SHRINKAGE_MAX * window, GROWTH_MAX * window);
        if is_quiet && round.full && !self.growth.is_held() {
            // A queue on the return path makes the rate, and `carried`, look too low, so the limit
            // is that of the window. Not while packets are lost: the window may be too large.
            let step =
                if loses { (GROWTH_MAX - 1.0) * window } else { GROWTH_MAX * window - carried };
            self.growth.enlarge_step(self.path.is_long(), step / queue);
        }
        let shrinks = next < window;
        if (shrinks && delay <= target) || (!shrinks && (!round.full || self.growth.is_held())) {
            return;
        }
        if is_quiet && next > window && self.path.is_long() {
            // Packets sent before this step do not show its effect.
            self.growth.hold(EFFECT_ROUNDS);
        }
        self.set_window(next);
    }
}

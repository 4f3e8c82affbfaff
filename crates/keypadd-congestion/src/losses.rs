//! Distinguishes congestion loss from random loss where delay does not: at policers and very short
//! queues.
//!
//! Sending faster than such a path carries brings more loss and no more data; random loss takes the
//! same share at any rate. So this compares loss rates at different sending rates: as the rate
//! grows by itself, and in trials at a lower rate after an unexplained rise in loss. Knows shares
//! and rates.

use crate::constants::{
    CUT_LEAST, CUT_MIN, FAR_GROWN, GROWN, LOSS_DEVIATIONS, LOSS_PACKETS_MIN, LOSS_RISE_MIN,
    LOSS_SHARE_MAX, LOSS_SMOOTHING, SETTLING_ROUNDS,
};

/// The verdict of an interval on the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing.
    Keep,
    /// Loss is congestion: the path takes this rate, in bytes per second, which is this share of
    /// the one that was sent.
    Cut { rate: f64, share: f64 },
}

/// A rate and a share of loss, measured together.
#[derive(Clone, Copy, Debug)]
struct Level {
    rate: f64,
    share: f64,
    packets: f64,
}

impl Level {
    fn delivered(self) -> f64 {
        self.rate * (1.0 - self.share)
    }

    /// Whether `self` lost more than `reference`, beyond chance.
    fn lost_more_than(self, reference: Self) -> bool {
        let share = (self.share + reference.share) / 2.0;
        let variance = share * (1.0 - share) * (1.0 / self.packets + 1.0 / reference.packets);
        self.share - reference.share > LOSS_RISE_MIN + LOSS_DEVIATIONS * variance.sqrt()
    }
}

/// Compares shares of loss.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    acked: u64,
    lost: u64,
    rate: f64,
    /// Rounds left whose losses are ignored.
    settling: u32,
    /// The level at which loss was not congestion.
    reference: Option<Level>,
    /// The loss that a trial has to explain.
    trial: Option<Level>,
    /// What a trial has found at the lower rate; the same must not happen at the former rate.
    found: Option<Level>,
    /// A rise at a higher rate that the next interval has to confirm.
    suspected: bool,
}

impl Losses {
    pub(super) fn acked(&mut self, bytes: u64) {
        self.acked += bytes;
    }

    pub(super) fn lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// The share of packets that are lost without congestion.
    pub(super) fn random_share(&self) -> f64 {
        self.reference.map_or(0.0, |reference| reference.share)
    }

    /// Whether the window must be reduced to [`TRIAL`](crate::constants::TRIAL).
    pub(super) fn is_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Ends a round with this sending rate; packets have `mtu` bytes. In start-up, where the rate
    /// doubles, a rise needs no confirmation.
    pub(super) fn round(&mut self, rate: f64, mtu: u64, is_start_up: bool) -> Verdict {
        if self.settling > 0 {
            self.settling -= 1;
            self.restart();
            return Verdict::Keep;
        }
        self.rate = self.rate.max(rate);
        let bytes = self.acked + self.lost;
        if bytes < LOSS_PACKETS_MIN * mtu || self.rate == 0.0 {
            return Verdict::Keep;
        }
        let share = self.lost as f64 / bytes as f64;
        let level = Level { rate: self.rate, share, packets: bytes as f64 / mtu as f64 };
        self.restart();
        self.judge(level, is_start_up)
    }

    fn judge(&mut self, level: Level, is_start_up: bool) -> Verdict {
        let Some(reference) = self.reference else {
            self.reference = Some(level);
            return Verdict::Keep;
        };
        if level.share > LOSS_SHARE_MAX && reference.share > LOSS_SHARE_MAX / 2.0 {
            self.forget();
            self.trial = None;
            return self.cut(level, Level { share: LOSS_SHARE_MAX / 2.0, ..reference }, CUT_MIN);
        }
        if let Some(before) = self.trial.take() {
            // Random loss takes the same share at the lower rate.
            if before.lost_more_than(level) {
                self.found = Some(level);
                self.settle();
            } else {
                self.reference = Some(before);
            }
            return Verdict::Keep;
        }
        if let Some(found) = self.found.take() {
            // A burst of losses, as of an end that was not scheduled, does not come back.
            return match level.lost_more_than(found) {
                true => self.cut(level, found, CUT_MIN),
                false => Verdict::Keep,
            };
        }
        let was_suspected = std::mem::take(&mut self.suspected);
        if level.lost_more_than(reference) {
            if level.rate <= GROWN * reference.rate {
                self.trial = Some(level);
                self.settle();
            } else if is_start_up {
                return self.cut(level, reference, CUT_LEAST);
            } else if was_suspected {
                return self.cut(level, reference, CUT_MIN);
            } else {
                self.suspected = true;
            }
        } else if level.rate <= GROWN * reference.rate || level.share <= reference.share {
            // A loss rate that rises with the sending rate, even within chance, does not become the
            // reference: at the next rate it may have risen further.
            let share = ((LOSS_SMOOTHING - 1.0) * reference.share + level.share) / LOSS_SMOOTHING;
            let share =
                if level.rate > reference.rate { share.min(reference.share) } else { share };
            self.reference = Some(Level { share, ..level });
        } else if level.rate > FAR_GROWN * reference.rate {
            self.reference = Some(level);
        }
        Verdict::Keep
    }

    /// The path carries what `level` delivered; at the reference's share of loss this rate
    /// suffices. Cuts to `least` of the rate at the most.
    fn cut(&mut self, level: Level, reference: Level, least: f64) -> Verdict {
        let rate = level.delivered() / (1.0 - reference.share).max(CUT_LEAST);
        let share = (rate / level.rate).clamp(least, 1.0);
        self.reference = Some(Level { rate: share * level.rate, ..reference });
        self.settle();
        Verdict::Cut { rate: share * level.rate, share }
    }

    /// Forgets what is undecided: the window follows something else.
    pub(super) fn forget(&mut self) {
        self.restart();
        (self.found, self.suspected) = (None, false);
    }

    /// Begins another interval.
    fn restart(&mut self) {
        (self.acked, self.lost, self.rate) = (0, 0, 0.0);
    }

    /// The window has changed: losses of the next rounds are of packets sent before.
    pub(super) fn settle(&mut self) {
        self.restart();
        self.settling = SETTLING_ROUNDS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::TRIAL;

    const MTU: u64 = 1_000;

    /// The verdict on a thousand packets sent at `rate`, of which this share was lost.
    fn round_of(losses: &mut Losses, rate: f64, share: f64, is_start_up: bool) -> Verdict {
        losses.lost((share * 1e6) as u64);
        losses.acked(((1.0 - share) * 1e6) as u64);
        losses.round(rate, MTU, is_start_up)
    }

    /// The verdict on such packets after start-up.
    fn round(losses: &mut Losses, rate: f64, share: f64) -> Verdict {
        round_of(losses, rate, share, false)
    }

    /// The verdict after start-up once the losses of a change are over.
    fn settled_round(losses: &mut Losses, rate: f64, share: f64) -> Verdict {
        for _ in 0..SETTLING_ROUNDS {
            assert_eq!(round(losses, rate, share), Verdict::Keep);
        }
        round(losses, rate, share)
    }

    #[test]
    fn loss_that_grows_with_the_rate_is_congestion() {
        let mut losses = Losses::default();
        assert_eq!(round_of(&mut losses, 100.0, 0.0, true), Verdict::Keep);
        let cut = Verdict::Cut { rate: 100.0, share: 0.5 };
        assert_eq!(round_of(&mut losses, 200.0, 0.5, true), cut);
        assert_eq!(settled_round(&mut losses, 100.0, 0.0), Verdict::Keep);
        assert_eq!(round(&mut losses, 125.0, 0.2), Verdict::Keep);
        assert_eq!(round(&mut losses, 125.0, 0.2), Verdict::Cut { rate: 100.0, share: 0.8 });
    }

    #[test]
    fn a_burst_of_losses_is_no_congestion_at_any_rate() {
        for rate in [100.0, 120.0] {
            let mut losses = Losses::default();
            round(&mut losses, 100.0, 0.0);
            assert_eq!(round(&mut losses, rate, 0.5), Verdict::Keep);
            if losses.is_trial() {
                assert_eq!(settled_round(&mut losses, TRIAL * rate, 0.0), Verdict::Keep);
                assert_eq!(settled_round(&mut losses, rate, 0.0), Verdict::Keep);
            }
            for _ in 0..4 {
                assert_eq!(round(&mut losses, rate, 0.0), Verdict::Keep);
                assert!(!losses.is_trial());
            }
        }
    }

    #[test]
    fn loss_of_any_rate_is_random() {
        let mut losses = Losses::default();
        for rate in [100.0, 200.0, 400.0, 400.0] {
            assert_eq!(round(&mut losses, rate, 0.2), Verdict::Keep);
            assert!(!losses.is_trial());
        }
    }

    #[test]
    fn a_path_that_goes_on_to_lose_more_than_half_is_sent_less() {
        let mut losses = Losses::default();
        assert_eq!(round(&mut losses, 100.0, 0.6), Verdict::Keep);
        let cut = Verdict::Cut { rate: 70.0, share: 0.7 };
        assert_eq!(round(&mut losses, 100.0, 0.6), cut);
    }

    #[test]
    fn loss_that_rises_for_no_reason_is_tried_at_a_lower_rate_and_again_at_the_former() {
        for share_in_trial in [0.1, 0.0] {
            let mut losses = Losses::default();
            round(&mut losses, 100.0, 0.0);
            assert_eq!(round(&mut losses, 100.0, 0.1), Verdict::Keep);
            assert!(losses.is_trial());
            assert_eq!(settled_round(&mut losses, TRIAL * 100.0, share_in_trial), Verdict::Keep);
            assert!(!losses.is_trial());
            let again = settled_round(&mut losses, 100.0, 0.1);
            let is_congestion = share_in_trial == 0.0;
            let cut = Verdict::Cut { rate: 90.0, share: 0.9 };
            assert_eq!(again, if is_congestion { cut } else { Verdict::Keep });
        }
    }
}

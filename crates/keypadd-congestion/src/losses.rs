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

    /// Loss of this share among this many packets.
    fn level(share: f64, packets: f64) -> Level {
        Level { rate: 100.0, share, packets }
    }

    #[test]
    fn a_rise_counts_beyond_three_deviations_of_both_shares_and_two_percent() {
        let more = |share, packets, before| level(share, packets).lost_more_than(before);
        // Three deviations are 4.5 % each time.
        assert!(!more(0.11, 1_000.0, level(0.05, 500.0)));
        assert!(more(0.1165, 1_000.0, level(0.05, 500.0)));
        // None among packets without end.
        let before = level(0.0, f64::INFINITY);
        assert!(!more(LOSS_RISE_MIN, f64::INFINITY, before));
        assert!(more(1.01 * LOSS_RISE_MIN, f64::INFINITY, before));
    }

    #[test]
    fn fewer_than_64_packets_and_packets_without_a_rate_say_nothing() {
        let mut losses = Losses::default();
        assert_eq!(losses.random_share(), 0.0);
        losses.lost(32 * MTU);
        losses.acked(31 * MTU);
        losses.round(100.0, MTU, false);
        assert!(losses.reference.is_none());
        losses.acked(MTU);
        losses.round(0.0, MTU, false);
        assert_eq!(losses.random_share(), 0.5, "of both rounds");

        let mut losses = Losses::default();
        losses.lost(1_000 * MTU);
        losses.round(0.0, MTU, false);
        assert!(losses.reference.is_none());
    }

    #[test]
    fn a_share_of_few_packets_rises_by_chance() {
        let mut losses = Losses::default();
        losses.acked(100 * MTU);
        losses.round(100.0, MTU, false);
        losses.acked(95 * MTU);
        losses.lost(5 * MTU);
        losses.round(100.0, MTU, false);
        assert!(!losses.is_trial());
    }

    #[test]
    fn more_than_half_lost_cuts_the_rate_where_more_than_a_quarter_was_before() {
        for (before, share, cuts) in
            [(0.3, 0.6, true), (0.2, 0.6, false), (0.25, 0.6, false), (0.3, 0.5, false)]
        {
            let mut losses = Losses::default();
            round(&mut losses, 100.0, before);
            let verdict = round(&mut losses, 100.0, share);
            assert_eq!(verdict != Verdict::Keep, cuts, "{before} {share}: {verdict:?}");
            assert_eq!(losses.is_trial(), !cuts);
        }
    }

    #[test]
    fn a_rise_at_nearly_the_same_rate_is_tried_and_at_a_higher_one_confirmed() {
        for (rate, is_tried) in [(103.9, true), (104.1, false)] {
            let mut losses = Losses::default();
            round(&mut losses, 100.0, 0.0);
            assert_eq!(round(&mut losses, rate, 0.2), Verdict::Keep);
            assert_eq!((losses.is_trial(), losses.suspected), (is_tried, !is_tried));
        }
    }

    #[test]
    fn the_reference_follows_losses_but_for_those_that_rise_with_the_rate() {
        for ((rate, share), reference) in [
            ((100.0, 0.12), (100.0, 0.105)),
            ((90.0, 0.06), (90.0, 0.09)),
            ((103.0, 0.12), (103.0, 0.1)),
            ((120.0, 0.08), (120.0, 0.095)),
            ((120.0, 0.12), (100.0, 0.1)),
            ((150.0, 0.12), (100.0, 0.1)),
            // Congestion would have shown.
            ((151.0, 0.12), (151.0, 0.12)),
        ] {
            let mut losses = Losses::default();
            round(&mut losses, 100.0, 0.1);
            assert_eq!(round(&mut losses, rate, share), Verdict::Keep);
            let found = losses.reference.expect("a reference");
            assert_eq!(found.rate, reference.0, "{rate} {share}");
            assert!((found.share - reference.1).abs() < 1e-9, "{rate} {share}: {found:?}");
        }
    }

    #[test]
    fn a_cut_leaves_the_rate_that_delivers_as_much_at_the_usual_loss() {
        let mut losses = Losses::default();
        round(&mut losses, 100.0, 0.2);
        assert_eq!(round(&mut losses, 125.0, 0.3), Verdict::Keep);
        let verdict = round(&mut losses, 125.0, 0.3);
        let Verdict::Cut { rate, share } = verdict else { panic!("{verdict:?}") };
        let reference = losses.reference.expect("a reference");
        // Of 125, seven tenths arrive; of this rate, eight.
        assert!((rate - 109.375).abs() < 1e-6 && (share - 0.875).abs() < 1e-6, "{verdict:?}");
        assert_eq!(reference.rate, rate);
        assert!((reference.share - 0.2).abs() < 1e-9, "{reference:?}");
    }

    #[test]
    fn what_is_undecided_when_the_window_follows_something_else_is_forgotten() {
        let mut losses = Losses::default();
        round(&mut losses, 100.0, 0.0);
        assert_eq!(round(&mut losses, 125.0, 0.2), Verdict::Keep);
        losses.lost(64 * MTU);
        losses.forget();
        assert_eq!(losses.round(125.0, MTU, false), Verdict::Keep, "no loss is left");
        assert_eq!(round(&mut losses, 125.0, 0.2), Verdict::Keep, "it is no second one");
    }
}

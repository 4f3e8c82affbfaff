//! Judges a ratio and its interval by a rule. Pure: sees only the figures, so contrary figures give
//! the contrary verdict.

use crate::results::{Estimate, Outcome, Verdict};

/// With fewer rounds, their range is too uncertain for a verdict.
pub const ROUNDS_MIN: usize = 3;

/// The limits that a claim sets on a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// At least the first and at most the second.
    Within(f64, f64),
}

impl Rule {
    /// Judges `claim` by `ratio`, which `figure` names: `ratio of medians`. Inconclusive without an
    /// interval, or while the limit lies inside it.
    pub fn judge(self, claim: &str, figure: &str, ratio: Option<&Estimate>) -> Verdict {
        let (outcome, because) = match ratio {
            None => (Outcome::CannotTell, "not measured".to_owned()),
            Some(Estimate { value, interval: None, .. }) => {
                (Outcome::CannotTell, format!("{figure} {value:.3}, from too few rounds to tell"))
            }
            Some(Estimate { value, interval: Some([low, high]), .. }) => {
                let because = format!("{figure} {value:.3}, 95 % interval {low:.3} to {high:.3}");
                (self.outcome(*low, *high), because)
            }
        };
        Verdict {
            claim: claim.to_owned(),
            rule: self.words(figure),
            outcome,
            because,
            beside: None,
        }
    }

    /// Judges by the range of this many rounds: holds if each of their figures is within the limits,
    /// and does not if each is outside. The least and the greatest figure are enough.
    pub fn judge_range(self, rounds: usize, figures: &[f64]) -> Outcome {
        let all = |outcome| figures.iter().all(|&it| self.outcome(it, it) == outcome);
        let judged = [Outcome::Holds, Outcome::DoesNotHold].into_iter().find(|it| all(*it));
        judged.filter(|_| rounds >= ROUNDS_MIN).unwrap_or(Outcome::CannotTell)
    }

    fn outcome(self, low: f64, high: f64) -> Outcome {
        let (holds, contradicted) = match self {
            Self::AtMost(limit) => (high <= limit, low > limit),
            Self::AtLeast(limit) => (low >= limit, high < limit),
            Self::Within(least, most) => (low >= least && high <= most, high < least || low > most),
        };
        match (holds, contradicted) {
            (true, _) => Outcome::Holds,
            (_, true) => Outcome::DoesNotHold,
            _ => Outcome::CannotTell,
        }
    }

    fn words(self, figure: &str) -> String {
        match self {
            Self::AtMost(limit) => format!(
                "Holds if the 95 % interval of the {figure} ends at {limit} or below; does not hold if it begins above."
            ),
            Self::AtLeast(limit) => format!(
                "Holds if the 95 % interval of the {figure} begins at {limit} or above; does not hold if it ends below."
            ),
            Self::Within(least, most) => format!(
                "Holds if the 95 % interval of the {figure} lies within {least} to {most}; does not hold if it lies outside."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(rule: Rule, low: f64, high: f64) -> Outcome {
        let value = f64::midpoint(low, high);
        let ratio = Estimate { value, interval: Some([low, high]), samples: Vec::new() };
        rule.judge("a claim", "ratio", Some(&ratio)).outcome
    }

    #[test]
    fn contrary_figures_give_the_contrary_verdict() {
        let at_most = Rule::AtMost(1.02);
        assert_eq!(outcome(at_most, 0.97, 1.01), Outcome::Holds);
        assert_eq!(outcome(at_most, 1.05, 1.09), Outcome::DoesNotHold);
        assert_eq!(outcome(at_most, 0.99, 1.05), Outcome::CannotTell);
        let at_least = Rule::AtLeast(1.1);
        assert_eq!(outcome(at_least, 1.2, 3.0), Outcome::Holds);
        assert_eq!(outcome(at_least, 0.9, 1.05), Outcome::DoesNotHold);
        assert_eq!(outcome(at_least, 1.0, 1.2), Outcome::CannotTell);
        let within = Rule::Within(0.9, 1.1);
        assert_eq!(outcome(within, 0.95, 1.05), Outcome::Holds);
        assert_eq!(outcome(within, 1.2, 1.3), Outcome::DoesNotHold);
        assert_eq!(outcome(within, 0.7, 0.8), Outcome::DoesNotHold);
        assert_eq!(outcome(within, 0.8, 1.0), Outcome::CannotTell);
    }

    #[test]
    fn a_range_is_judged_if_all_of_it_is_on_one_side_in_three_rounds() {
        for (rule, range, expected) in [
            (Rule::AtLeast(1.0), [1.0, 1.3], Outcome::Holds),
            (Rule::AtLeast(1.0), [0.8, 0.99], Outcome::DoesNotHold),
            (Rule::AtLeast(1.0), [0.99, 1.3], Outcome::CannotTell),
            (Rule::AtMost(0.6), [0.2, 0.6], Outcome::Holds),
            (Rule::AtMost(0.6), [0.61, 0.7], Outcome::DoesNotHold),
            (Rule::AtMost(0.6), [0.5, 0.7], Outcome::CannotTell),
        ] {
            assert_eq!(rule.judge_range(3, &range), expected, "{rule:?} {range:?}");
            assert_eq!(rule.judge_range(2, &range), Outcome::CannotTell);
        }
        assert_eq!(Rule::AtLeast(1.0).judge_range(3, &[f64::NAN; 3]), Outcome::CannotTell);
    }

    #[test]
    fn a_figure_without_an_interval_is_inconclusive() {
        let verdict = Rule::AtMost(1.02).judge("a claim", "ratio", Some(&Estimate::single(0.5)));
        assert_eq!(verdict.outcome, Outcome::CannotTell);
        assert!(verdict.because.contains("0.500"), "{}", verdict.because);
        let verdict = Rule::AtMost(1.02).judge("a claim", "ratio", None);
        assert_eq!(verdict.outcome, Outcome::CannotTell);
    }
}

//! Judges a figure and its interval by a rule. Pure: sees only the figures, so contrary figures give
//! the contrary verdict.

use crate::results::{Estimate, Outcome, Verdict};
use crate::sequence;

/// The limits that a claim sets on a figure.
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
    /// Judges `claim` by `estimate` of what `figure` names: `ratio of medians`. Inconclusive without
    /// an interval, or while a limit lies inside it; then says what would decide it.
    pub fn judge(self, claim: &str, figure: &str, estimate: Option<&Estimate>) -> Verdict {
        let because = match estimate {
            None => "not measured".to_owned(),
            Some(Estimate { value, interval: None, .. }) => {
                format!("{figure} {value:.3}, from too few rounds to tell")
            }
            Some(Estimate { value, interval: Some([low, high]), .. }) => {
                format!("{figure} {value:.3}, 95 % interval {low:.3} to {high:.3}")
            }
        };
        let outcome = self.outcome(estimate);
        let lacks = estimate.filter(|_| outcome == Outcome::CannotTell).map(|it| self.lacks(it));
        Verdict::new(claim, self.words(figure), outcome, because + &lacks.unwrap_or_default())
    }

    /// The outcome for an estimate.
    pub fn outcome(self, estimate: Option<&Estimate>) -> Outcome {
        let Some([low, high]) = estimate.and_then(|estimate| estimate.interval) else {
            return Outcome::CannotTell;
        };
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

    /// What it takes to decide.
    fn lacks(self, estimate: &Estimate) -> String {
        let from = |limit: f64| (estimate.value - limit).abs();
        let distance = match self {
            Self::AtMost(limit) | Self::AtLeast(limit) => from(limit),
            Self::Within(least, most) => from(least).min(from(most)),
        };
        match sequence::more_rounds(estimate, distance) {
            Some(rounds) => format!("; takes about {rounds} more rounds"),
            None => "; it is on its limit, and no number of rounds may tell".to_owned(),
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
        rule.outcome(Some(&ratio))
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
    fn a_figure_without_an_interval_is_inconclusive() {
        let verdict = Rule::AtMost(1.02).judge("a claim", "ratio", Some(&Estimate::single(0.5)));
        assert_eq!(verdict.outcome, Outcome::CannotTell);
        assert!(verdict.because.contains("0.500"), "{}", verdict.because);
        let verdict = Rule::AtMost(1.02).judge("a claim", "ratio", None);
        assert_eq!(verdict.outcome, Outcome::CannotTell);
    }

    #[test]
    fn an_open_verdict_says_what_would_decide_it() {
        let because = |value: f64, half: f64| {
            let interval = Some([value - half, value + half]);
            let estimate = Estimate { value, interval, samples: vec![value; 11] };
            Rule::AtMost(1.02).judge("a claim", "ratio", Some(&estimate)).because
        };
        assert!(
            because(1.0, 0.04).ends_with("; takes about 36 more rounds"),
            "{}",
            because(1.0, 0.04)
        );
        assert!(because(1.02, 0.04).ends_with("no number of rounds may tell"));
        assert!(because(1.0, 0.01).ends_with("0.990 to 1.010"), "{}", because(1.0, 0.01));
    }
}

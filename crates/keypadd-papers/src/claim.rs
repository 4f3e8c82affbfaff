//! A paper's claim: its ratio, where the paper has it, and the rule by which it is judged. Pure.

use keypadd_measure::results::{Beside, Estimate, Outcome, Verdict};
use keypadd_measure::verdict::Rule;

use super::lab::Missed;

/// One claim that one ratio decides.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// Its name within the paper: `L4`. Several may share it.
    name: &'static str,
    /// As a sentence.
    claim: String,
    /// What the ratio is of: `time of a key exchange, modp-1024 over secp384r1`.
    ratio: String,
    paper: Option<f64>,
    source: String,
    rule: Rule,
}

impl Claim {
    /// A claim of which the paper has no figure.
    pub(crate) fn new(name: &'static str, claim: &str, ratio: &str, rule: Rule) -> Self {
        let (claim, ratio) = (claim.to_owned(), ratio.to_owned());
        Self { name, claim, ratio, paper: None, source: String::new(), rule }
    }

    /// The ratio as the paper's figures have it, and where it has them.
    pub(crate) fn printed(self, ratio: f64, source: &str) -> Self {
        Self { paper: Some(ratio), source: source.to_owned(), ..self }
    }

    /// Judges it by today's ratio. `missed` says why there is none, or why it is from fewer rounds than
    /// were meant.
    pub(crate) fn judge(&self, today: Option<Estimate>, missed: Option<&Missed>) -> Verdict {
        let mut verdict = self.rule.judge(&self.claim, "ratio", today.as_ref());
        match (&today, missed) {
            (None, Some(missed)) => {
                verdict.outcome = match missed {
                    Missed::Lacking(_) => Outcome::CannotCompare,
                    Missed::NotReached
                    | Missed::OutOfTime
                    | Missed::NotInQuick
                    | Missed::Failed(_) => Outcome::NotRun,
                };
                verdict.because = missed.to_string();
            }
            (Some(_), Some(missed)) => {
                verdict.because =
                    format!("{}; of the rounds, some are missing: {missed}", verdict.because);
            }
            (_, None) => {}
        }
        verdict.beside = Some(Beside {
            name: self.name.to_owned(),
            ratio: self.ratio.clone(),
            paper: self.paper,
            source: self.source.clone(),
            today,
        });
        verdict
    }
}

/// Whether an effect survives: at least half of it, in the same direction. `paper` is its ratio; 1 would
/// be no effect.
pub(crate) fn half_of(paper: f64) -> Rule {
    // Three digits: a limit is read by people.
    let limit = ((1.0 + (paper - 1.0) / 2.0) * 1e3).round() / 1e3;
    match paper >= 1.0 {
        true => Rule::AtLeast(limit),
        false => Rule::AtMost(limit),
    }
}

/// Says which verdicts of a page are not those that were expected.
#[cfg(test)]
pub(crate) fn same_outcomes(section: &keypadd_measure::results::Section, expected: &[Outcome]) {
    let outcomes: Vec<Outcome> = section.verdicts.iter().map(|it| it.outcome).collect();
    let claims: Vec<_> =
        section.verdicts.iter().map(|it| (&it.claim, it.outcome, &it.because)).collect();
    assert_eq!(outcomes, expected, "{claims:#?}");
}

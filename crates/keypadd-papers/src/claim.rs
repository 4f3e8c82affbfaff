//! Defines a claim of a paper: statement, source, ratio, and the rule that judges it. Pure; knows
//! no paper.

use keypadd_measure::results::{Outcome, PaperComparison, Verdict};
use keypadd_measure::verdict::Rule;

use super::lab::{Missed, Today};

/// One row: a claim decided by one ratio. `F` is everything the paper's experiments
/// measure, `T` what a round of them measures by itself.
pub(crate) struct Claim<F, T> {
    /// Its name within the paper: `L4`. Several may share it.
    name: &'static str,
    /// As a sentence.
    claim: String,
    /// The ratio in words: `time of a key exchange, modp-1024 over secp384r1`.
    ratio: String,
    paper: Option<f64>,
    source: &'static str,
    rule: Rule,
    /// The tasks that decide it.
    pub(crate) needs: Vec<T>,
    today: Box<dyn Fn(&F) -> Today>,
}

impl<F, T> Claim<F, T> {
    /// A claim for which the paper has no figure.
    pub(crate) fn new(
        name: &'static str,
        claim: impl Into<String>,
        ratio: impl Into<String>,
        rule: Rule,
        needs: impl Into<Vec<T>>,
        today: impl Fn(&F) -> Today + 'static,
    ) -> Self {
        let (claim, ratio, today) = (claim.into(), ratio.into(), Box::new(today));
        Self { name, claim, ratio, paper: None, source: "", rule, needs: needs.into(), today }
    }

    /// A claim that this program cannot test, and why.
    pub(crate) fn lacking(name: &'static str, claim: &str, ratio: &str, why: &'static str) -> Self {
        let today = move |_: &F| (None, Some(Missed::Lacking(why.to_owned())));
        Self::new(name, claim, ratio, Rule::AtLeast(1.0), [], today)
    }

    /// Whether another round of its tasks can decide it, or, if `always`, is to be measured anyway.
    pub(crate) fn is_open(&self, figures: &F, always: bool) -> bool {
        let (today, missed) = (self.today)(figures);
        let is_decided = self.rule.outcome(today.as_ref()) != Outcome::CannotTell;
        missed.is_none() && (always || !is_decided)
    }

    /// The ratio from the paper's figures, and where they are.
    pub(crate) fn printed(self, ratio: f64, source: &'static str) -> Self {
        Self { paper: Some(ratio), source, ..self }
    }

    /// Where the paper shows it without a figure.
    pub(crate) fn shown(self, source: &'static str) -> Self {
        Self { source, ..self }
    }

    /// Its name, and where it is in the paper.
    #[cfg(test)]
    pub(crate) fn place(&self) -> (&'static str, &'static str) {
        (self.name, self.source)
    }

    /// Judges it by today's ratio, or says why there is none.
    fn judge(&self, figures: &F) -> Verdict {
        let (today, missed) = (self.today)(figures);
        let mut verdict = self.rule.judge(&self.claim, "ratio", today.as_ref());
        match (&today, missed) {
            (None, Some(missed)) => {
                verdict.outcome = match missed {
                    Missed::Lacking(_) => Outcome::CannotCompare,
                    Missed::NotReached
                    | Missed::OutOfTime
                    | Missed::NotInQuick
                    | Missed::Void
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
        verdict.beside = Some(PaperComparison {
            name: self.name.to_owned(),
            ratio: self.ratio.clone(),
            paper: self.paper,
            source: self.source.to_owned(),
            today,
        });
        verdict
    }
}

/// The verdicts on all claims of a paper.
pub(crate) fn judge<F, T>(claims: &[Claim<F, T>], figures: &F) -> Vec<Verdict> {
    claims.iter().map(|claim| claim.judge(figures)).collect()
}

/// Whether an effect survives: at least half of it, in the same direction. `paper` is its ratio; 1
/// means no effect.
pub(crate) fn half_of(paper: f64) -> Rule {
    // Three digits, because people read the limit.
    let limit = ((1.0 + (paper - 1.0) / 2.0) * 1e3).round() / 1e3;
    if paper >= 1.0 { Rule::AtLeast(limit) } else { Rule::AtMost(limit) }
}

/// Lists the verdicts of a page that differ from the expected ones.
#[cfg(test)]
pub(crate) fn same_outcomes(section: &keypadd_measure::results::Section, expected: &[Outcome]) {
    let outcomes: Vec<Outcome> = section.verdicts.iter().map(|it| it.outcome).collect();
    let claims: Vec<_> =
        section.verdicts.iter().map(|it| (&it.claim, it.outcome, &it.because)).collect();
    assert_eq!(outcomes, expected, "{claims:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Rounds;

    fn verdict(rounds: &Rounds<f64>) -> Verdict {
        let today = |it: &Rounds<f64>| it.ratio(|it| *it, |_| 1.0);
        Claim::new("X1", "It is twice as fast.", "rate", half_of(2.0), [()], today).judge(rounds)
    }

    #[test]
    fn a_claim_says_why_it_was_not_judged_and_what_its_rounds_lack() {
        for (missed, outcome) in [
            (Missed::OutOfTime, Outcome::NotRun),
            (Missed::Failed("no port".into()), Outcome::NotRun),
            (Missed::Lacking("needs root".into()), Outcome::CannotCompare),
        ] {
            let none = verdict(&Rounds { all: Vec::new(), missed: Some(missed.clone()) });
            assert_eq!((none.outcome, none.because), (outcome, missed.to_string()));
            let some = verdict(&Rounds { all: vec![2.0; 6], missed: Some(missed.clone()) });
            assert_eq!(some.outcome, Outcome::Holds);
            assert!(some.because.ends_with(&missed.to_string()), "{}", some.because);
        }
        let few = verdict(&Rounds { all: vec![2.0; 5], missed: None });
        assert_eq!(few.outcome, Outcome::CannotTell);
    }
}

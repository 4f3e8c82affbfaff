//! States the goals and judges an arm by them.
//!
//! The table below is the only place that holds limits. A verdict follows from the range of the
//! rounds' ratios, not from their median alone. Pure: knows no output.

use std::fmt;

use crate::figures::{Base, Figure, Round, Span, ratio};

/// With fewer rounds, their range is too uncertain for a verdict.
pub(crate) const ROUNDS_MIN: usize = 3;

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// A named limit on the ratio of a figure to a base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    figure: Figure,
    base: Base<'static>,
    pub(crate) limit: Limit,
}

/// All goals, in the order of the report.
pub(crate) const GOALS: [Goal; 16] = {
    use Base::{Arm, BetterPeer, One, OwnIdle};
    use Figure as F;
    use Limit::{AtLeast, AtMost};
    const fn goal(name: &'static str, figure: Figure, base: Base<'static>, limit: Limit) -> Goal {
        Goal { name, figure, base, limit }
    }
    [
        goal("bulk download / faster of ssh, stunnel", F::BulkDown, BetterPeer, AtLeast(1.0)),
        goal("bulk upload / faster of ssh, stunnel", F::BulkUp, BetterPeer, AtLeast(1.0)),
        goal("bulk mean / faster of ssh, stunnel", F::BulkMean, BetterPeer, AtLeast(1.0)),
        goal("CPU s/GB download / ssh", F::CpuDown, Arm("ssh"), AtMost(1.0)),
        goal("CPU s/GB upload / ssh", F::CpuUp, Arm("ssh"), AtMost(1.0)),
        goal("CPU s/GB both / ssh", F::CpuMean, Arm("ssh"), AtMost(1.0)),
        goal("RTT 128 B p50 / better of ssh, stunnel", F::SmallP50, BetterPeer, AtMost(0.6)),
        goal("RTT 1 KiB p50 / better of ssh, stunnel", F::LargeP50, BetterPeer, AtMost(0.6)),
        goal("RTT beside download p50 / own idle p50", F::BesideDownP50, OwnIdle, AtMost(2.0)),
        goal("RTT beside upload p50 / own idle p50", F::BesideUpP50, OwnIdle, AtMost(2.0)),
        goal("RTT beside download p99 / stunnel", F::BesideDownP99, Arm("stunnel"), AtMost(1.0)),
        goal("RTT beside upload p99 / stunnel", F::BesideUpP99, Arm("stunnel"), AtMost(1.0)),
        goal("download beside RTT / alone", F::KeptDown, One, AtLeast(0.85)),
        goal("upload beside RTT / alone", F::KeptUp, One, AtLeast(0.85)),
        goal("download beside paced RTT / alone", F::KeptPacedDown, One, AtLeast(0.85)),
        goal("upload beside paced RTT / alone", F::KeptPacedUp, One, AtLeast(0.85)),
    ]
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every round is on the right side of the limit.
    Holds,
    /// Every round is on the wrong side.
    Fails,
    /// The rounds straddle the limit, or there are too few.
    Inconclusive,
}

impl Goal {
    /// The rounds' ratios, and the verdict. No ratios if a required arm has not run.
    pub(crate) fn judge(&self, rounds: &[Round], arm: &str) -> (Option<Span>, Verdict) {
        let span = ratio(rounds, arm, self.figure, self.base);
        (span, span.map_or(Verdict::Inconclusive, |span| self.limit.judge(span)))
    }
}

impl Limit {
    fn judge(self, span: Span) -> Verdict {
        let (all, none) = match self {
            Self::AtLeast(limit) => (span.min >= limit, span.max < limit),
            Self::AtMost(limit) => (span.max <= limit, span.min > limit),
        };
        match (span.count < ROUNDS_MIN, all, none) {
            (false, true, _) => Verdict::Holds,
            (false, _, true) => Verdict::Fails,
            _ => Verdict::Inconclusive,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
            Self::AtMost(limit) => write!(f, "<= {limit}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "HOLDS",
            Self::Fails => "FAILS",
            Self::Inconclusive => "INCONCLUSIVE",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::round;

    fn span(min: f64, max: f64, count: usize) -> Span {
        Span { median: (min + max) / 2.0, min, max, count }
    }

    #[test]
    fn verdict_follows_from_the_range_of_rounds() {
        for (limit, range, expected) in [
            (Limit::AtLeast(1.0), (1.0, 1.3), Verdict::Holds),
            (Limit::AtLeast(1.0), (0.8, 0.99), Verdict::Fails),
            (Limit::AtLeast(1.0), (0.99, 1.3), Verdict::Inconclusive),
            (Limit::AtMost(0.6), (0.2, 0.6), Verdict::Holds),
            (Limit::AtMost(0.6), (0.61, 0.7), Verdict::Fails),
            (Limit::AtMost(0.6), (0.5, 0.7), Verdict::Inconclusive),
        ] {
            assert_eq!(limit.judge(span(range.0, range.1, 3)), expected, "{limit} {range:?}");
        }
    }

    #[test]
    fn two_rounds_are_too_few_for_a_verdict() {
        assert_eq!(Limit::AtLeast(1.0).judge(span(2.0, 2.0, 2)), Verdict::Inconclusive);
    }

    #[test]
    fn goals_are_judged_for_any_arm_and_need_their_peers() {
        let all = [("ssh", 1.0, 100.0), ("stunnel", 2.0, 80.0), ("variant", 4.0, 40.0)];
        let rounds = vec![round(&all); 3];
        let verdicts = |rounds: &[Round]| GOALS.map(|goal| goal.judge(rounds, "variant").1);
        let holds = verdicts(&rounds).iter().filter(|it| **it == Verdict::Holds).count();
        // All but the two beside bulk: four times the idle round trip.
        assert_eq!(holds, GOALS.len() - 2);
        let alone = vec![round(&all[2..]); 3];
        let open = verdicts(&alone).iter().filter(|it| **it == Verdict::Inconclusive).count();
        assert_eq!(open, GOALS.len() - 6);
    }
}

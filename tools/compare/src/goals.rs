//! States the goals and judges an arm by them.
//!
//! The table below is the only place that holds limits. A verdict follows from the interval of the
//! rounds' ratios, not from their middle alone. Pure: knows no output.

use keypadd_measure::results::{Estimate, Outcome};
use keypadd_measure::sequence;
use keypadd_measure::verdict::Rule;

use crate::figures::*;

/// A named limit on the ratio of a figure to a base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    figure: Figure,
    base: Base<'static>,
    pub(crate) limit: Rule,
}

/// All goals, in the order of the report.
pub(crate) const GOALS: [Goal; 16] = {
    use Base::{Arm, BetterPeer, One, OwnIdle};
    use Rule::{AtLeast, AtMost};
    const fn goal(name: &'static str, figure: Figure, base: Base<'static>, limit: Rule) -> Goal {
        Goal { name, figure, base, limit }
    }
    [
        goal("bulk download / faster of ssh, stunnel", BULK_DOWN, BetterPeer, AtLeast(1.0)),
        goal("bulk upload / faster of ssh, stunnel", BULK_UP, BetterPeer, AtLeast(1.0)),
        goal("bulk mean / faster of ssh, stunnel", BULK_MEAN, BetterPeer, AtLeast(1.0)),
        goal("CPU s/GB download / ssh", CPU_DOWN, Arm("ssh"), AtMost(1.0)),
        goal("CPU s/GB upload / ssh", CPU_UP, Arm("ssh"), AtMost(1.0)),
        goal("CPU s/GB both / ssh", CPU_BOTH, Arm("ssh"), AtMost(1.0)),
        goal("RTT 128 B p50 / better of ssh, stunnel", SMALL_P50, BetterPeer, AtMost(0.6)),
        goal("RTT 1 KiB p50 / better of ssh, stunnel", LARGE_P50, BetterPeer, AtMost(0.6)),
        goal("RTT beside download p50 / own idle p50", BESIDE_DOWN_P50, OwnIdle, AtMost(2.0)),
        goal("RTT beside upload p50 / own idle p50", BESIDE_UP_P50, OwnIdle, AtMost(2.0)),
        goal("RTT beside download p99 / stunnel", BESIDE_DOWN_P99, Arm("stunnel"), AtMost(1.0)),
        goal("RTT beside upload p99 / stunnel", BESIDE_UP_P99, Arm("stunnel"), AtMost(1.0)),
        goal("download beside RTT / alone", KEPT_DOWN, One, AtLeast(0.85)),
        goal("upload beside RTT / alone", KEPT_UP, One, AtLeast(0.85)),
        goal("download beside paced RTT / alone", KEPT_PACED_DOWN, One, AtLeast(0.85)),
        goal("upload beside paced RTT / alone", KEPT_PACED_UP, One, AtLeast(0.85)),
    ]
};

impl Goal {
    /// The ratio over all rounds, and the verdict. No ratio if a required arm has not run.
    pub(crate) fn judge(&self, rounds: &[Round], arm: &str) -> (Option<Estimate>, Outcome) {
        let ratio = sequence::of_ratios(ratios(rounds, arm, self.figure, self.base));
        let outcome = self.limit.outcome(ratio.as_ref());
        (ratio, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::round;

    #[test]
    fn goals_are_judged_for_any_arm_and_need_their_peers() {
        let all = [("ssh", 1.0, 100.0), ("stunnel", 2.0, 80.0), ("variant", 4.0, 40.0)];
        let rounds = vec![round(&all); 6];
        let verdicts = |rounds: &[Round]| GOALS.map(|goal| goal.judge(rounds, "variant").1);
        let holds = verdicts(&rounds).iter().filter(|it| **it == Outcome::Holds).count();
        // All but the two beside bulk: four times the idle round trip.
        assert_eq!(holds, GOALS.len() - 2);
        let alone = vec![round(&all[2..]); 6];
        let open = verdicts(&alone).iter().filter(|it| **it == Outcome::CannotTell).count();
        assert_eq!(open, GOALS.len() - 6);
    }
}

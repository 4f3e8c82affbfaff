//! States the goals and judges keypadd by them. The only place that holds limits.
//!
//! A verdict follows from the interval over rounds, not from their middle alone, and every case of a
//! goal counts. Pure: knows no output.

use testbed::End;

use super::Paths;
use super::arms::{DEFAULT, TRIPLE_DES};
use super::cases::PathCase;
use super::sample::{Sample, Taken};
use crate::results::{Estimate, Outcome, Verdict};
use crate::sequence::{MIN_ROUNDS, center};
use crate::verdict::Rule;

/// Up to this loss bulk should lose next to nothing, up to the next one little.
const LOSS_MILD: f64 = 10.0;
const LOSS_HEAVY: f64 = 20.0;

/// Up to this loss a keystroke should wait for no more than one recovery.
const LOSS_PROMPT: f64 = 2.0;

/// How long a keystroke may wait during bulk on a clean line, besides two full packets.
const PROMPT_MS: f64 = 5.0;

/// What it may wait for one recovery, in round trips.
const RECOVERY_ROUND_TRIPS: f64 = 1.5;

/// One goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Mild,
    Heavy,
    Ahead,
    Clean,
    Recovered,
    BothWays,
}

const GOALS: [Goal; 6] =
    [Goal::Mild, Goal::Heavy, Goal::Ahead, Goal::Clean, Goal::Recovered, Goal::BothWays];

impl Goal {
    /// The claim about an arm on a line.
    fn claim(self) -> &'static str {
        match self {
            Self::Mild => "at up to 10 % loss bulk gets 0.97 of what the line can deliver",
            Self::Heavy => "at 20 % loss bulk gets 0.9 of what the line can deliver",
            Self::Ahead => "wherever there is loss bulk is ahead of every peer",
            Self::Clean => {
                "without loss the p99 of a small message beside bulk is within the round trip, 5 ms and two full packets"
            }
            Self::Recovered => {
                "at up to 2 % loss the p99 of a small message beside bulk is within 2.5 round trips"
            }
            Self::BothWays => "bulk both ways gets 0.9 of one way in each direction",
        }
    }

    /// The figure that the rule judges.
    fn figure(self) -> &'static str {
        match self {
            Self::Mild | Self::Heavy => "bulk over what the line can deliver",
            Self::Ahead => "bulk over the best peer's in its round",
            Self::Clean | Self::Recovered => "p99 in ms",
            Self::BothWays => "the slower direction over one way in its round",
        }
    }

    /// The limit for a case; none if the goal does not apply to it.
    fn limit(self, case: &PathCase) -> Option<Rule> {
        let (loss, rtt_ms) = (case.loss_percent, case.rtt.as_secs_f64() * 1e3);
        let one_way = !case.two_way;
        let limit = match self {
            Self::Mild => (one_way && loss <= LOSS_MILD, Rule::AtLeast(0.97)),
            Self::Heavy => (one_way && loss > LOSS_MILD && loss <= LOSS_HEAVY, Rule::AtLeast(0.9)),
            Self::Ahead => (one_way && loss > 0.0, Rule::AtLeast(1.0)),
            Self::Clean => {
                (one_way && loss == 0.0, Rule::AtMost(rtt_ms + PROMPT_MS + case.two_packets_ms()))
            }
            Self::Recovered => {
                let limit = Rule::AtMost(rtt_ms * (1.0 + RECOVERY_ROUND_TRIPS));
                (one_way && loss > 0.0 && loss <= LOSS_PROMPT, limit)
            }
            Self::BothWays => (case.two_way && case.mbit.is_even(), Rule::AtLeast(0.9)),
        };
        limit.0.then_some(limit.1)
    }

    /// The figure of one sample; none if what it is compared with is missing. A failed sample
    /// counts as the worst.
    fn of(self, paths: &Paths, taken: &[Taken], one: &Taken) -> Option<f64> {
        let case = &paths.cases[one.case];
        let same_round = |it: &&Taken| it.round == one.round;
        let down = |sample: &Sample| sample.down_mbit.unwrap_or(0.0);
        let own = down(&one.sample);
        match self {
            Self::Mild | Self::Heavy => Some(own / case.deliverable_mbit(End::Far)),
            Self::Ahead => {
                let peers = taken.iter().filter(same_round);
                let peers = peers.filter(|it| it.case == one.case && paths.arms[it.arm].is_peer);
                peers.map(|it| down(&it.sample)).reduce(f64::max).map(|best| own / best)
            }
            Self::Clean | Self::Recovered => Some(one.sample.p99_ms.unwrap_or(f64::INFINITY)),
            Self::BothWays => {
                let one_way = PathCase { two_way: false, ..*case };
                let mut alone = taken.iter().filter(same_round);
                let alone =
                    alone.find(|it| it.arm == one.arm && paths.cases[it.case] == one_way)?;
                Some(own.min(one.sample.up_mbit.unwrap_or(0.0)) / down(&alone.sample))
            }
        }
    }
}

/// Verdicts on all goals that apply to the cases, for each line and each judged arm.
pub(super) fn verdicts(paths: &Paths, taken: &[Taken]) -> Vec<Verdict> {
    let lines = super::lines::lines(paths);
    let is_judged = |name: &str| name == DEFAULT || name == TRIPLE_DES;
    let mut verdicts = Vec::new();
    for (arm, of_arm) in paths.arms.iter().enumerate().filter(|(_, arm)| is_judged(arm.name())) {
        for line in &lines {
            for goal in GOALS {
                let cases: Vec<(usize, Rule)> = paths
                    .cases
                    .iter()
                    .enumerate()
                    .filter(|(_, case)| case.line() == *line)
                    .filter_map(|(index, case)| Some((index, goal.limit(case)?)))
                    .collect();
                if !cases.is_empty() {
                    let claim = format!("{}, {line}: {}", of_arm.name(), goal.claim());
                    verdicts.push(judge(paths, taken, arm, goal, &cases, claim));
                }
            }
        }
    }
    verdicts
}

fn judge(
    paths: &Paths,
    taken: &[Taken],
    arm: usize,
    goal: Goal,
    cases: &[(usize, Rule)],
    claim: String,
) -> Verdict {
    let mut outcomes = Vec::new();
    let mut because = Vec::new();
    for &(case, limit) in cases {
        let of_case = taken.iter().filter(|it| it.arm == arm && it.case == case);
        let values: Vec<f64> = of_case.filter_map(|it| goal.of(paths, taken, it)).collect();
        let figure = center(&values);
        outcomes.push(limit.outcome(figure.as_ref()));
        because.push(format!("{}: {}", paths.cases[case].column(), words(figure)));
    }
    let outcome = if outcomes.contains(&Outcome::DoesNotHold) {
        Outcome::DoesNotHold
    } else if outcomes.iter().all(|it| *it == Outcome::Holds) {
        Outcome::Holds
    } else {
        Outcome::CannotTell
    };
    let limits: Vec<Rule> = cases.iter().map(|(_, limit)| *limit).collect();
    Verdict { claim, rule: rule(goal, &limits), outcome, because: because.join("; "), beside: None }
}

fn rule(goal: Goal, limits: &[Rule]) -> String {
    let side = match limits.first() {
        Some(Rule::AtLeast(limit)) => format!("{limit} or above"),
        Some(Rule::AtMost(limit)) => format!("{limit:.1} or below"),
        Some(Rule::Within(..)) | None => String::new(),
    };
    format!(
        "Holds if in every case the 95 % interval of {} is at {side}; does not hold if in some case it is on the \
         other side; needs {MIN_ROUNDS} rounds.",
        goal.figure()
    )
}

/// An estimate and its interval.
fn words(figure: Option<Estimate>) -> String {
    let Some(Estimate { value, interval, samples }) = figure else { return "not measured".into() };
    match (interval, samples.len()) {
        (Some([low, high]), rounds) => {
            format!("{value:.3} ({low:.3} to {high:.3}, {rounds} rounds)")
        }
        (None, 1) => format!("{value:.3} in one round"),
        (None, rounds) => format!("{value:.3} in {rounds} rounds"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use testbed::line::LossPlace;

    use super::super::arms::PathArms;
    use super::super::cases::PathCases;
    use super::*;

    fn paths() -> Paths {
        let names = ["keypadd", "tcp-bbr"].map(str::to_owned).to_vec();
        let arms = PathArms { names, extra: Vec::new() }.read(Path::new("/k")).unwrap();
        let cases = PathCases {
            mbits: vec![crate::LineRate::both(300)],
            rtts: vec![Duration::from_millis(20)],
            losses: vec![0.0, 2.0, 20.0],
            loss_place: LossPlace::default(),
            two_way: true,
        };
        Paths { arms, cases: cases.all(), time: Duration::ZERO, rounds: 6, seed: 1 }
    }

    /// Six rounds of everything: bulk of keypadd and of its peer, and keypadd's p99.
    fn taken(paths: &Paths, own: f64, peer: f64, p99_ms: f64) -> Vec<Taken> {
        let mut taken = Vec::new();
        for round in 0..6 {
            for case in 0..paths.cases.len() {
                for (arm, mbit) in [(0, own), (1, peer)] {
                    let sample = Sample {
                        down_mbit: Some(mbit),
                        up_mbit: Some(mbit * 0.95),
                        p99_ms: Some(p99_ms),
                        ..Sample::default()
                    };
                    taken.push(Taken { case, arm, round, sample });
                }
            }
        }
        taken
    }

    fn outcomes(paths: &Paths, taken: &[Taken]) -> Vec<Outcome> {
        verdicts(paths, taken).iter().map(|it| it.outcome).collect()
    }

    #[test]
    fn contrary_figures_give_the_contrary_verdicts() {
        let paths = paths();
        assert_eq!(outcomes(&paths, &taken(&paths, 285.0, 100.0, 24.0)), [Outcome::Holds; 6]);
        let mut bad = taken(&paths, 100.0, 200.0, 70.0);
        bad.iter_mut().for_each(|it| it.sample.up_mbit = Some(50.0));
        assert_eq!(outcomes(&paths, &bad), [Outcome::DoesNotHold; 6]);
    }

    #[test]
    fn one_round_or_rounds_on_both_sides_of_the_limit_cannot_tell() {
        let paths = paths();
        let mut mixed = taken(&paths, 285.0, 100.0, 24.0);
        let alone: Vec<Taken> = mixed.iter().filter(|it| it.round == 0).cloned().collect();
        assert_eq!(outcomes(&paths, &alone), [Outcome::CannotTell; 6]);
        mixed[0].sample.down_mbit = Some(200.0);
        assert_eq!(outcomes(&paths, &mixed)[0], Outcome::CannotTell);
    }

    #[test]
    fn what_failed_counts_as_the_worst() {
        let paths = paths();
        let mut failed = taken(&paths, 285.0, 100.0, 24.0);
        for it in failed.iter_mut().filter(|it| it.arm == 0) {
            it.sample = Sample::failed("it did not come up".into());
        }
        let outcomes = outcomes(&paths, &failed);
        assert_eq!(outcomes[..5], [Outcome::DoesNotHold; 5]);
    }

    #[test]
    fn rules_name_their_limits() {
        let paths = paths();
        let rules: Vec<String> = verdicts(&paths, &[]).into_iter().map(|it| it.rule).collect();
        for (rule, part) in
            rules.iter().zip(["0.97 or above", "0.9 or", "1 or", "25.1 or below", "50.0 or"])
        {
            assert!(rule.contains(part), "{part}: {rule}");
        }
    }
}

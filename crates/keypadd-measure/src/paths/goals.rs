//! States the goals and judges keypadd by them. The only place that holds limits.
//!
//! A verdict follows from the interval over rounds, not from their middle alone, and every case of a
//! goal counts. Pure: knows no output.

use std::ops::RangeToInclusive;

use testbed::End;

use super::Paths;
use super::arms::{DEFAULT, TRIPLE_DES};
use super::cases::PathCase;
use super::sample::Taken;
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

/// One goal: a claim about an arm on a line.
struct Goal {
    claim: &'static str,
    /// The figure that the rule judges.
    figure: &'static str,
    /// The limit for a case; none if the goal does not apply to it.
    limit: fn(&PathCase) -> Option<Rule>,
    of: FigureOf,
}

/// The figure of one sample; none if what it is compared with is missing. A failed sample counts as
/// the worst.
type FigureOf = fn(&Paths, &[Taken], &Taken) -> Option<f64>;

const GOALS: [Goal; 6] = [
    Goal {
        claim: "at up to 10 % loss bulk gets 0.97 of what the line can deliver",
        figure: "bulk over what the line can deliver",
        limit: |case| one_way(case, ..=LOSS_MILD).then_some(Rule::AtLeast(0.97)),
        of: over_deliverable,
    },
    Goal {
        claim: "at 20 % loss bulk gets 0.9 of what the line can deliver",
        figure: "bulk over what the line can deliver",
        limit: |case| {
            let is_heavy = case.loss_percent > LOSS_MILD && one_way(case, ..=LOSS_HEAVY);
            is_heavy.then_some(Rule::AtLeast(0.9))
        },
        of: over_deliverable,
    },
    Goal {
        claim: "wherever there is loss bulk is ahead of every peer",
        figure: "bulk over the best peer's in its round",
        limit: |case| (case.loss_percent > 0.0 && !case.two_way).then_some(Rule::AtLeast(1.0)),
        of: over_peers,
    },
    Goal {
        claim: "without loss the p99 of a small message beside bulk is within the round trip, 5 ms and two \
                full packets",
        figure: "p99 in ms",
        limit: |case| {
            let limit = Rule::AtMost(rtt_ms(case) + PROMPT_MS + case.two_packets_ms());
            one_way(case, ..=0.0).then_some(limit)
        },
        of: p99,
    },
    Goal {
        claim: "at up to 2 % loss the p99 of a small message beside bulk is within 2.5 round trips",
        figure: "p99 in ms",
        limit: |case| {
            let limit = Rule::AtMost(rtt_ms(case) * (1.0 + RECOVERY_ROUND_TRIPS));
            (case.loss_percent > 0.0 && one_way(case, ..=LOSS_PROMPT)).then_some(limit)
        },
        of: p99,
    },
    Goal {
        claim: "bulk both ways gets 0.9 of one way in each direction",
        figure: "the slower direction over one way in its round",
        limit: |case| (case.two_way && case.mbit.is_even()).then_some(Rule::AtLeast(0.9)),
        of: over_one_way,
    },
];

/// Whether bulk goes one way and so much is lost.
fn one_way(case: &PathCase, loss: RangeToInclusive<f64>) -> bool {
    !case.two_way && loss.contains(&case.loss_percent)
}

fn rtt_ms(case: &PathCase) -> f64 {
    case.rtt.as_secs_f64() * 1e3
}

fn down(taken: &Taken) -> f64 {
    taken.sample.down_mbit.unwrap_or(0.0)
}

fn over_deliverable(paths: &Paths, _: &[Taken], one: &Taken) -> Option<f64> {
    Some(down(one) / paths.cases[one.case].deliverable_mbit(End::Far))
}

fn over_peers(paths: &Paths, taken: &[Taken], one: &Taken) -> Option<f64> {
    let beside = taken.iter().filter(|it| it.round == one.round && it.case == one.case);
    let peers = beside.filter(|it| paths.arms[it.arm].is_peer);
    peers.map(down).reduce(f64::max).map(|best| down(one) / best)
}

fn p99(_: &Paths, _: &[Taken], one: &Taken) -> Option<f64> {
    Some(one.sample.p99_ms.unwrap_or(f64::INFINITY))
}

fn over_one_way(paths: &Paths, taken: &[Taken], one: &Taken) -> Option<f64> {
    let one_way = PathCase { two_way: false, ..paths.cases[one.case] };
    let mut alone = taken.iter().filter(|it| it.round == one.round && it.arm == one.arm);
    let alone = alone.find(|it| paths.cases[it.case] == one_way)?;
    Some(down(one).min(one.sample.up_mbit.unwrap_or(0.0)) / down(alone))
}

/// Verdicts on all goals that apply to the cases, for each line and each judged arm.
pub(super) fn verdicts(paths: &Paths, taken: &[Taken]) -> Vec<Verdict> {
    let lines = super::lines::lines(paths);
    let is_judged = |name: &str| name == DEFAULT || name == TRIPLE_DES;
    let mut verdicts = Vec::new();
    for (arm, of_arm) in paths.arms.iter().enumerate().filter(|(_, arm)| is_judged(arm.name())) {
        for line in &lines {
            for goal in &GOALS {
                let cases: Vec<(usize, Rule)> = paths
                    .cases
                    .iter()
                    .enumerate()
                    .filter(|(_, case)| case.line() == *line)
                    .filter_map(|(index, case)| Some((index, (goal.limit)(case)?)))
                    .collect();
                if !cases.is_empty() {
                    let claim = format!("{}, {line}: {}", of_arm.name(), goal.claim);
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
    goal: &Goal,
    cases: &[(usize, Rule)],
    claim: String,
) -> Verdict {
    let mut outcomes = Vec::new();
    let mut because = Vec::new();
    for &(case, limit) in cases {
        let of_case = taken.iter().filter(|it| it.arm == arm && it.case == case);
        let values: Vec<f64> = of_case.filter_map(|it| (goal.of)(paths, taken, it)).collect();
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
    Verdict::new(claim, rule(goal, &limits), outcome, because.join("; "))
}

fn rule(goal: &Goal, limits: &[Rule]) -> String {
    let side = match limits.first() {
        Some(Rule::AtLeast(limit)) => format!("{limit} or above"),
        Some(Rule::AtMost(limit)) => format!("{limit:.1} or below"),
        Some(Rule::Within(..)) | None => String::new(),
    };
    format!(
        "Holds if in every case the 95 % interval of {} is at {side}; does not hold if in some case it is on the \
         other side; needs {MIN_ROUNDS} rounds.",
        goal.figure
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
    use super::super::sample::Sample;
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

//! Defines the kinds of traffic and what their tables share. Each workload can run once on a path
//! and summarize its results; none knows the order of arms.

mod bulk;
mod files;
mod mixed;
mod terminal;
mod voice;

use std::time::Duration;

use keypadd_keystream::Protection;
use keypadd_traffic::{Counts, TunnelArm};

use crate::arm::Arm;
use crate::interleave::{Runs, Turn};
use crate::results::{Estimate, Table, Verdict};
use crate::verdict::Rule;
use crate::{sequence, statistics};

pub use bulk::{Bulk, BulkMeasured};
pub use bulk::{flood, rate_mbit};
pub use files::{FileMix, Files, FilesMeasured};
pub use mixed::{Mixed, MixedMeasured};
pub use terminal::LEAD;
pub use terminal::Terminal;
pub use voice::{Voice, VoiceMeasured};

/// An arm with one value per round; not a number where a round has none.
pub(crate) type Samples = (Arm, Vec<f64>);

/// One value per round of each arm.
pub(crate) fn samples<M>(
    arms: &[(Arm, &[Turn<M>])],
    figure: impl Fn(&M) -> Option<f64>,
) -> Vec<Samples> {
    let value = |turn: &Turn<M>| figure(&turn.measured).unwrap_or(f64::NAN);
    arms.iter().map(|(arm, turns)| (*arm, turns.iter().map(value).collect())).collect()
}

/// Maximum cost of a pooled packet, relative to no encryption, that still counts as the same cost
/// (docs/benchmarks/README.md).
const SAME_COST: f64 = 1.02;

/// The cost of an arm.
struct Cost<'a, M> {
    arm: Arm,
    turns: &'a [Turn<M>],
    counts: Counts,
    /// No tunnel, no packets; no cipher, no pads.
    shares: Option<[f64; 3]>,
}

impl<'a, M> Cost<'a, M> {
    fn of(arm: Arm, turns: &'a [Turn<M>]) -> Self {
        let counts = turns.iter().fold(Counts::default(), |sum, turn| sum.and(turn.counts));
        Self { arm, turns, counts, shares: counts.percentages().filter(|_| has_pads(arm)) }
    }

    fn packets(&self) -> Option<f64> {
        let Counts { hit, partial, miss, .. } = self.counts;
        let packets = hit + partial + miss;
        (packets > 0).then_some(packets as f64)
    }

    fn megabytes(&self, bytes: u64) -> Option<f64> {
        self.shares.map(|_| bytes as f64 / 1e6)
    }

    fn of_a_core(&self, cpu: fn(&Turn<M>) -> Duration) -> Option<Estimate> {
        let share = |turn: &Turn<M>| cpu(turn).as_secs_f64() * 100.0 / turn.time.as_secs_f64();
        statistics::mean(&self.turns.iter().map(share).collect::<Vec<f64>>())
    }

    fn full(&self) -> String {
        let full = self.turns.iter().filter(|turn| turn.was_full).count();
        format!("{full} of {}", self.turns.len())
    }

    /// What only an arm with a pool has.
    fn pooled<T>(&self, figure: T) -> Option<T> {
        self.arm.has_pool().then_some(figure)
    }
}

/// The cost of the workload: pad sources and CPU.
pub(crate) fn costs<M>(arms: &[(Arm, &[Turn<M>])]) -> Table {
    let share = |nth: usize| move |it: &Cost<'_, M>| it.shares.map(|shares| shares[nth]);
    Table::of(
        "pads",
        "Where pads came from, and CPU",
        "arm",
        arms.iter().map(|(arm, turns)| (arm, Cost::of(*arm, turns))),
    )
    .column("packets", "", Cost::packets)
    .column("hit", "%", share(0))
    .column("partial", "%", share(1))
    .column("miss", "%", share(2))
    .column("from the pool", "MB", |it| it.megabytes(it.counts.pool_bytes))
    .column("inline", "MB", |it| it.megabytes(it.counts.inline_bytes))
    .column("fillers", "% of a core", |it| it.pooled(it.of_a_core(|turn| turn.filler_cpu)))
    .column("process", "% of a core", |it| it.of_a_core(|turn| turn.cpu))
    .column("turns with a full pool", "", |it| it.pooled(it.full()))
    .end()
}

/// Ratio of each arm to each baseline, round by round.
pub(crate) fn ratios(id: &str, title: &str, arms: &[Samples]) -> Table {
    let is_base = |arm: Arm| match arm {
        Arm::Tcp => true,
        Arm::Tunnel(tunnel) => is_null(tunnel.suite),
    };
    let mut table = Table::of(id, title, "arm", arms.iter().map(|it| (it.0, it)));
    for (base, of_base) in arms.iter().filter(|it| is_base(it.0)) {
        table = table.column(&format!("over {base}"), "", |(arm, samples)| {
            (arm != base).then(|| sequence::ratio(samples, of_base))
        });
    }
    table.end()
}

/// Reads a figure from what a turn measured, if it has one.
type ValueOf<M> = Box<dyn Fn(&M) -> Option<f64> + Send + Sync>;

/// A figure of a workload that claims are about.
pub struct Figure<M> {
    /// What it measures: `A keystroke`.
    pub(crate) of: &'static str,
    /// What is claimed of it.
    pub(crate) claims: Claims,
    /// The figure of a turn, if it has one.
    pub(crate) value: ValueOf<M>,
}

/// What is claimed of a figure.
pub(crate) enum Claims {
    /// Of each suite that has an arm with a pool: it costs no more than no encryption, and the pool
    /// makes it faster.
    Ratio(Ratio),
    /// Of each arm that encrypts, whatever others do.
    Goal(Goal),
}

/// How two arms compare.
pub(crate) struct Ratio {
    /// Name of the ratios: `ratio of medians`.
    pub(crate) name: &'static str,
    /// Whether less is better: a time, not a rate.
    pub(crate) less_is_better: bool,
}

/// A limit that an arm is to keep.
pub(crate) struct Goal {
    /// What follows the arm's name: `loses no packet`.
    pub(crate) claim: &'static str,
    /// Name of the estimate: `mean jitter in ms`.
    pub(crate) name: &'static str,
    pub(crate) at_most: f64,
    /// What the rounds say together.
    pub(crate) estimate: fn(&[f64]) -> Option<Estimate>,
}

/// A judged claim about an arm, most often beside another.
pub(crate) struct Judged {
    /// Both, as places in the list of arms; one twice if the claim is about no other.
    pub(crate) arms: [usize; 2],
    pub(crate) verdict: Verdict,
}

/// Judges what is claimed of each figure.
pub(crate) fn judge<M>(figures: &[Figure<M>], runs: &Runs<M>) -> Vec<Judged> {
    let of_figure = |figure: &Figure<M>| match &figure.claims {
        Claims::Ratio(ratio) => figure.judge_ratios(ratio, runs),
        Claims::Goal(goal) => figure.judge_goal(goal, runs),
    };
    figures.iter().flat_map(of_figure).collect()
}

/// The verdicts of [`judge`].
pub(crate) fn verdicts<M>(figures: &[Figure<M>], runs: &Runs<M>) -> Vec<Verdict> {
    judge(figures, runs).into_iter().map(|it| it.verdict).collect()
}

impl<M> Figure<M> {
    /// Judges the cost of each arm with a pool over no encryption, and its gain over no pool.
    fn judge_ratios(&self, ratio: &Ratio, runs: &Runs<M>) -> Vec<Judged> {
        let mut judged = Vec::new();
        let place = |wanted: Arm| runs.arms.iter().position(|(arm, _)| *arm == wanted);
        for (nth, (arm, _)) in runs.arms.iter().enumerate() {
            let Arm::Tunnel(tunnel @ TunnelArm { pool: true, .. }) = *arm else { continue };
            if let Some(base) = unencrypted(&runs.arms, tunnel.suite) {
                let claim = format!(
                    "{} through {arm} costs what it costs through {}",
                    self.of, runs.arms[base].0
                );
                let rule = Rule::AtMost(SAME_COST);
                judged.push(self.judge_ratio(ratio, runs, [nth, base], &claim, rule));
            }
            let bare = Arm::Tunnel(TunnelArm { pool: false, ..tunnel });
            if let Some(base) = place(bare) {
                let claim = format!("{} through {arm} is faster than through {bare}", self.of);
                let rule = Rule::AtLeast(1.0);
                judged.push(self.judge_ratio(ratio, runs, [nth, base], &claim, rule));
            }
        }
        judged
    }

    /// Judges the cost of the first arm over the second by a limit from above, its gain by one from
    /// below.
    fn judge_ratio(
        &self,
        Ratio { name, less_is_better }: &Ratio,
        runs: &Runs<M>,
        arms: [usize; 2],
        claim: &str,
        rule: Rule,
    ) -> Judged {
        let [arm, base] = arms.map(|nth| self.values(runs, nth));
        let is_cost = matches!(rule, Rule::AtMost(_));
        let ratio = match is_cost == *less_is_better {
            true => sequence::ratio(&arm, &base),
            false => sequence::ratio(&base, &arm),
        };
        Judged { arms, verdict: rule.judge(claim, name, ratio.as_ref()) }
    }

    fn judge_goal(&self, goal: &Goal, runs: &Runs<M>) -> Vec<Judged> {
        let encrypts = |(_, (arm, _)): &(usize, &(Arm, _))| has_pads(*arm);
        let judged = runs.arms.iter().enumerate().filter(encrypts).map(|(nth, (arm, _))| {
            let claim = format!("{} through {arm} {}", self.of, goal.claim);
            let estimate = (goal.estimate)(&self.values(runs, nth));
            let verdict = Rule::AtMost(goal.at_most).judge(&claim, goal.name, estimate.as_ref());
            Judged { arms: [nth; 2], verdict }
        });
        judged.collect()
    }

    /// The figure of each turn of an arm.
    fn values(&self, runs: &Runs<M>, nth: usize) -> Vec<f64> {
        let value = |turn: &Turn<M>| (self.value)(&turn.measured).unwrap_or(f64::NAN);
        runs.arms[nth].1.iter().map(value).collect()
    }
}

/// The place of the unencrypted arm with the same MAC, or else of any unencrypted arm.
fn unencrypted<T>(arms: &[(Arm, T)], suite: Protection) -> Option<usize> {
    let null = |arm: &Arm| match arm {
        Arm::Tunnel(tunnel) if is_null(tunnel.suite) => Some(tunnel.suite),
        _ => None,
    };
    let same_mac = |(arm, _): &(Arm, T)| null(arm).is_some_and(|base| base.mac() == suite.mac());
    let any = || arms.iter().position(|(arm, _)| null(arm).is_some());
    arms.iter().position(same_mac).or_else(any)
}

fn has_pads(arm: Arm) -> bool {
    matches!(arm, Arm::Tunnel(tunnel) if !is_null(tunnel.suite))
}

fn is_null(suite: Protection) -> bool {
    suite.cipher().is_null()
}

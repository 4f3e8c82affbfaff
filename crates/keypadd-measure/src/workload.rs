//! Defines the kinds of traffic and what their tables share. Each workload can run once on a path
//! and summarize its results; none knows the order of arms.

mod bulk;
mod files;
mod mixed;
mod terminal;

use keypadd_keystream::Protection;
use keypadd_traffic::{Counts, TunnelArm};

use crate::arm::Arm;
use crate::interleave::Turn;
use crate::results::{Cell, Estimate, Table, Verdict};
use crate::statistics;
use crate::verdict::Rule;

pub use bulk::{Bulk, BulkMeasured};
pub use bulk::{flood, rate_mbit};
pub use files::{FileMix, Files, FilesMeasured};
pub use mixed::{Mixed, MixedMeasured};
pub use terminal::LEAD;
pub use terminal::Terminal;

/// An arm with one value per round.
pub(crate) type Samples = (Arm, Vec<f64>);

/// One value per round of each arm.
pub(crate) fn samples<M>(
    arms: &[(Arm, &[Turn<M>])],
    figure: impl Fn(&M) -> Option<f64>,
) -> Vec<Samples> {
    let of = |turns: &[Turn<M>]| turns.iter().filter_map(|turn| figure(&turn.measured)).collect();
    arms.iter().map(|(arm, turns)| (*arm, of(turns))).collect()
}

/// Maximum cost of a pooled packet, relative to no encryption, that still counts as the same cost
/// (docs/benchmarks/README.md).
const SAME_COST: f64 = 1.02;

/// The cost of the workload: pad sources and CPU.
pub(crate) fn costs<M>(arms: &[(Arm, &[Turn<M>])]) -> Table {
    let mut table = Table::new("pads", "Where pads came from, and CPU", "arm")
        .column("packets", "")
        .column("hit", "%")
        .column("partial", "%")
        .column("miss", "%")
        .column("from the pool", "MB")
        .column("inline", "MB")
        .column("fillers", "% of a core")
        .column("process", "% of a core")
        .column("turns with a full pool", "");
    for (arm, turns) in arms {
        let counts = turns.iter().fold(Counts::default(), |sum, turn| sum.and(turn.counts));
        let packets = counts.hit + counts.partial + counts.miss;
        // No tunnel, no packets; no cipher, no pads.
        let shares = counts.percentages().filter(|_| has_pads(*arm));
        let share = |nth: usize| shares.map_or(Cell::Missing, |shares| shares[nth].into());
        let megabytes = |bytes: u64| match shares {
            Some(_) => (bytes as f64 / 1e6).into(),
            None => Cell::Missing,
        };
        let of_a_core = |cpu: fn(&Turn<M>) -> f64| {
            let shares = turns.iter().map(|turn| cpu(turn) * 100.0 / turn.time.as_secs_f64());
            Cell::from(statistics::mean(&shares.collect::<Vec<f64>>()))
        };
        let full = turns.iter().filter(|turn| turn.was_full).count();
        table.push(
            &arm.to_string(),
            vec![
                match packets {
                    0 => Cell::Missing,
                    packets => (packets as f64).into(),
                },
                share(0),
                share(1),
                share(2),
                megabytes(counts.pool_bytes),
                megabytes(counts.inline_bytes),
                match arm.has_pool() {
                    true => of_a_core(|turn| turn.filler_cpu.as_secs_f64()),
                    false => Cell::Missing,
                },
                of_a_core(|turn| turn.cpu.as_secs_f64()),
                match arm.has_pool() {
                    true => format!("{full} of {}", turns.len()).into(),
                    false => Cell::Missing,
                },
            ],
        );
    }
    table
}

/// Ratio of each arm to each baseline, round by round.
pub(crate) fn ratios(id: &str, title: &str, arms: &[Samples]) -> Table {
    let mut table = Table::new(id, title, "arm");
    let bases: Vec<&Samples> = arms
        .iter()
        .filter(|(arm, _)| match arm {
            Arm::Tcp => true,
            Arm::Tunnel(tunnel) => is_null(tunnel.suite),
        })
        .collect();
    for (base, _) in &bases {
        table = table.column(&format!("over {base}"), "");
    }
    for (arm, samples) in arms {
        let over = bases.iter().map(|(base, base_samples)| match base == arm {
            true => Cell::Missing,
            false => statistics::ratio(samples, base_samples).into(),
        });
        table.push(&arm.to_string(), over.collect());
    }
    table
}

/// The main metric of a workload.
pub(crate) struct Figure {
    /// What it measures: `A keystroke`.
    pub(crate) of: &'static str,
    /// Name of its ratios: `ratio of medians`.
    pub(crate) ratio: &'static str,
    /// Whether less is better: a time, not a rate.
    pub(crate) less_is_better: bool,
}

/// Judges, for every suite that ran with a pool: does it cost the same as no encryption, and does
/// the pool pay? Judges only what was measured.
pub(crate) fn verdicts(figure: &Figure, arms: &[Samples]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let pooled = arms.iter().filter_map(|(arm, samples)| match arm {
        Arm::Tunnel(tunnel) if tunnel.pool => Some((*tunnel, samples)),
        _ => None,
    });
    for (tunnel, samples) in pooled {
        let name = Arm::Tunnel(tunnel);
        if let Some((base, of_base)) = unencrypted(arms, tunnel.suite) {
            let cost = match figure.less_is_better {
                true => statistics::ratio(samples, of_base),
                false => statistics::ratio(of_base, samples),
            };
            let claim = format!("{} through {name} costs what it costs through {base}", figure.of);
            verdicts.push(Rule::AtMost(SAME_COST).judge(&claim, figure.ratio, cost.as_ref()));
        }
        let bare = Arm::Tunnel(TunnelArm { pool: false, ..tunnel });
        if let Some((_, of_bare)) = arms.iter().find(|(arm, _)| *arm == bare) {
            let gain = gain(figure, samples, of_bare);
            let claim = format!("{} through {name} is faster than through {bare}", figure.of);
            verdicts.push(Rule::AtLeast(1.0).judge(&claim, figure.ratio, gain.as_ref()));
        }
    }
    verdicts
}

/// How many times as fast `figures` are as `others`.
fn gain(figure: &Figure, figures: &[f64], others: &[f64]) -> Option<Estimate> {
    match figure.less_is_better {
        true => statistics::ratio(others, figures),
        false => statistics::ratio(figures, others),
    }
}

/// The unencrypted arm with the same MAC, or else any unencrypted arm.
fn unencrypted(arms: &[Samples], suite: Protection) -> Option<&Samples> {
    let null = |arm: &Arm| match arm {
        Arm::Tunnel(tunnel) if is_null(tunnel.suite) => Some(tunnel.suite),
        _ => None,
    };
    let same_mac = |(arm, _): &&Samples| null(arm).is_some_and(|base| base.mac() == suite.mac());
    arms.iter().find(same_mac).or_else(|| arms.iter().find(|(arm, _)| null(arm).is_some()))
}

fn has_pads(arm: Arm) -> bool {
    matches!(arm, Arm::Tunnel(tunnel) if !is_null(tunnel.suite))
}

fn is_null(suite: Protection) -> bool {
    suite.cipher().is_null()
}

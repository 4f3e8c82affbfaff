//! Judges each claim by its rule.

use keypadd_keystream::CipherBackend;

use super::Judged;
use crate::exhaustion::cell::Cell;
use crate::exhaustion::finder::{Found, Sustained};
use crate::results::{Outcome, Prediction, Verdict};
use crate::statistics::ratio;
use crate::verdict::Rule;

/// Maximum prediction error that meets the promise.
const ERROR_PERCENT_MAX: f64 = 5.0;
/// Minimum idle cores for a prediction to be judged.
const IDLE_CORES_MIN: f64 = 1.0;
/// Goal: the bitsliced cipher's sustained rate as a multiple of the conventional one's.
const BACKENDS_APART: f64 = 15.0;
/// Share of R* that a pool may keep when every core is busy.
const FULL_LOAD_SHARE: f64 = 0.02;

pub(super) fn all(cells: &[Cell], predictions: &[Judged]) -> Vec<Verdict> {
    let mut verdicts = vec![
        accuracy(
            "With a core left idle, R*, T* and B* are predicted before the run.",
            "every prediction for traffic and load that leave at least one core idle",
            predictions,
            |it| it.idle >= IDLE_CORES_MIN,
            "traffic and load leave no core idle here, in any case",
        ),
        accuracy(
            "Without a load, R* is predicted before the run, whether a core is left idle or not.",
            "every R* without a load",
            predictions,
            |it| it.is_unloaded_rate,
            "every case has a load",
        ),
        confirmed(cells),
    ];
    verdicts.extend(backends(cells));
    verdicts.extend(full_load(cells));
    verdicts
}

/// Whether the predictions that the claim is about were as accurate as promised; `lacking` says why
/// there are none.
fn accuracy(
    claim: &str,
    what: &str,
    predictions: &[Judged],
    is_about: fn(&Judged) -> bool,
    lacking: &str,
) -> Verdict {
    let about: Vec<&Judged> = predictions.iter().filter(|it| is_about(it)).collect();
    let judged: Vec<(&Prediction, f64)> = about
        .iter()
        .filter(|it| it.is_quiet)
        .filter_map(|it| Some((&it.prediction, it.prediction.error_percent?)))
        .collect();
    let worst = judged.iter().max_by(|one, other| one.1.abs().total_cmp(&other.1.abs()));
    let (outcome, because) = match worst {
        None if about.is_empty() && !predictions.is_empty() => {
            (Outcome::CannotCompare, lacking.into())
        }
        None => (Outcome::CannotTell, "no such case was measured undisturbed".into()),
        Some((prediction, error)) => {
            let far = judged.iter().filter(|(_, error)| error.abs() > ERROR_PERCENT_MAX).count();
            let outcome = Outcome::of_cases(judged.len() - far, judged.len());
            let because = format!(
                "{far} of {} predictions are off by more; the worst is {}, by {error:+.1} %",
                judged.len(),
                prediction.name
            );
            (outcome, because)
        }
    };
    let rule = format!(
        "Holds if {what} lies within {ERROR_PERCENT_MAX} % of what was measured. Cases where other \
         programs took CPU time worth mentioning are not judged."
    );
    Verdict::new(claim, rule, outcome, because)
}

/// Whether every R* found was confirmed.
fn confirmed(cells: &[Cell]) -> Verdict {
    let searches = cells.iter().flat_map(|cell| &cell.found).map(|search| search.sustained);
    let found: Vec<_> = searches.filter(|it| matches!(it, Sustained::Found { .. })).collect();
    let stood = found.iter().filter(|it| it.sides().iter().all(Option::is_some)).count();
    Verdict::new(
        "R* is a threshold: the pool lasts a little below it and runs dry a little above.",
        "Holds if, in every search that found an R*, a nearly empty pool did not run dry at a rate up to \
         12 % below it and did at a rate up to 12 % above.",
        Outcome::of_cases(stood, found.len()),
        format!("{stood} of {} were confirmed from both sides", found.len()),
    )
}

/// Ratio of the bitsliced to the conventional cipher, per suite without a load.
fn backends(cells: &[Cell]) -> Vec<Verdict> {
    let idle = |cell: &&Cell| cell.calibration.background == 0.0;
    let conventional = |cell: &&Cell| cell.arm.engine.backend() == CipherBackend::DesCrate;
    let mut verdicts = Vec::new();
    for base in cells.iter().filter(idle).filter(conventional) {
        let others = cells.iter().filter(idle).filter(|cell| {
            cell.arm.suite == base.arm.suite
                && cell.pool_bytes == base.pool_bytes
                && !conventional(cell)
        });
        for cell in others {
            let claim = format!(
                "{}: the sustained rate of {} is at least {BACKENDS_APART} times that of the des crate.",
                cell.arm.suite,
                cell.arm.engine.backend()
            );
            let rates: Vec<f64> = cell.found.iter().filter_map(|it| reached(cell, it)).collect();
            let base = base.sustained_mbit();
            let rounds = rates.len().min(base.len());
            let ratio = ratio(&rates[..rounds], &base[..rounds]);
            verdicts.push(Rule::AtLeast(BACKENDS_APART).judge(
                &claim,
                "ratio of R*",
                ratio.as_ref(),
            ));
        }
    }
    verdicts
}

/// R* or its lower bound, in Mbit/s.
fn reached(cell: &Cell, found: &Found) -> Option<f64> {
    match found.sustained {
        Sustained::Found { rate, .. } | Sustained::AtLeast { rate } => Some(cell.mbit(rate)),
        Sustained::NeverFills => None,
    }
}

/// The scheme's real limit: nothing is precomputed without idle CPU.
fn full_load(cells: &[Cell]) -> Vec<Verdict> {
    let at = |background: f64| {
        move |cell: &&Cell| (cell.calibration.background - background).abs() < 1e-9
    };
    let mut verdicts = Vec::new();
    for idle in cells.iter().filter(at(0.0)) {
        let same = |cell: &&Cell| cell.arm == idle.arm && cell.pool_bytes == idle.pool_bytes;
        let Some(full) = cells.iter().filter(at(1.0)).find(same) else { continue };
        let claim = format!("{}: with no idle CPU the pool sustains nothing.", idle.pool_name());
        let free: Vec<f64> = idle.found.iter().filter_map(|it| reached(idle, it)).collect();
        // A pool that never fills sustains no rate; the ratio needs a figure above zero.
        let loaded: Vec<f64> =
            full.sustained_mbit().into_iter().map(|rate| rate.max(f64::MIN_POSITIVE)).collect();
        let rounds = free.len().min(loaded.len());
        let ratio = ratio(&loaded[..rounds], &free[..rounds]);
        let figure = "ratio of R* under full load to R* without";
        verdicts.push(Rule::AtMost(FULL_LOAD_SHARE).judge(&claim, figure, ratio.as_ref()));
    }
    verdicts
}

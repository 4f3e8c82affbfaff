//! Estimates a figure round by round, with an interval that may be looked at again and again: whoever
//! stops as soon as it is clear of a limit is wrong in at most 5 % of runs.
//!
//! - **Estimate.** The median of the means of all pairs of rounds (Hodges and Lehmann, "Estimates of
//!   location based on rank tests", Annals of Mathematical Statistics 34, 1963), of the logarithms
//!   of paired ratios. A round that a stall of the machine has thrown moves it no further than any
//!   other round on its side.
//! - **Interval.** Exact, by inverting Wilcoxon's signed-rank test (Hollander, Wolfe and Chicken,
//!   "Nonparametric Statistical Methods", 3.3). It assumes that the paired values of a round lie on
//!   either side of the true one alike. For an arm against itself the random order of turns makes
//!   that so, whatever the noise is, and however it drifts.
//! - **Looks.** The interval is computed after 6, 8, 11, 14, 18, ... rounds, each a quarter more, and
//!   each look spends a part of the 5 % (Lan and DeMets, "Discrete sequential boundaries for
//!   clinical trials", Biometrika 70, 1983): the first 1/32, the nth after it 1/(n (n + 1)) of the
//!   rest. By Bonferroni's inequality their errors sum up to no more than that. What counts is what
//!   the intervals of all looks have in common, so it never widens, and what is decided stays so.
//!
//! Pure: knows no clock, no randomness and no experiment.

use crate::results::Estimate;

/// Rounds at the first look: no fewer can decide anything at its error rate.
pub const MIN_ROUNDS: usize = 6;

/// Error rate of all looks together.
const ERROR: f64 = 0.05;

/// What the first look spends of it: the rate at which six rounds lie on one side by chance.
const FIRST_ERROR: f64 = 1.0 / 32.0;

/// The ratio of `figures` to `base`, round by round; its samples are the ratios. Leaves out rounds
/// in which either is missing or not above zero. `None` if there are no others.
#[must_use]
pub fn ratio(figures: &[f64], base: &[f64]) -> Option<Estimate> {
    let pairs = figures.iter().zip(base).filter(|(figure, base)| **figure > 0.0 && **base > 0.0);
    of_ratios(pairs.map(|(figure, base)| figure / base).collect())
}

/// The ratio of something to its base, given round by round. `None` for no rounds, or if one is not
/// above zero.
#[must_use]
pub fn of_ratios(ratios: Vec<f64>) -> Option<Estimate> {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (value, interval) = estimate(&logarithms)?;
    let interval = interval.map(|ends| ends.map(f64::exp));
    Some(Estimate { value: value.exp(), interval, samples: ratios })
}

/// The center of one value per round; values without bounds count as the largest or least. `None`
/// for no rounds, or if a value is not a number.
#[must_use]
pub fn center(rounds: &[f64]) -> Option<Estimate> {
    let (value, interval) = estimate(rounds)?;
    Some(Estimate { value, interval, samples: rounds.to_vec() })
}

/// The sum over rounds, for what may never happen: one is too many whatever other rounds say, and
/// none says something only after as many rounds as other verdicts take. `None` for no rounds, or if
/// a value is not a number.
#[must_use]
pub(crate) fn total(rounds: &[f64]) -> Option<Estimate> {
    let value = rounds.iter().sum::<f64>();
    let interval = (value > 0.0 || rounds.len() >= MIN_ROUNDS).then_some([value; 2]);
    let is_known = !value.is_nan() && !rounds.is_empty();
    is_known.then(|| Estimate { value, interval, samples: rounds.to_vec() })
}

/// About how many more rounds it takes until the half width of an estimate's interval is
/// `distance`, up to a look. `None` if it has no end.
pub(crate) fn more_rounds(estimate: &Estimate, distance: f64) -> Option<usize> {
    let rounds = estimate.samples.len();
    let Some([low, high]) = estimate.interval else {
        return Some(MIN_ROUNDS.saturating_sub(rounds).max(1));
    };
    let needed = rounds as f64 * ((high - low) / 2.0 / distance).powi(2);
    if needed.is_nan() || needed > f64::from(u16::MAX) {
        return None;
    }
    let after = |look: &Look| look.rounds > rounds && look.rounds as f64 >= needed;
    Some(looks().find(after)?.rounds - rounds)
}

/// A time at which the interval is computed.
#[derive(Clone, Copy, Debug)]
struct Look {
    rounds: usize,
    /// What it spends of the error rate.
    error: f64,
}

fn looks() -> impl Iterator<Item = Look> {
    let rounds = std::iter::successors(Some(MIN_ROUNDS), |rounds| Some(rounds + rounds / 4 + 1));
    rounds.zip(0_u32..).map(|(rounds, nth)| {
        let nth = f64::from(nth);
        let later = (ERROR - FIRST_ERROR) / (nth * (nth + 1.0));
        Look { rounds, error: if nth == 0.0 { FIRST_ERROR } else { later } }
    })
}

/// The estimate, and what the intervals of all looks so far have in common; none before the first.
fn estimate(samples: &[f64]) -> Option<(f64, Option<[f64; 2]>)> {
    if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
        return None;
    }
    let mut estimated = (middle(&pair_means(samples)), None);
    for look in looks().take_while(|look| look.rounds <= samples.len()) {
        let means = pair_means(&samples[..look.rounds]);
        let outside = outside(look);
        let [low, high] = [means[outside], means[means.len() - 1 - outside]];
        let [least, most] = estimated.1.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
        let common = [low.max(least), high.min(most)];
        // Nothing in common: the figure has changed meanwhile, and what was decided before stands.
        if common[0] > common[1] {
            break;
        }
        estimated = (middle(&means).clamp(common[0], common[1]), Some(common));
    }
    Some(estimated)
}

/// Means of all pairs of samples, each also with itself (Walsh averages), sorted.
fn pair_means(samples: &[f64]) -> Vec<f64> {
    let with_later = |(nth, one): (usize, &f64)| {
        let one = *one;
        samples[nth..].iter().map(move |other| f64::midpoint(one, *other))
    };
    let mut means: Vec<f64> = samples.iter().enumerate().flat_map(with_later).collect();
    means.sort_by(f64::total_cmp);
    means
}

fn middle(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// How many of the pairs' means lie outside the interval of a look on each side: the largest sum of
/// ranks that, with all smaller ones on both sides, is as rare as its error.
fn outside(look: Look) -> usize {
    // The probability of each sum: each rank counts or does not, like a coin.
    let mut sums = vec![0.0; look.rounds * (look.rounds + 1) / 4 + 1];
    sums[0] = 1.0;
    for rank in 1..=look.rounds {
        for sum in (0..sums.len()).rev() {
            let with_it = if sum >= rank { sums[sum - rank] } else { 0.0 };
            sums[sum] = f64::midpoint(sums[sum], with_it);
        }
    }
    let mut both_sides = 0.0;
    let within = sums.iter().take_while(|probability| {
        both_sides += 2.0 * **probability;
        both_sides <= look.error
    });
    within.count().saturating_sub(1)
}

#[cfg(test)]
mod tests;

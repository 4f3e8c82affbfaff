//! Computes estimates with 95 % intervals from the repetitions of an experiment.
//!
//! A repetition is one run of one arm: its figure (a percentile, a rate, a mean) is one sample.
//! Samples inside a repetition are not independent, so no interval is made of them. Intervals are
//! Student's t over the repetitions; two arms are compared repetition by repetition, so that what
//! both shared (a warm CPU, a neighbor's load) cancels. Pure: knows no clock, no randomness and no
//! experiment.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::results::Estimate;

/// Fewer repetitions give a figure but no interval: two always lie on one line.
pub const MIN_REPETITIONS: usize = 3;
/// Share of intervals that contain the true value.
const CONFIDENCE: f64 = 0.95;

/// The mean of repetitions, with Student's interval; `None` for no samples, or if one is not
/// finite.
#[must_use]
pub fn mean(repetitions: &[f64]) -> Option<Estimate> {
    let (value, margin) = mean_and_margin(repetitions)?;
    let interval = margin.map(|margin| [value - margin, value + margin]);
    Some(Estimate { value, interval, samples: repetitions.to_vec() })
}

/// The mean of the repetitions that are finite; `None` if none is.
#[must_use]
pub fn mean_of_finite(repetitions: &[f64]) -> Option<Estimate> {
    mean(&repetitions.iter().copied().filter(|it| it.is_finite()).collect::<Vec<f64>>())
}

/// The ratio of `figures` to `base`, repetition by repetition: the mean of the logarithms of their
/// ratios, with Student's interval, converted back. Its samples are the ratios. `None` if the
/// lengths differ, or a figure is not above zero.
#[must_use]
pub fn ratio(figures: &[f64], base: &[f64]) -> Option<Estimate> {
    if figures.len() != base.len() || figures.iter().chain(base).any(|&figure| figure <= 0.0) {
        return None;
    }
    let ratios: Vec<f64> = figures.iter().zip(base).map(|(figure, base)| figure / base).collect();
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (value, margin) = mean_and_margin(&logarithms)?;
    let interval = margin.map(|margin| [(value - margin).exp(), (value + margin).exp()]);
    Some(Estimate { value: value.exp(), interval, samples: ratios })
}

/// The difference of `figures` and `base`, repetition by repetition, with Student's interval. Its
/// samples are the differences. `None` if the lengths differ.
#[must_use]
pub fn difference(figures: &[f64], base: &[f64]) -> Option<Estimate> {
    if figures.len() != base.len() {
        return None;
    }
    let differences: Vec<f64> =
        figures.iter().zip(base).map(|(figure, base)| figure - base).collect();
    mean(&differences)
}

/// The median of samples; `None` for none, or if one is not finite.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    if samples.is_empty() || !samples.iter().all(|sample| sample.is_finite()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    })
}

/// The least of sorted samples that so many are not above, by nearest rank; `None` for none.
#[must_use]
pub fn nearest_rank(sorted: &[f64], quantile: f64) -> Option<f64> {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The mean, and half the width of its interval if there are enough repetitions for one.
fn mean_and_margin(samples: &[f64]) -> Option<(f64, Option<f64>)> {
    if samples.is_empty() || !samples.iter().all(|sample| sample.is_finite()) {
        return None;
    }
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    if samples.len() < MIN_REPETITIONS {
        return Some((mean, None));
    }
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    let margin = students_t(count - 1.0).map(|t| t * deviation / count.sqrt());
    Some((mean, margin))
}

/// Half the width of an interval in standard errors, for these degrees of freedom.
fn students_t(freedom: f64) -> Option<f64> {
    let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(t.inverse_cdf((1.0 + CONFIDENCE) / 2.0))
}

#[cfg(test)]
mod tests;

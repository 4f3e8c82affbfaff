//! Tests interval coverage: over many experiments with a known answer, 95 % of intervals contain
//! it.

use std::f64::consts::{LN_2, PI};
use std::ops::RangeInclusive;

use statrs::distribution::{Binomial, DiscreteCDF};

use super::*;

/// Experiments per coverage test.
const EXPERIMENTS: u64 = 2000;
/// Probability that a correct interval fails a test, on either side. The seeds are fixed, so a test
/// that passes once always passes.
const CHANCE: f64 = 1e-4;

/// One draw of the normal distribution of mean 0 and deviation 1 (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (2.0 * PI * angle).cos()
}

/// One draw of the exponential distribution of mean 1.
fn exponential(random: &mut fastrand::Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}

/// Counts the experiments whose interval contains the true value.
fn covered(truth: f64, mut experiment: impl FnMut() -> [f64; 2]) -> u64 {
    let holds = |[low, high]: [f64; 2]| low <= truth && truth <= high;
    (0..EXPERIMENTS).filter(|_| holds(experiment())).count() as u64
}

/// Counts consistent with a coverage of 95 %.
fn allowed() -> RangeInclusive<u64> {
    let counts = Binomial::new(CONFIDENCE, EXPERIMENTS).unwrap();
    counts.inverse_cdf(CHANCE)..=counts.inverse_cdf(1.0 - CHANCE)
}

fn interval(estimate: Option<Estimate>) -> [f64; 2] {
    estimate.unwrap().interval.unwrap()
}

#[test]
fn quantiles_of_students_t_are_those_of_the_tables() {
    let table = [
        (2.0, 4.302_653),
        (4.0, 2.776_445),
        (9.0, 2.262_157),
        (29.0, 2.045_230),
        (99.0, 1.984_217),
    ];
    for (freedom, expected) in table {
        let t = students_t(freedom).unwrap();
        assert!((t - expected).abs() < 1e-5, "{freedom} degrees of freedom: {t}");
    }
}

#[test]
fn an_interval_by_hand_is_the_interval_computed() {
    // Mean 3, deviation sqrt(2.5); 2.776445 * sqrt(2.5 / 5) = 1.963243.
    let estimate = mean(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let [low, high] = estimate.interval.unwrap();
    assert!((estimate.value - 3.0).abs() < 1e-12);
    assert!((low - 1.036_757).abs() < 1e-5 && (high - 4.963_243).abs() < 1e-5, "{low} {high}");
    assert_eq!(estimate.samples, [1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn normal_repetitions_are_covered_as_promised_from_three_on() {
    let mut random = fastrand::Rng::with_seed(1);
    for repetitions in [3, 5, 12] {
        let covered = covered(7.0, || {
            let draws: Vec<f64> =
                (0..repetitions).map(|_| 7.0 + 2.0 * normal(&mut random)).collect();
            interval(mean(&draws))
        });
        assert!(allowed().contains(&covered), "{covered} at {repetitions} repetitions");
    }
}

#[test]
fn an_interval_by_the_normal_quantile_would_be_caught() {
    let mut random = fastrand::Rng::with_seed(2);
    let narrower = 1.96 / students_t(4.0).unwrap();
    let covered = covered(0.0, || {
        let draws: Vec<f64> = (0..5).map(|_| normal(&mut random)).collect();
        let [low, high] = interval(mean(&draws));
        let (middle, margin) = (f64::midpoint(low, high), (high - low) / 2.0 * narrower);
        [middle - margin, middle + margin]
    });
    assert!(!allowed().contains(&covered), "{covered}");
}

#[test]
fn medians_of_exponential_samples_are_covered_as_promised() {
    // As in terminal workloads: a repetition is the median of many latencies, which are far from
    // normal.
    let mut random = fastrand::Rng::with_seed(3);
    let covered = covered(LN_2, || {
        let medians: Vec<f64> = (0..6)
            .map(|_| {
                let latencies: Vec<f64> = (0..501).map(|_| exponential(&mut random)).collect();
                median(&latencies).unwrap()
            })
            .collect();
        interval(mean(&medians))
    });
    assert!(allowed().contains(&covered), "{covered}");
}

#[test]
fn ratios_of_log_normal_arms_are_covered_as_promised() {
    let mut random = fastrand::Rng::with_seed(4);
    let covered = covered(1.25, || {
        let arm = |middle: f64, random: &mut fastrand::Rng| -> Vec<f64> {
            (0..7).map(|_| middle * (0.3 * normal(random)).exp()).collect()
        };
        let (figures, base) = (arm(50.0, &mut random), arm(40.0, &mut random));
        interval(ratio(&figures, &base))
    });
    assert!(allowed().contains(&covered), "{covered}");
}

#[test]
fn a_drift_that_both_arms_share_does_not_widen_their_ratio() {
    let drift = [1.0, 1.5, 2.2, 3.0, 4.1];
    let noise = [1.001, 0.999, 1.0, 1.002, 0.998];
    let base: Vec<f64> = drift.iter().map(|drift| 100.0 * drift).collect();
    let figures: Vec<f64> =
        base.iter().zip(noise).map(|(base, noise)| 1.02 * base * noise).collect();
    let [low, high] = interval(ratio(&figures, &base));
    assert!(low < 1.02 && 1.02 < high && high - low < 0.005, "{low} {high}");

    let [apart_low, apart_high] = interval(mean(&base));
    assert!(apart_high - apart_low > 100.0, "taken alone, the drift is all there is");
}

#[test]
fn a_ratio_and_its_inverse_agree() {
    let (one, other) = ([1.0, 2.0, 3.5, 4.0], [2.0, 2.1, 2.9, 5.0]);
    let (forth, back) = (ratio(&one, &other).unwrap(), ratio(&other, &one).unwrap());
    assert!((forth.value * back.value - 1.0).abs() < 1e-12);
    assert!((interval(Some(forth))[0] * interval(Some(back))[1] - 1.0).abs() < 1e-12);
}

#[test]
fn fewer_than_three_repetitions_have_a_figure_and_no_interval() {
    for few in [&[4.0][..], &[4.0, 6.0]] {
        assert_eq!(mean(few).unwrap().interval, None);
        assert_eq!(ratio(few, few).unwrap().interval, None);
    }
    assert!(mean(&[4.0, 6.0, 5.0]).unwrap().interval.is_some());
}

#[test]
fn what_has_no_answer_gets_none() {
    assert!(mean(&[]).is_none());
    assert!(mean(&[1.0, f64::NAN, 2.0]).is_none());
    assert!(ratio(&[1.0, 2.0], &[1.0]).is_none());
    assert!(ratio(&[1.0, 0.0, 2.0], &[1.0, 1.0, 1.0]).is_none());
    assert!(ratio(&[1.0, 1.0, 2.0], &[1.0, -1.0, 1.0]).is_none());
    assert!(median(&[]).is_none());
    assert!(median(&[1.0, f64::INFINITY]).is_none());
}

#[test]
fn quantiles_are_by_nearest_rank() {
    let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
    assert_eq!([0.5, 0.99].map(|it| nearest_rank(&sorted, it)), [Some(100.0), Some(198.0)]);
    assert_eq!(nearest_rank(&[7.0], 0.99), Some(7.0));
    assert_eq!(nearest_rank(&[], 0.5), None);
}

#[test]
fn a_median_is_the_middle_in_any_order() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    assert_eq!(median(&[1.0, 1.0, 1000.0]), Some(1.0));
}

//! Counts latencies in a histogram (HDR), without keeping them one by one.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer latencies count as this long.
const LONGEST: Duration = Duration::from_secs(60);

/// Significant digits that are kept.
const DIGITS: u8 = 3;

/// How often which latency was seen.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, DIGITS);
        Self(histogram.expect("bounds and digits are within HDR's limits"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts all that another one has counted.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `quantile`, 0 to 1, of all do not exceed, in microseconds; `None` without
    /// any.
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile) as f64 / 1e3)
    }

    /// The mean, in microseconds; `None` without any.
    pub fn mean_us(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1e3)
    }

    /// The longest one, in microseconds; `None` without any.
    pub fn max_us(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.max() as f64 / 1e3)
    }

    /// The cumulative distribution: microseconds, and the part that took no longer.
    pub fn distribution(&self) -> Vec<[f64; 2]> {
        let mut seen = 0;
        let all = self.0.len() as f64;
        let points = self.0.iter_recorded().map(|step| {
            seen += step.count_since_last_iteration();
            [step.value_iterated_to() as f64 / 1e3, seen as f64 / all]
        });
        points.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_us(0.5), None);
        for ms in (1..=100).rev() {
            latencies.record(Duration::from_millis(ms));
        }
        let us = |quantile| latencies.quantile_us(quantile).unwrap();
        assert!(
            (49_900.0..50_100.0).contains(&us(0.5)) && (98_900.0..99_100.0).contains(&us(0.99))
        );
        assert!((99_900.0..100_100.0).contains(&latencies.max_us().unwrap()));
        assert_eq!(latencies.count(), 100);
    }

    #[test]
    fn a_distribution_rises_to_one() {
        let mut latencies = Latencies::default();
        let mut more = Latencies::default();
        latencies.record(Duration::from_micros(10));
        more.record(Duration::from_micros(30));
        more.record(Duration::from_secs(3600));
        latencies.add(&more);
        let points = latencies.distribution();
        assert_eq!(points.len(), 3);
        assert!(points.windows(2).all(|pair| pair[0][0] < pair[1][0] && pair[0][1] < pair[1][1]));
        assert_eq!(points[2][1], 1.0);
    }
}

//! Records durations in buckets of doubling width. Plain values: the exporter chooses a format.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bound of the first bucket: a pooled keystroke.
const FIRST_SECONDS: f64 = 50e-9;

/// Buckets with a bound; the last one's is 1.6 ms, a 3DES packet on a slow machine.
const BOUNDED: usize = 16;

/// Counts of durations by bucket. They only grow.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDED + 1],
    nanos: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, taken: Duration) {
        let bucket = (0..BOUNDED).find(|&nth| taken.as_secs_f64() <= bound_seconds(nth));
        self.counts[bucket.unwrap_or(BOUNDED)].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Each bucket's upper bound in seconds, infinite for the last, and the count in that bucket
    /// only.
    pub fn buckets(&self) -> [(f64, u64); BOUNDED + 1] {
        std::array::from_fn(|nth| {
            let bound = if nth < BOUNDED { bound_seconds(nth) } else { f64::INFINITY };
            (bound, self.counts[nth].load(Relaxed))
        })
    }

    /// The sum of all durations.
    pub fn sum_seconds(&self) -> f64 {
        self.nanos.load(Relaxed) as f64 / 1e9
    }
}

fn bound_seconds(nth: usize) -> f64 {
    FIRST_SECONDS * (1_u64 << nth) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_bounds_it() {
        let histogram = Histogram::default();
        for nanos in [0, 50, 51, 100, 1_638_400, 1_638_401, 2_000_000_000] {
            histogram.observe(Duration::from_nanos(nanos));
        }
        let buckets = histogram.buckets();
        assert_eq!(buckets.map(|(_, count)| count)[..3], [2, 2, 0]);
        assert_eq!(buckets[BOUNDED - 1], (bound_seconds(BOUNDED - 1), 1));
        assert_eq!(buckets[BOUNDED], (f64::INFINITY, 2));
        assert_eq!(histogram.sum_seconds(), 2.003_277_002);
    }
}

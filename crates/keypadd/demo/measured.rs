//! What one arm of the demo measured: plain figures and the sources they are read from. Knows nothing
//! of how the traffic is made or shown.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use keypadd_keystream::Suite;
use keypadd_pool::Pool;
use keypadd_provider::Meters;
use serde::{Serialize, Serializer};

use crate::figures::{COVERAGES, DIRECTIONS};

/// One of the demo's runs: a suite, with or without a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arm {
    pub(super) suite: Suite,
    pub(super) pool: bool,
}

/// The three arms, in the order in which they run.
pub(super) const ARMS: [Arm; 3] = [
    Arm { suite: Suite::TRIPLE_DES_CTR_HMAC_SHA1, pool: true },
    Arm { suite: Suite::TRIPLE_DES_CTR_HMAC_SHA1, pool: false },
    Arm { suite: Suite::AES_256_GCM, pool: true },
];

impl Arm {
    /// `on` or `off`.
    pub(super) fn pool_label(self) -> &'static str {
        if self.pool { "on" } else { "off" }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, pool {}", self.suite, self.pool_label())
    }
}

/// The figures of one arm; `None` where the arm has not come so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Measured {
    /// Times from the moment a key was due to the moment its screen had arrived.
    pub(super) keystrokes: Option<Keystrokes>,
    /// Median rate of the bursts that fit the pool, Mbit/s.
    pub(super) burst_mbit: Option<f64>,
    /// Rate once the sender has left the pool behind, Mbit/s.
    pub(super) beyond_mbit: Option<f64>,
    /// Packets and keystream of typing and bursts, both ends and both directions.
    pub(super) traffic: Counts,
    /// CPU that fillers spent in the whole arm, seconds.
    #[serde(rename = "filler_cpu_seconds", serialize_with = "seconds")]
    pub(super) filler_cpu: Duration,
    /// The part of it that fell into the typing, seconds.
    #[serde(rename = "filler_cpu_typing_seconds", serialize_with = "seconds")]
    pub(super) filler_cpu_typing: Duration,
    /// Whether the pool, if there is one, was full each time that it was waited for.
    pub(super) pool_was_full: bool,
}

/// Latency of keystrokes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Keystrokes {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Where pads came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Packets whose pad was whole in the pool, in part, not at all.
    pub(super) hit: u64,
    pub(super) partial: u64,
    pub(super) miss: u64,
    /// Keystream bytes from the pool and made inline.
    pub(super) pool_bytes: u64,
    pub(super) inline_bytes: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            hit: self.hit - earlier.hit,
            partial: self.partial - earlier.partial,
            miss: self.miss - earlier.miss,
            pool_bytes: self.pool_bytes - earlier.pool_bytes,
            inline_bytes: self.inline_bytes - earlier.inline_bytes,
        }
    }

    /// Hits, partial hits and misses in per cent, once there are packets.
    pub(super) fn percentages(self) -> Option<[f64; 3]> {
        let packets = self.hit + self.partial + self.miss;
        let share = |part: u64| part as f64 * 100.0 / packets as f64;
        (packets > 0).then(|| [self.hit, self.partial, self.miss].map(share))
    }
}

/// Latencies as they come in, nanoseconds. Clones record into the same histogram.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Arc<Mutex<Histogram<u64>>>);

impl Latencies {
    /// Longest latency told apart from longer ones.
    const MAX: Duration = Duration::from_secs(60);
    /// Significant digits kept.
    const DIGITS: u8 = 3;

    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, Self::MAX.as_nanos() as u64, Self::DIGITS);
        Self(Arc::new(Mutex::new(histogram.expect("bounds and digits are within HDR's limits"))))
    }

    pub(super) fn record(&self, latency: Duration) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.saturating_record(latency.as_nanos() as u64);
    }

    /// `None` before the first one.
    pub(super) fn summary(&self) -> Option<Keystrokes> {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let count = histogram.len();
        (count > 0).then(|| Keystrokes { count, p50_us: us(0.5), p99_us: us(0.99) })
    }
}

/// The counters of both ends.
#[derive(Clone, Debug)]
pub(super) struct Gauges {
    pub(super) meters: [Arc<Meters>; 2],
    /// Empty with the pool off.
    pub(super) pools: Vec<Pool>,
}

impl Gauges {
    /// Packets and keystream so far.
    pub(super) fn counts(&self) -> Counts {
        let packets = |nth: usize| -> u64 {
            let (coverage, _) = COVERAGES[nth];
            let of =
                |meters: &Arc<Meters>| DIRECTIONS.map(|(way, _)| meters.packets(way, coverage));
            self.meters.iter().flat_map(of).sum()
        };
        Counts {
            hit: packets(0),
            partial: packets(1),
            miss: packets(2),
            pool_bytes: self.meters.iter().map(|meters| meters.keystream_pool_bytes()).sum(),
            inline_bytes: self.meters.iter().map(|meters| meters.keystream_inline_bytes()).sum(),
        }
    }

    /// CPU that the fillers have spent.
    pub(super) fn filler_cpu(&self) -> Duration {
        self.pools.iter().map(|pool| pool.snapshot().fill_cpu).sum()
    }

    /// Keystream that the fillers have made, bytes.
    pub(super) fn filled_bytes(&self) -> u64 {
        self.pools.iter().map(|pool| pool.snapshot().fill_bytes_total).sum()
    }

    /// Attempts to use a pad twice, and packets that did not verify: 0 on an honest loopback.
    pub(super) fn faults(&self) -> u64 {
        self.meters.iter().map(|meters| meters.pad_reuse() + meters.open_failures()).sum()
    }
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_summed_up_in_microseconds() {
        let latencies = Latencies::new();
        assert_eq!(latencies.summary(), None);
        for ms in 1..=100 {
            latencies.record(Duration::from_millis(ms));
        }
        let keystrokes = latencies.summary().unwrap();
        assert_eq!(keystrokes.count, 100);
        assert!((49_900.0..50_100.0).contains(&keystrokes.p50_us), "{keystrokes:?}");
        assert!((98_900.0..99_100.0).contains(&keystrokes.p99_us), "{keystrokes:?}");
    }

    #[test]
    fn shares_need_packets() {
        assert_eq!(Counts::default().percentages(), None);
        let counts = Counts { hit: 3, partial: 0, miss: 1, ..Counts::default() };
        assert_eq!(counts.percentages(), Some([75.0, 0.0, 25.0]));
    }
}

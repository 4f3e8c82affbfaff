//! Holds one case of the experiment (an arm, a pool size, a background load) with its prediction and its result.

use keypadd_traffic::TunnelArm;

use super::finder::{BurstFound, Found, Sustained};
use super::model::{Burst, Calibration};

/// Rates of the bursts, as multiples of the predicted R*: nearer to it a small error of R* is a large
/// one of T*.
const MULTIPLES: [f64; 3] = [1.5, 2.0, 4.0];
/// A burst at a chosen rate leaves so much of what can be offered unused.
const BELOW_FASTEST: f64 = 0.8;
/// Most packets of a burst, so that no key change comes in between: three quarters of a short phase, of
/// which warming up has used some.
const BURST_PACKETS_MAX: f64 = 49_152.0;

/// Cores that other programs may take before figures are no longer this machine's.
const OTHERS_MAX: f64 = 0.05;

/// A case, its predictions and its figures. Rates are of packets a second.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Suite and backend, the pool on.
    pub arm: TunnelArm,
    /// The memory of each pool.
    pub pool_bytes: usize,
    /// The calibration, with the background load and the level before the first byte.
    pub calibration: Calibration,
    /// Payload of a packet, bytes.
    pub packet_bytes: f64,
    /// Packets a second that can be offered at most.
    pub fastest: f64,
    /// Rates of the bursts, each with those that were tried, a repetition each.
    pub bursts: Vec<(f64, Vec<BurstFound>)>,
    /// What the searches for R* found, a repetition each.
    pub found: Vec<Found>,
    /// Cores that other programs took meanwhile, a repetition each.
    pub others: Vec<f64>,
}

impl Cell {
    /// A case that nothing has been run of, with the rates of its bursts chosen by the prediction alone.
    pub(crate) fn new(
        arm: TunnelArm,
        pool_bytes: usize,
        calibration: Calibration,
        packet_bytes: f64,
        fastest: f64,
        stage_seconds: f64,
    ) -> Self {
        let sustained = calibration.sustained();
        let multiples = MULTIPLES.map(|times| times * sustained);
        let rates = multiples.into_iter().filter(|rate| *rate < fastest * BELOW_FASTEST);
        let ends = |rate: &f64| match calibration.burst(*rate) {
            // A pool that holds nothing has nothing to run out of.
            Burst::Dry { seconds, packets } => {
                seconds > 0.0 && seconds < stage_seconds && packets < BURST_PACKETS_MAX
            }
            Burst::Lasts => false,
        };
        let bursts = rates.chain([fastest]).filter(ends).map(|rate| (rate, Vec::new())).collect();
        Self {
            arm,
            pool_bytes,
            calibration,
            packet_bytes,
            fastest,
            bursts,
            found: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Payload of so many packets a second, in Mbit/s.
    pub(crate) fn mbit(&self, packets: f64) -> f64 {
        packets * self.packet_bytes * 8.0 / 1e6
    }

    /// `3des-ctr-hmac-sha1, bitslice-512, pool 64 MiB, load 50 %`.
    pub(crate) fn name(&self) -> String {
        format!("{}, load {:.0} %", self.pool_name(), self.calibration.background * 100.0)
    }

    /// The same without the load.
    pub(crate) fn pool_name(&self) -> String {
        let mib = self.pool_bytes as f64 / f64::from(1 << 20);
        format!("{}, {}, pool {mib:.0} MiB", self.arm.suite, self.arm.engine.backend())
    }

    /// Whether other programs left the cores alone, as far as is known.
    pub(crate) fn is_quiet(&self) -> bool {
        self.others.iter().all(|cores| *cores <= OTHERS_MAX)
    }

    /// R* of every repetition that has one, in Mbit/s: 0 for a pool that never fills.
    pub(crate) fn sustained_mbit(&self) -> Vec<f64> {
        self.found
            .iter()
            .filter_map(|found| match found.sustained {
                Sustained::Found { rate, .. } => Some(self.mbit(rate)),
                Sustained::NeverFills => Some(0.0),
                Sustained::AtLeast { .. } => None,
            })
            .collect()
    }

    /// The fastest that was offered and did not empty the pool, in Mbit/s; `None` if some rate did.
    pub(crate) fn at_least_mbit(&self) -> Option<f64> {
        let rates = self.found.iter().map(|found| match found.sustained {
            Sustained::AtLeast { rate } => Some(self.mbit(rate)),
            _ => None,
        });
        let rates: Option<Vec<f64>> = rates.collect();
        rates?.into_iter().reduce(f64::min)
    }
}

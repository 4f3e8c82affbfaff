//! Holds one case of the experiment (arm, pool size, background load) with its prediction and
//! result.

use keypadd_traffic::TunnelArm;

use super::finder::{BurstFound, Found, Sustained};
use super::model::{Burst, Calibration};
use super::tunnel::PRIMING_PACKETS;

/// Rates of the bursts, as multiples of the predicted R*: closer to it, a small error of R* is a
/// large one of T*.
const MULTIPLES: [f64; 3] = [1.5, 2.0, 4.0];
/// Bursts at chosen rates stay below this share of the maximum.
const BELOW_FASTEST: f64 = 0.8;
/// Maximum packets per burst, so that no key update interferes: what priming leaves of a short phase.
const BURST_PACKETS_MAX: f64 = 65_536.0 - PRIMING_PACKETS as f64;

/// Cores that other programs may take before results no longer represent this machine.
const OTHERS_MAX: f64 = 0.05;

/// A case, its predictions and its results. Rates are in packets per second.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Suite and backend, with the pool on.
    pub arm: TunnelArm,
    /// Memory of each pool.
    pub pool_bytes: usize,
    /// The calibration, with the background load and the level before the first byte.
    pub calibration: Calibration,
    /// Payload bytes per packet.
    pub packet_bytes: f64,
    /// Maximum packets per second that can be offered.
    pub fastest: f64,
    /// Rates of the bursts, each with its bursts, one per repetition.
    pub bursts: Vec<(f64, Vec<BurstFound>)>,
    /// Results of the searches for R*, one per repetition.
    pub found: Vec<Found>,
    /// Cores taken by other programs during the calibration, and in each repetition.
    pub others: Vec<f64>,
}

impl Cell {
    /// A case not run yet, with burst rates chosen from the prediction alone.
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
            // A pool that holds nothing cannot run dry.
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

    /// Payload of this packet rate, in Mbit/s.
    pub(crate) fn mbit(&self, packets: f64) -> f64 {
        packets * self.packet_bytes * 8.0 / 1e6
    }

    /// `3des-ctr-hmac-sha1, bitslice-512, pool 64 MiB, load 50 %`.
    pub(crate) fn name(&self) -> String {
        format!("{}, load {:.0} %", self.pool_name(), self.calibration.background * 100.0)
    }

    /// The name without the load.
    pub(crate) fn pool_name(&self) -> String {
        let mib = self.pool_bytes as f64 / f64::from(1 << 20);
        format!("{}, {}, pool {mib:.0} MiB", self.arm.suite, self.arm.engine.backend())
    }

    /// Whether other programs left the cores alone, as far as known.
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

    /// The fastest offered rate that did not empty the pool, in Mbit/s; `None` if some rate did.
    pub(crate) fn at_least_mbit(&self) -> Option<f64> {
        let rates = self.found.iter().map(|found| match found.sustained {
            Sustained::AtLeast { rate } => Some(self.mbit(rate)),
            _ => None,
        });
        let rates: Option<Vec<f64>> = rates.collect();
        rates?.into_iter().reduce(f64::min)
    }
}

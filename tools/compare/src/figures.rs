//! Computes figures of a sample, and ratios of two arms.
//!
//! Pure functions. A ratio is taken within a round, so that a temporary slowdown of the machine
//! affects both of its sides. Does not know which ratio is good; [`crate::goals`] does.

use std::collections::BTreeMap;

use keypadd_measure::results::Estimate;
use serde::Serialize;

use crate::load::Bulk;
use crate::sample::{Sample, UnderLoad};

/// Bytes of a gigabyte.
const GB: f64 = 1e9;
/// The peers that keypadd is compared with.
pub(crate) const PEERS: [&str; 2] = ["ssh", "stunnel"];

/// One round: every arm's sample, and the order in which they were taken.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Round {
    pub(crate) order: Vec<String>,
    pub(crate) samples: BTreeMap<String, Sample>,
}

/// A figure of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Its name in tables.
    pub(crate) name: &'static str,
    /// Its value: Gbit/s, CPU s/GB, percent of a core, microseconds or a ratio. `None` if the arm
    /// has none: without a tunnel there is no CPU time.
    pub(crate) of: fn(&Sample) -> Option<f64>,
    larger_is_better: bool,
}

/// A figure of which more is better.
const fn more(name: &'static str, of: fn(&Sample) -> Option<f64>) -> Figure {
    Figure { name, of, larger_is_better: true }
}

/// A figure of which less is better.
const fn less(name: &'static str, of: fn(&Sample) -> Option<f64>) -> Figure {
    Figure { name, of, larger_is_better: false }
}

pub(crate) const BULK_DOWN: Figure =
    more("bulk download", |it| Some(it.download.gbit_per_second()));
pub(crate) const BULK_UP: Figure = more("bulk upload", |it| Some(it.upload.gbit_per_second()));
pub(crate) const BULK_MEAN: Figure = more("bulk mean of both", |it| {
    Some((it.download.gbit_per_second() + it.upload.gbit_per_second()) / 2.0)
});
pub(crate) const CPU_DOWN: Figure =
    less("CPU s/GB download", |it| per_gb(it.download.cpu_seconds, it.download.bytes));
pub(crate) const CPU_UP: Figure =
    less("CPU s/GB upload", |it| per_gb(it.upload.cpu_seconds, it.upload.bytes));
pub(crate) const CPU_BOTH: Figure = less("CPU s/GB both", |it| {
    let cpu = it.download.cpu_seconds.zip(it.upload.cpu_seconds).map(|(down, up)| down + up);
    per_gb(cpu, it.download.bytes + it.upload.bytes)
});
pub(crate) const IDLE_CPU: Figure = less("idle CPU %", |it| it.idle_cpu.map(|share| share * 100.0));
pub(crate) const OTHERS: Figure = less("CPU % of other programs", |it| Some(it.others_cpu * 100.0));
pub(crate) const SMALL_P50: Figure = less("RTT 128 B p50", |it| Some(it.small.p50_us));
pub(crate) const SMALL_P99: Figure = less("RTT 128 B p99", |it| Some(it.small.p99_us));
pub(crate) const LARGE_P50: Figure = less("RTT 1 KiB p50", |it| Some(it.large.p50_us));
pub(crate) const LARGE_P99: Figure = less("RTT 1 KiB p99", |it| Some(it.large.p99_us));
pub(crate) const BESIDE_DOWN_P50: Figure =
    less("RTT beside download p50", |it| Some(it.beside_download.round_trips.p50_us));
pub(crate) const BESIDE_DOWN_P99: Figure =
    less("RTT beside download p99", |it| Some(it.beside_download.round_trips.p99_us));
pub(crate) const BESIDE_DOWN_MAX: Figure =
    less("RTT beside download max", |it| Some(it.beside_download.round_trips.max_us));
pub(crate) const KEPT_DOWN: Figure =
    more("download kept beside RTT", |it| kept(&it.beside_download, &it.download));
pub(crate) const BESIDE_UP_P50: Figure =
    less("RTT beside upload p50", |it| Some(it.beside_upload.round_trips.p50_us));
pub(crate) const BESIDE_UP_P99: Figure =
    less("RTT beside upload p99", |it| Some(it.beside_upload.round_trips.p99_us));
pub(crate) const BESIDE_UP_MAX: Figure =
    less("RTT beside upload max", |it| Some(it.beside_upload.round_trips.max_us));
pub(crate) const KEPT_UP: Figure =
    more("upload kept beside RTT", |it| kept(&it.beside_upload, &it.upload));
pub(crate) const PACED_DOWN_P50: Figure =
    less("paced RTT beside download p50", |it| Some(it.paced_download.round_trips.p50_us));
pub(crate) const PACED_DOWN_P99: Figure =
    less("paced RTT beside download p99", |it| Some(it.paced_download.round_trips.p99_us));
pub(crate) const KEPT_PACED_DOWN: Figure =
    more("download kept beside paced RTT", |it| kept(&it.paced_download, &it.download));
pub(crate) const PACED_UP_P50: Figure =
    less("paced RTT beside upload p50", |it| Some(it.paced_upload.round_trips.p50_us));
pub(crate) const PACED_UP_P99: Figure =
    less("paced RTT beside upload p99", |it| Some(it.paced_upload.round_trips.p99_us));
pub(crate) const KEPT_PACED_UP: Figure =
    more("upload kept beside paced RTT", |it| kept(&it.paced_upload, &it.upload));

fn per_gb(cpu: Option<f64>, bytes: u64) -> Option<f64> {
    Some(cpu? / (bytes as f64 / GB))
}

fn kept(beside: &UnderLoad, alone: &Bulk) -> Option<f64> {
    Some(beside.bulk.gbit_per_second() / alone.gbit_per_second())
}

/// The divisor of a keypadd arm's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base<'a> {
    /// The same figure of this arm.
    Arm(&'a str),
    /// The same figure of the better of the two peers in that round.
    BetterPeer,
    /// The arm's own idle round trip: 128 B, p50.
    OwnIdle,
    /// One: the figure is a ratio by itself.
    One,
}

/// Median and range of an arm's figure over rounds.
pub(crate) fn median(rounds: &[Round], arm: &str, figure: Figure) -> Option<Estimate> {
    let of_arm = rounds.iter().filter_map(|round| (figure.of)(round.samples.get(arm)?));
    Estimate::of_rounds(of_arm.collect())
}

/// The ratio of an arm's figure to a base, round by round. Skips rounds that lack either.
pub(crate) fn ratios(rounds: &[Round], arm: &str, figure: Figure, base: Base<'_>) -> Vec<f64> {
    let ratio = |round: &Round| {
        let own = (figure.of)(round.samples.get(arm)?)?;
        let base = base_value(round, arm, figure, base)?;
        (base > 0.0).then(|| own / base)
    };
    rounds.iter().filter_map(ratio).collect()
}

/// Median and range of [`ratios`].
pub(crate) fn ratio(
    rounds: &[Round],
    arm: &str,
    figure: Figure,
    base: Base<'_>,
) -> Option<Estimate> {
    Estimate::of_rounds(ratios(rounds, arm, figure, base))
}

fn base_value(round: &Round, arm: &str, figure: Figure, base: Base<'_>) -> Option<f64> {
    let of_arm = |arm: &str| (figure.of)(round.samples.get(arm)?);
    match base {
        Base::Arm(peer) => of_arm(peer),
        Base::BetterPeer => {
            // Both peers or none: the better of only one would be another comparison.
            let peers: Option<Vec<f64>> = PEERS.into_iter().map(of_arm).collect();
            peers?.into_iter().reduce(if figure.larger_is_better { f64::max } else { f64::min })
        }
        Base::OwnIdle => (SMALL_P50.of)(round.samples.get(arm)?),
        Base::One => Some(1.0),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::RoundTrips;

    /// A sample whose rates and times follow from two numbers: Gbit/s and microseconds.
    pub(crate) fn sample(gbit: f64, us: f64) -> Sample {
        let bulk = |gbit: f64| Bulk {
            bytes: (gbit * 1e9 / 8.0) as u64,
            seconds: 1.0,
            cpu_seconds: Some(0.5),
        };
        let trips = |us| RoundTrips { count: 9, p50_us: us, p99_us: us * 2.0, max_us: us * 3.0 };
        let beside = UnderLoad { round_trips: trips(us * 4.0), bulk: bulk(gbit * 0.9) };
        Sample {
            download: bulk(gbit),
            upload: bulk(gbit * 3.0),
            small: trips(us),
            large: trips(us * 1.5),
            beside_download: beside,
            beside_upload: UnderLoad { bulk: bulk(gbit * 3.0), ..beside },
            paced_download: beside,
            paced_upload: UnderLoad { bulk: bulk(gbit * 3.0), ..beside },
            idle_cpu: Some(0.02),
            others_cpu: 0.1,
        }
    }

    /// A round of named samples.
    pub(crate) fn round(samples: &[(&str, f64, f64)]) -> Round {
        let order = samples.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let samples =
            samples.iter().map(|(name, gbit, us)| ((*name).to_owned(), sample(*gbit, *us)));
        Round { order, samples: samples.collect() }
    }

    fn near(got: Option<f64>, expected: f64) {
        let got = got.unwrap();
        assert!((got - expected).abs() < 1e-6 * expected.abs().max(1.0), "{got} {expected}");
    }

    #[test]
    fn figures_have_the_units_that_their_names_say() {
        let sample = sample(8.0, 50.0);
        near((BULK_MEAN.of)(&sample), 16.0);
        near((CPU_DOWN.of)(&sample), 0.5); // half a second for a GB
        near((CPU_BOTH.of)(&sample), 0.25); // a second for four GB
        near((IDLE_CPU.of)(&sample), 2.0);
        near((KEPT_DOWN.of)(&sample), 0.9);
        near((KEPT_UP.of)(&sample), 1.0);
        near((LARGE_P99.of)(&sample), 150.0);
    }

    #[test]
    fn better_peer_is_chosen_round_by_round_and_by_figure() {
        let rounds = [
            round(&[("ssh", 1.0, 100.0), ("stunnel", 2.0, 80.0), ("keypadd", 4.0, 40.0)]),
            round(&[("ssh", 4.0, 50.0), ("stunnel", 2.0, 80.0), ("keypadd", 4.0, 40.0)]),
        ];
        let over = |figure, base| ratio(&rounds, "keypadd", figure, base).unwrap();
        let bulk = over(BULK_DOWN, Base::BetterPeer);
        assert_eq!(bulk.interval, Some([1.0, 2.0]));
        let trips = over(SMALL_P50, Base::BetterPeer);
        assert_eq!(trips.interval, Some([0.5, 0.8]));
        let ssh = over(BULK_UP, Base::Arm("ssh"));
        assert_eq!(ssh.interval, Some([1.0, 4.0]));
        assert_eq!(over(BESIDE_UP_P50, Base::OwnIdle).value, 4.0);
        near(Some(over(KEPT_DOWN, Base::One).value), 0.9);
    }

    #[test]
    fn ratio_to_what_was_not_measured_is_nothing() {
        let mut rounds = [round(&[("ssh", 1.0, 100.0), ("keypadd", 4.0, 40.0)])];
        let over = |rounds: &[Round], figure, base| ratio(rounds, "keypadd", figure, base);
        assert_eq!(over(&rounds, BULK_UP, Base::Arm("stunnel")), None);
        assert_eq!(over(&rounds, BULK_UP, Base::BetterPeer), None);
        assert!(over(&rounds, CPU_UP, Base::Arm("ssh")).is_some());
        rounds[0].samples.get_mut("ssh").unwrap().upload.cpu_seconds = None;
        assert_eq!(over(&rounds, CPU_UP, Base::Arm("ssh")), None);
    }
}

//! Computes figures of a sample, ratios of two arms and spans over rounds.
//!
//! Pure functions. A ratio is taken within a round, so that a temporary slowdown of the machine
//! affects both of its sides. Does not know which ratio is good; [`crate::goals`] does.

use std::collections::BTreeMap;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    BulkDown,
    BulkUp,
    BulkMean,
    CpuDown,
    CpuUp,
    CpuMean,
    IdleCpu,
    SmallP50,
    SmallP99,
    LargeP50,
    LargeP99,
    BesideDownP50,
    BesideDownP99,
    BesideDownMax,
    KeptDown,
    BesideUpP50,
    BesideUpP99,
    BesideUpMax,
    KeptUp,
    PacedDownP50,
    PacedDownP99,
    KeptPacedDown,
    PacedUpP50,
    PacedUpP99,
    KeptPacedUp,
    Others,
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

impl Figure {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BulkDown => "bulk download",
            Self::BulkUp => "bulk upload",
            Self::BulkMean => "bulk mean of both",
            Self::CpuDown => "CPU s/GB download",
            Self::CpuUp => "CPU s/GB upload",
            Self::CpuMean => "CPU s/GB both",
            Self::IdleCpu => "idle CPU %",
            Self::SmallP50 => "RTT 128 B p50",
            Self::SmallP99 => "RTT 128 B p99",
            Self::LargeP50 => "RTT 1 KiB p50",
            Self::LargeP99 => "RTT 1 KiB p99",
            Self::BesideDownP50 => "RTT beside download p50",
            Self::BesideDownP99 => "RTT beside download p99",
            Self::BesideDownMax => "RTT beside download max",
            Self::KeptDown => "download kept beside RTT",
            Self::BesideUpP50 => "RTT beside upload p50",
            Self::BesideUpP99 => "RTT beside upload p99",
            Self::BesideUpMax => "RTT beside upload max",
            Self::KeptUp => "upload kept beside RTT",
            Self::PacedDownP50 => "paced RTT beside download p50",
            Self::PacedDownP99 => "paced RTT beside download p99",
            Self::KeptPacedDown => "download kept beside paced RTT",
            Self::PacedUpP50 => "paced RTT beside upload p50",
            Self::PacedUpP99 => "paced RTT beside upload p99",
            Self::KeptPacedUp => "upload kept beside paced RTT",
            Self::Others => "CPU % of other programs",
        }
    }

    /// Its value: Gbit/s, CPU s/GB, percent of a core, microseconds or a ratio. `None` if the arm
    /// has none: without a tunnel there is no CPU time.
    pub(crate) fn of(self, sample: &Sample) -> Option<f64> {
        let (down, up) = (&sample.download, &sample.upload);
        let (beside_down, beside_up) = (&sample.beside_download, &sample.beside_upload);
        let (paced_down, paced_up) = (&sample.paced_download, &sample.paced_upload);
        let kept = |beside: &UnderLoad, alone: &Bulk| {
            beside.bulk.gbit_per_second() / alone.gbit_per_second()
        };
        let per_gb = |cpu: Option<f64>, bytes: u64| Some(cpu? / (bytes as f64 / GB));
        match self {
            Self::BulkDown => Some(down.gbit_per_second()),
            Self::BulkUp => Some(up.gbit_per_second()),
            Self::BulkMean => Some((down.gbit_per_second() + up.gbit_per_second()) / 2.0),
            Self::CpuDown => per_gb(down.cpu_seconds, down.bytes),
            Self::CpuUp => per_gb(up.cpu_seconds, up.bytes),
            Self::CpuMean => {
                let cpu = down.cpu_seconds.zip(up.cpu_seconds).map(|(down, up)| down + up);
                per_gb(cpu, down.bytes + up.bytes)
            }
            Self::IdleCpu => sample.idle_cpu.map(|share| share * 100.0),
            Self::SmallP50 => Some(sample.small.p50_us),
            Self::SmallP99 => Some(sample.small.p99_us),
            Self::LargeP50 => Some(sample.large.p50_us),
            Self::LargeP99 => Some(sample.large.p99_us),
            Self::BesideDownP50 => Some(beside_down.round_trips.p50_us),
            Self::BesideDownP99 => Some(beside_down.round_trips.p99_us),
            Self::BesideDownMax => Some(beside_down.round_trips.max_us),
            Self::KeptDown => Some(kept(beside_down, down)),
            Self::BesideUpP50 => Some(beside_up.round_trips.p50_us),
            Self::BesideUpP99 => Some(beside_up.round_trips.p99_us),
            Self::BesideUpMax => Some(beside_up.round_trips.max_us),
            Self::KeptUp => Some(kept(beside_up, up)),
            Self::PacedDownP50 => Some(paced_down.round_trips.p50_us),
            Self::PacedDownP99 => Some(paced_down.round_trips.p99_us),
            Self::KeptPacedDown => Some(kept(paced_down, down)),
            Self::PacedUpP50 => Some(paced_up.round_trips.p50_us),
            Self::PacedUpP99 => Some(paced_up.round_trips.p99_us),
            Self::KeptPacedUp => Some(kept(paced_up, up)),
            Self::Others => Some(sample.others_cpu * 100.0),
        }
    }

    fn larger_is_better(self) -> bool {
        let rates = [Self::BulkDown, Self::BulkUp, Self::BulkMean];
        let kept = [Self::KeptDown, Self::KeptUp, Self::KeptPacedDown, Self::KeptPacedUp];
        rates.contains(&self) || kept.contains(&self)
    }
}

/// Median, least and greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Span {
    /// `None` if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = values.len();
        let median = (values.get((count - 1) / 2)? + values.get(count / 2)?) / 2.0;
        Some(Self { median, min, max })
    }
}

/// An arm's figure over rounds.
pub(crate) fn span(rounds: &[Round], arm: &str, figure: Figure) -> Option<Span> {
    Span::of(rounds.iter().filter_map(|round| figure.of(round.samples.get(arm)?)))
}

/// The ratio of an arm's figure to a base, round by round. Skips rounds that lack either.
pub(crate) fn ratios(rounds: &[Round], arm: &str, figure: Figure, base: Base<'_>) -> Vec<f64> {
    let ratio = |round: &Round| {
        let own = figure.of(round.samples.get(arm)?)?;
        let base = base_value(round, arm, figure, base)?;
        (base > 0.0).then(|| own / base)
    };
    rounds.iter().filter_map(ratio).collect()
}

/// The span of [`ratios`].
pub(crate) fn ratio(rounds: &[Round], arm: &str, figure: Figure, base: Base<'_>) -> Option<Span> {
    Span::of(ratios(rounds, arm, figure, base))
}

fn base_value(round: &Round, arm: &str, figure: Figure, base: Base<'_>) -> Option<f64> {
    let of_arm = |arm: &str| figure.of(round.samples.get(arm)?);
    match base {
        Base::Arm(peer) => of_arm(peer),
        Base::BetterPeer => {
            // Both peers or none: the better of only one would be another comparison.
            let peers: Option<Vec<f64>> = PEERS.into_iter().map(of_arm).collect();
            peers?.into_iter().reduce(if figure.larger_is_better() { f64::max } else { f64::min })
        }
        Base::OwnIdle => Figure::SmallP50.of(round.samples.get(arm)?),
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
    fn median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        let span = Span::of([3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!(span, Span { median: 2.5, min: 1.0, max: 10.0 });
        assert_eq!(Span::of([5.0, 1.0, 3.0]).unwrap().median, 3.0);
        assert_eq!(Span::of([]), None);
    }

    #[test]
    fn figures_have_the_units_that_their_names_say() {
        let sample = sample(8.0, 50.0);
        near(Figure::BulkMean.of(&sample), 16.0);
        near(Figure::CpuDown.of(&sample), 0.5); // half a second for a GB
        near(Figure::CpuMean.of(&sample), 0.25); // a second for four GB
        near(Figure::IdleCpu.of(&sample), 2.0);
        near(Figure::KeptDown.of(&sample), 0.9);
        near(Figure::KeptUp.of(&sample), 1.0);
        near(Figure::LargeP99.of(&sample), 150.0);
    }

    #[test]
    fn better_peer_is_chosen_round_by_round_and_by_figure() {
        let rounds = [
            round(&[("ssh", 1.0, 100.0), ("stunnel", 2.0, 80.0), ("keypadd", 4.0, 40.0)]),
            round(&[("ssh", 4.0, 50.0), ("stunnel", 2.0, 80.0), ("keypadd", 4.0, 40.0)]),
        ];
        let over = |figure, base| ratio(&rounds, "keypadd", figure, base).unwrap();
        let bulk = over(Figure::BulkDown, Base::BetterPeer);
        assert_eq!((bulk.min, bulk.max), (1.0, 2.0));
        let trips = over(Figure::SmallP50, Base::BetterPeer);
        assert_eq!((trips.min, trips.max), (0.5, 0.8));
        let ssh = over(Figure::BulkUp, Base::Arm("ssh"));
        assert_eq!((ssh.min, ssh.max), (1.0, 4.0));
        assert_eq!(over(Figure::BesideUpP50, Base::OwnIdle).median, 4.0);
        near(Some(over(Figure::KeptDown, Base::One).median), 0.9);
    }

    #[test]
    fn ratio_to_what_was_not_measured_is_nothing() {
        let mut rounds = [round(&[("ssh", 1.0, 100.0), ("keypadd", 4.0, 40.0)])];
        let over = |rounds: &[Round], figure, base| ratio(rounds, "keypadd", figure, base);
        assert_eq!(over(&rounds, Figure::BulkUp, Base::Arm("stunnel")), None);
        assert_eq!(over(&rounds, Figure::BulkUp, Base::BetterPeer), None);
        assert!(over(&rounds, Figure::CpuUp, Base::Arm("ssh")).is_some());
        rounds[0].samples.get_mut("ssh").unwrap().upload.cpu_seconds = None;
        assert_eq!(over(&rounds, Figure::CpuUp, Base::Arm("ssh")), None);
    }
}

//! Praptodiyono, Furqon, Maulana, Hasbullah and Rehman, "Performance Analysis of Internet Key
//! Exchange Algorithms on IPSec Security Association Initiation": which key exchange is fastest,
//! and whether the throughput afterwards shows it.

mod claims;
mod measure;
mod page;

use keypadd_measure::results::Section;
use serde::{Deserialize, Serialize};

use super::claim;
use super::lab::{Lab, Rounds};
use keypadd_provider::{Group, KeyExchange, MeasureKeyExchange};

/// The paper's groups, in its order.
const GROUPS: [Group; 3] = [
    Group::Measure(MeasureKeyExchange::MODP_1024),
    Group::Measure(MeasureKeyExchange::MODP_3072),
    Group::Chosen(KeyExchange::Secp384r1),
];
const MODP_1024: usize = 0;
const MODP_3072: usize = 1;
const SECP384R1: usize = 2;

/// Mean, minimum, maximum and standard deviation of ten, as printed.
struct Printed([f64; 4]);

impl Printed {
    fn mean(&self) -> f64 {
        self.0[0]
    }
}

/// Table 1: seconds, in the order of [`GROUPS`].
const TABLE_1: [Printed; 3] = [
    Printed([0.0172, 0.017, 0.019, 0.001]),
    Printed([0.0718, 0.07, 0.072, 0.001]),
    Printed([0.007, 0.007, 0.007, 0.0]),
];
/// Table 2: Mbit/s, plain and then in the order of [`GROUPS`].
const TABLE_2: [Printed; 4] = [
    Printed([31.67, 29.0, 37.5, 2.32]),
    Printed([19.81, 15.6, 23.5, 2.52]),
    Printed([17.3, 14.8, 20.7, 1.49]),
    Printed([23.39, 19.8, 27.6, 2.24]),
];

/// Times of one group in one round, microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Generated {
    /// One key pair.
    key_pair_us: f64,
    /// Everything that both sides compute: two key pairs and the secret twice.
    exchange_us: f64,
    /// A whole handshake of two ends over UDP.
    handshake_us: f64,
}

/// A round of all groups.
type Generation = [Generated; GROUPS.len()];

/// A round of throughput, Mbit/s.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Throughput {
    /// Without a tunnel.
    plain: f64,
    /// Through a tunnel, for the handshake of each group.
    tunnels: [f64; GROUPS.len()],
}

/// All measurements.
#[derive(Clone, Debug, Default)]
struct Measurements {
    generation: Rounds<Generation>,
    throughput: Rounds<Throughput>,
}

/// What a round measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Generation,
    Throughput,
}

type Claim = claim::Claim<Measurements, Task>;

pub(super) async fn reproduce(lab: &Lab<'_>) -> Section {
    let (claims, mut figures) = (claims::claims(), Measurements::default());
    for round in 0.. {
        let Some(needed) = lab.needed(&claims, &figures, round) else { break };
        for task in needed {
            match task {
                Task::Generation => {
                    let measure = async || measure::generation(lab, round).await;
                    figures.generation.measure(lab, "key exchanges", round, measure).await;
                }
                Task::Throughput => {
                    let measure = async || measure::throughput(lab, round).await;
                    figures.throughput.measure(lab, "throughput", round, measure).await;
                }
            }
        }
    }
    page::page(&figures, lab.effort)
}

/// Where its claims are in the paper.
#[cfg(test)]
pub(super) fn places() -> Vec<super::index::Place> {
    claims::claims().iter().map(Claim::place).collect()
}

#[cfg(test)]
mod tests;

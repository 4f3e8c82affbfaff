//! Compaq, "Performance Testing of AXENT Raptor Firewall Virtual Private Network Implementation":
//! the effect of a tunnel, ciphers, hashes and the processor on the throughput of web traffic
//! between two networks.

mod clients;
mod measure;
mod page;

use keypadd_keystream::{Cipher, Mac, Protection};
use keypadd_measure::results::Section;
use serde::{Deserialize, Serialize};

use super::lab::{Lab, Part, Rounds};
use super::{Effort, claim, suite};

/// File sizes in bytes: by HTTP, four requests in five, and by FTP.
const FILES: [[u64; 2]; 3] = [[1_023, 10_230], [10_230, 95_040], [95_040, 1_013_760]];
const SMALL: usize = 0;
const MEDIUM: usize = 1;
const LARGE: usize = 2;

/// The paper's base: a tunnel without cipher and hash.
const BASE: (Cipher, Mac) = (Cipher::NULL, Mac::NULL);

/// Single DES keeps 70 % of the base's throughput for large files.
const BASE_OVER_DES: f64 = 1.0 / 0.70;

/// A cipher and a hash; `None` for no tunnel.
type Tunnel = Option<(Cipher, Mac)>;

/// The paper's settings.
const TUNNELS: [Tunnel; 11] = [
    None,
    Some(BASE),
    Some((Cipher::NULL, Mac::HMAC_MD5)),
    Some((Cipher::NULL, Mac::HmacSha1)),
    Some((Cipher::Des, Mac::NULL)),
    Some((Cipher::TripleDes, Mac::NULL)),
    Some((Cipher::RC2_40, Mac::NULL)),
    Some((Cipher::Des, Mac::HMAC_MD5)),
    Some((Cipher::TripleDes, Mac::HMAC_MD5)),
    Some((Cipher::Des, Mac::HmacSha1)),
    Some((Cipher::TripleDes, Mac::HmacSha1)),
];

/// Settings repeated with ciphers as slow, relative to the network, as the paper's.
const EMULATED: [(Cipher, Mac); 2] = [(Cipher::Des, Mac::NULL), (Cipher::TripleDes, Mac::NULL)];

/// Settings run with a slower and a faster processor.
const PROCESSORS: [(Cipher, Mac); 3] =
    [BASE, (Cipher::Des, Mac::HMAC_MD5), (Cipher::TripleDes, Mac::HMAC_MD5)];

/// Throughput of one arm, Mbit/s: by file size, then by number of clients; empty if the round left
/// it out.
type Rates = [Vec<f64>; FILES.len()];

/// A round of throughput.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Round {
    /// In the order of [`TUNNELS`].
    tunnels: Vec<Rates>,
    /// In the order of [`EMULATED`], with the keystream rate of each cipher given.
    emulated: Vec<Rates>,
}

/// A round with two processor speeds: throughput of medium and large files with the most clients,
/// Mbit/s, in the order of [`PROCESSORS`]; empty for settings that the round left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Speeds {
    slow: [Vec<f64>; PROCESSORS.len()],
    fast: [Vec<f64>; PROCESSORS.len()],
}

/// What a round measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Arm(ArmId),
    /// One of [`PROCESSORS`], with both speeds.
    Processors(usize),
}

/// An arm, by its place in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ArmId {
    /// One of [`TUNNELS`].
    Tunnel(usize),
    /// One of [`EMULATED`].
    Emulated(usize),
}

impl ArmId {
    /// All arms, in the order of tables.
    fn all() -> impl Iterator<Item = Self> {
        (0..TUNNELS.len()).map(Self::Tunnel).chain((0..EMULATED.len()).map(Self::Emulated))
    }

    /// Its name in tables.
    fn name(self) -> String {
        match self {
            Self::Tunnel(nth) => name(TUNNELS[nth]),
            Self::Emulated(nth) => format!("{}, emulated", protection(EMULATED[nth])),
        }
    }

    /// The tunnel of this arm; of an emulated one, the tunnel that it stands for.
    fn tunnel(self) -> Option<usize> {
        match self {
            Self::Tunnel(nth) => Some(nth),
            Self::Emulated(nth) => TUNNELS.iter().position(|it| *it == Some(EMULATED[nth])),
        }
    }

    /// Its throughput in a round.
    fn rates(self, round: &Round) -> &Rates {
        match self {
            Self::Tunnel(nth) => &round.tunnels[nth],
            Self::Emulated(nth) => &round.emulated[nth],
        }
    }
}

type Claim = claim::Claim<Measurements, Task>;

/// All measurements.
#[derive(Debug)]
struct Measurements {
    /// Throughput of the base for large files, Mbit/s, measured first: the rates of emulated
    /// ciphers follow from it.
    calibration: Part<f64>,
    rounds: Rounds<Round>,
    speeds: Rounds<Speeds>,
}

pub(super) async fn reproduce(lab: &Lab<'_>) -> Section {
    let hosts = measure::hosts();
    let calibrate = async || measure::calibrate(lab, &hosts).await;
    let calibration = lab.part("what the base carries", calibrate).await;
    let (rounds, speeds) = (Rounds::default(), Rounds::default());
    let (claims, mut figures) = (page::claims(), Measurements { calibration, rounds, speeds });
    for round in 0.. {
        let Some(needed) = lab.needed(&claims, &figures, round) else { break };
        let (mut arms, mut settings) = (Vec::new(), Vec::new());
        for task in needed {
            match task {
                Task::Arm(arm) => arms.push(arm),
                Task::Processors(setting) => settings.push(setting),
            }
        }
        if !arms.is_empty() {
            let base = figures.calibration.clone();
            let measure = async || measure::round(lab, &hosts, round, base.clone()?, &arms).await;
            figures.rounds.measure(lab, "throughput", round, measure).await;
        }
        if !settings.is_empty() {
            let measure = async || measure::speeds(lab, &hosts, round, &settings).await;
            figures.speeds.measure(lab, "processors", round, measure).await;
        }
    }
    page::page(&figures, lab.effort)
}

/// A figure of an arm; not a number if the round left it out.
fn at(rates: &[f64], nth: usize) -> f64 {
    rates.get(nth).copied().unwrap_or(f64::NAN)
}

/// Numbers of virtual clients.
fn clients(effort: Effort) -> &'static [u32] {
    effort.pick(&[4, 20], &[4, 8, 12, 16, 20])
}

fn protection((cipher, mac): (Cipher, Mac)) -> Protection {
    suite(cipher, mac)
}

fn name(tunnel: Tunnel) -> String {
    tunnel.map_or_else(|| "no tunnel".to_owned(), |pair| protection(pair).to_string())
}

/// Where its claims are in the paper.
#[cfg(test)]
pub(super) fn places() -> Vec<super::index::Place> {
    page::claims().iter().map(Claim::place).collect()
}

#[cfg(test)]
mod tests;

//! Compaq, "Performance Testing of AXENT Raptor Firewall Virtual Private Network Implementation": what a tunnel,
//! ciphers, hashes and the processor do to the throughput of web traffic between two networks.

mod clients;
mod measure;
mod page;

use keypadd_keystream::{Cipher, Mac, Protection};
use keypadd_measure::results::Section;
use serde::{Deserialize, Serialize};

use super::lab::{Lab, Part, Rounds};
use super::{Effort, suite};

/// What a request is for, bytes: by HTTP, four times in five, and by FTP.
const FILES: [[u64; 2]; 3] = [[1_023, 10_230], [10_230, 95_040], [95_040, 1_013_760]];
const SMALL: usize = 0;
const MEDIUM: usize = 1;
const LARGE: usize = 2;

/// The paper's base: a tunnel without cipher and hash.
const BASE: (Cipher, Mac) = (Cipher::Null, Mac::Null);

/// Of large files, single DES keeps 70 % of the base's throughput.
const BASE_OVER_DES: f64 = 1.0 / 0.70;

/// What traffic goes through: `None` is no tunnel.
type Tunnel = Option<(Cipher, Mac)>;

/// The paper's settings.
const TUNNELS: [Tunnel; 11] = [
    None,
    Some(BASE),
    Some((Cipher::Null, Mac::HmacMd5)),
    Some((Cipher::Null, Mac::HmacSha1)),
    Some((Cipher::Des, Mac::Null)),
    Some((Cipher::TripleDes, Mac::Null)),
    Some((Cipher::Rc2_40, Mac::Null)),
    Some((Cipher::Des, Mac::HmacMd5)),
    Some((Cipher::TripleDes, Mac::HmacMd5)),
    Some((Cipher::Des, Mac::HmacSha1)),
    Some((Cipher::TripleDes, Mac::HmacSha1)),
];

/// Those that are run once more with ciphers as slow beside the network as the paper's.
const EMULATED: [(Cipher, Mac); 2] = [(Cipher::Des, Mac::Null), (Cipher::TripleDes, Mac::Null)];

/// Those that are run with a slower and a faster processor.
const PROCESSORS: [(Cipher, Mac); 3] =
    [BASE, (Cipher::Des, Mac::HmacMd5), (Cipher::TripleDes, Mac::HmacMd5)];

/// Throughput of one arm, Mbit/s: by size of files, then by number of clients.
type Rates = [Vec<f64>; FILES.len()];

/// A round of throughput.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Round {
    /// As [`TUNNELS`].
    tunnels: Vec<Rates>,
    /// As [`EMULATED`]; each cipher's rate of keystream was given.
    emulated: Vec<Rates>,
}

/// A round with processors of two speeds: throughput of medium and of large files with the most clients,
/// Mbit/s, as [`PROCESSORS`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Speeds {
    slow: Vec<[f64; 2]>,
    fast: Vec<[f64; 2]>,
}

/// All that is measured.
#[derive(Debug)]
struct Measurements {
    /// What the base carries of large files, Mbit/s, found before anything else: emulated ciphers follow
    /// from it.
    calibration: Part<f64>,
    rounds: Rounds<Round>,
    speeds: Rounds<Speeds>,
}

pub(super) async fn reproduce(lab: &Lab<'_>) -> Section {
    let calibration = lab.part("what the base carries", measure::calibrate(lab)).await;
    let (mut rounds, mut speeds) = (Rounds::default(), Rounds::default());
    for round in 0..lab.effort.rounds() {
        let name = format!("throughput, round {}", round + 1);
        let base = calibration.clone();
        rounds.push(lab.part(&name, async { measure::round(lab, round, base?).await }).await);
        let name = format!("processors, round {}", round + 1);
        speeds.push(lab.part(&name, measure::speeds(lab, round)).await);
    }
    page::page(&Measurements { calibration, rounds, speeds }, lab.effort)
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

#[cfg(test)]
mod tests;

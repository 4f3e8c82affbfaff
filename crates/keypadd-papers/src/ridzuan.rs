//! Ridzuan and Ab Rahman, "Performance Comparison of Encryption IPsec VPN Encryption Techniques":
//! what encryption adds to the round trip of a ping over a slow line, by cipher, hash and length.

mod claims;
mod measure;
mod page;

use keypadd_keystream::{Cipher, Mac, Protection};
use keypadd_measure::PING_BYTES;
use keypadd_measure::results::Section;
use serde::{Deserialize, Serialize};

use super::lab::{Lab, Rounds};
use super::{claim, suite};

/// The paper's scenarios with encryption, in its order; the first has neither encryption nor
/// tunnel.
const SCENARIOS: [(Cipher, Mac); 4] = [
    (Cipher::Aes256, Mac::HmacSha1),
    (Cipher::Aes256, Mac::HMAC_MD5),
    (Cipher::TripleDes, Mac::HmacSha1),
    (Cipher::TripleDes, Mac::HMAC_MD5),
];

/// Scenarios repeated with an emulated cipher: one of each, because emulation can only slow a
/// cipher.
const EMULATED: [usize; 2] = [1, 3];

/// Bytes of a ping.
const SIZES: [usize; 3] = PING_BYTES;

/// The longest ping and the shortest, as places in [`SIZES`].
const LONGEST: usize = SIZES.len() - 1;
const SHORTEST: usize = 0;

/// What encryption adds according to the paper's text: one tenth to one fifth.
const TEXT_SAYS: [f64; 2] = [1.1, 1.2];

/// Table 3: the average round trip of ten, milliseconds: without encryption, then as [`SCENARIOS`].
const TABLE_3: [f64; 5] = [192.5, 216.9, 210.3, 238.6, 224.8];

/// The mean round trip of each size, milliseconds.
type Echoes = [f64; SIZES.len()];

/// A round.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Round {
    /// Without a tunnel.
    plain: Echoes,
    /// Through a tunnel that does not encrypt.
    null: Echoes,
    tunnels: [Echoes; SCENARIOS.len()],
    emulated: [Echoes; EMULATED.len()],
}

/// A round is one task.
type Claim = claim::Claim<Rounds<Round>, ()>;

pub(super) async fn reproduce(lab: &Lab<'_>) -> Section {
    let sites = measure::sites();
    let (claims, mut rounds) = (claims::claims(), Rounds::default());
    for round in 0.. {
        let Some(_) = lab.needed(&claims, &rounds, round) else { break };
        let measure = async || measure::round(lab, &sites, round).await;
        rounds.measure(lab, "echoes", round, measure).await;
    }
    page::page(&rounds, lab.effort)
}

/// Over all sizes, milliseconds.
fn whole(echoes: &Echoes) -> f64 {
    echoes.iter().sum::<f64>() / SIZES.len() as f64
}

fn scenario(nth: usize) -> Protection {
    let (cipher, mac) = SCENARIOS[nth];
    suite(cipher, mac)
}

/// Where its claims are in the paper.
#[cfg(test)]
pub(super) fn places() -> Vec<super::index::Place> {
    claims::claims().iter().map(Claim::place).collect()
}

#[cfg(test)]
mod tests;

//! Bollinger, "Choosing Secure Remote Access Technologies": the cost of 3DES over DES, and of
//! perfect forward secrecy, in the throughput of one TCP stream between two routers.

mod claims;
mod measure;
mod page;

use keypadd_keystream::{Protection, Suite};
use keypadd_measure::results::Section;
use serde::{Deserialize, Serialize};

use super::lab::{Lab, Part, Rounds};
use super::{claim, order};

/// Protection of a stream.
#[derive(Clone, Copy, Debug)]
struct Setting {
    suite: Protection,
    /// Whether each lifetime ends with a fresh key exchange.
    fresh: bool,
}

/// The paper's settings, in the order of its tables.
const SETTINGS: [Setting; 4] = [
    Setting { suite: Suite::DES_CTR_HMAC_SHA1.protection(), fresh: false },
    Setting { suite: Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection(), fresh: false },
    Setting { suite: Suite::DES_CTR_HMAC_SHA1.protection(), fresh: true },
    Setting { suite: Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection(), fresh: true },
];

/// Pairs of settings without and with fresh key exchanges.
const PAIRS: [[usize; 2]; 2] = [[0, 2], [1, 3]];

/// Table 2, streams of 30 s, and Table 3, of ten minutes, in the order of [`SETTINGS`], as printed.
const TABLE_2: [f64; 4] = [674.868, 677.003, 683.22, 684.797];
const TABLE_3: [f64; 4] = [676.18, 669.94, 661.57, 663.11];

/// The paper's key lifetime in Table 3, seconds.
const LIFETIME_SECONDS: f64 = 120.0;

/// A network that the streams cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// The paper's switch.
    Near,
    /// A satellite link, which the paper mentions.
    Far,
}

/// A stream of one setting.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Streamed {
    /// Its rate; for a long stream, without its start.
    mbit: f64,
    /// Key exchanges counted during the stream, including the first.
    key_exchanges: u32,
    /// Length of a key lifetime.
    lifetime_seconds: f64,
}

/// Rounds of a long stream by setting.
type Streams = [Rounds<Streamed>; SETTINGS.len()];

/// Rounds of streams over a satellite link that run at once: lines this slow leave the machine idle.
const FAR_AT_ONCE: u32 = 6;

/// What a round measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Short,
    Long,
    Far,
}

/// All measurements.
#[derive(Debug, Default)]
struct Measurements {
    /// As in the paper's Table 2: many short streams, keys that live for an hour.
    short: Rounds<[Streamed; SETTINGS.len()]>,
    /// As in its Table 3: long streams with several key lifetimes.
    long: Streams,
    /// Long streams with several key lifetimes, over a satellite link.
    far: Streams,
}

type Claim = claim::Claim<Measurements, Task>;

pub(super) async fn reproduce(lab: &Lab<'_>) -> Section {
    let (claims, mut figures) = (claims::claims(), Measurements::default());
    for round in 0.. {
        let Some(needed) = lab.needed(&claims, &figures, round) else { break };
        for task in needed {
            match task {
                Task::Short => {
                    let measure = async || measure::short(lab, round).await;
                    figures.short.measure(lab, "short streams", round, measure).await;
                }
                Task::Long => {
                    for nth in order(lab.seed, round, SETTINGS.len()) {
                        figures.long[nth].push(stream(lab, Network::Near, nth, round).await);
                    }
                }
                // The rounds of a few of the others.
                Task::Far if round % FAR_AT_ONCE == 0 => {
                    far(lab, &mut figures.far, round / FAR_AT_ONCE).await;
                }
                Task::Far => {}
            }
        }
    }
    page::page(&figures, lab.effort)
}

/// A stream of a setting.
async fn stream(lab: &Lab<'_>, network: Network, nth: usize, round: u32) -> Part<Streamed> {
    let (near, setting) = (network.name(), SETTINGS[nth].name());
    let name = format!("long stream, {near}, {setting}, round {}", round + 1);
    lab.part(&name, async || measure::long(lab.effort, network, nth).await).await
}

/// Rounds of all settings at once, each stream on its own line.
async fn far(lab: &Lab<'_>, streams: &mut Streams, round: u32) {
    let stream = |nth, round| stream(lab, Network::Far, nth, round);
    let all = |nth| async move {
        let round = round * FAR_AT_ONCE + nth;
        tokio::join!(stream(0, round), stream(1, round), stream(2, round), stream(3, round)).into()
    };
    let (one, two, three, four, five, six) =
        tokio::join!(all(0), all(1), all(2), all(3), all(4), all(5));
    let rounds: [[Part<Streamed>; SETTINGS.len()]; FAR_AT_ONCE as usize] =
        [one, two, three, four, five, six];
    for round in rounds {
        streams.iter_mut().zip(round).for_each(|(streams, stream)| streams.push(stream));
    }
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "600 ms away",
        }
    }
}

impl Setting {
    fn name(self) -> String {
        match self.fresh {
            true => format!("{}, fresh key exchanges", self.suite),
            false => self.suite.to_string(),
        }
    }
}

/// Where its claims are in the paper.
#[cfg(test)]
pub(super) fn places() -> Vec<super::index::Place> {
    claims::claims().iter().map(Claim::place).collect()
}

#[cfg(test)]
mod tests;

//! Lomas, "Encrypting Network Traffic": precomputed keystream reduces encryption to an
//! exclusive-or. His cipher was slow relative to his network; here it is throttled to the same
//! ratio.

mod bed;
mod claims;
mod making;
mod page;
mod pairs;
mod streams;
#[cfg(test)]
mod tests;
mod trips;

use std::num::NonZeroU64;
use std::time::Duration;

use keypadd_measure::results::Section;
use serde::{Deserialize, Serialize};

use super::lab::{Lab, Part, Rounds};
use super::{Effort, claim};

/// His figures, in seconds and bytes.
mod his {
    /// Time of the DEA per block.
    pub(super) const BLOCK_SECONDS: f64 = 8.5e-3;
    pub(super) const BLOCK_BYTES: f64 = 8.0;
    /// 10,000 round trips of 128 bytes, and of 1,024.
    pub(super) const TRIPS: f64 = 10_000.0;
    pub(super) const TRIPS_128_SECONDS: f64 = 46.0;
    pub(super) const TRIPS_1024_SECONDS: f64 = 50.5;
    /// Bytes per second of both.
    pub(super) const BYTES_128: f64 = 56_000.0;
    pub(super) const BYTES_1024: f64 = 406_000.0;
    /// Maximum time of one packet of 1,024 bytes.
    pub(super) const PACKET_SECONDS: f64 = 3.2e-3;
    pub(super) const PACKET_BYTES: f64 = 1024.0;
    /// Time per block of the implementation supplied with the machine.
    pub(super) const SUPPLIED_BLOCK_SECONDS: f64 = 0.12;

    /// Keystream in bytes per second.
    pub(super) const CIPHER: f64 = BLOCK_BYTES / BLOCK_SECONDS;
    /// His network's rate in bytes per second.
    pub(super) const NETWORK: f64 = PACKET_BYTES / PACKET_SECONDS;
    /// One round trip of 128 bytes.
    pub(super) const TRIP_SECONDS: f64 = TRIPS_128_SECONDS / TRIPS;
}

/// This machine's network, through a tunnel that neither encrypts nor authenticates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Network {
    /// A round trip of 128 bytes.
    trip_us: f64,
    /// Rate of a stream.
    mbit: f64,
}

impl Network {
    /// Rate of a cipher that generates as much per round trip as his did.
    fn trip_cipher(self) -> NonZeroU64 {
        whole(his::CIPHER * his::TRIP_SECONDS / (self.trip_us / 1e6))
    }

    /// Rate of a cipher that is as slow relative to a stream as his was.
    fn stream_cipher(self) -> NonZeroU64 {
        whole(his::CIPHER / his::NETWORK * (self.mbit * 1e6 / 8.0))
    }
}

fn whole(rate: f64) -> NonZeroU64 {
    NonZeroU64::new(rate as u64).unwrap_or(NonZeroU64::MIN)
}

/// Round trips of one size and delay.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Trips {
    mean_us: f64,
    /// The first round trip after a pause.
    first_us: f64,
    /// Packets whose pad was ready, in percent; 0 without a pool.
    ready_percent: f64,
}

/// Rows by delay, columns by size.
type Grid = Vec<Vec<Trips>>;

/// The three surfaces of a round, empty where it left them out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Surfaces {
    plain: Grid,
    inline: Grid,
    pooled: Grid,
}

/// A round trip that includes encryptions at the emulated rate, microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Encryptions {
    /// One, at the near end: a long request and a short answer.
    one_us: f64,
    /// Two, at the near end: both are long.
    two_us: f64,
    /// Four, at both ends: both are long.
    four_us: f64,
}

/// Bursts and streams, Mbit/s, and shares of keystream generated while a packet waited; `None`
/// where the round left them out.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Streams {
    plain_burst: Option<f64>,
    pooled_burst: Option<f64>,
    /// In bursts whose average is half the cipher's rate; a quick run has none.
    late_below: Option<f64>,
    /// In a stream at full speed.
    late_above: Option<f64>,
    /// Once the pool has run dry.
    after: Option<f64>,
    /// Without a pool.
    inline: Option<f64>,
}

/// CPU seconds of the same transfer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Work {
    /// With precomputed keystream.
    pooled: f64,
    /// With inline keystream.
    inline: f64,
}

/// Keystream of the `des` crate and of bitslices, bytes per CPU second.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Made {
    alone: [f64; 2],
    fillers: [f64; 2],
}

/// Keystream of the fillers beside each of [`LOADS`], bytes per second.
type BesideLoads = [f64; LOADS.len()];

/// A stream on a line, Mbit/s.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Pairs {
    /// Alone on the line.
    alone: f64,
    /// Beside another pair's stream.
    beside: f64,
    /// The other pair's stream.
    other: f64,
}

/// Shares of every core used by other programs.
const LOADS: [f64; 3] = [0.0, 0.5, 1.0];

/// All measurements.
#[derive(Clone, Debug)]
struct Measurements {
    network: Part<Network>,
    surfaces: Rounds<Surfaces>,
    encryptions: Rounds<Encryptions>,
    streams: Rounds<Streams>,
    work: Rounds<Work>,
    made: Rounds<Made>,
    beside_loads: Rounds<BesideLoads>,
    pairs: Rounds<Pairs>,
}

impl Measurements {
    fn new(network: Part<Network>) -> Self {
        let (surfaces, encryptions) = (Rounds::default(), Rounds::default());
        let (streams, pairs) = (Rounds::default(), Rounds::default());
        let (work, made, beside_loads) = (Rounds::default(), Rounds::default(), Rounds::default());
        Self { network, surfaces, encryptions, streams, work, made, beside_loads, pairs }
    }
}

/// Packet sizes, bytes.
fn sizes(effort: Effort) -> &'static [u64] {
    effort.pick::<&[u64]>(&[16, 128, 256, 1024], &[16, 64, 128, 256, 512, 1024])
}

/// Pauses between round trips.
fn delays(effort: Effort) -> &'static [Duration] {
    const QUICK: [Duration; 2] = [Duration::ZERO, Duration::from_millis(1)];
    const FULL: [Duration; 4] = [
        Duration::ZERO,
        Duration::from_millis(1),
        Duration::from_millis(2),
        Duration::from_millis(5),
    ];
    effort.pick::<&[Duration]>(&QUICK, &FULL)
}

/// What a round measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Pairs,
    Surface(Surface),
    Encryptions,
    Stream(Stream),
    Work,
    Made,
    BesideLoads,
}

/// A surface of [`Surfaces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Surface {
    Plain,
    Inline,
    Pooled,
}

/// A burst or stream of [`Streams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stream {
    PlainBurst,
    PooledBurst,
    Dry,
    Inline,
}

type Claim = claim::Claim<Measurements, Task>;

/// Where its claims are in the paper.
#[cfg(test)]
pub(super) fn places() -> Vec<super::index::Place> {
    claims::claims(sizes(Effort::Full)).iter().map(Claim::place).collect()
}

pub(super) async fn reproduce(lab: &Lab<'_>) -> Section {
    let network = lab.part("the network alone", async || bed::network(lab.effort).await).await;
    let (claims, mut figures) = (claims::claims(sizes(lab.effort)), Measurements::new(network));
    for round in 0.. {
        let Some(needed) = lab.needed(&claims, &figures, round) else { break };
        let network = figures.network.clone();
        let (mut surfaces, mut streams) = (Vec::new(), Vec::new());
        for task in &needed {
            match task {
                Task::Surface(surface) => surfaces.push(*surface),
                Task::Stream(stream) => streams.push(*stream),
                _ => {}
            }
        }
        let is_needed = |task: Task| needed.contains(&task);
        if is_needed(Task::Pairs) {
            let measure = async || pairs::pairs(lab, round).await;
            figures.pairs.measure(lab, "two pairs on one line", round, measure).await;
        }
        if !surfaces.is_empty() {
            let measure = async || trips::surfaces(lab, round, network.clone()?, &surfaces).await;
            figures.surfaces.measure(lab, "surfaces", round, measure).await;
        }
        if is_needed(Task::Encryptions) {
            let measure = async || trips::encryptions(lab, round, network.clone()?).await;
            figures.encryptions.measure(lab, "encryptions", round, measure).await;
        }
        if !streams.is_empty() {
            let measure = async || streams::streams(lab, round, network.clone()?, &streams).await;
            figures.streams.measure(lab, "streams", round, measure).await;
        }
        if is_needed(Task::Work) {
            let measure = async || making::work(lab, round).await;
            figures.work.measure(lab, "a transfer's work", round, measure).await;
        }
        if is_needed(Task::Made) {
            let measure = async || making::made(lab, round).await;
            figures.made.measure(lab, "making keystream", round, measure).await;
        }
        if is_needed(Task::BesideLoads) {
            let measure = async || making::beside_loads(lab, round).await;
            let what = "making keystream beside loads";
            figures.beside_loads.measure(lab, what, round, measure).await;
        }
    }
    page::page(&figures, lab.effort)
}

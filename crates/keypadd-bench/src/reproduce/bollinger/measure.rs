//! Streams without a pause, over connections that live for as long as their keys may.
//!
//! QUIC's key update, which follows a lifetime by itself, derives new keys from old ones: no fresh key
//! exchange, and TLS 1.3 has none on a connection that is up. So a fresh one is a new connection: it is brought
//! up while the old one still carries the stream, which moves over when all that the old one carries has
//! been answered.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use keypadd_keystream::CipherEngine;
use keypadd_provider::{Group, MeasureKeyExchange};
use tokio::time::sleep_until;

use super::{Network, SETTINGS, Streamed};
use crate::arm::{Arm, TunnelArm};
use crate::exchange::Exchange;
use crate::link::{Link, LinkSettings};
use crate::path::{Path, PathSettings};
use crate::reproduce::lab::{Lab, Missed, Part};
use crate::reproduce::{Effort, order};
use crate::requester::{Answered, Requester, Requests};

/// The paper's first key exchange, and the one for forward secrecy: of its tables, group 1.
const FIRST: Group = Group::Measure(MeasureKeyExchange::Modp1024);
const FRESH: Group = Group::Measure(MeasureKeyExchange::Modp768);

/// Data between two answers that tell how much has arrived.
const STEP_BYTES: u64 = 16 << 10;

/// Lifetime of keys where the paper set none.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// How a stream goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// How long keys live.
    pub(super) lifetime: Duration,
    /// The stretches of which rates are taken, and how many.
    pub(super) stretch: Duration,
    pub(super) stretches: u32,
    /// Until the first of them, where a connection's start is not to count.
    pub(super) settle: Duration,
}

impl Network {
    pub(super) fn link(self) -> LinkSettings {
        let (delay_ms, bits_per_second) = match self {
            Self::Near => (0, 100_000_000),
            Self::Far => (300, 10_000_000),
        };
        let bits_per_second = NonZeroU64::new(bits_per_second);
        LinkSettings { delay: Duration::from_millis(delay_ms), bits_per_second, ipv6: false }
    }

    /// Steps that are sent and not yet answered, at most: more than the line needs to be busy, less than its
    /// queue loses.
    fn underway(self) -> usize {
        match self {
            Self::Near => 32,
            Self::Far => 64,
        }
    }

    /// How long before the end of a lifetime the next connection is begun: a few round trips.
    fn lead(self) -> Duration {
        Duration::from_millis(200) + 12 * self.link().delay
    }
}

pub(super) fn short_plan(effort: Effort) -> Plan {
    let stretch = effort.pick(Duration::from_millis(500), Duration::from_secs(30));
    Plan { lifetime: AN_HOUR, stretch, stretches: 1, settle: Duration::ZERO }
}

/// The long streams: ten minutes with keys that live for two.
pub(super) fn long_plan(effort: Effort, network: Network) -> Plan {
    let two_minutes = Duration::from_secs(120);
    let quick = |lifetime, settle, stretch| Plan {
        lifetime: Duration::from_millis(lifetime),
        stretch: Duration::from_millis(stretch),
        stretches: 3,
        settle: Duration::from_millis(settle),
    };
    let full =
        Plan { lifetime: two_minutes, stretch: two_minutes, stretches: 4, settle: two_minutes };
    match network {
        Network::Near => effort.pick(quick(800, 800, 500), full),
        Network::Far => effort.pick(quick(4_000, 7_000, 1_500), full),
    }
}

pub(super) async fn short(lab: &Lab<'_>, round: u32) -> Part<[Streamed; SETTINGS.len()]> {
    let mut all: [Streamed; SETTINGS.len()] = Default::default();
    for nth in order(lab.seed, round, SETTINGS.len()) {
        all[nth] = stream(nth, Network::Near, short_plan(lab.effort)).await?;
    }
    Ok(all)
}

pub(super) async fn long(lab: &Lab<'_>, network: Network, nth: usize) -> Part<Streamed> {
    let is_extra = network == Network::Far && SETTINGS[nth].suite == SETTINGS[0].suite;
    if is_extra && lab.effort == Effort::Quick {
        return Err(Missed::NotInQuick);
    }
    stream(nth, network, long_plan(lab.effort, network)).await
}

/// A connection that is up, and one through it.
type Opened = (Path, Requester);

async fn open(nth: usize, network: Network, link: &Link, kex: Group) -> Part<Opened> {
    let engine = CipherEngine::default();
    let arm = Arm::Tunnel(TunnelArm { suite: SETTINGS[nth].suite, pool: false, engine });
    let settings = PathSettings { kex, link: link.clone(), ..PathSettings::default() };
    let path = Path::open_cold(arm, &settings).await?;
    let requester = Requester::open(path.address()).await?;
    Ok((path, requester.at_most(network.underway())))
}

/// One stream of a setting.
async fn stream(nth: usize, network: Network, plan: Plan) -> Part<Streamed> {
    let link = Link::new(network.link());
    let opened = open(nth, network, &link, FIRST).await?;
    let whole = plan.settle + plan.stretch * plan.stretches;
    let lifetime_seconds = plan.lifetime.as_secs_f64();
    if !SETTINGS[nth].fresh || whole <= plan.lifetime {
        let (arrivals, _) = send(opened, whole).await?;
        let mbit = (0..plan.stretches).map(|stretch| {
            let from = (plan.settle + plan.stretch * stretch).as_secs_f64();
            rate(&arrivals, from, plan.stretch.as_secs_f64())
        });
        return Ok(Streamed { mbit: mbit.collect(), key_exchanges: 1, lifetime_seconds });
    }
    let (mut opened, mut mbit) = (Some(opened), Vec::new());
    while let Some(current) = opened.take() {
        let begun = Instant::now();
        let is_last = mbit.len() + 1 == plan.stretches as usize;
        let next = async {
            if is_last {
                return Ok(None);
            }
            let lead = network.lead().min(plan.lifetime);
            sleep_until((begun + plan.lifetime - lead).into()).await;
            open(nth, network, &link, FRESH).await.map(Some)
        };
        let (sent, next) = tokio::join!(send(current, plan.lifetime), next);
        let bytes = sent?.0.len() as u64 * STEP_BYTES;
        mbit.push(bytes as f64 * 8.0 / 1e6 / begun.elapsed().as_secs_f64());
        opened = next?;
    }
    Ok(Streamed { key_exchanges: plan.stretches, mbit, lifetime_seconds })
}

/// Sends for so long; when each step had arrived, in seconds from the start.
async fn send((path, requester): Opened, time: Duration) -> Part<(Vec<f64>, Path)> {
    let requests = Requests::WithoutPause(Exchange::new(STEP_BYTES, 1), time);
    let tell =
        |arrivals: &mut Vec<f64>, answered: Answered| arrivals.push(answered.at.as_secs_f64());
    let (_, arrivals) = requester.run(requests, Instant::now(), Vec::new(), tell).await?;
    Ok((arrivals, path))
}

/// Mbit/s in a stretch that begins `from` seconds after the start.
fn rate(arrivals: &[f64], from: f64, seconds: f64) -> f64 {
    let within = arrivals.iter().filter(|at| (from..from + seconds).contains(*at)).count();
    within as f64 * STEP_BYTES as f64 * 8.0 / 1e6 / seconds
}

//! Streams continuously over connections that live as long as their keys.
//!
//! QUIC's key update at the end of a lifetime derives new keys from old ones, without a fresh key
//! exchange, and TLS 1.3 has none on an established connection. So a fresh exchange takes a new
//! connection: it is established while the old one still carries the stream, which moves once
//! everything on the old one is acknowledged.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use keypadd_keystream::CipherEngine;
use keypadd_measure::Arm;
use keypadd_measure::path::{self, PathSettings};
use keypadd_provider::{Group, MeasureKeyExchange};
use keypadd_traffic::{Link, LinkSettings, Path, Requester, TunnelArm};
use tokio::time::sleep;

use super::{Network, SETTINGS, Streamed};
use crate::lab::{Lab, Part};
use crate::{Effort, order, stream};

/// The paper's first key exchange, and the one for forward secrecy, which in its tables is group 1.
const FIRST: Group = Group::Measure(MeasureKeyExchange::MODP_1024);
const FRESH: Group = Group::Measure(MeasureKeyExchange::MODP_768);

/// Key lifetime where the paper sets none.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Timing of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// How long keys live.
    pub(super) lifetime: Duration,
    /// The uncounted start: longer than a new connection takes to find the line's rate.
    pub(super) settle: Duration,
    /// The counted time.
    pub(super) time: Duration,
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

    /// Maximum unacknowledged steps: more than keeps the line busy, less than overflows its queue.
    fn underway(self) -> usize {
        match self {
            Self::Near => 32,
            Self::Far => 64,
        }
    }

    /// How long before the end of a lifetime the next connection starts: a few round trips, as a
    /// handshake takes.
    fn lead(self) -> Duration {
        Duration::from_millis(200) + 12 * self.link().delay
    }
}

pub(super) fn short_plan(effort: Effort) -> Plan {
    let time = effort.pick(Duration::from_millis(300), Duration::from_secs(10));
    Plan { lifetime: AN_HOUR, settle: Duration::ZERO, time }
}

/// The long streams. Key lifetimes are shorter than the paper's two minutes, so that the cost of
/// fresh key exchanges exceeds the scatter of rates: near, a setting's streams in a full run have
/// twelve, where the paper's ten minutes had four; far, where one costs seconds, six.
pub(super) fn long_plan(effort: Effort, network: Network) -> Plan {
    let [short, three_seconds, ten, thirty, a_minute] =
        [300, 3_000, 10_000, 30_000, 60_000].map(Duration::from_millis);
    let (lifetime, settle, counted) = match network {
        Network::Near => effort.pick((short, short, 2), (thirty, ten, 4)),
        // About fifty round trips.
        Network::Far => effort.pick((three_seconds, three_seconds, 1), (a_minute, thirty, 2)),
    };
    Plan { lifetime, settle, time: lifetime * counted }
}

pub(super) async fn short(lab: &Lab<'_>, round: u32) -> Part<[Streamed; SETTINGS.len()]> {
    let mut all: [Streamed; SETTINGS.len()] = Default::default();
    for nth in order(lab.seed, round, SETTINGS.len()) {
        all[nth] = stream(nth, Network::Near, short_plan(lab.effort)).await?;
    }
    Ok(all)
}

pub(super) async fn long(effort: Effort, network: Network, nth: usize) -> Part<Streamed> {
    stream(nth, network, long_plan(effort, network)).await
}

/// An established connection, with one stream through it.
type Opened = (Path, Requester);

async fn open(nth: usize, link: &Link, kex: Group) -> Part<Opened> {
    let engine = CipherEngine::default();
    let arm = Arm::Tunnel(TunnelArm { suite: SETTINGS[nth].suite, pool: false, engine });
    let settings = PathSettings { kex, link: link.clone(), ..PathSettings::default() };
    let path = path::open_cold(arm, &settings).await?;
    let requester = Requester::open(path.address()).await?;
    Ok((path, requester))
}

/// Runs one stream of a setting, over as many connections as its key lifetimes require.
async fn stream(nth: usize, network: Network, plan: Plan) -> Part<Streamed> {
    let link = Link::new(network.link());
    let mut current = Some(open(nth, &link, FIRST).await?);
    let (begun, mut left) = (Instant::now(), plan.settle + plan.time);
    let (mut arrivals, mut key_exchanges) = (Vec::new(), 0);
    while let Some((path, requester)) = current.take() {
        key_exchanges += 1;
        let time = if SETTINGS[nth].fresh { left.min(plan.lifetime) } else { left };
        left -= time;
        let next = async {
            if left.is_zero() {
                return Ok(None);
            }
            sleep(time.saturating_sub(network.lead())).await;
            open(nth, &link, FRESH).await.map(Some)
        };
        let from = begun.elapsed().as_secs_f64();
        let sent = async move {
            let sent = stream::send(requester, network.underway(), Instant::now(), time).await?;
            path.valid()?;
            Ok(sent)
        };
        let (sent, next) = tokio::join!(sent, next);
        let sent: Part<Vec<f64>> = sent;
        arrivals.extend(sent?.iter().map(|at| from + at));
        current = next?;
    }
    let mbit = stream::rate(&arrivals, plan.settle.as_secs_f64(), begun.elapsed().as_secs_f64());
    Ok(Streamed { mbit, key_exchanges, lifetime_seconds: plan.lifetime.as_secs_f64() })
}

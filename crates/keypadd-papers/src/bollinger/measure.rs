//! Streams from one network to another, by a tunnel between their gateways whose keys have a
//! lifetime.
//!
//! At its end the client's gateway makes a fresh key exchange over another connection, while the old
//! one still carries the packets: QUIC's key update derives new keys from old ones, and TLS 1.3 has
//! no other exchange on an established connection.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::CipherEngine;
use keypadd_measure::Arm;
use keypadd_measure::path::{self, PathSettings, Place};
use keypadd_traffic::{Requester, TunnelArm};
use testbed::{End, FourHosts, LineSettings};

use super::{Network, SETTINGS, Streamed};
use crate::lab::{Lab, Missed, Part};
use crate::{Effort, order, stream};

/// Key lifetime where the paper sets none.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Longest packet of a line, bytes.
const MTU: u32 = 1_500;

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
    fn line(self) -> LineSettings {
        let (delay_ms, bits_per_second) = match self {
            Self::Near => (0, 100_000_000),
            Self::Far => (300, 10_000_000),
        };
        LineSettings {
            bits_per_second: NonZeroU64::new(bits_per_second),
            delay: Duration::from_millis(delay_ms),
            ..LineSettings::default()
        }
    }

    /// Maximum unacknowledged steps: more than keeps the line busy, less than overflows its queue.
    fn underway(self) -> usize {
        match self {
            Self::Near => 32,
            Self::Far => 64,
        }
    }
}

pub(super) fn short_plan(effort: Effort) -> Plan {
    let time = effort.pick(Duration::from_millis(300), Duration::from_secs(10));
    Plan { lifetime: AN_HOUR, settle: Duration::ZERO, time }
}

/// The long streams. In a full run, keys live near for the paper's two minutes, and a setting's
/// streams have eleven lifetimes at least, where the paper's ten minutes had four; far, where an
/// exchange costs seconds, for one minute. A daemon renews keys once a second at most.
pub(super) fn long_plan(effort: Effort, network: Network) -> Plan {
    let (lifetime, settle, counted) = match network {
        Network::Near => effort.pick((1_000, 300, 1), (120_000, 10_000, 1)),
        // About fifty round trips.
        Network::Far => effort.pick((5_000, 3_000, 1), (60_000, 30_000, 2)),
    };
    let [lifetime, settle] = [lifetime, settle].map(Duration::from_millis);
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

/// Runs one stream of a setting from one network to the other, by a tunnel whose keys live as long
/// as the plan says.
async fn stream(nth: usize, network: Network, plan: Plan) -> Part<Streamed> {
    let (hosts, line) = FourHosts::by_path(MTU, 0).map_err(Missed::Lacking)?;
    [End::Near, End::Far].into_iter().for_each(|from| line.set(from, network.line()));
    let client = path::host_in(&hosts.client).map_err(failed)?;
    let place = Place::Hosts { hosts: Arc::new(hosts), processor: None };
    let lifetime = if SETTINGS[nth].fresh { plan.lifetime } else { AN_HOUR };
    let settings = PathSettings { place, key_lifetime: Some(lifetime), ..PathSettings::default() };
    let engine = CipherEngine::default();
    let arm = Arm::Tunnel(TunnelArm { suite: SETTINGS[nth].suite, pool: false, engine });
    let path = path::open_cold(arm, &settings).await?;
    let (address, underway, time) = (path.address(), network.underway(), plan.settle + plan.time);
    let send = async move {
        let requester = Requester::open(address).await?;
        stream::send(requester, underway, Instant::now(), time).await
    };
    let arrivals: Vec<f64> = client.run(send).await.map_err(failed)??;
    let key_exchanges = path.handshakes();
    path.valid()?;
    let mbit = stream::rate(&arrivals, plan.settle.as_secs_f64(), time.as_secs_f64());
    Ok(Streamed { mbit, key_exchanges, lifetime_seconds: plan.lifetime.as_secs_f64() })
}

fn failed(error: io::Error) -> Missed {
    Missed::Failed(error.to_string())
}

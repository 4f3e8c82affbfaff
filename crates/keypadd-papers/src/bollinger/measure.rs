//! Streams from one network to another, by a tunnel between their gateways whose keys have a
//! lifetime.
//!
//! At its end the client's gateway makes a fresh key exchange over another connection, while the old
//! one still carries the packets: QUIC's key update derives new keys from old ones, and TLS 1.3 has
//! no other exchange on an established connection.

use std::num::NonZeroU64;
use std::time::Duration;

use keypadd_keystream::CipherEngine;
use keypadd_measure::{Arm, PathSettings};
use keypadd_traffic::TunnelArm;
use testbed::LineSettings;

use super::{Network, SETTINGS, Streamed};
use crate::lab::{Lab, Part};
use crate::stream::{self, Way};
use crate::{Effort, order};

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
    fn way(self) -> Way {
        // Steps: more than keep the line busy, fewer than overflow its queue.
        let (delay_ms, bits_per_second, underway) = match self {
            Self::Near => (0, 100_000_000, 32),
            Self::Far => (300, 10_000_000, 64),
        };
        let line = LineSettings {
            bits_per_second: NonZeroU64::new(bits_per_second),
            delay: Duration::from_millis(delay_ms),
            ..LineSettings::default()
        };
        Way { line, ipv6: false, underway }
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
        Network::Far => effort.pick((5_000, 8_000, 1), (60_000, 30_000, 2)),
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
    let engine = CipherEngine::default();
    let arm = Arm::Tunnel(TunnelArm { suite: SETTINGS[nth].suite, pool: false, engine });
    let lifetime = if SETTINGS[nth].fresh { plan.lifetime } else { AN_HOUR };
    let settings = PathSettings { key_lifetime: Some(lifetime), ..PathSettings::default() };
    let time = plan.settle + plan.time;
    let way = network.way();
    let (sent, key_exchanges) = stream::between_networks(way, arm, settings, time).await?;
    Ok(Streamed {
        mbit: sent.rate(plan.settle.as_secs_f64(), time.as_secs_f64()),
        key_exchanges,
        lifetime_seconds: plan.lifetime.as_secs_f64(),
    })
}

//! Runs one round of each experiment, the groups in an order drawn from the seed.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use keypadd_keystream::{CipherEngine, Protection, Suite};
use keypadd_measure::{Arm, Ends, PathSettings};
use keypadd_provider::{Group, KeyExchange};
use keypadd_traffic::TunnelArm;
use testbed::LineSettings;

use super::{GROUPS, Generated, Generation, Throughput};
use crate::lab::{Lab, Missed, Part};
use crate::stream::{self, Way};
use crate::{Effort, order};

/// Suite of the tunnels, which differ only in their handshakes. The paper does not name its cipher;
/// this is what its software used by default at the time.
pub(super) const SUITE: Protection = Suite::AES_128_CTR_HMAC_SHA1.protection();

/// Samples averaged for a round's result.
pub(super) fn exchanges(effort: Effort) -> u32 {
    effort.pick(3, 200)
}

/// Duration of each stream in a round.
pub(super) fn stream_time(effort: Effort) -> Duration {
    effort.pick(Duration::from_millis(400), Duration::from_secs(5))
}

pub(super) async fn generation(lab: &Lab<'_>, round: u32) -> Part<Generation> {
    let count = exchanges(lab.effort);
    let mut generation = Generation::default();
    for nth in order(lab.seed, round, GROUPS.len()) {
        let group = GROUPS[nth];
        let computed = tokio::task::spawn_blocking(move || compute(group, count)).await;
        let mut generated = computed.map_err(|_| "a measurement thread panicked".to_owned())??;
        let ends = Ends::new(group).await?;
        // The first one runs with cold caches and does not count.
        ends.shake_hands(None).await?;
        let start = Instant::now();
        for _ in 0..count {
            ends.shake_hands(None).await?;
        }
        generated.handshake_us = micros(start.elapsed()) / f64::from(count);
        generation[nth] = generated;
    }
    Ok(generation)
}

/// Measures key exchanges without a network.
fn compute(group: Group, count: u32) -> Result<Generated, Missed> {
    let failed = |error: &dyn std::fmt::Display| Missed::Failed(format!("{group}: {error}"));
    let mut generated = Generated::default();
    for nth in 0..=count {
        let start = Instant::now();
        let near = group.group().start().map_err(|error| failed(&error))?;
        let key_pair = start.elapsed();
        let far =
            group.group().start_and_complete(near.pub_key()).map_err(|error| failed(&error))?;
        near.complete(&far.pub_key).map_err(|error| failed(&error))?;
        // The first one runs with cold caches and does not count.
        if nth > 0 {
            generated.key_pair_us += micros(key_pair);
            generated.exchange_us += micros(start.elapsed());
        }
    }
    generated.key_pair_us /= f64::from(count);
    generated.exchange_us /= f64::from(count);
    Ok(generated)
}

pub(super) async fn throughput(lab: &Lab<'_>, round: u32) -> Part<Throughput> {
    let time = stream_time(lab.effort);
    let mut throughput = Throughput::default();
    for nth in order(lab.seed, round, GROUPS.len() + 1) {
        match GROUPS.get(nth) {
            Some(&group) => {
                let engine = CipherEngine::default();
                let arm = Arm::Tunnel(TunnelArm { suite: SUITE, pool: false, engine });
                throughput.tunnels[nth] = carry(arm, group, time).await?;
            }
            None => throughput.plain = carry(Arm::Tcp, KeyExchange::default().into(), time).await?,
        }
    }
    Ok(throughput)
}

/// The paper's network.
fn way() -> Way {
    let bits_per_second = NonZeroU64::new(32_000_000);
    let line = LineSettings { bits_per_second, ..LineSettings::default() };
    // Enough steps to keep the line busy, few enough to drain soon at the end.
    Way { line, ipv6: true, underway: 16 }
}

/// Throughput of received payload, Mbit/s, between networks of its own.
async fn carry(arm: Arm, kex: Group, time: Duration) -> Part<f64> {
    let settings = PathSettings { kex, ..PathSettings::default() };
    let (sent, _) = stream::between_networks(way(), arm, settings, time).await?;
    Ok(sent.rate(0.0, time.as_secs_f64()))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

//! Runs bursts and streams beside a cipher as slow relative to them as his: what fits, and what
//! does not.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use keypadd_traffic::{Counts, Due, Exchange, Path, Requester, Requests};

use super::bed::{AMPLE_BYTES, Throttled, fill, plain, tunnel};
use super::{Network, Stream, Streams};
use crate::lab::{Lab, Part};
use crate::{Effort, order, stream};

/// A file: as many of his several megabytes as an ample pool has pads for.
pub(super) const FILE_BYTES: u64 = 3 << 20;
/// A pool that a stream soon empties.
const SMALL_BYTES: usize = 2 << 20;
/// Time between two bursts of traffic with a low average.
const BURST_EVERY: Duration = Duration::from_millis(500);
/// How long the pool learns these bursts, at full speed: somewhat longer than it remembers.
const LEARNING: Duration = Duration::from_secs(15);
/// That average as a share of the cipher's rate.
pub(super) const BELOW: f64 = 0.5;
/// Maximum unacknowledged steps of a stream: a quarter of a second's work of a slow receiver.
const UNDERWAY: usize = 16;

/// Duration of traffic with a low average: until it has used the pool's content twice. A quick run
/// has no time for it.
pub(super) fn below_time(network: Network) -> Duration {
    let rate = network.stream_cipher().get() as f64 * BELOW;
    Duration::from_secs_f64((2.0 * SMALL_BYTES as f64 / rate).clamp(2.0, 120.0))
}

/// Duration of a stream.
pub(super) fn above_time(effort: Effort) -> Duration {
    effort.pick(Duration::from_millis(600), Duration::from_secs(8))
}

/// Measures these bursts and streams.
pub(super) async fn streams(
    lab: &Lab<'_>,
    round: u32,
    network: Network,
    which: &[Stream],
) -> Part<Streams> {
    let (effort, rate) = (lab.effort, network.stream_cipher());
    let mut streams = Streams::default();
    for nth in order(lab.seed, round, which.len()) {
        match which[nth] {
            Stream::PlainBurst => {
                let path = plain().await?;
                streams.plain_burst = Some(burst(&path).await?);
                path.close().await?;
            }
            Stream::PooledBurst => {
                let path = tunnel(Some(AMPLE_BYTES), rate).await?;
                fill(&path).await;
                let slowed = Throttled::both(rate);
                streams.pooled_burst = Some(burst(&path).await?);
                drop(slowed);
                path.close().await?;
            }
            Stream::Dry => {
                let path = tunnel(Some(SMALL_BYTES), rate).await?;
                if effort == Effort::Full {
                    streams.late_below = Some(below(&path, network).await?);
                }
                fill(&path).await;
                let before = path.gauges().counts();
                streams.after = Some(second_half(&path, effort, Throttled::both(rate)).await?);
                streams.late_above = Some(late(path.gauges().counts().since(before)));
                path.close().await?;
            }
            Stream::Inline => {
                let path = tunnel(None, rate).await?;
                streams.inline = Some(second_half(&path, effort, Throttled::both(rate)).await?);
                path.close().await?;
            }
        }
    }
    Ok(streams)
}

/// Share of keystream generated inline in bursts whose average is below the cipher's rate.
async fn below(path: &Path, network: Network) -> Part<f64> {
    let rate = network.stream_cipher();
    bursts(path, rate, LEARNING).await?;
    fill(path).await;
    let before = path.gauges().counts();
    let slowed = Throttled::both(rate);
    bursts(path, rate, below_time(network)).await?;
    drop(slowed);
    Ok(late(path.gauges().counts().since(before)))
}

/// Sends bursts for this long, with an average below this rate.
async fn bursts(path: &Path, rate: NonZeroU64, time: Duration) -> Part<()> {
    let bytes = rate.get() as f64 * BELOW * BURST_EVERY.as_secs_f64();
    let exchange = Exchange::new(bytes as u64, 1);
    let count = (time.as_secs_f64() / BURST_EVERY.as_secs_f64()) as u32;
    let schedule = (0..count).map(|nth| Due { at: BURST_EVERY * nth, exchange }).collect();
    let requester = Requester::open(path.address()).await?;
    requester.run(Requests::At(schedule), Instant::now(), (), |(), _| ()).await?;
    Ok(())
}

/// Rate of a file transfer, Mbit/s.
async fn burst(path: &Path) -> Part<f64> {
    let requester = Requester::open(path.address()).await?;
    let file = Exchange::new(FILE_BYTES, 1);
    let (_, times) = requester.one_by_one(file, 1, Duration::ZERO).await?;
    let took: Duration = times.iter().sum();
    Ok(FILE_BYTES as f64 * 8.0 / 1e6 / took.as_secs_f64())
}

/// Throughput in the second half of a stream at full speed, Mbit/s.
async fn second_half(path: &Path, effort: Effort, slowed: Throttled) -> Part<f64> {
    let time = above_time(effort);
    let sent = stream::through(path, UNDERWAY, time).await?;
    drop(slowed);
    Ok(sent.rate(time.as_secs_f64() / 2.0, time.as_secs_f64()))
}

/// Share of all keystream that was generated while a packet waited for it.
fn late(counts: Counts) -> f64 {
    let all = counts.inline_bytes + counts.pool_bytes;
    counts.inline_bytes as f64 / all.max(1) as f64
}

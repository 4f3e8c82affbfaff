//! Two pairs of machines on one network, as on his Ethernet: what each leaves of the other's throughput.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::Pairs;
use super::bed::over;
use crate::exchange::Exchange;
use crate::link::{Link, LinkSettings};
use crate::path::Path;
use crate::reproduce::lab::{Lab, Part};
use crate::reproduce::{Effort, order};
use crate::requester::{Answered, Requester, Requests};

/// Ethernet of his time.
pub(super) const BITS_PER_SECOND: NonZeroU64 = NonZeroU64::new(10_000_000).unwrap();
/// Data between two answers that tell how much has arrived.
const STEP_BYTES: u64 = 16 << 10;
/// Steps that are sent and not yet answered, at most: they keep the line busy, and it is soon empty at the end.
const UNDERWAY: usize = 32;
/// Until streams start, so that their threads are up.
const LEAD: Duration = Duration::from_millis(20);

/// How long a stream goes on.
pub(super) fn stream_time(effort: Effort) -> Duration {
    effort.pick(Duration::from_secs(1), Duration::from_secs(10))
}

pub(super) async fn pairs(lab: &Lab<'_>, round: u32) -> Part<Pairs> {
    let time = stream_time(lab.effort);
    let line = LinkSettings { bits_per_second: Some(BITS_PER_SECOND), ..LinkSettings::default() };
    let mut pairs = Pairs::default();
    for nth in order(lab.seed, round, 2) {
        let link = Link::new(line);
        let path = over(&link).await?;
        match nth {
            0 => pairs.alone = stream(&path, time).await?,
            _ => {
                let other = over(&link).await?;
                let (ours, theirs) = tokio::join!(stream(&path, time), stream(&other, time));
                (pairs.beside, pairs.other) = (ours?, theirs?);
                other.close().await;
            }
        }
        path.close().await;
    }
    Ok(pairs)
}

/// Payload that arrives, Mbit/s.
async fn stream(path: &Path, time: Duration) -> Part<f64> {
    let requester = Requester::open(path.address()).await?.at_most(UNDERWAY);
    let requests = Requests::WithoutPause(Exchange::new(STEP_BYTES, 1), time);
    let tell = |(steps, end): &mut (u32, Duration), answered: Answered| {
        (*steps, *end) = (*steps + 1, answered.at);
    };
    let start = Instant::now() + LEAD;
    let (_, (steps, end)) = requester.run(requests, start, (0, Duration::ZERO), tell).await?;
    Ok(f64::from(steps) * STEP_BYTES as f64 * 8.0 / 1e6 / end.as_secs_f64())
}

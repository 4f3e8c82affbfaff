//! Runs two pairs of hosts on one network, as on his Ethernet: how much throughput each leaves the
//! other.

use std::num::NonZeroU64;
use std::time::Duration;

use keypadd_traffic::{Link, LinkSettings, Path};

use super::Pairs;
use super::bed::open_over;
use crate::lab::{Lab, Part};
use crate::{Effort, order, stream};

/// The Ethernet of his time.
pub(super) const BITS_PER_SECOND: NonZeroU64 = NonZeroU64::new(10_000_000).unwrap();
/// Maximum unacknowledged steps: enough to keep the line busy, few enough to drain soon at the end.
const UNDERWAY: usize = 32;

/// Duration of a stream.
pub(super) fn stream_time(effort: Effort) -> Duration {
    effort.pick(Duration::from_millis(500), Duration::from_secs(10))
}

pub(super) async fn pairs(lab: &Lab<'_>, round: u32) -> Part<Pairs> {
    let time = stream_time(lab.effort);
    let line = LinkSettings { bits_per_second: Some(BITS_PER_SECOND), ..LinkSettings::default() };
    let mut pairs = Pairs::default();
    for nth in order(lab.seed, round, 2) {
        let link = Link::new(line);
        let path = open_over(&link).await?;
        match nth {
            0 => pairs.alone = carry(&path, time).await?,
            _ => {
                let other = open_over(&link).await?;
                let (ours, theirs) = tokio::join!(carry(&path, time), carry(&other, time));
                (pairs.beside, pairs.other) = (ours?, theirs?);
                other.close().await?;
            }
        }
        path.close().await?;
    }
    Ok(pairs)
}

/// Throughput of received payload, Mbit/s.
async fn carry(path: &Path, time: Duration) -> Part<f64> {
    let sent = stream::through(path, UNDERWAY, time).await?;
    Ok(sent.rate(0.0, time.as_secs_f64()))
}

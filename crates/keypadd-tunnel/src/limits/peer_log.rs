//! Limits the log lines that an authenticated peer can cause, over all its sessions, and counts
//! those that it suppresses.
//!
//! Strangers are limited by source instead (`client_log`). Memory is bounded by the number of
//! listed and dialed keys.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use keypadd_provider::PublicKey;
use keypadd_share::{Bucket, Rate};
use tracing::info;

/// Lines of one peer: 54 in the first minute, then 24 a minute.
pub(crate) const RATE: Rate = Rate { burst: 30, interval: Duration::from_millis(2_500) };

/// Names in one line.
const NAMED_MAX: usize = 8;

/// The log lines of each peer.
#[derive(Debug, Default)]
pub(crate) struct PeerLog(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    peers: HashMap<PublicKey, PeerLines>,
    /// Suppressed lines of strangers and of peers, since the daemon started.
    suppressed: u64,
}

#[derive(Debug)]
struct PeerLines {
    name: String,
    bucket: Bucket,
    /// Since the last report.
    suppressed: u64,
}

impl PeerLog {
    /// Whether this peer may cause a line now.
    pub(crate) fn allow(&self, key: PublicKey, name: &str, now: Instant) -> bool {
        let mut lines = self.lines();
        let new = || PeerLines { name: name.into(), bucket: Bucket::FULL, suppressed: 0 };
        let peer = lines.peers.entry(key).or_insert_with(new);
        let allowed = peer.bucket.take(RATE, now).is_ok();
        if !allowed {
            peer.suppressed += 1;
            lines.suppressed += 1;
        }
        allowed
    }

    /// Counts a suppressed line of a stranger.
    pub(crate) fn count_suppressed(&self) {
        self.lines().suppressed += 1;
    }

    /// Lines suppressed since the daemon started.
    pub(crate) fn suppressed(&self) -> u64 {
        self.lines().suppressed
    }

    /// Logs one line with the counts since the last report, if any.
    pub(crate) fn report(&self) {
        if let Some(counts) = self.take_counts() {
            info!("log lines suppressed in the last minute: {counts}");
        }
    }

    fn take_counts(&self) -> Option<String> {
        let mut lines = self.lines();
        let counts = lines.peers.values_mut().map(|peer| (peer.name.clone(), &mut peer.suppressed));
        let counts = counts.filter(|(_, count)| **count > 0);
        let counts: Vec<_> = counts.map(|(name, count)| (std::mem::take(count), name)).collect();
        drop(lines);
        (!counts.is_empty()).then(|| most_first(counts, "peers"))
    }

    /// A panic cannot leave the counts half changed.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has these names and counts, for one line, as "2 of this, 1 of that".
pub(crate) fn most_first(mut counts: Vec<(u64, String)>, what: &str) -> String {
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let others: u64 = counts.iter().skip(NAMED_MAX).map(|(count, _)| count).sum();
    let named = counts.iter().take(NAMED_MAX).map(|(count, name)| format!("{count} of {name}"));
    let others = (others > 0).then(|| format!("{others} of other {what}"));
    named.chain(others).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> PublicKey {
        keypadd_provider::PrivateKey::generate().unwrap().public()
    }

    #[test]
    fn a_peer_causes_at_most_a_line_a_second_on_average_and_the_rest_is_counted() {
        let (log, start) = (PeerLog::default(), Instant::now());
        let (noisy, quiet) = (key(), key());
        let mut written = 0;
        for millis in 0..60_000 {
            let now = start + Duration::from_millis(millis);
            written += u64::from(log.allow(noisy, "noisy", now));
        }
        assert!(written <= 60, "{written}");
        assert!(log.allow(quiet, "quiet", start));
        assert_eq!(log.suppressed(), 60_000 - written);
        assert_eq!(log.take_counts(), Some(format!("{} of noisy", 60_000 - written)));
        assert_eq!(log.take_counts(), None);
    }
}

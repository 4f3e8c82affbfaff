//! Limits a log line to one a minute. The caller passes the time.

use std::time::{Duration, Instant};

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a line was last logged.
#[derive(Debug, Default)]
pub(crate) struct LineRateLimit(Option<Instant>);

impl LineRateLimit {
    /// Whether the line may be logged now; if so, not again for a minute.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let allowed = self.0.is_none_or(|logged| now.saturating_duration_since(logged) >= INTERVAL);
        if allowed {
            self.0 = Some(now);
        }
        allowed
    }
}

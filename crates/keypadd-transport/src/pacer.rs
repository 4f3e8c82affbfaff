//! Paces a connection's packets at the rate that its congestion controller sets.
//!
//! A token bucket (RFC 9002 7.7). Retransmissions and sparse data are charged after they are sent,
//! so the bucket may go negative. Knows bytes and times.

use std::time::{Duration, Instant};

/// Length of a burst at the pacing rate, if that exceeds the minimum.
const BURST_TIME: f64 = 0.001;

/// The bucket's size in bursts: the system's timers are up to one burst late.
const BURSTS: f64 = 2.0;

/// Least packets of a burst, also at the start of a connection (RFC 9002 7.2).
const BURST_PACKETS: u64 = 1;
const INITIAL_PACKETS: u64 = 10;

/// Bytes that may be sent now.
#[derive(Debug)]
pub(crate) struct Pacer {
    tokens: f64,
    filled_at: Instant,
}

impl Pacer {
    pub(crate) fn new(now: Instant, mtu: u64) -> Self {
        Self { tokens: (INITIAL_PACKETS * mtu) as f64, filled_at: now }
    }

    /// A pacer that allows nothing yet.
    pub(crate) fn empty(now: Instant) -> Self {
        Self { tokens: 0.0, filled_at: now }
    }

    /// The size of a burst in bytes, at `rate` bytes per second.
    pub(crate) fn burst(rate: f64, mtu: u64) -> f64 {
        (rate * BURST_TIME).max((BURST_PACKETS * mtu) as f64)
    }

    /// The most that may be sent at once or be owed, at `rate` bytes per second.
    fn bucket(rate: f64, mtu: u64) -> f64 {
        BURSTS * Self::burst(rate, mtu)
    }

    /// Bytes that may be sent now; negative after more was sent than the rate allows.
    pub(crate) fn tokens(&mut self, now: Instant, rate: f64, mtu: u64) -> f64 {
        let elapsed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = self.filled_at.max(now);
        // Keep what is unused of the initial window; drop credit and debt of an earlier, higher
        // rate.
        let kept = self.tokens.min((INITIAL_PACKETS * mtu) as f64);
        let bucket = Self::bucket(rate, mtu);
        self.tokens = (self.tokens + elapsed * rate).clamp(-bucket, bucket.max(kept));
        self.tokens
    }

    /// Charges bytes that were sent. Debt is bounded, so that it blocks nobody for long.
    pub(crate) fn spend(&mut self, bytes: u64, rate: f64, mtu: u64) {
        self.tokens = (self.tokens - bytes as f64).max(-Self::bucket(rate, mtu));
    }

    /// Bytes allowed at the last call.
    pub(crate) fn left(&self) -> f64 {
        self.tokens
    }

    /// When there will be this many tokens at this rate.
    pub(crate) fn time_of(&self, tokens: f64, rate: f64) -> Instant {
        let wait = (tokens - self.tokens).max(0.0) / rate.max(1.0);
        self.filled_at + Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1_200;

    #[test]
    fn what_leaves_keeps_to_the_rate_in_bursts_of_a_millisecond() {
        let (start, rate) = (Instant::now(), 37.5e6);
        let mut pacer = Pacer::new(start, MTU);
        let (mut now, mut sent, mut largest) = (start, 0, 0);
        while now < start + Duration::from_secs(1) {
            let mut burst = 0;
            while pacer.tokens(now, rate, MTU) >= MTU as f64 {
                pacer.spend(MTU, rate, MTU);
                burst += MTU;
            }
            (sent, largest) = (sent + burst, largest.max(burst));
            now = pacer.time_of(Pacer::burst(rate, MTU), rate);
        }
        assert!((37.0e6..38.0e6).contains(&(sent as f64)), "{sent}");
        assert!(largest as f64 <= 37.5e6 * 0.001 + 2.0 * MTU as f64, "{largest}");
    }

    #[test]
    fn what_a_higher_rate_allowed_and_owes_is_not_kept() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut pacer = Pacer::new(start, MTU);
        assert!(pacer.tokens(start + second, 1e12, MTU) > 1e9);
        let most = (INITIAL_PACKETS * MTU) as f64;
        assert_eq!(pacer.tokens(start + 2 * second, 1e6, MTU), most);
        pacer.spend(INITIAL_PACKETS * MTU, 1e6, MTU);
        assert_eq!(pacer.tokens(start + 3 * second, 1e6, MTU), BURSTS * MTU as f64);
        pacer.spend(1 << 30, 1e12, MTU);
        assert_eq!(pacer.tokens(start + 3 * second, 1e6, MTU), -BURSTS * MTU as f64);
    }

    #[test]
    fn a_debt_is_paid_back_and_bounded() {
        let (now, rate) = (Instant::now(), 1e6);
        let mut pacer = Pacer::new(now, MTU);
        pacer.spend(1 << 30, rate, MTU);
        let wait = pacer.time_of(0.0, rate) - now;
        assert!(wait > Duration::ZERO && wait < Duration::from_millis(10), "{wait:?}");
    }
}

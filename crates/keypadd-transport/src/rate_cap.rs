//! Caps what this end sends to a peer, over all connections to it, in whatever loops they are.
//! Knows bytes and times.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The rate of a peer without a cap.
const UNLIMITED: u64 = u64::MAX;

/// What may leave at once, as time at the rate: timers are late.
const BURST_TIME: f64 = 0.004;

/// Least packets that may leave at once.
const BURST_PACKETS: u64 = 2;

/// The most bytes per second to a peer, of UDP payload. Clones share it.
#[derive(Clone, Debug)]
pub struct RateCap(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rate: AtomicU64,
    bucket: Mutex<Bucket>,
}

/// What may be sent, in bytes.
#[derive(Debug)]
struct Bucket {
    /// Negative where more was sent: sparse data and retransmissions are charged afterwards. Debt
    /// has no bound, so that no number of connections exceeds the rate for long.
    tokens: f64,
    filled_at: Option<Instant>,
}

impl RateCap {
    /// A cap of so many bytes per second, if any.
    pub fn new(rate: Option<u64>) -> Self {
        let bucket = Mutex::new(Bucket { tokens: 0.0, filled_at: None });
        Self(Arc::new(Shared { rate: AtomicU64::new(rate.unwrap_or(UNLIMITED)), bucket }))
    }

    /// Changes the rate, also of open connections.
    pub fn set(&self, rate: Option<u64>) {
        self.0.rate.store(rate.unwrap_or(UNLIMITED), Relaxed);
    }

    /// The rate in bytes per second, if there is a cap.
    pub(crate) fn rate(&self) -> Option<f64> {
        let rate = self.0.rate.load(Relaxed);
        (rate != UNLIMITED).then_some(rate as f64)
    }

    /// Charges `sent` bytes, then says how many of `bytes` may be sent now; else when the next
    /// packet may. `mtu` is the size of a packet.
    pub(crate) fn take(
        &self,
        sent: u64,
        bytes: u64,
        now: Instant,
        mtu: u64,
    ) -> Result<u64, Instant> {
        let Some(rate) = self.rate() else { return Ok(bytes) };
        let most = (rate * BURST_TIME).max((BURST_PACKETS * mtu) as f64);
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let filled_at = *bucket.filled_at.get_or_insert(now);
        let elapsed = now.saturating_duration_since(filled_at).as_secs_f64();
        bucket.filled_at = Some(filled_at.max(now));
        bucket.tokens = (bucket.tokens + elapsed * rate).min(most) - sent as f64;
        let wanted = bytes.min(mtu) as f64;
        if bucket.tokens >= wanted {
            return Ok(bytes.min(bucket.tokens as u64));
        }
        let wait = (wanted - bucket.tokens) / rate.max(1.0);
        Err(now + Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_secs(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1_200;

    #[test]
    fn several_connections_send_no_more_than_the_cap_together() {
        let (cap, start) = (RateCap::new(Some(100_000)), Instant::now());
        let (mut now, mut sent) = (start, [0_u64; 3]);
        // One asks for each packet; one sends its own late; one sends without asking.
        while now < start + Duration::from_secs(20) {
            let mut next = now + Duration::from_secs(1);
            for (one, sent) in sent.iter_mut().enumerate() {
                match cap.take(0, 4 * MTU, now, MTU) {
                    Ok(bytes) => {
                        let bytes = if one == 2 { 5 * MTU } else { bytes };
                        let _ = cap.take(bytes, 0, now, MTU);
                        *sent += bytes;
                        next = now;
                    }
                    // As a clock has no shorter time.
                    Err(until) => next = next.min(until.max(now + Duration::from_micros(1))),
                }
            }
            now = next;
        }
        let rate = sent.iter().sum::<u64>() as f64 / (now - start).as_secs_f64();
        assert!((99_000.0..=101_000.0).contains(&rate), "{rate} {sent:?}");
    }

    #[test]
    fn a_cap_that_is_taken_away_holds_nothing_back_and_a_new_one_does() {
        let (cap, now) = (RateCap::new(Some(1_000)), Instant::now());
        assert!(cap.take(50_000, MTU, now, MTU).is_err());
        cap.set(None);
        assert_eq!(cap.take(50_000, 1 << 20, now, MTU), Ok(1 << 20));
        cap.set(Some(1_000_000));
        let until = cap.take(0, MTU, now, MTU).unwrap_err();
        assert!(until - now < Duration::from_secs(1), "at the new rate");
        assert!(cap.take(0, MTU, until + Duration::from_micros(1), MTU).is_ok());
    }
}

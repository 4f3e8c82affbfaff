//! Decides when a session's keys have reached their lifetime, by time and by bytes; both can be
//! changed at run time.
//!
//! QUIC's key updates derive new keys from old secrets, so only another handshake makes a leaked
//! secret worthless. Knows no connections: its callers count the bytes, and make or request the
//! handshake.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// The fastest plausible rate; it bounds the time between two checks.
const BYTES_PER_SECOND_MAX: u64 = 10 << 30;

/// How often byte counts are checked, at most and at least.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(3_600);

/// A client whose server asks for new keys may take half of the lifetime, but at least this long.
const GRACE_MIN: Duration = Duration::from_secs(60);

/// How long the keys of a session are used; the first limit reached counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLifetime {
    /// Time since the handshake; zero is no limit.
    pub time: Duration,
    /// Bytes sent and received in UDP payloads; zero is no limit.
    pub bytes: u64,
    /// How long a server then waits for its client to replace them.
    pub grace: Duration,
}

impl Default for KeyLifetime {
    /// Limits of RFC 4253 9 for time and RFC 4344 3.2 for bytes, as for key updates.
    fn default() -> Self {
        Self::new(Duration::from_secs(3_600), 64 << 30)
    }
}

impl KeyLifetime {
    /// Keys are used as long as their session lasts.
    pub const UNLIMITED: Self = Self { time: Duration::ZERO, bytes: 0, grace: GRACE_MIN };

    /// Limits on time and bytes.
    pub fn new(time: Duration, bytes: u64) -> Self {
        Self { time, bytes, grace: GRACE_MIN.max(time / 2) }
    }

    /// Whether there is any limit.
    pub(crate) fn is_limited(&self) -> bool {
        !self.time.is_zero() || self.bytes > 0
    }

    /// How long until keys of this age and these bytes must be checked again; `None` if they have
    /// reached their lifetime.
    fn left(&self, age: Duration, bytes: u64, permille: u32) -> Option<Duration> {
        let time = match self.time {
            Duration::ZERO => LOOK_MAX,
            time => (time.saturating_mul(permille) / 1_000)
                .checked_sub(age)
                .filter(|left| !left.is_zero())?,
        };
        let look = match self.bytes {
            0 => LOOK_MAX,
            // Divides first: a limit may be as large as its type.
            max => {
                let left = (max / 1_000 * u64::from(permille)).max(1).checked_sub(bytes)?;
                let left = Some(left).filter(|left| *left > 0)?;
                Duration::from_secs_f64(left as f64 / BYTES_PER_SECOND_MAX as f64).max(LOOK_MIN)
            }
        };
        Some(time.min(look).min(LOOK_MAX))
    }
}

/// The lifetime in force; clones share it.
#[derive(Clone, Debug, Default)]
pub struct KeyLifetimes(Arc<watch::Sender<KeyLifetime>>);

impl KeyLifetimes {
    /// Starts with this lifetime.
    pub fn new(lifetime: KeyLifetime) -> Self {
        Self(Arc::new(watch::Sender::new(lifetime)))
    }

    /// Changes the lifetime, also for keys already in use.
    pub fn set(&self, lifetime: KeyLifetime) {
        self.0.send_replace(lifetime);
    }

    pub(crate) fn get(&self) -> KeyLifetime {
        *self.0.borrow()
    }

    /// Waits until keys have reached this many thousandths of their lifetime. `bytes` returns what
    /// they have carried.
    pub(crate) async fn over(&self, since: Instant, bytes: impl Fn() -> u64, permille: u32) {
        let mut lifetimes = self.0.subscribe();
        loop {
            let lifetime = *lifetimes.borrow_and_update();
            let Some(left) = lifetime.left(since.elapsed(), bytes(), permille) else { return };
            tokio::select! {
                () = sleep(left) => {}
                // Fails only if the sender is gone, and this is the sender.
                Ok(()) = lifetimes.changed() => {}
            }
        }
    }
}

/// The most that [`jitter`] returns: a tenth, in thousandths.
pub(crate) const JITTER_MAX: u32 = 100;

/// Up to a tenth, in thousandths, so that sessions which began together are not renewed together.
pub(crate) fn jitter() -> u32 {
    let mut bytes = [0; 2];
    // Without randomness all keys have the same lifetime.
    let _ = getrandom::fill(&mut bytes);
    u32::from(u16::from_le_bytes(bytes)) * JITTER_MAX / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn keys_have_served_after_their_time_or_their_bytes_whichever_is_first() {
        let lifetime = KeyLifetime::new(HOUR, 64 << 30);
        let over = |age, bytes| lifetime.left(age, bytes, 1_000).is_none();
        assert!(!over(HOUR - Duration::from_secs(1), (64 << 30) - (1 << 20)));
        assert!(over(HOUR, 0) && over(Duration::ZERO, 64 << 30));
        assert!(lifetime.left(HOUR * 9 / 10, 0, 900).is_none());
        assert_eq!(KeyLifetime::UNLIMITED.left(HOUR * 1_000, u64::MAX, 1_000), Some(LOOK_MAX));
        assert!(KeyLifetime { bytes: 1, ..lifetime }.left(Duration::ZERO, 1, 900).is_none());
    }

    #[test]
    fn bytes_are_looked_at_before_the_fastest_path_can_have_carried_what_is_left() {
        let lifetime = KeyLifetime::new(Duration::ZERO, 64 << 30);
        let look = |bytes| lifetime.left(Duration::ZERO, bytes, 1_000).unwrap();
        assert!(look(0) > Duration::from_secs(6) && look(0) < Duration::from_secs(7));
        assert_eq!(look((64 << 30) - 2_000), LOOK_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_lifetime_ends_keys_that_serve_already_and_none_spares_them() {
        let (lifetimes, began) = (KeyLifetimes::default(), Instant::now());
        let carried = AtomicU64::new(0);
        let over = lifetimes.over(began, || carried.load(Relaxed), 1_000);
        tokio::pin!(over);
        let mut wait = async |time| tokio::time::timeout(time, over.as_mut()).await.is_ok();
        assert!(!wait(HOUR / 2).await);
        lifetimes.set(KeyLifetime::UNLIMITED);
        assert!(!wait(HOUR * 100).await);
        lifetimes.set(KeyLifetime::new(Duration::ZERO, 1_000));
        carried.store(999, Relaxed);
        assert!(!wait(HOUR).await);
        carried.store(1_000, Relaxed);
        assert!(wait(LOOK_MIN * 2).await);
        assert!(began.elapsed() < HOUR * 102);
    }

    #[test]
    fn sessions_that_began_together_are_spread_over_a_tenth() {
        let drawn: Vec<_> = (0..200).map(|_| jitter()).collect();
        assert!(drawn.iter().all(|permille| *permille <= 100));
        assert!(drawn.iter().max() > drawn.iter().min());
    }
}

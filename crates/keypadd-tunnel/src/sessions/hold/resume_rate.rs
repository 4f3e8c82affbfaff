//! Limits how often the clients of a key resume sessions: each time, both ends go through all
//! streams.
//!
//! All clients of a key may come back at once, and once again. Clients beyond that wait, but never
//! longer than it takes until as many are allowed again.

use std::time::Duration;

use keypadd_provider::PublicKey;
use keypadd_share::{Rate, Rates};

/// Sessions of a key that are resumed at once, at least.
pub(crate) const BURST_MIN: usize = 32;

/// Time in which as many may be resumed again.
pub(crate) const REFILL: Duration = Duration::from_secs(8);

/// The sessions that keys resume, each of which may have `sessions_max`. There is a bucket for each
/// listed key at most.
pub(crate) fn resumptions(sessions_max: usize) -> Rates<PublicKey> {
    let burst = u32::try_from(sessions_max.saturating_mul(2).max(BURST_MIN)).unwrap_or(u32::MAX);
    Rates::new(Rate { burst, interval: REFILL / burst }, usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use keypadd_provider::PrivateKey;

    use super::*;

    #[test]
    fn all_sessions_of_a_key_come_back_twice_at_once_and_then_some_each_second() {
        let start = Instant::now();
        for (sessions_max, burst) in [(16, 32), (1_000, 2_000)] {
            let resumptions = resumptions(sessions_max);
            for _ in 0..2 {
                let key = PrivateKey::generate().unwrap().public();
                let resumed =
                    |now| (0..10_000).filter(|_| resumptions.take(key, now).is_ok()).count();
                assert_eq!(resumed(start), burst);
                assert_eq!(resumed(start + REFILL / 4), burst / 4);
            }
        }
    }
}

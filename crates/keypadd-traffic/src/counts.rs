//! Reads from the local ends' counters where pads came from and what filling cost.

use std::sync::Arc;
use std::time::Duration;

use keypadd_pool::{Coverage, Direction, Pool};
use keypadd_provider::Meters;
use serde::Serialize;

/// Packets and keystream, both directions, of every end in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets whose pad was whole in the pool.
    pub hit: u64,
    /// Packets whose pad was in the pool in part.
    pub partial: u64,
    /// Packets whose pad was made on the spot.
    pub miss: u64,
    /// Keystream from the pool, bytes.
    pub pool_bytes: u64,
    /// Keystream made on the spot, bytes.
    pub inline_bytes: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            hit: self.hit - earlier.hit,
            partial: self.partial - earlier.partial,
            miss: self.miss - earlier.miss,
            pool_bytes: self.pool_bytes - earlier.pool_bytes,
            inline_bytes: self.inline_bytes - earlier.inline_bytes,
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            hit: self.hit + other.hit,
            partial: self.partial + other.partial,
            miss: self.miss + other.miss,
            pool_bytes: self.pool_bytes + other.pool_bytes,
            inline_bytes: self.inline_bytes + other.inline_bytes,
        }
    }

    /// Hits, partial hits and misses in per cent, once there are packets.
    pub fn percentages(self) -> Option<[f64; 3]> {
        let packets = self.hit + self.partial + self.miss;
        let share = |part: u64| part as f64 * 100.0 / packets as f64;
        (packets > 0).then(|| [self.hit, self.partial, self.miss].map(share))
    }
}

/// The counters of one tunnel's ends: both where both run here.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Packet protection's counters.
    pub meters: Vec<Arc<Meters>>,
    /// Pools; none with the pool off.
    pub pools: Vec<Pool>,
}

impl Gauges {
    /// Packets and keystream so far.
    pub fn counts(&self) -> Counts {
        let packets = |pad: Coverage| -> u64 {
            let ways = [Direction::Send, Direction::Receive];
            let of = |meters: &Arc<Meters>| ways.map(|way| meters.packets(way, pad));
            self.meters.iter().flat_map(of).sum()
        };
        Counts {
            hit: packets(Coverage::Hit),
            partial: packets(Coverage::Partial),
            miss: packets(Coverage::Miss),
            pool_bytes: self.meters.iter().map(|meters| meters.keystream_pool_bytes()).sum(),
            inline_bytes: self.meters.iter().map(|meters| meters.keystream_inline_bytes()).sum(),
        }
    }

    /// CPU that the fillers have spent, by the kernel's word; where it does not say, as of their
    /// last plans.
    pub fn filler_cpu(&self) -> Duration {
        let spent = |pool: &Pool| {
            let snapshot = pool.snapshot();
            let path = format!("/proc/self/task/{}/schedstat", snapshot.filler_thread_id);
            // Nanoseconds on a CPU come first (proc(5)).
            let stat = std::fs::read_to_string(path).ok();
            let nanos = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
            nanos.map_or(snapshot.fill_cpu, Duration::from_nanos)
        };
        self.pools.iter().map(spent).sum()
    }

    /// Keystream that the fillers have made, bytes.
    pub fn filled_bytes(&self) -> u64 {
        self.pools.iter().map(|pool| pool.snapshot().fill_bytes_total).sum()
    }

    /// Whether all fillers are done: every lane has what it is to have, and they sleep. That is the
    /// kernel's word, as one that waits for a CPU makes nothing either; where it gives none, they
    /// sleep.
    pub fn fillers_are_done(&self) -> bool {
        let is_done = |pool: &Pool| {
            let snapshot = pool.snapshot();
            let path = format!("/proc/self/task/{}/stat", snapshot.filler_thread_id);
            let stat = std::fs::read_to_string(path);
            // The state follows the name, which is in parentheses (proc(5)).
            let state = stat.ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
            state.is_none_or(|state| state == 'S') && snapshot.is_settled
        };
        self.pools.iter().all(is_done)
    }

    /// Attempts to use a pad twice, and packets that did not verify: 0 on an honest loopback.
    pub fn faults(&self) -> u64 {
        self.meters.iter().map(|meters| meters.pad_reuse() + meters.open_failures()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_need_packets() {
        assert_eq!(Counts::default().percentages(), None);
        let counts = Counts { hit: 3, partial: 0, miss: 1, ..Counts::default() };
        assert_eq!(counts.percentages(), Some([75.0, 0.0, 25.0]));
        assert_eq!(counts.and(counts).since(counts), counts);
    }
}

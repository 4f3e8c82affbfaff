//! Divides a limited memory among what peers can make a process keep, so that all of it together
//! fits.
//!
//! Windows and buffers of one connection are parts of that memory by the rules here; what all
//! connections take together comes out of budgets, of which each leaves some to the next.
//! docs/limits.md has the amounts. A host without a limit has the largest of each. Knows numbers
//! only; the parts are taken where the memory is.

use std::sync::Arc;

use keypadd_share::Budget;
use keypadd_transport::{KEPT_PER_FLIGHT, LoopLimits, MemoryBudgets};

use super::descriptors::OF_CONNECTION;

/// Most bytes of all receive windows beyond the first of each: enough for 1,500 slow or stopped
/// readers of one session, or 190 of a distant one.
pub(crate) const RECEIVED_BYTES_MAX: u64 = 4 << 30;

/// What was received and not yet taken by a socket may be one part in this many.
pub(crate) const RECEIVED_ONE_IN: u64 = 5;

/// What was sent and may have to be sent again may be one part in this many.
pub(crate) const SENT_ONE_IN: u64 = 8;

/// Forwarded connections may be one part in this many.
pub const FORWARDS_ONE_IN: u64 = 2;

/// The least that a forwarded connection counts as: its socket's buffers and its state.
pub const FORWARD_BYTES_MIN: u64 = forward_bytes(SOCKET_BYTES_MIN as u64);

/// What a socket may have received: as much as the kernel begins with (tcp_rmem in tcp(7)).
const SOCKET_BYTES_MIN: u32 = 64 << 10;

/// The kernel's own maximum.
const SOCKET_BYTES_MAX: u32 = 3 << 20;

/// A client's connection, or a handshake, counts as this much.
pub(crate) const CONNECTION_BYTES: u64 = 1 << 20;

/// Most clients of a server with one connection of each kind: the least and the most of a host
/// without a limit. Idle ones take a 25th of what they count as.
pub(crate) const CONNECTIONS_MAX: [u64; 2] = [1 << 10, 1 << 14];

/// With more memory, freed buffers are kept for the next ones.
const KEEPS_FREED_FROM: u64 = 512 << 20;

/// The kernel counts twice what a socket may receive, and as much of the quarter that it may send
/// (socket(7)); 16 KiB are state.
const fn forward_bytes(socket_bytes: u64) -> u64 {
    2 * (socket_bytes + socket_bytes / 4) + (16 << 10)
}

/// The memory of a process, and what its endpoints have taken of it. Clones share that.
#[derive(Clone, Debug)]
pub struct MemoryShares {
    bytes: u64,
    is_limited: bool,
    /// What connections take parts of.
    pub budgets: MemoryBudgets,
}

impl Default for MemoryShares {
    /// Shares of a host whose memory is enough for the largest of each.
    fn default() -> Self {
        Self::of(u64::MAX, false)
    }
}

impl MemoryShares {
    /// The shares of `bytes` of memory. Where a limit of a cgroup says how much it is, the kernel's
    /// buffers of sockets are part of it; else the kernel limits them by itself (tcp_mem in
    /// tcp(7)).
    pub fn of(bytes: u64, is_limited: bool) -> Self {
        let sent = if is_limited { bytes / SENT_ONE_IN } else { u64::MAX };
        let budgets = MemoryBudgets {
            received: Arc::new(Budget::new((bytes / RECEIVED_ONE_IN).min(RECEIVED_BYTES_MAX))),
            sent: Arc::new(Budget::new(sent)),
        };
        Self { bytes, is_limited, budgets }
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is divided: a host without a limit has enough.
    fn divided(&self) -> u64 {
        if self.is_limited { self.bytes } else { u64::MAX }
    }

    /// How many connections may be forwarded at once.
    pub(crate) fn forwards_max(&self) -> usize {
        usize::try_from(self.divided() / FORWARDS_ONE_IN / self.forward_bytes())
            .unwrap_or(usize::MAX)
    }

    fn forward_bytes(&self) -> u64 {
        self.socket_bytes().map_or(FORWARD_BYTES_MIN, |bytes| forward_bytes(bytes as u64))
    }

    /// What so many descriptors of forwarded connections count as.
    pub fn of_forwards(&self, descriptors: usize) -> u64 {
        (descriptors / OF_CONNECTION) as u64 * self.forward_bytes()
    }

    /// The most that forwarded connections may count as, if the memory is limited.
    pub fn forwards_total(&self, descriptors_max: usize) -> u64 {
        if self.is_limited { self.of_forwards(descriptors_max) } else { u64::MAX }
    }

    /// What a forwarded connection's socket may have received, if the kernel is not to choose.
    pub(crate) fn socket_bytes(&self) -> Option<usize> {
        let part = || self.part(32_768, SOCKET_BYTES_MIN, SOCKET_BYTES_MAX) as usize;
        self.is_limited.then(part)
    }

    /// How many clients a server may have, with one connection of each kind.
    pub fn connections_max(&self) -> usize {
        let [least, most] = CONNECTIONS_MAX;
        let least = if self.is_limited { 8 } else { least };
        (self.bytes / CONNECTION_BYTES).clamp(least, most) as usize
    }

    /// Whether freed buffers are kept for the next ones.
    pub fn keeps_freed(&self) -> bool {
        self.divided() >= KEEPS_FREED_FROM
    }

    /// What one of so many loops may keep.
    pub(crate) fn loop_limits(&self, loops: usize) -> LoopLimits {
        let (loops, most) = (loops.max(1) as u64, LoopLimits::default());
        let part = |one_in: u64, least, most| self.part(one_in.saturating_mul(loops), least, most);
        LoopLimits {
            handshakes: part(CONNECTION_BYTES, 16, most.handshakes as u32) as usize,
            buffers: part(16 << 20, 1, most.buffers as u32) as usize,
            waiting_bytes: part(64, 256 << 10, most.waiting_bytes as u32).into(),
        }
    }

    /// What a connection may have received for all streams whatever others take, and before its
    /// peer has proved a key.
    pub(crate) fn window_first(&self, most: u32) -> u32 {
        self.part(self.firsts(), 32 << 10, most)
    }

    /// What a connection may have in flight whatever others take.
    pub(crate) fn flight_first(&self, most: u32) -> u32 {
        self.part(self.firsts() * KEPT_PER_FLIGHT, 16 << 10, most)
    }

    /// The first bytes of a connection are one part in so many: those of all clients, with two
    /// connections each, are a quarter of the memory.
    fn firsts(&self) -> u64 {
        16 * self.connections_max().max(1_024) as u64
    }

    /// One part in so many, but at least `least` and at most `most`.
    pub(crate) fn part(&self, one_in: u64, least: u32, most: u32) -> u32 {
        let part = u32::try_from(self.divided() / one_in).unwrap_or(u32::MAX);
        part.max(least).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_host_without_a_limit_has_the_largest_of_each() {
        for (bytes, connections) in [(u64::MAX, 1 << 14), (4 << 30, 1 << 12), (1 << 20, 1 << 10)] {
            let shares = MemoryShares::of(bytes, false);
            assert_eq!(shares.budgets.received.total(), (bytes / 5).min(RECEIVED_BYTES_MAX));
            assert_eq!(shares.budgets.sent.free(), u64::MAX);
            assert_eq!((shares.socket_bytes(), shares.connections_max()), (None, connections));
            assert_eq!(shares.loop_limits(8), LoopLimits::default());
            assert_eq!(shares.window_first(64 << 20), 64 << 20);
            assert_eq!(shares.flight_first(16 << 20), 16 << 20);
            assert!(shares.forwards_max() > 1 << 32 && shares.keeps_freed());
        }
    }

    #[test]
    fn all_that_four_peers_and_strangers_can_take_leaves_a_part_of_a_small_memory() {
        for mib in [128, 256, 512, 1_024, 16_384] {
            let shares = MemoryShares::of(mib * MIB, true);
            let MemoryBudgets { received, sent } = &shares.budgets;
            let firsts = u64::from(shares.window_first(u32::MAX))
                + KEPT_PER_FLIGHT * u64::from(shares.flight_first(u32::MAX));
            // Four of those who share leave a fifth.
            let forwards = mib * MIB / FORWARDS_ONE_IN * 4 / 5;
            assert!(shares.forwards_max() as u64 * shares.forward_bytes() <= forwards * 5 / 4);
            // A key has 16 sessions, with two connections each.
            let connections = (2 * shares.connections_max() as u64).min(4 * 2 * 16);
            let of_loop = shares.loop_limits(2);
            let loops = 2 * ((of_loop.buffers as u64) << 18) + 4 * of_loop.waiting_bytes;
            let taken = [
                received.total(),
                sent.total(),
                // A pool of the default size.
                mib * MIB / 16,
                forwards,
                connections * firsts,
                loops,
            ];
            let sum: u64 = taken.iter().sum();
            assert!(sum <= mib * MIB * 19 / 20, "{mib}: {taken:?}");
            let of_all_clients = 2 * shares.connections_max() as u64 * firsts;
            assert!(of_all_clients <= mib * MIB / 4, "{mib}: {of_all_clients}");
        }
    }
}

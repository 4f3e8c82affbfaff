//! Keeps datagrams of connections that have used up their share of a loop's time, for later rounds.
//!
//! The socket's buffer is one queue for all connections of a loop. It is emptied whether or not
//! somebody's datagrams can be handled now, so that a peer that sends more than its share delays
//! and loses its own. Knows connections and sizes.

use std::collections::{VecDeque, hash_map::Entry};

use keypadd_share::threshold;
use rustc_hash::FxHashMap;

use crate::splice::Key;

/// Memory that all datagrams here may take, where there is enough.
#[cfg(test)]
pub(crate) const BYTES_MAX: u64 = crate::settings::LoopLimits::MOST.waiting_bytes;

/// What a datagram takes beside its bytes.
const RECORD_BYTES: u64 = 512;

/// Datagrams that wait, by connection.
pub(crate) struct Backlog<D> {
    waiting: FxHashMap<Key, Waiting<D>>,
    /// The next one first.
    order: VecDeque<Key>,
    bytes: u64,
    bytes_max: u64,
}

struct Waiting<D> {
    /// Oldest first, each with its size.
    datagrams: VecDeque<(D, u64)>,
    bytes: u64,
}

impl<D> Backlog<D> {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { waiting: FxHashMap::default(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many connections have datagrams here.
    pub(crate) fn connections(&self) -> usize {
        self.order.len()
    }

    /// Whether this connection has datagrams here: later ones must wait behind them.
    pub(crate) fn holds(&self, key: Key) -> bool {
        !self.is_empty() && self.waiting.contains_key(&key)
    }

    /// Keeps a connection's datagram of this size. Drops it, as a network may, and returns false if
    /// the connection would have more here than it leaves free.
    pub(crate) fn push(&mut self, key: Key, datagram: D, bytes: usize) -> bool {
        let bytes = bytes as u64 + RECORD_BYTES;
        let waiting = match self.waiting.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.order.push_back(key);
                entry.insert(Waiting { datagrams: VecDeque::new(), bytes: 0 })
            }
        };
        let most = threshold((1, 1), waiting.bytes, self.bytes_max - self.bytes);
        let fits = waiting.bytes + bytes <= most;
        if fits {
            waiting.datagrams.push_back((datagram, bytes));
            waiting.bytes += bytes;
            self.bytes += bytes;
        }
        fits
    }

    /// The next connection, which is last from now on.
    pub(crate) fn next_connection(&mut self) -> Option<Key> {
        self.order.rotate_left(1.min(self.order.len()));
        self.order.back().copied()
    }

    /// Takes the oldest datagram of the connection that is last, and its size.
    pub(crate) fn pop(&mut self, key: Key) -> Option<(D, usize)> {
        let waiting = self.waiting.get_mut(&key)?;
        let oldest = waiting.datagrams.pop_front();
        if let Some((_, bytes)) = oldest {
            waiting.bytes -= bytes;
            self.bytes -= bytes;
        }
        if waiting.datagrams.is_empty() {
            self.waiting.remove(&key);
            let last = self.order.pop_back();
            debug_assert_eq!(last, Some(key));
        }
        oldest.map(|(datagram, bytes)| (datagram, (bytes - RECORD_BYTES) as usize))
    }

    /// Takes the oldest datagram of the next connection, and its size.
    pub(crate) fn pop_next(&mut self) -> Option<(Key, D, usize)> {
        while let Some(key) = self.next_connection() {
            if let Some((datagram, bytes)) = self.pop(key) {
                return Some((key, datagram, bytes));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = Key { handle: 0, serial: 0 };
    const B: Key = Key { handle: 1, serial: 1 };

    #[test]
    fn datagrams_of_a_connection_keep_their_order_and_connections_take_turns() {
        let mut backlog = Backlog::new(BYTES_MAX);
        assert_eq!((backlog.next_connection(), backlog.connections()), (None, 0));
        for datagram in 0..4 {
            backlog.push([A, B][datagram % 2], datagram, 1_200);
        }
        assert!(backlog.holds(A) && backlog.holds(B));
        assert_eq!(backlog.connections(), 2);
        assert_eq!((backlog.next_connection(), backlog.pop(A)), (Some(A), Some((0, 1_200))));
        assert_eq!((backlog.next_connection(), backlog.pop(B)), (Some(B), Some((1, 1_200))));
        assert_eq!((backlog.next_connection(), backlog.pop(A)), (Some(A), Some((2, 1_200))));
        assert!(!backlog.holds(A), "it has none left");
        assert_eq!((backlog.next_connection(), backlog.pop(B)), (Some(B), Some((3, 1_200))));
        assert!(backlog.is_empty());
        assert_eq!((backlog.bytes, backlog.pop(A)), (0, None));
    }

    #[test]
    fn whoever_sends_most_loses_most() {
        let mut backlog = Backlog::new(BYTES_MAX);
        let kept = (0..100_000).filter(|datagram| backlog.push(A, *datagram, 1_200)).count();
        let kept = kept as u64 * (1_200 + RECORD_BYTES);
        assert_eq!(kept, backlog.bytes);
        assert!((BYTES_MAX / 3..=BYTES_MAX / 2).contains(&kept), "{kept}");
        assert!(backlog.pop(A).is_some());
        assert!(backlog.push(A, 0, 1_200) && !backlog.push(A, 0, 1_200), "room for one");
        for datagram in 0..100 {
            backlog.push(B, datagram, 1_200);
        }
        for datagram in 0..100 {
            assert_eq!(backlog.pop(B), Some((datagram, 1_200)));
        }
        assert_eq!(backlog.bytes, kept);
        for datagram in 0..100_000 {
            backlog.push(B, datagram, 0);
        }
        assert!(backlog.bytes <= BYTES_MAX);
    }
}

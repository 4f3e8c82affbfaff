//! Keeps datagrams for streams that have no flow yet because their target is still being resolved
//! or connected.
//!
//! This way a flow's first datagram need not wait for the answer. Bounded; drops what waits too
//! long. Knows no sockets; the caller passes the time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn_proto::StreamId;
use rustc_hash::FxHashMap;

/// Datagrams kept for one stream.
pub(super) const OF_STREAM_MAX: usize = 8;

/// Bytes kept for all streams of a connection.
const BYTES_MAX: usize = 256 << 10;

/// How long they are kept: by then a target is connected, or has failed.
const KEPT: Duration = Duration::from_secs(10);

/// Datagrams of a connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct EarlyDatagrams {
    waiting: VecDeque<(StreamId, Bytes, Instant)>,
    /// How many of each stream wait: a search would take long, for each of a packet's frames.
    of_streams: FxHashMap<StreamId, usize>,
    bytes: usize,
}

impl EarlyDatagrams {
    /// Keeps a datagram if there is room; returns when it expires.
    pub(super) fn add(
        &mut self,
        stream: StreamId,
        datagram: &[u8],
        now: Instant,
    ) -> Option<Instant> {
        let of_stream = self.of_streams.get(&stream).copied().unwrap_or(0);
        // Even an empty datagram costs its entry.
        let bytes = self.bytes + cost(datagram);
        if of_stream >= OF_STREAM_MAX || bytes > BYTES_MAX {
            return None;
        }
        self.of_streams.insert(stream, of_stream + 1);
        self.bytes = bytes;
        // Copied, so as not to keep the larger packet.
        self.waiting.push_back((stream, Bytes::copy_from_slice(datagram), now));
        Some(now + KEPT)
    }

    /// Takes the datagrams of a stream, in order.
    pub(super) fn take(&mut self, stream: StreamId) -> Vec<Bytes> {
        let mut taken = Vec::new();
        if self.of_streams.remove(&stream).is_none() {
            return taken;
        }
        self.waiting.retain(|(of, datagram, _)| {
            if *of == stream {
                self.bytes -= cost(datagram);
                taken.push(datagram.clone());
            }
            *of != stream
        });
        taken
    }

    /// Drops expired datagrams.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            let Some((stream, datagram, _)) = self.waiting.pop_front() else { return };
            self.bytes -= cost(&datagram);
            if let Some(of_stream) = self.of_streams.get_mut(&stream) {
                *of_stream -= 1;
                if *of_stream == 0 {
                    self.of_streams.remove(&stream);
                }
            }
        }
    }

    /// When the oldest expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(_, _, since)| *since + KEPT)
    }
}

/// Bytes that a datagram counts for.
fn cost(datagram: &[u8]) -> usize {
    size_of::<(StreamId, Bytes, Instant)>() + datagram.len()
}

#[cfg(test)]
mod tests {
    use quinn_proto::VarInt;

    use super::*;

    fn stream(id: u32) -> StreamId {
        StreamId::from(VarInt::from_u32(4 * id))
    }

    #[test]
    fn a_stream_gets_its_first_few_datagrams_in_order() {
        let (mut early, now) = (EarlyDatagrams::default(), Instant::now());
        for number in 0..20 {
            early.add(stream(1), &[number], now);
            early.add(stream(2), &[100 + number], now);
        }
        let bytes = |taken: Vec<Bytes>| taken.iter().map(|one| one[0]).collect::<Vec<_>>();
        assert_eq!(bytes(early.take(stream(1))), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(early.take(stream(1)).is_empty());
        assert_eq!(bytes(early.take(stream(2))).len(), OF_STREAM_MAX);
        assert!(early.of_streams.is_empty());
        assert_eq!(early.bytes, 0);
    }

    #[test]
    fn what_nobody_takes_is_bounded_and_dropped_in_time() {
        let (mut early, now) = (EarlyDatagrams::default(), Instant::now());
        for id in 0..10_000 {
            early.add(stream(id), &[0; 1_000], now);
            early.add(stream(id), &[], now);
        }
        assert!(early.bytes <= BYTES_MAX && early.bytes > BYTES_MAX - 2_000);
        early.expire(now + KEPT);
        assert_eq!((early.bytes, early.waiting.len(), early.deadline()), (0, 0, None));
        assert!(early.of_streams.is_empty());
    }
}

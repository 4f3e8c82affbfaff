//! Reassembles fragmented datagrams, all or nothing, in bounded memory.
//!
//! A datagram whose fragments overlap or arrive too late is dropped (RFC 5722 section 4, RFC 8200
//! 4.5). Knows no flows and no sockets; the caller passes the time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn_proto::StreamId;

use super::frame::Fragment;

/// Incomplete datagrams of a connection.
pub(crate) const PARTIAL_MAX: usize = 64;

/// Their bytes; each datagram counts in full from its first fragment on.
pub const PARTIAL_BYTES_MAX: usize = 512 << 10;

/// How long to wait for the rest of a datagram: fragments leave together, and a sender held back by
/// congestion control continues within a round trip or two.
const PARTIAL_TIME: Duration = Duration::from_secs(2);

/// An incomplete datagram is dropped after this many more of its flow: its number must not recur
/// while it waits, or fragments of two datagrams would be joined (RFC 4963).
const NUMBERS_APART: u16 = 1 << 14;

/// The incomplete datagrams of a connection, oldest first.
#[derive(Debug, Default)]
pub struct Fragments {
    partial: VecDeque<Partial>,
    bytes: usize,
    /// The streams of datagrams dropped since the last call to `take_dropped`.
    dropped: Vec<StreamId>,
    /// The last datagrams that were counted as dropped before this saw all of them.
    counted: VecDeque<(StreamId, u16)>,
}

#[derive(Debug)]
struct Partial {
    stream: StreamId,
    number: u16,
    bytes: Vec<u8>,
    /// What has arrived: start and end, in no order, without overlap.
    ranges: Vec<(usize, usize)>,
    since: Instant,
}

impl Partial {
    fn matches(&self, stream: StreamId, fragment: Fragment) -> bool {
        self.stream == stream
            && self.number == fragment.number
            && self.bytes.len() == usize::from(fragment.total)
    }

    /// Adds a fragment; returns whether the datagram is complete. Fails on an overlap.
    fn add(&mut self, offset: usize, bytes: &[u8]) -> Result<bool, ()> {
        let end = offset + bytes.len();
        if self.ranges.iter().any(|&(from, to)| offset < to && from < end) {
            return Err(());
        }
        let room = self.bytes.get_mut(offset..end).ok_or(())?;
        room.copy_from_slice(bytes);
        self.ranges.push((offset, end));
        Ok(self.ranges.iter().map(|(from, to)| to - from).sum::<usize>() == self.bytes.len())
    }
}

impl Fragments {
    /// Adds a fragment as returned by [`FlowFrame::decode`](super::frame::FlowFrame::decode);
    /// returns the datagram if it is complete.
    pub fn add(
        &mut self,
        stream: StreamId,
        fragment: Fragment,
        bytes: &[u8],
        now: Instant,
    ) -> Option<Bytes> {
        self.expire(now);
        let (total, offset) = (usize::from(fragment.total), usize::from(fragment.offset));
        if bytes.is_empty() || total > PARTIAL_BYTES_MAX {
            return None;
        }
        let is_old = |partial: &Partial| {
            let apart = fragment.number.wrapping_sub(partial.number);
            partial.stream == stream && (NUMBERS_APART..1 << 15).contains(&apart)
        };
        while let Some(old) = self.partial.iter().position(is_old) {
            self.drop_at(old);
        }
        let known = self.partial.iter().position(|partial| partial.matches(stream, fragment));
        let at = known.unwrap_or_else(|| {
            while self.partial.len() >= PARTIAL_MAX || self.bytes + total > PARTIAL_BYTES_MAX {
                self.drop_at(0);
            }
            self.bytes += total;
            self.partial.push_back(Partial {
                stream,
                number: fragment.number,
                bytes: vec![0; total],
                ranges: Vec::new(),
                since: now,
            });
            self.partial.len() - 1
        });
        match self.partial[at].add(offset, bytes) {
            Ok(false) => None,
            Ok(true) => self.remove(at).map(|partial| partial.bytes.into()),
            Err(()) => {
                self.drop_at(at);
                None
            }
        }
    }

    /// A fragment was dropped before it came here, and its datagram counted: the rest is not
    /// counted again.
    pub(crate) fn counted(&mut self, stream: StreamId, number: u16) {
        if self.counted.len() >= PARTIAL_MAX {
            self.counted.pop_front();
        }
        self.counted.push_back((stream, number));
    }

    /// Drops the fragments of a flow that has ended.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        while let Some(at) = self.partial.iter().position(|partial| partial.stream == stream) {
            self.remove(at);
        }
    }

    /// Drops expired datagrams.
    pub fn expire(&mut self, now: Instant) {
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            self.drop_at(0);
        }
    }

    /// When the oldest expires.
    pub fn deadline(&self) -> Option<Instant> {
        self.partial.front().map(|partial| partial.since + PARTIAL_TIME)
    }

    /// Bytes set aside for incomplete datagrams.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the streams of datagrams dropped since the last call.
    pub fn take_dropped(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.dropped)
    }

    fn drop_at(&mut self, at: usize) {
        let Some(Partial { stream, number, .. }) = self.remove(at) else { return };
        match self.counted.iter().position(|counted| *counted == (stream, number)) {
            Some(counted) => drop(self.counted.remove(counted)),
            None => self.dropped.push(stream),
        }
    }

    fn remove(&mut self, at: usize) -> Option<Partial> {
        let partial = self.partial.remove(at)?;
        self.bytes -= partial.bytes.len();
        Some(partial)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quinn_proto::VarInt;

    use super::*;
    use crate::flows::frame::{DATAGRAM_BYTES_MAX, FRAGMENT_BYTES_MIN};

    fn stream(id: u32) -> StreamId {
        StreamId::from(VarInt::from_u32(4 * id))
    }

    /// The fragments of a datagram, of this size.
    fn split(number: u16, datagram: &[u8], size: usize) -> Vec<(Fragment, &[u8])> {
        let total = datagram.len() as u16;
        let place = |part: usize| Fragment { number, total, offset: (part * size) as u16 };
        datagram.chunks(size).enumerate().map(|(part, bytes)| (place(part), bytes)).collect()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
    }

    #[test]
    fn an_overlap_drops_the_datagram() {
        let (now, datagram) = (Instant::now(), noise(2_000));
        let mut fragments = Fragments::default();
        let at = |offset| Fragment { number: 1, total: 2_000, offset };
        assert_eq!(fragments.add(stream(1), at(0), &datagram[..1_000], now), None);
        assert_eq!(fragments.add(stream(1), at(999), &datagram[999..], now), None);
        assert_eq!((fragments.held_bytes(), fragments.take_dropped()), (0, vec![stream(1)]));
    }

    #[test]
    fn the_rest_of_a_datagram_must_come_in_time() {
        let (now, datagram) = (Instant::now(), noise(2_000));
        let mut fragments = Fragments::default();
        let parts = split(1, &datagram, 1_000);
        assert_eq!(fragments.add(stream(1), parts[0].0, parts[0].1, now), None);
        assert_eq!(fragments.deadline(), Some(now + PARTIAL_TIME));
        let late = fragments.add(stream(1), parts[1].0, parts[1].1, now + PARTIAL_TIME);
        assert_eq!((late, fragments.take_dropped()), (None, vec![stream(1)]));
    }

    #[test]
    fn a_recurring_number_never_joins_two_datagrams() {
        let now = Instant::now();
        let mut fragments = Fragments::default();
        let datagrams = [vec![1; 2_000], vec![2; 2_000]];
        let [first, again] = [0, 1].map(|nth: usize| split(7, &datagrams[nth], 1_000));
        // Its second half is lost.
        assert_eq!(fragments.add(stream(1), first[0].0, first[0].1, now), None);
        for number in (0..=u16::MAX).map(|step| step.wrapping_add(8)).take(usize::from(u16::MAX)) {
            let other = vec![3; 600];
            let whole = Fragment { number, total: 600, offset: 0 };
            assert!(fragments.add(stream(1), whole, &other, now).is_some());
        }
        // The first half of this one is lost.
        assert_eq!(fragments.add(stream(1), again[1].0, again[1].1, now), None);
    }

    #[test]
    fn what_a_peer_leaves_incomplete_stays_within_the_bounds() {
        let (now, datagram) = (Instant::now(), noise(DATAGRAM_BYTES_MAX));
        let mut fragments = Fragments::default();
        for number in 0..1_000 {
            let total = if number % 2 == 0 { DATAGRAM_BYTES_MAX } else { 600 } as u16;
            let fragment = Fragment { number, total, offset: 0 };
            let part = &datagram[..FRAGMENT_BYTES_MIN];
            assert_eq!(fragments.add(stream(number.into()), fragment, part, now), None);
            assert!(fragments.held_bytes() <= PARTIAL_BYTES_MAX);
            assert!(fragments.partial.len() <= PARTIAL_MAX);
        }
        // The newest are kept.
        let rest = Fragment { number: 999, total: 600, offset: FRAGMENT_BYTES_MIN as u16 };
        let whole = fragments.add(stream(999), rest, &datagram[FRAGMENT_BYTES_MIN..600], now);
        assert_eq!(whole.as_deref(), Some(&datagram[..600]));
    }

    #[test]
    fn flows_that_end_leave_nothing_behind() {
        let (now, datagram) = (Instant::now(), noise(2_000));
        let mut fragments = Fragments::default();
        for (id, number) in [(1, 1), (2, 1), (1, 2)] {
            let (fragment, bytes) = split(number, &datagram, 1_000)[0];
            fragments.add(stream(id), fragment, bytes, now);
        }
        fragments.forget(stream(1));
        assert_eq!(fragments.held_bytes(), 2_000);
        assert_eq!(fragments.take_dropped(), []);
    }

    proptest! {
        #[test]
        fn fragments_in_any_order_make_the_datagram_and_a_lost_one_makes_none(
            bytes in 1..=DATAGRAM_BYTES_MAX,
            size in FRAGMENT_BYTES_MIN..9_000,
            seed in any::<u64>(),
            lost in any::<proptest::sample::Index>(),
        ) {
            let (now, datagram) = (Instant::now(), noise(bytes));
            let mut parts = split(3, &datagram, size);
            // A permutation that the seed decides.
            parts.sort_by_key(|(fragment, _)| {
                u64::from(fragment.offset).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            let mut fragments = Fragments::default();
            let lost = lost.index(parts.len());
            for (place, (fragment, bytes)) in parts.iter().enumerate() {
                if place != lost {
                    prop_assert_eq!(fragments.add(stream(1), *fragment, bytes, now), None);
                }
            }
            let (fragment, bytes) = parts[lost];
            let whole = fragments.add(stream(1), fragment, bytes, now);
            prop_assert_eq!(whole.as_deref(), Some(&datagram[..]));
            prop_assert_eq!(fragments.held_bytes(), 0);
        }
    }
}

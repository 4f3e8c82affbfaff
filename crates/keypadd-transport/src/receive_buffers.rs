//! Lends the buffers that datagrams arrive in, up to a bound.
//!
//! Data that is delivered immediately is never copied. Data that must wait, for a stopped reader or
//! for bytes lost before it, keeps its whole buffer; once many do, datagrams are copied instead.
//! Knows bytes.

use bytes::BytesMut;

use crate::cid::LONG_HEADER;

/// The largest batch of datagrams that the kernel sends or receives at once (UDP's length field).
pub(crate) const BATCH_BYTES: usize = 64 << 10;

/// Size of a buffer, which is used until less than a batch fits.
const BUFFER_BYTES: usize = 4 * BATCH_BYTES;

/// Buffers that one loop's datagrams may keep, where there is memory: 4 MiB.
pub(crate) const LENT_MAX: usize = 16;

/// Shorter datagrams are copied: those that wait long are mostly a few bytes for an idle program.
const LENT_BYTES_MIN: usize = 1 << 10;

/// The buffers that one socket receives into.
pub(crate) struct ReceiveBuffers {
    current: BytesMut,
    /// Full buffers that datagrams kept at the last check; each entry is empty and stands for its
    /// memory.
    lent: Vec<BytesMut>,
    lent_max: usize,
}

impl ReceiveBuffers {
    /// Datagrams may keep this many buffers.
    pub(crate) fn new(lent_max: usize) -> Self {
        Self { current: BytesMut::new(), lent: Vec::new(), lent_max }
    }

    /// Room for one batch.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.current.len() < BATCH_BYTES {
            self.current.clear();
            self.lent.push(std::mem::take(&mut self.current));
            let free = self.lent.extract_if(.., |buffer| buffer.try_reclaim(BUFFER_BYTES));
            self.current = free.last().unwrap_or_default();
            self.current.resize(BUFFER_BYTES, 0);
        }
        &mut self.current[..BATCH_BYTES]
    }

    /// Takes the first bytes of the room: datagrams of `stride` bytes, of which the last may be
    /// shorter.
    pub(crate) fn take(&mut self, bytes: usize, stride: usize) -> Batch {
        let lends = self.lent.len() < self.lent_max;
        Batch { bytes: self.current.split_to(bytes), stride: stride.max(1), lends }
    }
}

/// Received datagrams of one source, in order.
pub(crate) struct Batch {
    bytes: BytesMut,
    stride: usize,
    lends: bool,
}

impl Batch {
    /// A single datagram, in its own memory.
    pub(crate) fn of(datagram: &[u8]) -> Self {
        Self { bytes: BytesMut::from(datagram), stride: datagram.len().max(1), lends: true }
    }
}

impl Iterator for Batch {
    type Item = BytesMut;

    fn next(&mut self) -> Option<BytesMut> {
        if self.bytes.is_empty() {
            return None;
        }
        let datagram = self.bytes.split_to(self.stride.min(self.bytes.len()));
        // Handshake data waits for what comes before it, and a stranger must not keep a buffer that
        // long.
        let is_handshake = datagram[0] & LONG_HEADER != 0;
        match self.lends && datagram.len() >= LENT_BYTES_MIN && !is_handshake {
            true => Some(datagram),
            false => Some(BytesMut::from(&datagram[..])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of datagrams of 1,452 bytes, each of which begins with `first`.
    fn receive(buffers: &mut ReceiveBuffers, first: u8) -> Batch {
        let room = buffers.room();
        let bytes = room.len() / 1_452 * 1_452;
        for datagram in room[..bytes].chunks_mut(1_452) {
            datagram[0] = first;
        }
        buffers.take(bytes, 1_452)
    }

    #[test]
    fn a_long_datagram_is_lent_and_a_short_one_or_one_of_a_handshake_copied() {
        let mut buffers = ReceiveBuffers::new(LENT_MAX);
        let memory = buffers.room().as_ptr_range();
        assert!(memory.contains(&receive(&mut buffers, 0x40).next().unwrap().as_ptr()));
        let memory = buffers.room().as_ptr_range();
        assert!(!memory.contains(&receive(&mut buffers, LONG_HEADER).next().unwrap().as_ptr()));
        let memory = buffers.room().as_ptr_range();
        assert!(
            !memory.contains(&buffers.take(LENT_BYTES_MIN - 1, 1_452).next().unwrap().as_ptr())
        );
    }

    #[test]
    fn buffers_that_nobody_keeps_are_used_again() {
        let mut buffers = ReceiveBuffers::new(LENT_MAX);
        let memory = buffers.room().as_ptr_range();
        let memory = memory.start..memory.start.wrapping_add(BUFFER_BYTES);
        for _ in 0..10 * LENT_MAX {
            assert!(
                receive(&mut buffers, 0x40).all(|datagram| memory.contains(&datagram.as_ptr()))
            );
        }
    }

    #[test]
    fn datagrams_that_wait_keep_no_more_than_sixteen_buffers() {
        let mut buffers = ReceiveBuffers::new(LENT_MAX);
        let mut waiting = Vec::new();
        for _ in 0..100 * LENT_MAX {
            waiting.extend(receive(&mut buffers, 0x40).next());
        }
        assert_eq!(buffers.lent.len(), LENT_MAX);
        let lent = |datagram: &&BytesMut| datagram.capacity() > 1_452;
        let copied = waiting.iter().rev().take_while(|datagram| !lent(datagram)).count();
        assert!(copied > 90 * LENT_MAX, "{copied}");
        waiting.clear();
        buffers.current.clear();
        let memory = buffers.room().as_ptr_range();
        let datagram = receive(&mut buffers, 0x40).next().unwrap();
        assert!(memory.contains(&datagram.as_ptr()), "they are lent again");
    }
}

//! Defines packet numbers (RFC 9000 12.3) and segments: 64 of them, sharing a subkey and a chunk.

/// Packets in a segment: those that one subkey of a 64-bit cipher encrypts, that one pool chunk
/// holds, and that a 64-bit map can mark as taken.
pub const SEGMENT_PACKETS: usize = 1 << SEGMENT_BITS;

const SEGMENT_BITS: u32 = 6;

/// The full number of a packet, not the one to four bytes of it that the header carries.
///
/// quinn guarantees that it is below 2^62 (RFC 9000 12.3). This crate does not rely on that: every
/// counter and MAC layout is injective over all 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketNumber(u64);

impl PacketNumber {
    /// Wraps a number that the transport has expanded to its full length.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number itself.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The packet's segment.
    pub const fn segment(self) -> Segment {
        Segment(self.0 >> SEGMENT_BITS)
    }

    /// The packet's position in its segment, `0..SEGMENT_PACKETS`.
    pub const fn slot(self) -> usize {
        (self.0 as usize) & (SEGMENT_PACKETS - 1)
    }
}

/// Sixty-four consecutive packet numbers, aligned: number `n` is in segment `n / 64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment(u64);

impl Segment {
    /// The segment's index, which subkeys are derived from.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The lowest packet number in the segment.
    pub const fn first(self) -> PacketNumber {
        PacketNumber(self.0 << SEGMENT_BITS)
    }

    /// The next segment. Cannot overflow: real packet numbers end at segment 2^56.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The packet number in `slot`, which must be below [`SEGMENT_PACKETS`].
    pub(crate) const fn packet(self, slot: usize) -> PacketNumber {
        debug_assert!(slot < SEGMENT_PACKETS);
        PacketNumber((self.0 << SEGMENT_BITS) | slot as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_and_slot_determine_the_number() {
        for value in [0, 1, 63, 64, 65, 127, 1 << 32, (1 << 62) - 1] {
            let number = PacketNumber::new(value);
            assert_eq!(number.segment().packet(number.slot()), number);
            assert_eq!(number.segment().first().value(), value - value % 64);
        }
    }

    #[test]
    fn the_next_segment_starts_where_this_one_ends() {
        let segment = PacketNumber::new(63).segment();
        assert_eq!(segment.value(), 0);
        assert_eq!(segment.next().first(), PacketNumber::new(64));
    }
}

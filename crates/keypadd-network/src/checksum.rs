//! Computes the checksum of the Internet (RFC 1071).

/// The sum of these bytes in ones' complement, as 16-bit words; all ones if the bytes hold a right
/// checksum. An odd byte at the end is the upper half of a word.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words = words.iter().map(|word| u64::from(u16::from_be_bytes(*word)));
    let rest = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    fold(words.sum::<u64>() + rest)
}

/// Adds two sums.
pub(crate) fn add(one: u16, other: u16) -> u16 {
    fold(u64::from(one) + u64::from(other))
}

/// Adds the carries until there are none.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

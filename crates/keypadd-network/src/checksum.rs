//! Computes the checksum of the Internet (RFC 1071).

/// The sum of these bytes in ones' complement, as 16-bit words; all ones if the bytes hold a right
/// checksum. An odd byte at the end is the upper half of a word.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    // In the byte order of this machine, and 32 bits at once: the sum comes out in that order, too
    // (RFC 1071 2).
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let sum = fold(words + u64::from(u32::from_ne_bytes(last)));
    u16::from_be_bytes(sum.to_ne_bytes())
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

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn the_sum_is_that_of_words_one_by_one(bytes in vec(any::<u8>(), 0..100)) {
            let word = |pair: &[u8]| u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
            let expected = bytes.chunks(2).map(word).fold(0, add);
            prop_assert_eq!(sum(&bytes), expected);
        }
    }
}

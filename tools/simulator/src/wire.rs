//! Finds the QUIC packets in a datagram and their numbers (RFC 9000 section 17).
//!
//! Parses only what our own endpoints send; anything else is not a packet.

use keypadd_keystream::Suite;

use crate::ciphers::header_mask;

/// Length of every connection ID in the simulation.
pub(crate) const CID_BYTES: usize = 8;

/// Packet number spaces (RFC 9000 section 12.3); 0-RTT does not occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    /// Public keys; not ours.
    Initial,
    /// The suite's keys, inline.
    Handshake,
    /// The suite's keys, pooled.
    Data,
}

/// One protected packet.
pub(crate) struct Packet<'a> {
    pub(crate) space: Space,
    bytes: &'a [u8],
    number_at: usize,
}

/// A packet whose header protection is removed.
pub(crate) struct Uncovered<'a> {
    pub(crate) header: Vec<u8>,
    pub(crate) number: u64,
    pub(crate) key_phase: bool,
    pub(crate) ciphertext: &'a [u8],
    pub(crate) tag: &'a [u8],
}

/// Splits a datagram into its packets, in order; `None` if it does not consist of packets.
pub(crate) fn packets(mut datagram: &[u8]) -> Option<Vec<Packet<'_>>> {
    let mut found = Vec::new();
    while let Some(&first) = datagram.first() {
        if first & 0x80 == 0 {
            let number_at = 1 + CID_BYTES;
            found.push(Packet { space: Space::Data, bytes: datagram, number_at });
            break;
        }
        let mut at = 5;
        for _ in 0..2 {
            at += 1 + usize::from(*datagram.get(at)?);
        }
        let space = match first >> 4 & 3 {
            0 => {
                let token_bytes = varint(datagram, &mut at)?;
                at += token_bytes;
                Space::Initial
            }
            2 => Space::Handshake,
            _ => return None,
        };
        let bytes = varint(datagram, &mut at)?;
        let (packet, rest) = datagram.split_at_checked(at + bytes)?;
        found.push(Packet { space, bytes: packet, number_at: at });
        datagram = rest;
    }
    Some(found)
}

/// RFC 9000 section 16.
fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let first = *bytes.get(*at)?;
    let length = 1 << (first >> 6);
    let mut value = usize::from(first & 0x3f);
    for byte in bytes.get(*at + 1..*at + length)? {
        value = value << 8 | usize::from(*byte);
    }
    *at += length;
    Some(value)
}

impl<'a> Packet<'a> {
    /// Whether the part of the header that is not protected, with the connection ID, equals this
    /// header's.
    pub(crate) fn begins_as(&self, header: &[u8]) -> bool {
        header.get(1..self.number_at) == Some(&self.bytes[1..self.number_at])
    }

    /// Removes header protection (RFC 9001 section 5.4.1) and expands the number (RFC 9000 appendix
    /// A.3); `next` is one above the last number of its space.
    pub(crate) fn uncover(
        &self,
        suite: Suite,
        header_key: &[u8],
        next: u64,
    ) -> Option<Uncovered<'a>> {
        let at = self.number_at;
        let mask = header_mask(suite, header_key, self.bytes.get(at + 4..at + 20)?);
        let long = self.bytes[0] & 0x80 != 0;
        let first = self.bytes[0] ^ (mask[0] & if long { 0x0f } else { 0x1f });
        let number_bytes = usize::from(first & 3) + 1;
        let mut header = self.bytes[..at + number_bytes].to_vec();
        header[0] = first;
        let mut truncated = 0;
        for (byte, mask) in header[at..].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
            truncated = truncated << 8 | u64::from(*byte);
        }
        let sealed = &self.bytes[header.len()..];
        let (ciphertext, tag) = sealed.split_at_checked(sealed.len().checked_sub(16)?)?;
        let number = expand(truncated, number_bytes as u32 * 8, next);
        Some(Uncovered { header, number, key_phase: first & 4 != 0, ciphertext, tag })
    }
}

fn expand(truncated: u64, bits: u32, next: u64) -> u64 {
    let (window, half) = (1u64 << bits, 1u64 << (bits - 1));
    let candidate = (next & !(window - 1)) | truncated;
    if candidate + half <= next {
        candidate + window
    } else if candidate > next + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// One packet as quinn passed it for sealing.
pub(crate) struct Sealed {
    pub(crate) space: Space,
    pub(crate) number: u64,
    pub(crate) header: Vec<u8>,
    pub(crate) plaintext: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_expand_as_in_rfc_9000() {
        assert_eq!(expand(0x9b32, 16, 0xa82f_30eb), 0xa82f_9b32);
        assert_eq!(expand(0xff, 8, 0x100), 0xff);
        assert_eq!(expand(0x01, 8, 0xff), 0x101);
    }
}

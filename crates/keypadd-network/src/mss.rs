//! Lowers the maximum segment size that a TCP connection begins with (RFC 9293 3.7.1), so that its
//! packets fit into the path.

use std::net::IpAddr;

use crate::{
    checksum,
    packet::{Packet, Part, TCP_BYTES, v4, v6},
};

/// Options of TCP (IANA).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const MD5_SIGNATURE: u8 = 19;
const AUTHENTICATION: u8 = 29;

/// Options of 4 bytes in the 40 that a header has room for (RFC 9293 3.1).
const MSS_OPTIONS_MAX: usize = 10;

/// Where the checksum of TCP is, in its header.
const CHECKSUM_AT: usize = 16;

/// Lowers the maximum segment size in a SYN or SYN-ACK to what fits into packets of this length,
/// and returns whether it did. Leaves alone all other packets, and those whose options are signed
/// (RFC 2385, RFC 5925).
pub fn clamp_mss(bytes: &mut [u8], mtu: usize) -> bool {
    let Ok(packet) = Packet::parse(bytes) else { return false };
    if !packet.is_syn() || packet.part() != Part::Whole {
        return false;
    }
    let ip_bytes = match packet.source() {
        IpAddr::V4(_) => v4::HEADER_BYTES,
        IpAddr::V6(_) => v6::HEADER_BYTES,
    };
    let room = mtu.saturating_sub(ip_bytes + TCP_BYTES);
    let limit = u16::try_from(room).unwrap_or(u16::MAX);
    let at = packet.payload_at();
    let Some(header) = bytes.get_mut(at..).and_then(header_of) else { return false };
    let signed = |option: TcpOption| [MD5_SIGNATURE, AUTHENTICATION].contains(&option.kind);
    if options(header).any(signed) {
        return false;
    }
    let mut lowered = false;
    // A second option of this kind is not allowed, but some hosts would heed it.
    for _ in 0..MSS_OPTIONS_MAX {
        let Some(at) = excess(header, limit) else { break };
        lowered |= replace(header, at, limit).is_some();
    }
    lowered
}

/// Where the first maximum segment size over the limit is.
fn excess(header: &[u8], limit: u16) -> Option<usize> {
    let over = |option: &TcpOption| option.mss.is_some_and(|mss| mss > limit);
    options(header).find(over).map(|option| option.at + 2)
}

/// The header of TCP with its options.
fn header_of(segment: &mut [u8]) -> Option<&mut [u8]> {
    let header_bytes = usize::from(segment.get(12)? >> 4) * 4;
    segment.get_mut(..header_bytes)
}

/// An option and where in the header it is.
struct TcpOption {
    kind: u8,
    at: usize,
    /// The maximum segment size, if it has one.
    mss: Option<u16>,
}

/// The options up to the end of the list, or to one that is malformed.
fn options(header: &[u8]) -> impl Iterator<Item = TcpOption> {
    let mut at = TCP_BYTES;
    std::iter::from_fn(move || {
        while header.get(at) == Some(&NO_OPERATION) {
            at += 1;
        }
        let kind = *header.get(at).filter(|kind| **kind != END)?;
        let length = usize::from(*header.get(at + 1)?);
        let option = header.get(at..at + length).filter(|_| length >= 2)?;
        let mss = match option {
            [MAXIMUM_SEGMENT_SIZE, _, high, low] => Some(u16::from_be_bytes([*high, *low])),
            _ => None,
        };
        let found = TcpOption { kind, at, mss };
        at += length;
        Some(found)
    })
}

/// Replaces two bytes of the header and makes its checksum right, from the change alone (RFC 1624
/// 3): the payload need not be there.
fn replace(header: &mut [u8], at: usize, value: u16) -> Option<()> {
    let old = std::mem::replace(header.get_mut(at..)?.first_chunk_mut()?, value.to_be_bytes());
    // At an odd offset the bytes belong to two words of the sum, the first as the lower half.
    let word = |[high, low]: [u8; 2]| match at % 2 {
        0 => u16::from_be_bytes([high, low]),
        _ => u16::from_be_bytes([low, high]),
    };
    let sum: &mut [u8; 2] = header.get_mut(CHECKSUM_AT..)?.first_chunk_mut()?;
    let rest = checksum::add(!u16::from_be_bytes(*sum), !word(old));
    *sum = (!checksum::add(rest, word(value.to_be_bytes()))).to_be_bytes();
    Some(())
}

#[cfg(test)]
mod tests;

//! Reads the header of IPv4 (RFC 791 3.1).

use std::net::Ipv4Addr;

use super::{Header, Malformed, part_of, set_short};
use crate::checksum;

/// Bytes of a header without options.
pub(crate) const HEADER_BYTES: usize = 20;

const CHECKSUM_AT: usize = 10;

const DO_NOT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Options of one byte, and those that say which way to take: refused as RFC 7126 4.3 and 4.4 say.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// Reads a header, with its options.
pub(super) fn header(bytes: &[u8]) -> Result<Header, Malformed> {
    let fixed = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed::Headers)?;
    let payload_at = header_bytes(fixed[0]);
    let options = bytes.get(HEADER_BYTES..payload_at).ok_or(Malformed::Headers)?;
    check_options(options)?;
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *fixed;
    let length = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let payload_bytes = length.checked_sub(payload_at).ok_or(Malformed::Headers)?;
    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
    let offset = usize::from(fragment & OFFSET) * 8;
    Ok(Header {
        source: Ipv4Addr::new(s0, s1, s2, s3).into(),
        destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
        length,
        protocol: fixed[9],
        payload_at,
        part: part_of(offset, fragment & MORE_FRAGMENTS != 0, payload_bytes)?,
        offset,
        may_fragment: fragment & DO_NOT_FRAGMENT == 0,
    })
}

/// Whether the checksum of the header is right.
pub(super) fn checksum_is_right(bytes: &[u8]) -> bool {
    let header = bytes.first().and_then(|first| bytes.get(..header_bytes(*first)));
    header.is_some_and(|header| checksum::sum(header) == 0xffff)
}

/// Makes the checksum of the header right. `None` if there is no whole header.
pub(crate) fn set_checksum(bytes: &mut [u8]) -> Option<()> {
    let header_bytes = header_bytes(*bytes.first()?);
    let header = bytes.get_mut(..header_bytes)?;
    set_short(header, CHECKSUM_AT, 0)?;
    let checksum = !checksum::sum(header);
    set_short(header, CHECKSUM_AT, checksum)
}

/// The length of the header, in its first byte in units of 4.
fn header_bytes(first: u8) -> usize {
    usize::from(first & 0xf) * 4
}

/// Whether the options are complete and none is a source route.
fn check_options(mut options: &[u8]) -> Result<(), Malformed> {
    while let Some(kind) = options.first() {
        let length = match *kind {
            END => return Ok(()),
            NO_OPERATION => 1,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(Malformed::SourceRoute),
            _ => options.get(1).map_or(0, |length| usize::from(*length)),
        };
        let is_whole = *kind == NO_OPERATION || length >= 2;
        options = options.get(length..).filter(|_| is_whole).ok_or(Malformed::Options)?;
    }
    Ok(())
}

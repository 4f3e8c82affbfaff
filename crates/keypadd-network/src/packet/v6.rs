//! Reads the header of IPv6 and the extension headers up to the transport's (RFC 8200 3 and 4).

use std::net::Ipv6Addr;

use super::{Header, Malformed, Part, part_of};

/// Bytes of the header before all extensions.
pub(crate) const HEADER_BYTES: usize = 40;

/// Bytes of the extension header of a fragment.
pub(super) const FRAGMENT_BYTES: usize = 8;

/// Extension headers that are read; the others, and what follows in a fragment, are a protocol
/// without ports. RFC 8200 4.1 has six of them at most in a packet.
const EXTENSIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Reads a header, with its extensions.
pub(super) fn header(bytes: &[u8]) -> Result<Header, Malformed> {
    let fixed = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed::Headers)?;
    let address = |at: usize| {
        let octets = fixed.get(at..).and_then(<[u8]>::first_chunk::<16>);
        octets.map(|octets| Ipv6Addr::from(*octets)).ok_or(Malformed::Headers)
    };
    let mut header = Header {
        source: address(8)?.into(),
        destination: address(24)?.into(),
        length: HEADER_BYTES + usize::from(u16::from_be_bytes([fixed[4], fixed[5]])),
        protocol: fixed[6],
        payload_at: HEADER_BYTES,
        part: Part::Whole,
        offset: 0,
        may_fragment: false,
    };
    for count in 0..=EXTENSIONS_MAX {
        let is_extension = matches!(header.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION);
        match header.part {
            Part::Whole if is_extension => {}
            // It would hide what follows, such as a source route (RFC 7112).
            Part::First if is_extension => return Err(Malformed::Fragment),
            Part::Whole | Part::First | Part::Later => return Ok(header),
        }
        let options_first = header.protocol != HOP_BY_HOP || count == 0;
        if !options_first || count == EXTENSIONS_MAX {
            return Err(Malformed::Options);
        }
        header.skip_extension(bytes)?;
    }
    Err(Malformed::Options)
}

impl Header {
    /// Goes on behind the extension header at its end.
    fn skip_extension(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let extension = bytes.get(self.payload_at..).and_then(<[u8]>::first_chunk::<8>);
        let [next, length, high, low, ..] = *extension.ok_or(Malformed::Headers)?;
        match self.protocol {
            FRAGMENT => {
                self.payload_at += FRAGMENT_BYTES;
                let offset_and_more = u16::from_be_bytes([high, low]);
                self.offset = usize::from(offset_and_more & !7);
                let payload_bytes =
                    self.length.checked_sub(self.payload_at).ok_or(Malformed::Headers)?;
                self.part = part_of(self.offset, offset_and_more & 1 != 0, payload_bytes)?;
            }
            // Segments that are left lead to another host than the destination (RFC 5095 1).
            ROUTING if low != 0 => return Err(Malformed::SourceRoute),
            _ => self.payload_at += (usize::from(length) + 1) * 8,
        }
        if self.payload_at > self.length {
            return Err(Malformed::Headers);
        }
        self.protocol = next;
        Ok(())
    }
}

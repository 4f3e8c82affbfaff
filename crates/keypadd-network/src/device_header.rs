//! Encodes and decodes the header before each packet of a device with offloads (`struct
//! virtio_net_hdr`: virtio 1.2, 5.1.6), in the byte order of this machine, as Linux has it.
//!
//! The header says which work on a packet is left to the other side: to finish the checksum of its
//! transport, and to cut it into packets that a link carries.

use crate::packet::Malformed;

/// Bytes of the header.
pub const DEVICE_HEADER_BYTES: usize = 10;

/// Flag: the checksum is left to the other side.
const NEEDS_CHECKSUM: u8 = 1;

/// Ways to cut a packet.
const WHOLE: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;

/// Bit beside [`TCP_V4`] and [`TCP_V6`]: the first packet alone has CWR, which is so here anyway.
const WITH_CWR: u8 = 0x80;

/// What is left to the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceHeader {
    pub(crate) checksum: Option<ChecksumAt>,
    pub(crate) cut: Option<Cut>,
}

/// A checksum that holds the sum of the pseudo-header only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChecksumAt {
    /// Where what it covers begins.
    pub(crate) start: u16,
    /// Where it is, from there.
    pub(crate) offset: u16,
}

/// How a packet is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) into: Segments,
    /// Bytes of payload in each packet but the last, which may have fewer.
    pub(crate) payload_bytes: u16,
    /// Bytes of the headers that each gets. What others say is not to be trusted.
    pub(crate) header_bytes: u16,
}

/// What a packet is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segments {
    /// Segments of TCP over IPv4.
    TcpV4,
    /// Segments of TCP over IPv6.
    TcpV6,
    /// Datagrams of UDP.
    Udp,
}

impl DeviceHeader {
    pub(crate) fn decode(bytes: &[u8; DEVICE_HEADER_BYTES]) -> Result<Self, Malformed> {
        let [flags, way, h0, h1, p0, p1, s0, s1, o0, o1] = *bytes;
        let [header_bytes, payload_bytes, start, offset] =
            [[h0, h1], [p0, p1], [s0, s1], [o0, o1]].map(u16::from_ne_bytes);
        let into = match way & !WITH_CWR {
            WHOLE => None,
            TCP_V4 => Some(Segments::TcpV4),
            TCP_V6 => Some(Segments::TcpV6),
            UDP => Some(Segments::Udp),
            _ => return Err(Malformed::Offload),
        };
        if into.is_some() && payload_bytes == 0 {
            return Err(Malformed::Offload);
        }
        let needs_checksum = flags & NEEDS_CHECKSUM != 0;
        Ok(Self {
            checksum: needs_checksum.then_some(ChecksumAt { start, offset }),
            cut: into.map(|into| Cut { into, payload_bytes, header_bytes }),
        })
    }

    pub(crate) fn encode(self) -> [u8; DEVICE_HEADER_BYTES] {
        let flags = if self.checksum.is_some() { NEEDS_CHECKSUM } else { 0 };
        let (way, payload_bytes, header_bytes) = match self.cut {
            None => (WHOLE, 0, 0),
            Some(Cut { into, payload_bytes, header_bytes }) => {
                let way = match into {
                    Segments::TcpV4 => TCP_V4,
                    Segments::TcpV6 => TCP_V6,
                    Segments::Udp => UDP,
                };
                (way, payload_bytes, header_bytes)
            }
        };
        let (start, offset) = self.checksum.map_or((0, 0), |it| (it.start, it.offset));
        let [[h0, h1], [p0, p1], [s0, s1], [o0, o1]] =
            [header_bytes, payload_bytes, start, offset].map(u16::to_ne_bytes);
        [flags, way, h0, h1, p0, p1, s0, s1, o0, o1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_decode_to_what_was_encoded() {
        let checksum = Some(ChecksumAt { start: 40, offset: 16 });
        let cut = |into| Some(Cut { into, payload_bytes: 1_348, header_bytes: 72 });
        for cut in [None, cut(Segments::TcpV4), cut(Segments::TcpV6), cut(Segments::Udp)] {
            for checksum in [None, checksum] {
                let header = DeviceHeader { checksum, cut };
                assert_eq!(DeviceHeader::decode(&header.encode()), Ok(header));
            }
        }
        assert_eq!(DeviceHeader::default().encode(), [0; DEVICE_HEADER_BYTES]);
    }

    #[test]
    fn an_offload_that_was_not_asked_for_is_refused() {
        let decode = |way: u8, payload_bytes: u8| {
            let mut bytes = [0; DEVICE_HEADER_BYTES];
            (bytes[1], bytes[4], bytes[5]) = (way, payload_bytes, payload_bytes);
            DeviceHeader::decode(&bytes)
        };
        assert!(decode(WHOLE, 0).is_ok() && decode(TCP_V4 | WITH_CWR, 1).is_ok());
        assert_eq!(decode(TCP_V4, 0), Err(Malformed::Offload), "pieces of nothing");
        // UDP cut by IP (UFO), and what does not exist.
        for way in [3, 2, 6, 0x7f] {
            assert_eq!(decode(way, 1), Err(Malformed::Offload));
        }
    }
}

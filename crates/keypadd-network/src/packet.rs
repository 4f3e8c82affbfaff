//! Reads the headers of an IP packet, down to the ports.
//!
//! Follows RFC 791 and RFC 8200, and refuses what these let a sender build to mislead a filter:
//! source routes, headers cut apart by fragments, fragments that overlap a header that was checked.
//! A packet that passes has one meaning for this host and for whoever gets it.

mod transport;
pub(crate) mod v4;
pub(crate) mod v6;

use std::net::IpAddr;

use thiserror::Error;

use crate::{checksum, martian::is_martian};

pub(crate) use self::transport::{ICMP, ICMP_BYTES, ICMPV6, TCP, TCP_BYTES, UDP, UDP_BYTES};
pub use self::transport::{Ports, Transport};

/// Why bytes are not a packet that a network carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Neither IPv4 nor IPv6.
    #[error("not an IP packet")]
    Version,
    /// The headers end before they are complete, or say a length that they cannot have.
    #[error("incomplete headers")]
    Headers,
    /// The length in the header is not the length of the packet.
    #[error("another length than in the header")]
    Length,
    /// The checksum of the IPv4 header is wrong.
    #[error("wrong checksum of the header")]
    Checksum,
    /// The options of the IPv4 header, or extension headers, are not in a form or an order that
    /// their specification allows.
    #[error("malformed options")]
    Options,
    /// The packet names hops of its route, so it might reach a host other than its destination.
    #[error("source routed")]
    SourceRoute,
    /// The device asks for work on it that it was not told of, or that the packet has no use for.
    #[error("unknown offload")]
    Offload,
    /// A fragment that no packet has, that cuts a header apart or that overlaps one.
    #[error("malformed fragment")]
    Fragment,
}

/// Which part of a packet this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first fragment, which has the header of the transport.
    First,
    /// A later fragment.
    Later,
}

/// A valid packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    header: Header,
    transport: Transport,
}

/// The packet that an error of ICMP is about, as far as its beginning tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quoted {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) transport: Transport,
}

/// What the IP header and its extensions say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    source: IpAddr,
    destination: IpAddr,
    /// Length of the packet.
    length: usize,
    /// The protocol of the payload.
    protocol: u8,
    /// Where the payload begins.
    payload_at: usize,
    part: Part,
    /// Where in the payload of the whole packet this part begins.
    offset: usize,
    may_fragment: bool,
}

impl<'a> Packet<'a> {
    /// Reads a packet, which these bytes have to be from first to last.
    ///
    /// # Errors
    /// Why they are no packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = Header::read(bytes)?;
        if header.length != bytes.len() {
            return Err(Malformed::Length);
        }
        if header.source.is_ipv4() && !v4::checksum_is_right(bytes) {
            return Err(Malformed::Checksum);
        }
        let payload = bytes.get(header.payload_at..).ok_or(Malformed::Headers)?;
        header.check_fragment(payload.len())?;
        let transport = Transport::read(&header, payload)?;
        transport.check(header.part, payload)?;
        Ok(Self { bytes, header, transport })
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What the transport's header says.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Where it comes from.
    pub fn source(&self) -> IpAddr {
        self.header.source
    }

    /// Where it goes.
    pub fn destination(&self) -> IpAddr {
        self.header.destination
    }

    /// Whether it means nothing beyond a link or a host: by its addresses, or as a message of ICMP
    /// that no router passes on.
    pub fn is_martian(&self) -> bool {
        self.transport == Transport::LinkIcmp
            || is_martian(self.header.source)
            || is_martian(self.header.destination)
    }

    /// Which part of a packet it is.
    pub fn part(&self) -> Part {
        self.header.part
    }

    /// Whether a router may fragment it: IPv4 without DF.
    pub fn may_fragment(&self) -> bool {
        self.header.may_fragment
    }

    /// Whether it begins a direction of a TCP connection: it may say a maximum segment size.
    pub fn is_syn(&self) -> bool {
        matches!(self.transport, Transport::Tcp { syn: true, .. })
    }

    /// The protocol of its payload.
    pub(crate) fn protocol(&self) -> u8 {
        self.header.protocol
    }

    /// Its ports, or the identifier of an echo; zero where it has none.
    pub(crate) fn ports(&self) -> Ports {
        match self.transport {
            Transport::Tcp { ports, .. } | Transport::Udp(ports) => ports,
            Transport::EchoRequest(id) | Transport::EchoReply(id) => {
                Ports { source: id, destination: id }
            }
            Transport::IcmpError
            | Transport::OtherIcmp
            | Transport::LinkIcmp
            | Transport::Later(_)
            | Transport::Other(_) => Ports { source: 0, destination: 0 },
        }
    }

    /// Where its payload begins.
    pub(crate) fn payload_at(&self) -> usize {
        self.header.payload_at
    }

    /// The packet that an error of ICMP quotes; `None` if it quotes no addresses and ports.
    pub(crate) fn quoted(&self) -> Option<Quoted> {
        let quoted = self.bytes.get(self.header.payload_at + ICMP_BYTES..)?;
        let header = Header::read(quoted).ok()?;
        let payload = quoted.get(header.payload_at..)?;
        let transport = Transport::read(&header, payload).ok()?;
        let Header { source, destination, .. } = header;
        Some(Quoted { source, destination, transport })
    }
}

impl Header {
    /// Reads the header of a packet of which these are the first bytes.
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => v4::header(bytes),
            Some(6) => v6::header(bytes),
            Some(_) | None => Err(Malformed::Version),
        }
    }

    /// Whether a fragment with a payload of so many bytes is part of a packet.
    fn check_fragment(&self, payload_bytes: usize) -> Result<(), Malformed> {
        let end = self.payload_at + self.offset + payload_bytes;
        // RFC 791 3.1 sends the length of the whole packet in 16 bits, RFC 8200 3 without its
        // header. The header of the fragment is in neither.
        let end_max = match self.source {
            IpAddr::V4(_) => usize::from(u16::MAX),
            IpAddr::V6(_) => v6::HEADER_BYTES + usize::from(u16::MAX) + v6::FRAGMENT_BYTES,
        };
        let is_part = payload_bytes != 0 && end <= end_max;
        if self.part != Part::Whole && !is_part {
            return Err(Malformed::Fragment);
        }
        // It would overwrite what was checked in the first fragment (RFC 3128).
        let overlaps = self.protocol == TCP && self.offset < transport::TCP_BYTES;
        if self.part == Part::Later && overlaps {
            return Err(Malformed::Fragment);
        }
        Ok(())
    }
}

/// Two bytes of a header as a number.
pub(crate) fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Writes a number into a header. `None` if it has no such place.
pub(crate) fn set_short(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

/// Writes the length of a packet into its IP header, and makes the checksum of IPv4 right. `None`
/// if the header is not whole, or the packet is longer than it can say.
pub(crate) fn set_length(ip: &mut [u8], bytes: usize) -> Option<()> {
    match ip.first()? >> 4 {
        4 => {
            set_short(ip, 2, u16::try_from(bytes).ok()?)?;
            v4::set_checksum(ip)
        }
        _ => set_short(ip, 4, u16::try_from(bytes.checked_sub(v6::HEADER_BYTES)?).ok()?),
    }
}

/// The sum of the pseudo-header of a packet with this IP header (RFC 9293 3.1, RFC 8200 8.1).
pub(crate) fn pseudo_header(ip: &[u8], protocol: u8, transport_bytes: usize) -> Option<u16> {
    let addresses = match ip.first()? >> 4 {
        4 => ip.get(12..v4::HEADER_BYTES)?,
        _ => ip.get(8..v6::HEADER_BYTES)?,
    };
    // Below 64 KiB: the upper half of the length is zero.
    let length = u16::try_from(transport_bytes).ok()?;
    Some(checksum::add(checksum::sum(addresses), checksum::add(protocol.into(), length)))
}

/// Which part of a packet has this offset, with or without more behind it. Fragments but the last
/// have a multiple of 8 bytes.
fn part_of(offset: usize, more: bool, payload_bytes: usize) -> Result<Part, Malformed> {
    match (offset, more) {
        (_, true) if !payload_bytes.is_multiple_of(8) => Err(Malformed::Fragment),
        (0, false) => Ok(Part::Whole),
        (0, true) => Ok(Part::First),
        (_, _) => Ok(Part::Later),
    }
}

#[cfg(test)]
mod tests;

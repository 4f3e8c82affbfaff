//! Reads the header of the transport: ports of TCP and UDP, and what a message of ICMP is.

use std::net::IpAddr;

use super::{Header, Malformed, Part, short};

/// Protocol numbers (IANA).
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

/// Bytes of a header of TCP without options (RFC 9293 3.1), and of UDP (RFC 768) and ICMP
/// (RFC 792, RFC 4443 2.1).
pub(crate) const TCP_BYTES: usize = 20;
pub(crate) const UDP_BYTES: usize = 8;
pub(crate) const ICMP_BYTES: usize = 8;

/// Flags of TCP, in byte 13.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Where a packet comes from and goes, in its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The port of the source.
    pub source: u16,
    /// The port of the destination.
    pub destination: u16,
}

/// What the header of the transport says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// The ports.
        ports: Ports,
        /// Whether it has SYN, and so is the first of its direction.
        syn: bool,
        /// Whether it has ACK, and so answers.
        ack: bool,
    },
    /// UDP.
    Udp(Ports),
    /// An echo request of ICMP with this identifier.
    EchoRequest(u16),
    /// An echo reply of ICMP with this identifier.
    EchoReply(u16),
    /// An ICMP error, which quotes the packet it is about.
    IcmpError,
    /// Another message of ICMP, which may pass a router.
    OtherIcmp,
    /// A message of ICMP between the hosts of one link, which no router passes on.
    LinkIcmp,
    /// A fragment but the first, of this protocol. It has no header of the transport.
    Later(u8),
    /// Another protocol, by its number.
    Other(u8),
}

impl Transport {
    /// Reads the first 8 bytes of the payload, which all headers have, and an ICMP error quotes.
    pub(super) fn read(header: &Header, payload: &[u8]) -> Result<Self, Malformed> {
        if header.part == Part::Later {
            return Ok(Self::Later(header.protocol));
        }
        let port = |at| short(payload, at).ok_or(Malformed::Headers);
        let ports = || Ok(Ports { source: port(0)?, destination: port(2)? });
        match (header.protocol, header.source) {
            (TCP, _) => {
                let flags = payload.get(13).copied().unwrap_or(0);
                Ok(Self::Tcp { ports: ports()?, syn: flags & SYN != 0, ack: flags & ACK != 0 })
            }
            (UDP, _) => Ok(Self::Udp(ports()?)),
            (ICMP, IpAddr::V4(_)) => icmp_v4(payload).ok_or(Malformed::Headers),
            (ICMPV6, IpAddr::V6(_)) => icmp_v6(payload).ok_or(Malformed::Headers),
            (protocol, _) => Ok(Self::Other(protocol)),
        }
    }

    /// Whether the header is all in this part, and says lengths that the payload has. A first
    /// fragment without all of it would pass a filter by what it lacks (RFC 1858, RFC 7112).
    pub(super) fn check(self, part: Part, payload: &[u8]) -> Result<(), Malformed> {
        let (header_bytes, own_bytes) = match self {
            Self::Later(_) | Self::Other(_) => return Ok(()),
            Self::Tcp { .. } => {
                let offset = payload.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
                (TCP_BYTES, offset)
            }
            Self::Udp(_) => (UDP_BYTES, short(payload, 4).map_or(0, usize::from)),
            Self::EchoRequest(_)
            | Self::EchoReply(_)
            | Self::IcmpError
            | Self::OtherIcmp
            | Self::LinkIcmp => (ICMP_BYTES, ICMP_BYTES),
        };
        match part {
            _ if own_bytes < header_bytes => Err(Malformed::Headers),
            Part::Whole if payload.len() < own_bytes => Err(Malformed::Headers),
            Part::First if payload.len() < header_bytes => Err(Malformed::Fragment),
            Part::Whole | Part::First | Part::Later => Ok(()),
        }
    }

    /// What a packet in the other direction of the same flow says.
    pub(crate) fn reversed(self) -> Self {
        let swap = |ports: Ports| Ports { source: ports.destination, destination: ports.source };
        match self {
            Self::Tcp { ports, syn, ack } => Self::Tcp { ports: swap(ports), syn, ack },
            Self::Udp(ports) => Self::Udp(swap(ports)),
            Self::EchoRequest(id) => Self::EchoReply(id),
            Self::EchoReply(id) => Self::EchoRequest(id),
            Self::IcmpError
            | Self::OtherIcmp
            | Self::LinkIcmp
            | Self::Later(_)
            | Self::Other(_) => self,
        }
    }

    /// Whether this is ICMP in a packet to this address.
    pub(crate) fn is_icmp_of(&self, destination: IpAddr) -> bool {
        match self {
            Self::EchoRequest(_)
            | Self::EchoReply(_)
            | Self::IcmpError
            | Self::OtherIcmp
            | Self::LinkIcmp => true,
            Self::Later(protocol) => match destination {
                IpAddr::V4(_) => *protocol == ICMP,
                IpAddr::V6(_) => *protocol == ICMPV6,
            },
            Self::Tcp { .. } | Self::Udp(_) | Self::Other(_) => false,
        }
    }
}

/// Reads a message of ICMP for IPv4 (RFC 792).
fn icmp_v4(message: &[u8]) -> Option<Transport> {
    Some(match *message.first()? {
        0 => Transport::EchoReply(short(message, 4)?),
        8 => Transport::EchoRequest(short(message, 4)?),
        // Destination unreachable, source quench, time exceeded, parameter problem.
        3 | 4 | 11 | 12 => Transport::IcmpError,
        // Redirect (RFC 1122 3.2.2.2), router advertisement and solicitation (RFC 1256).
        5 | 9 | 10 => Transport::LinkIcmp,
        _ => Transport::OtherIcmp,
    })
}

/// Reads a message of ICMP for IPv6 (RFC 4443).
fn icmp_v6(message: &[u8]) -> Option<Transport> {
    Some(match *message.first()? {
        128 => Transport::EchoRequest(short(message, 4)?),
        129 => Transport::EchoReply(short(message, 4)?),
        // All types below are errors, also those that are not known (RFC 4443 2.1).
        0..128 => Transport::IcmpError,
        // What a router drops anyway: multicast listeners, neighbors, routers (RFC 4890 4.3.3).
        130..=137 | 141..=143 | 148 | 149 | 151..=153 => Transport::LinkIcmp,
        _ => Transport::OtherIcmp,
    })
}

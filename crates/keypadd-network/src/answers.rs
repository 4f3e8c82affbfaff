//! Makes the errors of ICMP that answer packets (RFC 792, RFC 4443), at a limited rate.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use keypadd_share::{Bucket, Rate};

use crate::{
    checksum,
    dropped::Reason,
    packet::{ICMP, ICMP_BYTES, ICMPV6, Packet, Part, Transport, pseudo_header, v4, v6},
};

/// The longest error: of IPv6 as long as every link carries it (RFC 4443 2.4 c).
pub const ANSWER_BYTES_MAX: usize = IPV6_MTU_MIN as usize;

/// The longest error of IPv4 (RFC 1812 4.3.2.3).
pub(crate) const ANSWER_BYTES_MAX_V4: usize = 576;

/// How often packets that are too big are answered, for one device. Each sender needs one a path,
/// and again when the path changes.
pub(crate) const TOO_BIG_RATE: Rate = Rate { burst: 100, interval: Duration::from_millis(10) };

/// How often packets that may not pass are answered, for one device.
pub(crate) const REFUSAL_RATE: Rate = Rate { burst: 10, interval: Duration::from_millis(100) };

/// What every link of IPv6 carries (RFC 8200 5).
const IPV6_MTU_MIN: u32 = 1280;

/// Hops that an error may take, and its precedence: internetwork control (RFC 1812 4.3.2.5).
const HOP_LIMIT: u8 = 64;
const PRECEDENCE: u8 = 0xc0;

/// DF, in the byte where it is. What is never fragmented needs no identification (RFC 6864 4.1).
const DO_NOT_FRAGMENT: u8 = 0x40;

/// What a sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The packet is longer than the path carries at once.
    TooBig {
        /// What the path carries.
        mtu: usize,
    },
    /// It may not go there.
    Prohibited,
    /// It may not come from there.
    SourceRefused,
    /// The destination is not behind the peer.
    NoRoute,
}

impl Problem {
    /// Whether only hosts on this side hear of it, through the device.
    fn is_for_hosts_here(self) -> bool {
        match self {
            Self::TooBig { .. } | Self::NoRoute => true,
            Self::Prohibited | Self::SourceRefused => false,
        }
    }

    fn rate(self) -> Rate {
        match self {
            Self::TooBig { .. } => TOO_BIG_RATE,
            Self::Prohibited | Self::SourceRefused | Self::NoRoute => REFUSAL_RATE,
        }
    }

    /// Type and code, and the last 4 bytes of the header, for IPv4 (RFC 792, RFC 1191 4, RFC 1812
    /// 5.2.7.1).
    fn v4(self) -> ([u8; 2], u32) {
        match self {
            Self::TooBig { mtu } => ([3, 4], u16::try_from(mtu).unwrap_or(u16::MAX).into()),
            Self::Prohibited | Self::SourceRefused => ([3, 13], 0),
            Self::NoRoute => ([3, 0], 0),
        }
    }

    /// Type and code, and the last 4 bytes of the header, for IPv6 (RFC 4443 3.1 and 3.2).
    fn v6(self) -> ([u8; 2], u32) {
        match self {
            Self::TooBig { mtu } => {
                ([2, 0], u32::try_from(mtu).unwrap_or(u32::MAX).max(IPV6_MTU_MIN))
            }
            Self::Prohibited => ([1, 1], 0),
            Self::SourceRefused => ([1, 5], 0),
            Self::NoRoute => ([1, 0], 0),
        }
    }
}

impl Reason {
    /// What the sender of a packet that was dropped for this is told, if anything.
    pub fn problem(self) -> Option<Problem> {
        match self {
            Self::Destination => Some(Problem::Prohibited),
            Self::Source => Some(Problem::SourceRefused),
            Self::NoRoute => Some(Problem::NoRoute),
            Self::Loop | Self::Malformed | Self::Martian | Self::Queue => None,
        }
    }
}

/// Answers the packets of one device.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The device's addresses, from which errors come.
    addresses: Vec<IpAddr>,
    too_big: Bucket,
    refusals: Bucket,
}

impl Answers {
    /// Answers from the first of these addresses of the packet's family. If there is none, errors
    /// come from the destination of the packet, as if it had refused it; so do those of IPv4 that
    /// go to hosts here: Linux takes no packet from a device that has its own address as source.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        Self { addresses, too_big: Bucket::FULL, refusals: Bucket::FULL }
    }

    /// Writes the error that answers a packet, unless none may or there were many of late.
    pub fn answer<'b>(
        &mut self,
        packet: &Packet<'_>,
        problem: Problem,
        now: Instant,
        buffer: &'b mut [u8; ANSWER_BYTES_MAX],
    ) -> Option<&'b [u8]> {
        let bucket = match problem {
            Problem::TooBig { .. } => &mut self.too_big,
            Problem::Prohibited | Problem::SourceRefused | Problem::NoRoute => &mut self.refusals,
        };
        if !may_be_answered(packet) || bucket.take(problem.rate(), now).is_err() {
            return None;
        }
        let length = match (packet.source(), packet.destination()) {
            (IpAddr::V4(to), IpAddr::V4(destination)) => {
                let own = self.addresses.iter().find_map(|address| match address {
                    IpAddr::V4(address) => Some(*address),
                    IpAddr::V6(_) => None,
                });
                let own = own.filter(|_| !problem.is_for_hosts_here());
                write_v4(packet, problem, own.unwrap_or(destination), to, buffer)
            }
            (IpAddr::V6(to), IpAddr::V6(destination)) => {
                let own = self.addresses.iter().find_map(|address| match address {
                    IpAddr::V6(address) => Some(*address),
                    IpAddr::V4(_) => None,
                });
                write_v6(packet, problem, own.unwrap_or(destination), to, buffer)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        };
        buffer.get(..length)
    }
}

/// Whether an error may answer this packet: none answers an error, a later fragment, or what comes
/// from or goes to more than one host (RFC 1122 3.2.2, RFC 4443 2.4 e).
fn may_be_answered(packet: &Packet<'_>) -> bool {
    packet.transport() != Transport::IcmpError
        && packet.part() != Part::Later
        && !packet.is_martian()
}

/// Writes an error and returns its length.
fn write_v4(
    packet: &Packet<'_>,
    problem: Problem,
    from: Ipv4Addr,
    to: Ipv4Addr,
    buffer: &mut [u8; ANSWER_BYTES_MAX],
) -> usize {
    let (header, rest) = buffer.split_at_mut(v4::HEADER_BYTES);
    let room = ANSWER_BYTES_MAX_V4 - v4::HEADER_BYTES;
    let message_bytes = write_message(packet, problem.v4(), 0, &mut rest[..room]);
    let length = v4::HEADER_BYTES + message_bytes;
    header.fill(0);
    header[0] = 0x45;
    header[1] = PRECEDENCE;
    header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    header[6] = DO_NOT_FRAGMENT;
    header[8] = HOP_LIMIT;
    header[9] = ICMP;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    // It has a whole header.
    let _ = v4::set_checksum(header);
    length
}

/// Writes an error and returns its length.
fn write_v6(
    packet: &Packet<'_>,
    problem: Problem,
    from: Ipv6Addr,
    to: Ipv6Addr,
    buffer: &mut [u8; ANSWER_BYTES_MAX],
) -> usize {
    let (header, rest) = buffer.split_at_mut(v6::HEADER_BYTES);
    header.fill(0);
    header[0] = 0x60;
    header[6] = ICMPV6;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&from.octets());
    header[24..40].copy_from_slice(&to.octets());
    // The sum covers the addresses, the length and the protocol as well (RFC 8200 8.1).
    let message_bytes = ICMP_BYTES + packet.bytes().len().min(rest.len() - ICMP_BYTES);
    let pseudo = pseudo_header(header, ICMPV6, message_bytes).unwrap_or_default();
    write_message(packet, problem.v6(), pseudo, rest);
    header[4..6].copy_from_slice(&(message_bytes as u16).to_be_bytes());
    v6::HEADER_BYTES + message_bytes
}

/// Writes the message with as much of the packet as there is room for, and returns its length.
fn write_message(
    packet: &Packet<'_>,
    (kind, rest_of_header): ([u8; 2], u32),
    pseudo_header: u16,
    room: &mut [u8],
) -> usize {
    let quoted_bytes = packet.bytes().len().min(room.len() - ICMP_BYTES);
    let message = &mut room[..ICMP_BYTES + quoted_bytes];
    message[..2].copy_from_slice(&kind);
    message[2..4].fill(0);
    message[4..8].copy_from_slice(&rest_of_header.to_be_bytes());
    message[8..].copy_from_slice(&packet.bytes()[..quoted_bytes]);
    let sum = checksum::add(checksum::sum(message), pseudo_header);
    message[2..4].copy_from_slice(&(!sum).to_be_bytes());
    message.len()
}

#[cfg(test)]
mod tests;

//! Says what a message of ICMP is, by its type.

use super::{Transport, short};

/// Reads a message of ICMP for IPv4 (RFC 792).
pub(super) fn v4(message: &[u8]) -> Option<Transport> {
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
pub(super) fn v6(message: &[u8]) -> Option<Transport> {
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

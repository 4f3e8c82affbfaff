//! Lists the addresses that no packet between two networks has, as source or as destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether no packet that is forwarded may have this address, as source or as destination.
pub(crate) fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_martian_v4(address),
        IpAddr::V6(address) => is_martian_v6(address),
    }
}

fn is_martian_v4(address: Ipv4Addr) -> bool {
    match address.octets() {
        // "This network" (RFC 791 3.2, RFC 1122 3.2.1.3).
        [0, ..] => true,
        // Loopback (RFC 1122 3.2.1.3).
        [127, ..] => true,
        // Of one link (RFC 3927 2.7); in clouds, what hands out credentials.
        [169, 254, ..] => true,
        // Multicast (RFC 1112 4).
        [224..=239, ..] => true,
        // Reserved (RFC 1112 4), and the broadcast of a link (RFC 919 7).
        [240..=255, ..] => true,
        _ => false,
    }
}

fn is_martian_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Unspecified and loopback (RFC 4291 2.5.2, 2.5.3), and the IPv4-compatible addresses that
        // are no more (RFC 4291 2.5.5.1).
        [0, 0, 0, 0, 0, 0, ..] => true,
        // IPv4-mapped (RFC 4291 2.5.5.2): on the wire they stand for nothing (RFC 4942 2.2) and
        // would pass for the IPv4 address where prefixes are compared.
        [0, 0, 0, 0, 0, 0xffff, ..] => true,
        // Of one link (RFC 4291 2.5.6).
        [0xfe80..=0xfebf, ..] => true,
        // Multicast (RFC 4291 2.7).
        [0xff00..=0xffff, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_no_network_are_martians_to_the_last_one() {
        for (address, martian) in [
            ("0.0.0.0", true),
            ("0.255.255.255", true),
            ("1.0.0.0", false),
            ("126.255.255.255", false),
            ("127.0.0.0", true),
            ("127.255.255.255", true),
            ("128.0.0.0", false),
            ("169.253.255.255", false),
            ("169.254.169.254", true),
            ("169.255.0.0", false),
            ("223.255.255.255", false),
            ("224.0.0.0", true),
            ("239.255.255.255", true),
            ("240.0.0.0", true),
            ("255.255.255.255", true),
            ("10.0.0.0", false),
            ("::", true),
            ("::1", true),
            ("::ffff:10.0.0.1", true),
            ("::7f00:1", true),
            ("::1:0:0:0", false),
            ("64:ff9b::10.0.0.1", false),
            ("2001:db8::1", false),
            ("fd00::1", false),
            ("fe7f:ffff::", false),
            ("fe80::", true),
            ("febf:ffff::", true),
            ("fec0::", false),
            ("feff::", false),
            ("ff00::", true),
            ("ff02::1", true),
            ("ffff:ffff::", true),
        ] {
            assert_eq!(is_martian(address.parse().unwrap()), martian, "{address}");
        }
    }
}

//! Groups peer addresses by source for rate limits, and formats them for people.
//!
//! A source is one IPv4 address or one IPv6 /64: a single host is given a /64 (RFC 6177) and may
//! use a new address for every packet.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// One IPv4 address or one IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

impl Source {
    pub(crate) fn of(address: SocketAddr) -> Self {
        Self(match address.ip().to_canonical() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(v4) => v4.fmt(f),
            IpAddr::V6(v6) => write!(f, "{v6}/64"),
        }
    }
}

/// Unmaps an IPv4 address that arrived on an IPv6 socket.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        // Unchanged: a link-local address needs its scope.
        IpAddr::V6(_) => address,
        v4 => SocketAddr::new(v4, address.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_64() {
        for (address, source) in [
            ("192.0.2.7:5", "192.0.2.7"),
            ("[::ffff:192.0.2.7]:6", "192.0.2.7"),
            ("[2001:db8:1:2:3:4:5:6]:7", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::]:8", "2001:db8:1:2::/64"),
            ("[::1]:9", "::/64"),
        ] {
            assert_eq!(Source::of(address.parse().unwrap()).to_string(), source);
        }
    }

    #[test]
    fn mapped_ipv4_addresses_are_unmapped() {
        for (address, shown) in
            [("[::ffff:192.0.2.7]:6", "192.0.2.7:6"), ("[fe80::1%2]:7", "[fe80::1%2]:7")]
        {
            assert_eq!(plain(address.parse().unwrap()).to_string(), shown);
        }
    }
}

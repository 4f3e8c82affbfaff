//! Parses prefixes: `ADDRESS/BITS`, with no bit set behind the prefix.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use thiserror::Error;

/// The addresses of a network, as in `10.2.0.0/16` or `2001:db8:2::/48`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(IpNet);

/// A prefix that cannot be parsed; the message quotes the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// Not `ADDRESS/BITS`.
    #[error("`{0}` is not a network, as in 10.2.0.0/16 or 2001:db8:2::/48")]
    Syntax(String),
    /// An address without a length.
    #[error("`{text}` has no length; a single host is {prefix}")]
    NoLength {
        /// The text as given.
        text: String,
        /// The host alone.
        prefix: Prefix,
    },
    /// Bits behind the prefix are set.
    #[error("`{text}` is an address in the network {prefix}, not a network")]
    HostBits {
        /// The text as given.
        text: String,
        /// The network that the address is in.
        prefix: Prefix,
    },
    /// IPv4 addresses in the form of IPv6: no packet has them.
    #[error("`{0}` is an IPv4-mapped network: write it as IPv4")]
    Mapped(String),
}

impl PrefixError {
    /// The text that the message quotes, which may be part of what was parsed.
    pub fn quoted(&self) -> &str {
        match self {
            Self::Syntax(text) | Self::Mapped(text) => text,
            Self::NoLength { text, .. } | Self::HostBits { text, .. } => text,
        }
    }
}

impl Prefix {
    /// One address.
    pub fn host(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// Whether this is one address.
    pub fn is_host(&self) -> bool {
        self.bits() == self.0.max_prefix_len()
    }

    /// Whether this is two addresses: the two ends of a link (RFC 3021, RFC 6164).
    pub(crate) fn is_pair(&self) -> bool {
        self.bits() + 1 == self.0.max_prefix_len()
    }

    /// How many bits of an address it compares.
    pub fn bits(&self) -> u8 {
        self.0.prefix_len()
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        self.0.network()
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        self.0.broadcast()
    }

    /// Whether this address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Whether all addresses of the other are in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            let prefix = Self::host(address.to_canonical());
            return Err(PrefixError::NoLength { text: text.into(), prefix });
        }
        let net: IpNet = text.parse().map_err(|_| PrefixError::Syntax(text.into()))?;
        let prefix = Self(net.trunc());
        if let IpAddr::V6(address) = net.addr()
            && net.prefix_len() >= 96
            && address.to_ipv4_mapped().is_some()
        {
            return Err(PrefixError::Mapped(text.into()));
        }
        if prefix.0 != net {
            return Err(PrefixError::HostBits { text: text.into(), prefix });
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<Prefix>().unwrap_err().to_string()
    }

    #[test]
    fn a_prefix_displays_as_it_is_written() {
        for text in ["10.2.0.0/16", "0.0.0.0/0", "10.1.0.53/32", "2001:db8:2::/48", "::/0"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        assert_eq!("2001:DB8:0:0::/48".parse::<Prefix>().unwrap().to_string(), "2001:db8::/48");
    }

    #[test]
    fn a_prefix_with_bits_behind_it_is_refused_with_the_right_one() {
        assert!(refusal("10.2.3.4/16").contains("10.2.0.0/16"));
        assert!(refusal("2001:db8::1/48").contains("2001:db8::/48"));
        assert!(refusal("10.2.3.4").contains("10.2.3.4/32"));
        assert!(refusal("fd00::1").contains("fd00::1/128"));
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in
            ["", "/", "10.2.0.0/", "10.2.0.0/33", "10.2/16", "net/8", "::/129", "10.0.0.0/-1"]
        {
            assert!(refusal(text).contains("is not a network"), "{text}");
        }
        assert!(refusal("::ffff:10.2.0.0/112").contains("write it as IPv4"));
        assert!(refusal("::ffff:10.2.0.1").contains("10.2.0.1/32"));
    }

    #[test]
    fn a_prefix_contains_its_first_and_last_address_and_no_other_family() {
        let prefix: Prefix = "10.2.0.0/15".parse().unwrap();
        let contains = |address: &str| prefix.contains(address.parse().unwrap());
        assert!(contains("10.2.0.0") && contains("10.3.255.255"));
        assert!(!contains("10.1.255.255") && !contains("10.4.0.0"));
        let all: Prefix = "::/0".parse().unwrap();
        assert!(!all.contains("10.2.0.1".parse().unwrap()));
        assert!(!contains("a02::"));
    }
}

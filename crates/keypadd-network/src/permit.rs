//! Parses permits: what a peer may begin in the networks here, by prefix, protocol and port.
//!
//! `PREFIX` admits everything, `PREFIX:PORT` a TCP port, `PREFIX:udp:PORT` a UDP port,
//! `PREFIX:icmp` echo requests and other messages of ICMP. A port may be a range, `8000-8010`, or
//! `*`. An IPv6 prefix before a colon is in brackets, as in `[fd00::/8]:443`.

use std::{fmt, net::IpAddr, str::FromStr};

use thiserror::Error;

use crate::{
    packet::{TCP, Transport, UDP},
    port_range::{PortRange, PortRangeError},
    prefix::{Prefix, PrefixError},
};

/// What a peer may begin here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permit {
    prefix: Prefix,
    covers: Covers,
}

/// Which packets to the prefix a permit admits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Covers {
    /// Any protocol.
    All,
    /// These ports of TCP.
    Tcp(PortRange),
    /// These ports of UDP.
    Udp(PortRange),
    /// ICMP, of the family of the prefix.
    Icmp,
}

/// A permit that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("permit `{permit}`: {cause}")]
pub struct PermitError {
    /// The text as given.
    pub permit: String,
    /// What is wrong.
    pub cause: PermitFault,
}

/// What is wrong with a permit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PermitFault {
    /// The prefix is not valid.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// An opening bracket without a closing one, or text before or after them.
    #[error("`{0}`: an IPv6 network goes in brackets before a port, as in [fd00::/8]:443")]
    Brackets(String),
    /// A protocol that is not known, or in another place.
    #[error("`{0}` is not PORT, tcp:PORT, udp:PORT or icmp, which follow the network")]
    Protocol(String),
    /// The ports are neither valid nor `*`.
    #[error(transparent)]
    Ports(#[from] PortRangeError),
}

impl PermitFault {
    /// The text that the message quotes, which may be part of the permit.
    pub fn quoted(&self) -> &str {
        match self {
            Self::Prefix(error) => error.quoted(),
            Self::Brackets(text) | Self::Protocol(text) => text,
            Self::Ports(error) => error.quoted(),
        }
    }
}

impl Permit {
    /// The destinations that it admits.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Whether it admits a packet to this destination.
    pub fn admits(&self, destination: IpAddr, transport: &Transport) -> bool {
        self.prefix.contains(destination)
            && match (&self.covers, transport) {
                (Covers::All, _) => true,
                (Covers::Tcp(permitted), Transport::Tcp { ports, .. }) => {
                    permitted.contains(ports.destination)
                }
                (Covers::Udp(permitted), Transport::Udp(ports)) => {
                    permitted.contains(ports.destination)
                }
                // The first fragment has the port, and without it nobody reassembles the others.
                (Covers::Tcp(_), Transport::Later(protocol)) => *protocol == TCP,
                (Covers::Udp(_), Transport::Later(protocol)) => *protocol == UDP,
                (Covers::Icmp, transport) => transport.is_icmp_of(destination),
                (Covers::Tcp(_) | Covers::Udp(_), _) => false,
            }
    }
}

impl FromStr for Permit {
    type Err = PermitError;

    fn from_str(text: &str) -> Result<Self, PermitError> {
        parse(text).map_err(|cause| PermitError { permit: text.into(), cause })
    }
}

fn parse(text: &str) -> Result<Permit, PermitFault> {
    let (prefix, rest) = split(text)?;
    let prefix = prefix.parse()?;
    let covers = match rest {
        None => Covers::All,
        Some("icmp") => Covers::Icmp,
        Some(rest) => match rest.split_once(':') {
            None if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                return Err(PermitFault::Protocol(rest.into()));
            }
            None => Covers::Tcp(PortRange::of_permit(rest)?),
            Some(("tcp", rest)) => Covers::Tcp(PortRange::of_permit(rest)?),
            Some(("udp", rest)) => Covers::Udp(PortRange::of_permit(rest)?),
            Some(_) => return Err(PermitFault::Protocol(rest.into())),
        },
    };
    Ok(Permit { prefix, covers })
}

/// Splits into the prefix and what follows its colon.
fn split(text: &str) -> Result<(&str, Option<&str>), PermitFault> {
    if let Some(text) = text.strip_prefix('[') {
        let brackets = || PermitFault::Brackets(format!("[{text}"));
        let (prefix, rest) = text.split_once(']').ok_or_else(brackets)?;
        return match rest {
            "" => Ok((prefix, None)),
            rest => Ok((prefix, Some(rest.strip_prefix(':').ok_or_else(brackets)?))),
        };
    }
    match text.split_once(':') {
        // The colons of an IPv6 prefix, which has nothing behind its length.
        Some((_, rest)) if rest.contains(':') && is_v6(text) => match text.rsplit_once('/') {
            Some((_, bits)) if bits.contains(':') => Err(PermitFault::Brackets(text.into())),
            _ => Ok((text, None)),
        },
        Some(("tcp" | "udp" | "icmp", _)) => Err(PermitFault::Protocol(text.into())),
        Some((prefix, rest)) => Ok((prefix, Some(rest))),
        None => Ok((text, None)),
    }
}

/// Whether the text before its length, or all of it, has the letters of an IPv6 address only.
fn is_v6(text: &str) -> bool {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.contains(':') && address.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b))
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.covers, self.prefix.first()) {
            (Covers::All, _) => return self.prefix.fmt(f),
            (_, IpAddr::V4(_)) => self.prefix.fmt(f)?,
            (_, IpAddr::V6(_)) => write!(f, "[{}]", self.prefix)?,
        }
        match &self.covers {
            Covers::All => Ok(()),
            Covers::Icmp => f.write_str(":icmp"),
            Covers::Tcp(ports) => write!(f, ":{ports}"),
            Covers::Udp(ports) => write!(f, ":udp:{ports}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Ports;

    fn refusal(text: &str) -> String {
        text.parse::<Permit>().unwrap_err().to_string()
    }

    #[test]
    fn a_permit_displays_as_it_is_written() {
        for text in [
            "10.1.0.0/16",
            "10.1.0.0/16:443",
            "10.1.0.0/16:8000-8010",
            "10.1.0.0/16:*",
            "10.1.0.53/32:udp:53",
            "10.1.0.53/32:udp:*",
            "0.0.0.0/0:icmp",
            "fd00::/8",
            "[fd00::/8]:443",
            "[fd00::/8]:udp:53-54",
            "[::/0]:icmp",
        ] {
            assert_eq!(text.parse::<Permit>().unwrap().to_string(), text);
        }
        let display = |text: &str| text.parse::<Permit>().unwrap().to_string();
        assert_eq!(display("10.1.0.0/16:tcp:443"), "10.1.0.0/16:443");
        assert_eq!(display("10.1.0.0/16:443-443"), "10.1.0.0/16:443");
        assert_eq!(display("[fd00::/8]"), "fd00::/8");
    }

    #[test]
    fn what_is_no_permit_is_refused_with_what_is_wrong() {
        for (text, part) in [
            ("10.1.2.3/16:443", "10.1.0.0/16"),
            ("10.1.0.53:443", "10.1.0.53/32"),
            ("fd00::1", "fd00::1/128"),
            ("fd00::/8:443", "in brackets"),
            ("fd00::/8:udp:53", "in brackets"),
            ("[fd00::/8:443", "in brackets"),
            ("[fd00::/8]443", "in brackets"),
            ("udp:10.1.0.53/32:53", "follow the network"),
            ("10.1.0.0/16:sctp:1", "follow the network"),
            ("10.1.0.0/16:udp", "follow the network"),
            ("10.1.0.0/16:icmp:8", "follow the network"),
            ("10.1.0.0/16:0", "is not a port"),
            ("10.1.0.0/16:", "is not a port"),
            ("10.1.0.0/16:65536", "is not a port"),
            ("10.1.0.0/16:+22", "is not a port"),
            ("10.1.0.0/16:90-80", "must go from a lower port to a higher one"),
            ("10.1.0.0/16:udp:", "is not a port"),
            ("*:443", "is not a network"),
            ("web:443", "is not a network"),
            ("", "is not a network"),
        ] {
            assert!(refusal(text).contains(part), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn a_permit_admits_its_protocol_and_ports_in_its_prefix_and_nothing_else() {
        let (host, outside) = ("10.1.0.5", "10.2.0.5");
        let ports = |destination| Ports { source: 50_000, destination };
        let tcp = |port| Transport::Tcp { ports: ports(port), syn: true, ack: false };
        let udp = |port| Transport::Udp(ports(port));
        let (web, dns, echo) = (tcp(443), udp(53), Transport::EchoRequest(7));
        for (permit, admitted, refused) in [
            ("10.1.0.0/16", vec![web, dns, echo, Transport::Other(47)], vec![]),
            (
                "10.1.0.0/16:443",
                vec![web, Transport::Later(6)],
                vec![tcp(444), udp(443), echo, Transport::Later(17), Transport::Other(6)],
            ),
            ("10.1.0.0/16:443-445", vec![web, tcp(445)], vec![tcp(442), tcp(446)]),
            ("10.1.0.0/16:*", vec![web, tcp(0)], vec![dns, echo]),
            ("10.1.0.0/16:udp:53", vec![dns, Transport::Later(17)], vec![web, tcp(53), udp(54)]),
            (
                "10.1.0.0/16:icmp",
                vec![echo, Transport::Later(1)],
                vec![web, dns, Transport::Later(58), Transport::Other(58)],
            ),
        ] {
            let permit: Permit = permit.parse().unwrap();
            let admits = |to: &str, transport| permit.admits(to.parse().unwrap(), transport);
            for transport in &admitted {
                assert!(admits(host, transport), "{permit} {transport:?}");
                assert!(!admits(outside, transport), "{permit} {transport:?}");
            }
            for transport in &refused {
                assert!(!admits(host, transport), "{permit} {transport:?}");
            }
        }
    }
}

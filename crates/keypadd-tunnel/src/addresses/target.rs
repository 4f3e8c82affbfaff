//! Parses hosts, targets (`HOST:PORT`) and server addresses.
//!
//! Resolves nothing. A name is kept as typed; comparison ignores case and one final dot (RFC 4343).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use keypadd_network::PortRange;
use thiserror::Error;

/// Longest host on the wire: its length is sent in one byte.
pub(crate) const HOST_BYTES_MAX: usize = 255;

/// Longest name of an interface (netdevice(7), IFNAMSIZ).
const INTERFACE_BYTES_MAX: usize = 15;

/// Default UDP port of a server.
pub const DEFAULT_PORT: u16 = 4433;

/// The addresses of `localhost`. DNS is never asked for it.
pub(crate) const LOOPBACK: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// A host: an address, or a name to resolve.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address. IPv4-mapped IPv6 addresses are unmapped when parsed.
    Address(IpAddr),
    /// A name: 1 to 255 ASCII letters, digits, `.`, `-` and `_`, the first a letter, a digit or
    /// `_`. Or a server's link-local address with its interface, as in `fe80::1%eth0`, which the
    /// system resolves as it does names. Both are safe in log lines that suggest a command to paste
    /// into a shell.
    Name(String),
}

/// What a port is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// How UDP is written, before a host and a port.
pub(crate) const UDP: &str = "udp";

/// A TCP or UDP endpoint to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port, not 0.
    pub port: u16,
}

/// A server as `connect` takes it: `HOST` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// The host.
    pub host: Host,
    /// The UDP port; [`DEFAULT_PORT`] if none was given.
    pub port: u16,
}

impl From<SocketAddr> for ServerAddress {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip()), port: address.port() }
    }
}

/// A host, port or address that cannot be parsed; the message quotes the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The host is empty.
    #[error("`{0}`: the host is missing")]
    NoHost(String),
    /// A host that is neither an address nor a usable name.
    #[error("`{0}` is not an address or a host name (letters, digits, `.`, `-`, `_`)")]
    BadHost(String),
    /// The port is missing.
    #[error("`{0}`: the port is missing, as in HOST:PORT")]
    NoPort(String),
    /// A port that is not a number from 1 to 65535.
    #[error("`{0}` is not a port (1 to 65535)")]
    BadPort(String),
    /// An IPv6 address without brackets before a port.
    #[error("`{0}`: an IPv6 address goes in brackets, as in [::1]:22")]
    BareIpv6(String),
    /// An opening bracket without a closing one, or text after it.
    #[error("`{0}`: brackets do not match")]
    Brackets(String),
    /// A name of a service that DNS cannot have.
    #[error("`{0}` is not the name of a service, as in _keypadd._udp.example.com")]
    BadService(String),
    /// A server has too many addresses.
    #[error("`{0}`: more than 8 addresses")]
    TooMany(String),
}

impl AddressError {
    /// The text that the message quotes, which may be part of what was parsed.
    pub fn quoted(&self) -> &str {
        match self {
            Self::NoHost(text)
            | Self::BadHost(text)
            | Self::NoPort(text)
            | Self::BadPort(text)
            | Self::BareIpv6(text)
            | Self::Brackets(text)
            | Self::BadService(text)
            | Self::TooMany(text) => text,
        }
    }
}

impl Host {
    /// Whether this is the name `localhost`, which always means 127.0.0.1 and ::1.
    pub fn is_localhost(&self) -> bool {
        matches!(self, Self::Name(name) if same_name(name, "localhost"))
    }

    /// Whether this is a name that the system resolves.
    pub(crate) fn is_dns_name(&self) -> bool {
        matches!(self, Self::Name(_)) && !self.is_localhost()
    }
}

/// Whether two names are the same in DNS: ignores case and one final dot.
pub(crate) fn same_name(one: &str, other: &str) -> bool {
    let bare = |name: &str| name.strip_suffix('.').unwrap_or(name).len();
    one[..bare(one)].eq_ignore_ascii_case(&other[..bare(other)])
}

impl FromStr for Host {
    type Err = AddressError;

    /// Parses an address or a name, without brackets.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::NoHost(text.into()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        let first = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let usable = |b: u8| first(b) || b == b'.' || b == b'-';
        let name = text.starts_with(|c: char| u8::try_from(c).is_ok_and(first));
        if text.len() > HOST_BYTES_MAX || !name || !text.bytes().all(usable) {
            return Err(AddressError::BadHost(text.into()));
        }
        Ok(Self::Name(text.into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl FromStr for Target {
    type Err = AddressError;

    /// Parses `HOST:PORT`. The host may be in brackets; an IPv6 address must be.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = split_host_port(text)?;
        let port = port.ok_or_else(|| incomplete(text))?;
        Ok(Self { host: host.parse()?, port: parse_port(port)? })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_host_port(f, &self.host, self.port)
    }
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    /// Parses `HOST`, `HOST:PORT`, `[ADDRESS]`, `[ADDRESS]:PORT`, and an IPv6 address alone. A
    /// link-local address may name its interface: `fe80::1%eth0`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::at_port(text, DEFAULT_PORT)
    }
}

impl ServerAddress {
    /// Parses an address; one without a port has this one.
    pub(super) fn at_port(text: &str, port: u16) -> Result<Self, AddressError> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            let host = Host::Address(IpAddr::V6(address).to_canonical());
            return Ok(Self { host, port });
        }
        if is_on_interface(text) {
            return Ok(Self { host: Host::Name(text.into()), port });
        }
        let (host, own) = split_host_port(text)?;
        let port = own.map_or(Ok(port), parse_port)?;
        let host = if is_on_interface(host) { Host::Name(host.into()) } else { host.parse()? };
        Ok(Self { host, port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_host_port(f, &self.host, self.port)
    }
}

/// Whether this is a link-local address with its interface (RFC 4007, section 11).
fn is_on_interface(text: &str) -> bool {
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.split_once('%').is_some_and(|(address, interface)| {
        address.parse().is_ok_and(|address: Ipv6Addr| address.is_unicast_link_local())
            && (1..=INTERFACE_BYTES_MAX).contains(&interface.len())
            && interface.bytes().all(usable)
    })
}

fn write_host_port(f: &mut fmt::Formatter<'_>, host: &Host, port: u16) -> fmt::Result {
    match host {
        Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{port}"),
        Host::Name(name) if name.contains(':') => write!(f, "[{name}]:{port}"),
        host => write!(f, "{host}:{port}"),
    }
}

/// Splits `HOST`, `HOST:PORT`, `[HOST]` or `[HOST]:PORT`, and removes the brackets.
pub(crate) fn split_host_port(text: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = text.strip_prefix('[') {
        let unmatched = || AddressError::Brackets(text.into());
        let (host, rest) = rest.split_once(']').ok_or_else(unmatched)?;
        return match rest {
            "" => Ok((host, None)),
            rest => Ok((host, Some(rest.strip_prefix(':').ok_or_else(unmatched)?))),
        };
    }
    let Some((host, port)) = text.split_once(':') else { return Ok((text, None)) };
    // With several colons, it is an IPv6 address or network if the text before the last one could
    // be.
    let of_ipv6 = |byte: u8| byte.is_ascii_hexdigit() || b":./".contains(&byte);
    match port.rsplit_once(':') {
        Some((more, _)) if is_on_interface(&text[..host.len() + 1 + more.len()]) => {
            Err(AddressError::BareIpv6(text.into()))
        }
        Some((more, _)) if host.bytes().chain(more.bytes()).all(of_ipv6) => {
            Err(AddressError::BareIpv6(text.into()))
        }
        _ => Ok((host, Some(port))),
    }
}

/// What a text that is either a host or ports lacks.
pub(crate) fn incomplete(text: &str) -> AddressError {
    match text.parse::<PortRange>() {
        Ok(_) => AddressError::NoHost(text.into()),
        Err(_) => AddressError::NoPort(text.into()),
    }
}

/// Parses a port from 1 to 65535, digits only.
pub(crate) fn parse_port(text: &str) -> Result<u16, AddressError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits && port != 0 => Ok(port),
        _ => Err(AddressError::BadPort(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn targets_parse_as_in_ssh() {
        for (text, host, port) in [
            ("db.internal:5432", "db.internal", 5432),
            ("127.0.0.1:22", "127.0.0.1", 22),
            ("[::1]:22", "::1", 22),
            ("[db.internal]:22", "db.internal", 22),
            ("[::ffff:10.0.0.1]:22", "10.0.0.1", 22),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.host.to_string().as_str(), target.port), (host, port), "{text}");
        }
    }

    #[test]
    fn errors_name_the_bad_target() {
        use AddressError::*;
        for (text, error) in [
            ("host", NoPort("host".into())),
            ("22", NoHost("22".into())),
            (":22", NoHost("".into())),
            ("host:", BadPort("".into())),
            ("host:0", BadPort("0".into())),
            ("host:65536", BadPort("65536".into())),
            ("host:+22", BadPort("+22".into())),
            ("::1:22", BareIpv6("::1:22".into())),
            ("fe80::1:x", BareIpv6("fe80::1:x".into())),
            ("db:1 db:2", BadPort("1 db:2".into())),
            ("[::1:22", Brackets("[::1:22".into())),
            ("[::1]22", Brackets("[::1]22".into())),
            ("a b:22", BadHost("a b".into())),
            ("*.example:22", BadHost("*.example".into())),
            ("..:22", BadHost("..".into())),
            ("b\u{fc}ro:22", BadHost("b\u{fc}ro".into())),
        ] {
            assert_eq!(text.parse::<Target>(), Err(error), "{text}");
        }
    }

    #[test]
    fn names_contain_nothing_special_to_a_shell() {
        for name in
            ["a;reboot", "$(reboot)", "a&b", "a|b", "~root", "a>b", "-x", "a#b", "a=b", "!!"]
        {
            assert!(name.parse::<Host>().is_err(), "{name}");
        }
        for name in ["_ldap._tcp.example", "db_1", "xn--bro-hoa.example.", "3com.example"] {
            assert!(name.parse::<Host>().is_ok(), "{name}");
        }
    }

    #[test]
    fn server_port_is_optional() {
        for (text, shown) in [
            ("lab.example", "lab.example:4433"),
            ("lab.example:99", "lab.example:99"),
            ("::1", "[::1]:4433"),
            ("[::1]", "[::1]:4433"),
            ("[::1]:99", "[::1]:99"),
            ("10.0.0.1", "10.0.0.1:4433"),
            ("fe80::1%eth0", "[fe80::1%eth0]:4433"),
            ("[fe80::1%br-0.7]:99", "[fe80::1%br-0.7]:99"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn only_a_servers_link_local_address_names_its_interface() {
        for text in
            ["fd00::1%eth0", "10.0.0.1%eth0", "fe80::1%", "fe80::1%a;b", "fe80::1%eth0eth0eth0eth0"]
        {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
        let bare = "fe80::1%eth0:99".parse::<ServerAddress>();
        assert_eq!(bare, Err(AddressError::BareIpv6("fe80::1%eth0:99".into())));
        assert!("[fe80::1%eth0]:22".parse::<Target>().is_err());
    }

    #[test]
    fn names_are_compared_without_case_and_final_dot() {
        assert!(same_name("Db.Internal.", "db.internal"));
        assert!(!same_name("db.internal", "db.internal.example"));
        assert!("LOCALHOST.".parse::<Host>().unwrap().is_localhost());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<Target>();
            let _ = text.parse::<ServerAddress>();
        }

        #[test]
        fn displayed_targets_parse_to_the_same(text in "[\\[\\]a-c0-9:.]{0,20}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target));
            }
        }
    }
}

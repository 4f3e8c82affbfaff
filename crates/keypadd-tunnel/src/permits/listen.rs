//! Decides on which addresses of this server a client may listen (`-R`).
//!
//! A permit is compared with the address to bind. Without a host it means loopback, like a forward
//! without a bind address; only `*` permits binding all addresses. A permitted name is compared as
//! a name, because the server resolves it itself.

use std::{fmt, net::IpAddr, str::FromStr};

use keypadd_network::PortRange;

use crate::{
    addresses::{
        forward::{Bind, Listen},
        socket_path::SocketPath,
        target::{Host, LOOPBACK, Protocol},
    },
    permits::pattern::{
        HostPattern, Pattern, PermitError, PermitFault, example_port, protocol_of, same_host,
    },
};

/// A permit: `PORT` on loopback, `HOST:PORT`, `HOST:*`, `*:PORT`, `*:*`, where PORT may be a range
/// such as 8000-8010, IPv6 in brackets, for UDP with `udp:` before it; or the `/PATH` of a unix
/// socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenPermit(Pattern);

/// All listen permits of one client; an empty list permits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenPermits(Vec<ListenPermit>);

impl FromStr for ListenPermit {
    type Err = PermitError;

    fn from_str(text: &str) -> Result<Self, PermitError> {
        match pattern(text) {
            Ok(pattern) => Ok(Self(pattern)),
            Err(cause) => Err(PermitError { pattern: text.into(), cause }),
        }
    }
}

fn pattern(text: &str) -> Result<Pattern, PermitFault> {
    if let Ok((protocol, ports)) = protocol_of(text)
        && !ports.is_empty()
        && ports.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    {
        return Ok(on_loopback(protocol, ports.parse()?));
    }
    Pattern::parse(text)
}

fn on_loopback(protocol: Protocol, ports: PortRange) -> Pattern {
    Pattern::Ports(protocol, HostPattern::One(Host::Name("localhost".into())), ports)
}

impl ListenPermit {
    /// The narrowest permit that admits `listen`, to suggest in a log line. Port 0 (any free port)
    /// needs a permit for all ports.
    pub fn for_listen(listen: &Listen) -> Self {
        let (protocol, bind, port) = match listen {
            Listen::Unix(path) => return Self(Pattern::Unix(path.clone())),
            Listen::Tcp { bind, port } => (Protocol::Tcp, bind, *port),
            Listen::Udp { bind, port } => (Protocol::Udp, bind, *port),
        };
        let ports = if port == 0 { PortRange::ANY } else { PortRange::one(port) };
        Self(match bind {
            Bind::Loopback => on_loopback(protocol, ports),
            Bind::All => Pattern::Ports(protocol, HostPattern::Any, ports),
            Bind::Host(host) => Pattern::Ports(protocol, HostPattern::One(host.clone()), ports),
        })
    }

    /// The unix socket that it admits, if it is for one.
    pub fn unix_path(&self) -> Option<&SocketPath> {
        match &self.0 {
            Pattern::Unix(path) => Some(path),
            Pattern::Ports(..) => None,
        }
    }

    /// A listen address that it admits, to show in examples; loopback if permitted.
    pub fn example(&self) -> Listen {
        let (protocol, host, port) = match &self.0 {
            Pattern::Ports(protocol, host, ports) => {
                (protocol, host.example(), example_port(*ports, 8080))
            }
            Pattern::Unix(path) => return Listen::Unix(path.clone()),
        };
        let bind = host.filter(|host| !host.is_localhost()).map_or(Bind::Loopback, Bind::Host);
        match protocol {
            Protocol::Tcp => Listen::Tcp { bind, port },
            Protocol::Udp => Listen::Udp { bind, port },
        }
    }
}

impl fmt::Display for ListenPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ListenPermits {
    /// Makes the listen permits of one client.
    pub fn new(permits: Vec<ListenPermit>) -> Self {
        Self(permits)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any permit covers this port. If none does, no name needs to be resolved. Port 0 (any
    /// free port) is covered by permits for all ports.
    pub fn may_admit_port(&self, protocol: Protocol, port: u16) -> bool {
        self.of_port(protocol, port).next().is_some()
    }

    /// Whether this address and port may be bound for a client that requested `bind`.
    pub fn admits(&self, protocol: Protocol, bind: &Bind, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.of_port(protocol, port).any(|permitted| match permitted {
            HostPattern::Any => true,
            // The unspecified address is in no network: it binds all addresses.
            HostPattern::Net(net) => !address.is_unspecified() && net.contains(&address),
            HostPattern::One(host) if host.is_localhost() => LOOPBACK.contains(&address),
            HostPattern::One(Host::Address(permitted)) => *permitted == address,
            HostPattern::One(name) => {
                matches!(bind, Bind::Host(requested) if same_host(name, requested))
            }
        })
    }

    /// Whether this unix socket may be bound.
    pub fn admits_socket(&self, path: &SocketPath) -> bool {
        self.0.iter().any(|permit| permit.0.is_socket(path))
    }

    fn of_port(&self, protocol: Protocol, port: u16) -> impl Iterator<Item = &HostPattern> {
        self.0.iter().filter_map(move |permit| permit.0.hosts_of_port(protocol, port))
    }
}

impl FromIterator<ListenPermit> for ListenPermits {
    fn from_iter<I: IntoIterator<Item = ListenPermit>>(permits: I) -> Self {
        Self(permits.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn permits(patterns: &[&str]) -> ListenPermits {
        patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
    }

    fn listen(text: &str) -> Listen {
        let (text, udp) = text.strip_prefix("udp:").map_or((text, ""), |text| (text, ":udp"));
        format!("{text}{udp}:target:1")
            .parse::<crate::addresses::forward::RemoteForward>()
            .unwrap()
            .listen
    }

    /// Decides for the first address that a server would bind.
    fn admits(patterns: &[&str], asked: &str) -> bool {
        let permits = permits(patterns);
        let protocol = if asked.starts_with("udp:") { Protocol::Udp } else { Protocol::Tcp };
        match listen(asked) {
            Listen::Unix(path) => permits.admits_socket(&path),
            Listen::Tcp { bind, port } | Listen::Udp { bind, port } => {
                let address = match &bind {
                    Bind::Loopback => LOOPBACK[0],
                    Bind::All => "::".parse().unwrap(),
                    Bind::Host(Host::Address(address)) => *address,
                    Bind::Host(Host::Name(_)) => "192.0.2.1".parse().unwrap(),
                };
                permits.admits(protocol, &bind, address, port)
            }
        }
    }

    #[test]
    fn permits_are_compared_with_the_address_to_bind() {
        for (pattern, asked, admitted) in [
            // A port without a host means loopback.
            ("8080", "8080", true),
            ("8080", "8081", false),
            ("8080", "127.0.0.1:8080", true),
            ("8080", "[::1]:8080", true),
            ("8080", "127.0.0.2:8080", false),
            ("8080", "*:8080", false),
            ("8080", "0.0.0.0:8080", false),
            ("8080", "[::]:8080", false),
            ("8080", "10.0.0.1:8080", false),
            ("localhost:8080", "8080", true),
            ("localhost:*", "8080", true),
            ("127.0.0.1:8080", "8080", true),
            ("[::1]:8080", "8080", false),
            // A host.
            ("10.0.0.1:8080", "10.0.0.1:8080", true),
            ("10.0.0.1:8080", "8080", false),
            ("10.0.0.1:*", "10.0.0.1:1", true),
            ("10.0.0.0/8:*", "10.0.0.1:1", true),
            ("0.0.0.0/0:*", "*:1", false),
            ("0.0.0.0/0:*", "0.0.0.0:1", false),
            ("lan:80", "LAN.:80", true),
            ("lan:80", "other:80", false),
            // All addresses.
            ("*:8080", "*:8080", true),
            ("*:8080", "10.0.0.1:8080", true),
            ("*:8080", "8080", true),
            ("*:*", "*:1", true),
            // A range of ports.
            ("8000-8010", "8000", true),
            ("8000-8010", "8010", true),
            ("8000-8010", "7999", false),
            ("8000-8010", "8011", false),
            ("8000-8010", "*:8005", false),
            ("*:8000-8010", "*:8005", true),
            ("10.0.0.0/8:8000-8010", "10.0.0.1:8005", true),
            ("udp:8000-8010", "udp:8005", true),
            ("8000-8010", "udp:8005", false),
            ("1-65535", "0", false),
            // Port 0 needs a permit for all ports.
            ("8080", "0", false),
            ("localhost:*", "0", true),
            ("*:*", "0", true),
            // UDP.
            ("udp:5353", "udp:5353", true),
            ("udp:5353", "5353", false),
            ("5353", "udp:5353", false),
            ("*:*", "udp:5353", false),
            ("udp:*:*", "udp:*:5353", true),
            ("udp:localhost:*", "udp:0", true),
            ("udp:5353", "udp:*:5353", false),
            // Unix sockets.
            ("/run/x", "/run/x", true),
            ("/run/x", "/run/y", false),
            ("*:*", "/run/x", false),
            ("/run/x", "8080", false),
        ] {
            assert_eq!(admits(&[pattern], asked), admitted, "{pattern} {asked}");
        }
        assert!(!admits(&[], "8080"));
        assert!(admits(&["1", "/run/x", "8080"], "8080"));
    }

    #[test]
    fn the_suggested_permit_admits_the_request() {
        for (asked, proposed) in [
            ("8080", "localhost:8080"),
            ("0", "localhost:*"),
            ("*:8080", "*:8080"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            ("lan:80", "lan:80"),
            ("udp:5353", "udp:localhost:5353"),
            ("udp:*:0", "udp:*:*"),
            ("/run/x", "/run/x"),
        ] {
            let permit = ListenPermit::for_listen(&listen(asked)).to_string();
            assert_eq!(permit, proposed);
            assert!(admits(&[&permit], asked), "{permit}");
        }
    }

    #[test]
    fn errors_name_the_bad_permit() {
        for (text, message) in [
            ("0", "permit `0`: `0` is not a port (1 to 65535)"),
            ("65536", "permit `65536`: `65536` is not a port (1 to 65535)"),
            ("90-80", "permit `90-80`: `90-80`: a port range must go from a lower port"),
            ("80-", "permit `80-`: `80-` is not a port (1 to 65535) or a range such as 8000-8010"),
            ("a-b", "permit `a-b`: `a-b`: the port is missing, as in HOST:PORT"),
            ("db", "permit `db`: `db`: the port is missing, as in HOST:PORT"),
            ("", "permit ``: ``: the port is missing, as in HOST:PORT"),
            (":80", "permit `:80`: ``: the host is missing"),
            ("*.lan:1", "permit `*.lan:1`: `*.lan`: `*` matches a whole host"),
            ("udp:0", "permit `udp:0`: `0` is not a port (1 to 65535)"),
            ("5353:udp", "permit `5353:udp`: `udp:` goes first, as in udp:resolver:53 or udp:5353"),
            ("/", "permit `/`: `/` is not a unix socket path"),
            ("::1:22", "permit `::1:22`: `::1:22`: an IPv6 address goes in brackets"),
        ] {
            let error = text.parse::<ListenPermit>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<ListenPermit>();
        }

        #[test]
        fn displayed_permits_parse_to_the_same(text in "[\\[\\]a-c0-9:./*-]{0,16}") {
            if let Ok(permit) = text.parse::<ListenPermit>() {
                prop_assert_eq!(permit.to_string().parse::<ListenPermit>(), Ok(permit));
            }
        }
    }
}

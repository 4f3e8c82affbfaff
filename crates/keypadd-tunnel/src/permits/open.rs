//! Decides which targets a client may reach through this server (invariant I10).
//!
//! A permit is compared with the address to connect to, not with the text of the request: the
//! requested name and the permitted names are both resolved, and only permitted addresses are
//! dialed. So a name that is changed to point elsewhere gains nothing, and `localhost` and
//! `127.0.0.1` are the same target. A name or a wildcard never admits an address that leads inward
//! (`inward`), except the name `localhost`. A unix socket is permitted by its exact path only. The
//! caller (`dial`) resolves names. UDP ports have permits of their own, with `udp:`.

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr};

use keypadd_network::PortRange;

use crate::{
    addresses::{
        forward::Destination,
        socket_path::SocketPath,
        target::{Host, LOOPBACK, Protocol, Target},
    },
    permits::pattern::{HostPattern, Pattern, PermitError, example_port, same_host},
};

/// A permit: `HOST:PORT`, `HOST:*`, `*:PORT`, `CIDR:PORT`, `*:*`, where PORT may be a range such as
/// 8000-8010, IPv6 in brackets, for UDP with `udp:` before it; or the `/PATH` of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit(Pattern);

/// All permits of one client; an empty list permits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permits(Vec<Permit>);

impl FromStr for Permit {
    type Err = PermitError;

    fn from_str(text: &str) -> Result<Self, PermitError> {
        match Pattern::parse(text) {
            Ok(pattern) => Ok(Self(pattern)),
            Err(cause) => Err(PermitError { pattern: text.into(), cause }),
        }
    }
}

impl Permit {
    /// A target that it admits, to show in examples; port 22, of UDP 53, if any port is
    /// permitted. None if it names no host.
    pub fn example(&self) -> Option<Destination> {
        Some(match &self.0 {
            Pattern::Ports(protocol, host, ports) => {
                let port = |any| example_port(*ports, any);
                let target = |any| Some(Target { host: host.example()?, port: port(any) });
                match protocol {
                    Protocol::Tcp => Destination::Tcp(target(22)?),
                    Protocol::Udp => Destination::Udp(target(53)?),
                }
            }
            Pattern::Unix(path) => Destination::Unix(path.clone()),
        })
    }

    /// Whether it may admit TCP connections to another host than this one.
    pub fn reaches_other_hosts(&self) -> bool {
        match &self.0 {
            Pattern::Ports(Protocol::Tcp, HostPattern::Any, _) => true,
            Pattern::Ports(Protocol::Tcp, HostPattern::Net(net), _) => {
                !(net.network().is_loopback() && net.broadcast().is_loopback())
            }
            Pattern::Ports(Protocol::Tcp, HostPattern::One(host), _) => match host {
                Host::Address(address) => !address.is_loopback(),
                Host::Name(_) => !host.is_localhost(),
            },
            Pattern::Ports(Protocol::Udp, ..) | Pattern::Unix(_) => false,
        }
    }
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Permits {
    /// Makes the permits of one client.
    pub fn new(permits: Vec<Permit>) -> Self {
        Self(permits)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The TCP ports that the permits cover; `None` if one covers all.
    pub fn ports(&self) -> Option<BTreeSet<u16>> {
        let ranges = self.0.iter().filter_map(|permit| match &permit.0 {
            Pattern::Ports(Protocol::Tcp, _, ports) => Some(*ports),
            Pattern::Ports(Protocol::Udp, ..) | Pattern::Unix(_) => None,
        });
        let mut covered = BTreeSet::new();
        for ports in ranges {
            if ports == PortRange::ANY {
                return None;
            }
            covered.extend(ports.ports());
        }
        Some(covered)
    }

    /// Whether any permit covers this port. If none does, no name needs to be resolved.
    pub fn may_admit_port(&self, protocol: Protocol, port: u16) -> bool {
        self.of_port(protocol, port).next().is_some()
    }

    /// Whether a connection to this unix socket is permitted.
    pub fn admits_socket(&self, path: &SocketPath) -> bool {
        self.0.iter().any(|permit| permit.0.is_socket(path))
    }

    /// The permitted names that must be resolved before [`admits`](Self::admits). A permit for the
    /// requested name itself is not among them: all its addresses that do not lead inward are
    /// permitted, even if DNS returns others each time.
    pub fn names_to_resolve<'a>(
        &'a self,
        protocol: Protocol,
        requested: &'a Target,
    ) -> impl Iterator<Item = &'a str> {
        self.of_port(protocol, requested.port).filter_map(move |permitted| match permitted {
            HostPattern::One(host) if host.is_localhost() || same_host(host, &requested.host) => {
                None
            }
            HostPattern::One(Host::Name(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether a connection to `address`, one of the addresses of the requested host, is permitted.
    /// `addresses_of` returns the addresses of a permitted name, none if it did not resolve.
    /// `is_inward` tells whether an address leads back to this host, its link or its cloud; it is
    /// asked only about addresses that a name or a wildcard matches.
    pub fn admits<'r>(
        &self,
        protocol: Protocol,
        requested: &Target,
        address: IpAddr,
        addresses_of: impl Fn(&str) -> &'r [IpAddr],
        is_inward: impl Fn(IpAddr) -> bool,
    ) -> bool {
        let address = address.to_canonical();
        self.of_port(protocol, requested.port).any(|permitted| match permitted {
            HostPattern::Any => !is_inward(address),
            HostPattern::Net(net) => net.contains(&address),
            // Before other names, so that DNS cannot decide what localhost is.
            HostPattern::One(host) if host.is_localhost() => LOOPBACK.contains(&address),
            HostPattern::One(Host::Address(permitted)) => *permitted == address,
            HostPattern::One(host) if same_host(host, &requested.host) => !is_inward(address),
            HostPattern::One(Host::Name(name)) => {
                let named = |permitted: &IpAddr| permitted.to_canonical() == address;
                addresses_of(name).iter().any(named) && !is_inward(address)
            }
        })
    }

    fn of_port(&self, protocol: Protocol, port: u16) -> impl Iterator<Item = &HostPattern> {
        self.0.iter().filter_map(move |permit| permit.0.hosts_of_port(protocol, port))
    }
}

impl FromIterator<Permit> for Permits {
    fn from_iter<I: IntoIterator<Item = Permit>>(permits: I) -> Self {
        Self(permits.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn permits(patterns: &[&str]) -> Permits {
        patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
    }

    /// Decides as a server at 10.0.0.1 whose DNS knows `db`, `web` and, as its own name, `here`.
    fn admits(patterns: &[&str], asked: &str, address: &str) -> bool {
        let db = [IpAddr::from([10, 0, 0, 5])];
        let web = ["10.0.0.6".parse().unwrap(), "fd00::6".parse().unwrap()];
        let here = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1])];
        let addresses_of = |name: &str| -> &[IpAddr] {
            match name {
                "db" => &db,
                "web" => &web,
                "here" => &here,
                _ => &[],
            }
        };
        let is_inward = |address: IpAddr| address.is_loopback() || here.contains(&address);
        let (asked, address) = (asked.parse().unwrap(), address.parse().unwrap());
        permits(patterns).admits(Protocol::Tcp, &asked, address, addresses_of, is_inward)
    }

    #[test]
    fn permits_compare_the_address_connected_to() {
        for (pattern, asked, address, admitted) in [
            // A name, requested by itself, by address and by an alias.
            ("db:5432", "db:5432", "10.0.0.5", true),
            ("db:5432", "DB.:5432", "10.0.0.5", true),
            ("db:5432", "10.0.0.5:5432", "10.0.0.5", true),
            ("db:5432", "alias:5432", "10.0.0.5", true),
            ("db:5432", "alias:5432", "10.0.0.6", false),
            ("db:5432", "db:5433", "10.0.0.5", false),
            ("web:*", "alias:1", "fd00::6", true),
            ("gone:22", "alias:22", "10.0.0.5", false),
            // DNS may return other addresses each time: those of the requested name are permitted.
            ("db:5432", "db:5432", "10.0.0.99", true),
            // localhost is two addresses, whatever DNS says.
            ("localhost:22", "localhost:22", "127.0.0.1", true),
            ("localhost:22", "localhost:22", "::1", true),
            ("localhost:22", "localhost:22", "10.0.0.5", false),
            ("localhost:22", "127.0.0.1:22", "127.0.0.1", true),
            ("localhost:22", "[::1]:22", "::1", true),
            ("localhost:22", "127.0.0.2:22", "127.0.0.2", false),
            ("localhost:22", "rebound:22", "127.0.0.1", true),
            ("localhost:22", "rebound:22", "10.0.0.5", false),
            ("localhost:22", "0.0.0.0:22", "0.0.0.0", false),
            ("127.0.0.1:22", "localhost:22", "127.0.0.1", true),
            ("127.0.0.1:22", "localhost:22", "::1", false),
            // Addresses and networks.
            ("10.0.0.5:*", "10.0.0.5:9", "10.0.0.5", true),
            ("10.0.0.5:*", "10.0.0.6:9", "10.0.0.6", false),
            ("10.0.0.5:*", "[::ffff:10.0.0.5]:9", "::ffff:10.0.0.5", true),
            ("10.0.0.0/8:80", "db:80", "10.0.0.5", true),
            ("10.1.2.3/8:80", "db:80", "10.0.0.5", true),
            ("10.0.0.0/8:80", "db:80", "11.0.0.5", false),
            ("10.0.0.0/8:80", "db:81", "10.0.0.5", false),
            ("10.0.0.0/8:80", "db:80", "::ffff:10.0.0.5", true),
            ("[fd00::/8]:80", "web:80", "fd00::6", true),
            ("[fd00::/8]:80", "web:80", "fe80::6", false),
            ("[::1]:80", "[::1]:80", "::1", true),
            // Wildcards.
            ("*:443", "any.example:443", "192.0.2.1", true),
            ("*:443", "any.example:80", "192.0.2.1", false),
            ("*:*", "any.example:80", "2001:db8::1", true),
            // A range of ports.
            ("db:8000-8010", "db:8000", "10.0.0.5", true),
            ("db:8000-8010", "db:8010", "10.0.0.5", true),
            ("db:8000-8010", "db:7999", "10.0.0.5", false),
            ("db:8000-8010", "db:8011", "10.0.0.5", false),
            ("10.0.0.0/8:1-65535", "db:80", "10.0.0.5", true),
            ("[fd00::/8]:80-81", "web:81", "fd00::6", true),
            ("*:80-81", "10.0.0.1:80", "10.0.0.1", false),
            // What leads inward is admitted by address or as localhost, never by name or wildcard.
            ("*:*", "any.example:80", "127.0.0.1", false),
            ("*:*", "127.0.0.1:80", "127.0.0.1", false),
            ("*:*", "localhost:80", "::1", false),
            ("*:80", "10.0.0.1:80", "10.0.0.1", false),
            ("db:*", "db:80", "127.0.0.1", false),
            ("db:*", "db:80", "::ffff:127.0.0.1", false),
            ("here:*", "here:80", "10.0.0.1", false),
            ("here:*", "alias:80", "127.0.0.1", false),
            ("here:*", "10.0.0.1:80", "10.0.0.1", false),
            ("10.0.0.1:*", "here:80", "10.0.0.1", true),
            ("127.0.0.0/8:*", "db:80", "127.0.0.1", true),
            ("localhost:*", "db:80", "127.0.0.1", true),
        ] {
            assert_eq!(admits(&[pattern], asked, address), admitted, "{pattern} {asked} {address}");
        }
    }

    #[test]
    fn no_permit_permits_nothing() {
        assert!(!admits(&[], "localhost:22", "127.0.0.1"));
        assert!(!permits(&[]).may_admit_port(Protocol::Tcp, 22));
    }

    #[test]
    fn one_permit_of_several_is_enough() {
        assert!(admits(&["db:1", "web:2", "localhost:3"], "localhost:3", "::1"));
        assert!(!admits(&["db:1", "web:2", "localhost:3"], "localhost:2", "::1"));
    }

    #[test]
    fn a_wildcard_port_covers_all() {
        let some = ["db:1", "*:3", "/run/x", "web:1", "udp:*:*"];
        assert_eq!(permits(&some).ports(), Some([1, 3].into()));
        assert_eq!(permits(&["db:7-9", "web:9-10"]).ports(), Some([7, 8, 9, 10].into()));
        assert_eq!(permits(&["db:1", "web:*"]).ports(), None);
        assert_eq!(permits(&[]).ports(), Some(BTreeSet::new()));
    }

    #[test]
    fn only_names_with_the_requested_port_are_resolved_and_never_localhost() {
        let permits = permits(&["db:1", "web:*", "localhost:*", "10.0.0.0/8:*", "asked:2", "*:9"]);
        let names = |asked: &str| {
            let asked = asked.parse().unwrap();
            permits.names_to_resolve(Protocol::Tcp, &asked).map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(names("asked:1"), ["db", "web"]);
        assert_eq!(names("asked:2"), ["web"]);
        assert_eq!(names("10.0.0.1:2"), ["web", "asked"]);
    }

    #[test]
    fn permits_that_name_this_host_reach_no_other() {
        for (pattern, reaches) in [
            ("*:80", true),
            ("db:*", true),
            ("10.0.0.5:80", true),
            ("127.0.0.0/7:*", true),
            ("0.0.0.0/0:*", true),
            ("localhost:*", false),
            ("127.0.0.1:80", false),
            ("[::1]:*", false),
            ("127.0.0.0/8:*", false),
            ("udp:*:*", false),
            ("/run/x.sock", false),
        ] {
            let permit: Permit = pattern.parse().unwrap();
            assert_eq!(permit.reaches_other_hosts(), reaches, "{pattern}");
        }
    }

    #[test]
    fn a_permit_is_for_one_protocol() {
        let asked: Target = "10.0.0.5:53".parse().unwrap();
        let admits = |permit: &str, protocol| {
            let permits = permits(&[permit]);
            let address = "10.0.0.5".parse().unwrap();
            let admitted = permits.admits(protocol, &asked, address, |_| &[], |_| false);
            assert_eq!(permits.may_admit_port(protocol, 53), admitted, "{permit}");
            admitted
        };
        for permit in ["10.0.0.5:53", "10.0.0.0/8:*", "*:53", "*:*"] {
            assert!(admits(permit, Protocol::Tcp) && !admits(permit, Protocol::Udp), "{permit}");
            let permit = format!("udp:{permit}");
            assert!(!admits(&permit, Protocol::Tcp) && admits(&permit, Protocol::Udp), "{permit}");
            assert_eq!(permit.parse::<Permit>().unwrap().to_string(), permit);
        }
    }

    #[test]
    fn a_unix_socket_is_permitted_by_its_path_only() {
        let path = "/run/x.sock".parse().unwrap();
        assert!(permits(&["db:1", "/run/x.sock"]).admits_socket(&path));
        for pattern in ["*:*", "/run/y.sock", "/run/x.socket", "/run/../run/x.sock"] {
            assert!(!permits(&[pattern]).admits_socket(&path), "{pattern}");
        }
        assert!(!permits(&["/run/x.sock"]).may_admit_port(Protocol::Tcp, 1));
    }

    #[test]
    fn errors_name_the_bad_permit() {
        for (text, message) in [
            ("db", "permit `db`: `db`: the port is missing, as in HOST:PORT"),
            ("db:ssh", "permit `db:ssh`: `ssh` is not a port (1 to 65535)"),
            (":22", "permit `:22`: ``: the host is missing"),
            ("80-90", "permit `80-90`: `80-90`: the host is missing"),
            ("db:90-80", "permit `db:90-80`: `90-80`: a port range must go from a lower port"),
            ("db:80-", "permit `db:80-`: `80-` is not a port (1 to 65535) or a range such as"),
            ("fd00::1:80-90", "permit `fd00::1:80-90`: `fd00::1:80-90`: an IPv6 address goes in"),
            ("10.0.0.0/33:1", "permit `10.0.0.0/33:1`: `10.0.0.0/33` is not a network, as in"),
            ("*.lan:1", "permit `*.lan:1`: `*.lan`: `*` matches a whole host"),
            ("/run/", "permit `/run/`: `/run/` is not a unix socket path"),
            ("::1:22", "permit `::1:22`: `::1:22`: an IPv6 address goes in brackets"),
            ("udp:53", "permit `udp:53`: `53`: the host is missing"),
            (
                "resolver:udp:53",
                "permit `resolver:udp:53`: `udp:` goes first, as in udp:resolver:53",
            ),
            ("resolver:53:udp", "permit `resolver:53:udp`: `udp:` goes first"),
            ("udp:udp:53", "permit `udp:udp:53`: `udp:` goes first"),
            ("udp:/run/x", "permit `udp:/run/x`: `udp:` goes first"),
        ] {
            let error = text.parse::<Permit>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<Permit>();
        }

        #[test]
        fn displayed_permits_parse_to_the_same(text in "[\\[\\]a-c0-9:./*-]{0,16}") {
            if let Ok(permit) = text.parse::<Permit>() {
                prop_assert_eq!(permit.to_string().parse::<Permit>(), Ok(permit));
            }
        }
    }
}

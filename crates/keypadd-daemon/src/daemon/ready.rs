//! Prints that a daemon is ready: text for a person or one JSON line for a program. A server's text
//! includes the command to run on the other host.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::SystemTime;
use std::{fmt, fs};

use keypadd_config::values::LogFormat;
use keypadd_keystream::{Class, Protection, Suite};
use keypadd_provider::{KeyExchange, PublicKey};
use keypadd_tunnel::{
    Bind, Bound, Client, DEFAULT_PORT, Destination, DynamicForward, Forward, Host, Listen,
    ListenPermit, LocalForward, Permit, RemoteForward, Target,
};
use serde::Serialize;

use crate::daemon::status_builder::class_label;

/// Prints to standard error, which may be closed. At once, so that no log line comes in between.
pub(crate) fn say<R: fmt::Display + Serialize>(ready: &R, format: LogFormat) {
    let line = ReadyLine {
        timestamp: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
        level: "INFO",
        ready,
    };
    let text = match (format, serde_json::to_string(&line)) {
        (LogFormat::Json, Ok(line)) => line + "\n",
        _ => ready.to_string(),
    };
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// What is ready, with the fields that each JSON line of the log has.
#[derive(Serialize)]
struct ReadyLine<'r, R> {
    timestamp: String,
    level: &'static str,
    #[serde(flatten)]
    ready: &'r R,
}

/// A ready server.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct ServerReady {
    /// The bound UDP address.
    pub(crate) listen: SocketAddr,
    /// This host's public key.
    pub(crate) public_key: String,
    /// Accepted suites, with their classes.
    pub(crate) suites: Vec<String>,
    /// Whether it also accepts the suites of measurements.
    pub(crate) permit_bench: bool,
    /// The command for the other host; none while nothing is permitted.
    pub(crate) connect: Option<String>,
}

impl fmt::Display for ServerReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keypadd: ready on udp {}, key {}", self.listen, self.public_key)?;
        writeln!(f, "  suites: {}", self.suites.join(", "))?;
        if self.permit_bench {
            writeln!(f, "  benchmarks: permitted, with insecure suites and key exchanges")?;
        }
        let Some(connect) = &self.connect else { return Ok(()) };
        writeln!(f, "  on the other host: {connect}")?;
        if self.listen.ip().to_canonical().is_unspecified() {
            let such_as = match outward_address() {
                Some(address) => format!(", such as {address}"),
                None => String::new(),
            };
            let name = host_name();
            writeln!(
                f,
                "  if {name} does not resolve there, use an address of this host{such_as}"
            )?;
        }
        Ok(())
    }
}

/// A connected client.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct ClientReady {
    /// The server as given.
    pub(crate) server: String,
    /// Its UDP address.
    pub(crate) remote: SocketAddr,
    /// Its public key.
    pub(crate) peer: String,
    /// The suite, with its class.
    pub(crate) suite: String,
    /// The key exchange.
    pub(crate) kex: String,
    /// Round-trip time, seconds.
    pub(crate) rtt_seconds: f64,
    /// The forwards.
    pub(crate) forwards: Vec<ForwardReady>,
}

/// A forward with its bound addresses.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum ForwardReady {
    /// `-L`
    Local {
        /// Bound TCP addresses and unix sockets on this host.
        listen: Vec<Bound>,
        /// The target, from the server.
        target: String,
    },
    /// `-R`
    Remote {
        /// The bound port or unix socket on the server.
        listen: String,
        /// The target, from this host.
        target: String,
    },
    /// `-D`
    Dynamic {
        /// Bound TCP addresses on this host.
        listen: Vec<Bound>,
    },
}

impl ForwardReady {
    /// A remote forward. Writes the server's loopback as `localhost`, since a port alone would be
    /// ambiguous.
    pub(crate) fn remote(listen: &Listen, destination: &Destination) -> Self {
        let listen = match listen {
            Listen::Tcp { bind: Bind::Loopback, port } => format!("localhost:{port}"),
            Listen::Udp { bind: Bind::Loopback, port } => format!("udp:localhost:{port}"),
            listen => listen.to_string(),
        };
        Self::Remote { listen, target: destination.to_string() }
    }
}

impl fmt::Display for ForwardReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed =
            |listen: &[Bound]| listen.iter().map(Bound::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Local { listen, target } => write!(f, "forward {} -> {target}", listed(listen)),
            Self::Remote { listen, target } => {
                write!(f, "remote forward: {listen} on the server -> {target} from here")
            }
            Self::Dynamic { listen } => write!(f, "SOCKS proxy {}", listed(listen)),
        }
    }
}

impl fmt::Display for ClientReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, remote, peer, suite, kex, .. } = self;
        writeln!(f, "keypadd: ready, connected to {server} (udp {remote}), key {peer}")?;
        let milliseconds = self.rtt_seconds * 1e3;
        writeln!(f, "  suite {suite}, key exchange {kex}, round trip {milliseconds:.2} ms")?;
        self.forwards.iter().try_for_each(|forward| writeln!(f, "  {forward}"))
    }
}

/// A daemon ready to run from a file.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct RunReady {
    /// This host's public key.
    pub(crate) public_key: String,
    /// The bound UDP address, if it listens.
    pub(crate) listen: Option<SocketAddr>,
    /// Peers that may connect to it.
    pub(crate) incoming: Vec<String>,
    /// Peers that it connects to.
    pub(crate) dialing: Vec<DialingReady>,
}

/// A peer to connect to, with its forwards.
#[derive(Debug, Serialize)]
pub(crate) struct DialingReady {
    /// Its name.
    pub(crate) peer: String,
    /// Its address.
    pub(crate) endpoint: String,
    /// The forwards.
    pub(crate) forwards: Vec<ForwardReady>,
}

impl fmt::Display for RunReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keypadd: ready")?;
        if let Some(listen) = self.listen {
            write!(f, " on udp {listen}")?;
        }
        writeln!(f, ", key {}", self.public_key)?;
        if !self.incoming.is_empty() {
            writeln!(f, "  allowed peers: {}", self.incoming.join(", "))?;
        }
        for DialingReady { peer, endpoint, forwards } in &self.dialing {
            writeln!(f, "  connecting to {peer} at {endpoint}")?;
            forwards.iter().try_for_each(|forward| writeln!(f, "  {forward}"))?;
        }
        Ok(())
    }
}

/// A suite's name with its class.
pub(crate) fn suite_with_class(suite: impl Into<Protection>) -> String {
    let suite = suite.into();
    format!("{suite} {}", class_label(suite))
}

/// What the command for the other host depends on.
#[derive(Debug)]
pub(crate) struct ConnectLine<'a> {
    pub(crate) listen: SocketAddr,
    pub(crate) key: PublicKey,
    pub(crate) suites: &'a [Suite],
    pub(crate) kex: &'a [KeyExchange],
    pub(crate) permits: &'a [Permit],
    pub(crate) listen_permits: &'a [ListenPermit],
}

impl ConnectLine<'_> {
    /// `keypadd connect HOST[:PORT] --peer KEY ... -L ...`, with the flags that this server's
    /// settings require. None if its permits allow no forward.
    pub(crate) fn text(&self) -> Option<String> {
        let forward = example_forward(self.permits, self.listen_permits)?;
        let mut line = String::from("keypadd connect ");
        let ip = self.listen.ip().to_canonical();
        match self.listen.port() {
            DEFAULT_PORT if ip.is_unspecified() => line += &host_name(),
            port if ip.is_unspecified() => line += &format!("{}:{port}", host_name()),
            DEFAULT_PORT => line += &ip.to_string(),
            port => line += &SocketAddr::new(ip, port).to_string(),
        }
        line += &format!(" --peer {}", self.key);
        if !Suite::offered(true).iter().any(|suite| self.suites.contains(suite)) {
            line += &format!(" --suite {}", self.suites[0]);
            if self.suites[0].class() == Class::Legacy {
                line += " --allow-legacy";
            }
        }
        if !self.kex.contains(&KeyExchange::default()) {
            line += &format!(" --kex {}", self.kex[0]);
        }
        Some(format!("{line} {forward}"))
    }
}

/// An example forward that the permits allow, preferably to a target that a permit names; a
/// proxy if they name none. None without permits.
pub(crate) fn example_forward(
    permits: &[Permit],
    listen_permits: &[ListenPermit],
) -> Option<Forward> {
    let local = |destination: Destination| {
        let bind = Bind::Loopback;
        let listen = match &destination {
            Destination::Tcp(target) => Listen::Tcp { bind, port: local_port(target.port) },
            Destination::Udp(target) => Listen::Udp { bind, port: local_port(target.port) },
            Destination::Unix(_) => Listen::Tcp { bind, port: 8000 },
        };
        Forward::Local(LocalForward { listen, destination })
    };
    let local_target = |port| Target { host: Host::Name("localhost".into()), port };
    let localhost = |port| Destination::Tcp(local_target(port));
    let alone = permits.iter().find_map(|permit| permit.to_string().parse().ok());
    let named = || permits.iter().find_map(Permit::example);
    let destination = alone.map(Destination::Tcp).or_else(named);
    match (destination, listen_permits.first().map(ListenPermit::example)) {
        (Some(destination), _) => Some(local(destination)),
        (None, _) if !permits.is_empty() => {
            Some(Forward::Dynamic(DynamicForward { bind: Bind::Loopback, port: SOCKS_PORT }))
        }
        (None, None) => None,
        (None, Some(listen)) => {
            let destination = match &listen {
                Listen::Tcp { port, .. } => localhost(*port),
                Listen::Udp { port, .. } => Destination::Udp(local_target(*port)),
                Listen::Unix(_) => localhost(80),
            };
            Some(Forward::Remote(RemoteForward { listen, destination }))
        }
    }
}

/// The port of the SOCKS proxy in examples (IANA).
const SOCKS_PORT: u16 = 1080;

/// An unprivileged port for the client: 22 becomes 2222, 80 becomes 8080.
fn local_port(port: u16) -> u16 {
    match port {
        22 => 2222,
        port if port < 1024 => 8000 + port,
        port => port,
    }
}

/// This host's name, which other hosts may not know.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The source address of this host's packets to the internet, else to a network it is in. Behind
/// NAT, others need another address.
pub(crate) fn outward_address() -> Option<IpAddr> {
    // Documentation addresses (RFC 5737, RFC 3849), which take the default route.
    let far_away: [IpAddr; 2] =
        [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    far_away.into_iter().find_map(leaves_from).or_else(|| {
        let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
        networks(&routes).find_map(|network| leaves_from(network.into()))
    })
}

/// The source address of packets to this address. Connecting a UDP socket looks up the route and
/// sends nothing.
fn leaves_from(there: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match there {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((there, DEFAULT_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// An address in each network with an IPv4 route: the second column, in host byte order.
fn networks(routes: &str) -> impl Iterator<Item = Ipv4Addr> {
    routes.lines().skip(1).filter_map(|line| {
        let network = u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()?;
        let [a, b, c, d] = network.to_ne_bytes();
        (network != 0).then_some(Ipv4Addr::new(a, b, c, d | 1))
    })
}

/// All forwards: those that listen here with their bound addresses, remote ones as requested.
pub(crate) fn forwards_ready(client: &Client) -> Vec<ForwardReady> {
    let forwards = client.forwards().into_iter().filter_map(|(forward, bound)| {
        Some(match forward {
            Forward::Local(LocalForward { destination, .. }) => {
                ForwardReady::Local { listen: bound, target: destination.to_string() }
            }
            Forward::Dynamic(_) => ForwardReady::Dynamic { listen: bound },
            Forward::Remote(RemoteForward { listen, destination }) => {
                ForwardReady::remote(&listen, &destination)
            }
            // Only measurements have these.
            Forward::Bench(_) => return None,
        })
    });
    forwards.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_the_other_host_names_what_the_server_requires() {
        let key = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        let line = ConnectLine {
            listen: "127.0.0.1:5000".parse().unwrap(),
            key: key.parse().unwrap(),
            suites: &[Suite::TRIPLE_DES_CTR_HMAC_SHA1],
            kex: &[KeyExchange::X25519],
            permits: &["*:*".parse().unwrap(), "db:5432".parse().unwrap()],
            listen_permits: &[],
        };
        let expected = format!(
            "keypadd connect 127.0.0.1:5000 --peer {key} --suite 3des-ctr-hmac-sha1 --allow-legacy \
             --kex x25519 -L 5432:db:5432"
        );
        assert_eq!(line.text(), Some(expected));
    }

    #[test]
    fn the_command_for_the_other_host_has_a_permitted_forward() {
        for (permits, listen_permits, forward) in [
            (&["*:*"][..], &[][..], "-D 1080"),
            (&["*:5432", "db:5433"], &[], "-L 5433:db:5433"),
            (&["*:5432"], &["8080"], "-D 1080"),
            (&["*:5432", "10.1.0.0/16:80"], &[], "-L 8080:10.1.0.0:80"),
            (&["db:*"], &[], "-L 2222:db:22"),
            (&["10.1.0.0/16:80"], &[], "-L 8080:10.1.0.0:80"),
            (&["/run/db.sock"], &["8080"], "-L 8000:/run/db.sock"),
            (&[], &["3000"], "-R 3000:localhost:3000"),
            (&[], &["*:*"], "-R 8080:localhost:8080"),
            (&[], &["192.0.2.7:80"], "-R 192.0.2.7:80:localhost:80"),
            (&[], &["/run/web.sock"], "-R /run/web.sock:localhost:80"),
        ] {
            let permits: Vec<Permit> = permits.iter().map(|text| text.parse().unwrap()).collect();
            let listen_permits: Vec<ListenPermit> =
                listen_permits.iter().map(|text| text.parse().unwrap()).collect();
            let line = ConnectLine {
                listen: "127.0.0.1:5000".parse().unwrap(),
                key: "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".parse().unwrap(),
                suites: &[Suite::default()],
                kex: &[KeyExchange::default()],
                permits: &permits,
                listen_permits: &listen_permits,
            };
            let text = line.text().unwrap();
            assert!(text.ends_with(&format!("= {forward}")), "{text}");
            assert_eq!(ConnectLine { permits: &[], listen_permits: &[], ..line }.text(), None);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn networks_are_read_from_the_kernels_table() {
        let table = "Iface\tDestination\tGateway \tFlags\n\
                     eth0\t00000000\t0100A8C0\t0003\n\
                     veth0\t0008630A\t00000000\t0001\n";
        assert_eq!(networks(table).collect::<Vec<_>>(), [Ipv4Addr::new(10, 99, 8, 1)]);
    }

    #[test]
    fn a_server_named_by_its_host_suggests_an_address_instead() {
        let ready = |listen: &str| ServerReady {
            listen: listen.parse().unwrap(),
            public_key: String::new(),
            suites: Vec::new(),
            permit_bench: false,
            connect: Some(String::new()),
        };
        let hint = format!("if {} does not resolve there, use an address", host_name());
        assert!(ready("[::]:4433").to_string().contains(&hint));
        assert!(ready("0.0.0.0:4433").to_string().contains(&hint));
        assert!(!ready("127.0.0.1:4433").to_string().contains("an address"));
    }
}

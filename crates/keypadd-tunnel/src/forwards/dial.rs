//! Connects to a destination: resolves it, checks the permits, and dials.
//!
//! Dials only addresses that passed the check; nothing is resolved again in between (invariant
//! I10). Addresses of this host and its link need a permit that names them.

use std::{
    cell::LazyCell,
    collections::{HashMap, HashSet},
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    net::{TcpSocket, TcpStream, UnixStream},
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    addresses::{
        forward::Destination,
        socket_path::SocketPath,
        target::{Host, Protocol, Target},
    },
    limits::local_ports::{LocalPort, PeerPorts},
    net::{
        forwarded_socket::ForwardedSocket,
        inward::is_inward,
        lookup::{Lookups, resolve},
    },
    permits::open::Permits,
    wire::StreamCode,
};

/// Timeout for resolving and connecting.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two attempts to enter the queue of a unix socket.
const UNIX_RETRY: Duration = Duration::from_millis(20);

/// Part of it for resolving the permitted names.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a destination was not connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DialError {
    pub(crate) code: StreamCode,
    /// An address of the requested name that no permit admits because it leads inward.
    pub(crate) inward: Option<IpAddr>,
}

impl From<StreamCode> for DialError {
    fn from(code: StreamCode) -> Self {
        Self { code, inward: None }
    }
}

/// A socket that is connected to one address.
pub(crate) trait Dialed: Sized {
    /// What its ports are of.
    const PROTOCOL: Protocol;

    /// Connects to an address.
    fn dial(
        address: SocketAddr,
        time: Duration,
        ports: PeerPorts<'_>,
    ) -> impl Future<Output = Result<Self, StreamCode>> + Send;
}

/// A connection that carries a stream.
#[derive(Debug)]
pub(crate) struct DialedStream {
    pub(crate) socket: ForwardedSocket,
    /// Its local port; a unix socket has none.
    pub(crate) port: Option<LocalPort>,
}

impl Dialed for DialedStream {
    const PROTOCOL: Protocol = Protocol::Tcp;

    async fn dial(
        address: SocketAddr,
        time: Duration,
        ports: PeerPorts<'_>,
    ) -> Result<Self, StreamCode> {
        let port = ports.take(address, std::time::Instant::now()).ok_or(StreamCode::LocalPorts)?;
        Ok(Self { socket: connect_tcp(address, time).await?.into(), port: Some(port) })
    }
}

impl From<ForwardedSocket> for DialedStream {
    fn from(socket: ForwardedSocket) -> Self {
        Self { socket, port: None }
    }
}

async fn connect_tcp(address: SocketAddr, time: Duration) -> Result<TcpStream, StreamCode> {
    let connecting = async {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        // The target may send urgent data at once.
        SockRef::from(&socket).set_out_of_band_inline(true)?;
        socket.connect(address).await
    };
    match timeout(time, connecting).await {
        Ok(Ok(stream)) if !is_self_connected(&stream) => Ok(stream),
        // TCP self-connect: a loopback port without a listener can be its caller's own source port.
        Ok(Ok(_)) => Err(StreamCode::Refused),
        Ok(Err(error)) => Err(tcp_code_of(&error, address)),
        Err(_) => Err(StreamCode::TimedOut),
    }
}

/// Receives from the target alone. Sends nothing yet: whether somebody is there is unknown.
impl Dialed for UdpSocket {
    const PROTOCOL: Protocol = Protocol::Udp;

    async fn dial(address: SocketAddr, _: Duration, _: PeerPorts<'_>) -> Result<Self, StreamCode> {
        dial_address_udp(address)
    }
}

fn connect_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    Ok(socket)
}

/// Connects to a destination of streams if the permits admit it.
pub(crate) async fn dial(
    destination: &Destination,
    permits: &Permits,
    lookups: &Lookups,
    ports: PeerPorts<'_>,
) -> Result<DialedStream, DialError> {
    match destination {
        Destination::Tcp(target) => dial_target(target, permits, lookups, ports).await,
        Destination::Udp(_) => Err(StreamCode::BadHeader.into()),
        Destination::Unix(path) if permits.admits_socket(path) => {
            Ok(connect_unix(path).await?.into())
        }
        Destination::Unix(_) => Err(StreamCode::NotPermitted.into()),
    }
}

/// Connects to a destination of streams that this end has configured itself, and so needs no
/// permit.
pub(crate) async fn dial_own(
    destination: &Destination,
    lookups: &Lookups,
    ports: PeerPorts<'_>,
) -> Result<DialedStream, StreamCode> {
    match destination {
        Destination::Tcp(target) => dial_own_target(target, lookups, ports).await,
        Destination::Udp(_) => Err(StreamCode::BadHeader),
        Destination::Unix(path) => Ok(connect_unix(path).await?.into()),
    }
}

/// Connects to a target that this end has configured itself.
pub(crate) async fn dial_own_target<S: Dialed>(
    target: &Target,
    lookups: &Lookups,
    ports: PeerPorts<'_>,
) -> Result<S, StreamCode> {
    let deadline = Instant::now() + DIAL_TIMEOUT;
    let found = timeout_at(deadline, resolve(&target.host, target.port, lookups)).await;
    let found = found.map_err(|_| StreamCode::TimedOut)?.map_err(|error| lookup_code_of(&error))?;
    connect_any(&found, deadline, ports).await
}

/// Connects to the address of a service of this end's own, whatever ports that takes.
pub(crate) async fn dial_address(address: SocketAddr) -> Result<DialedStream, StreamCode> {
    let stream = connect_tcp(address, DIAL_TIMEOUT).await?;
    Ok(ForwardedSocket::from(stream).into())
}

/// Connects a UDP socket to the address of a service of this end's own.
pub(crate) fn dial_address_udp(address: SocketAddr) -> Result<UdpSocket, StreamCode> {
    connect_udp(address).map_err(|error| udp_code_of(&error))
}

async fn connect_unix(path: &SocketPath) -> Result<ForwardedSocket, StreamCode> {
    let connecting = async {
        loop {
            match UnixStream::connect(path.as_path()).await {
                // Its queue is full, and a non-blocking connect does not wait (unix(7)).
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(UNIX_RETRY).await,
                connected => return connected,
            }
        }
    };
    match timeout(DIAL_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => Ok(stream.into()),
        Ok(Err(error)) => Err(code_of(&error)),
        Err(_) => Err(StreamCode::TimedOut),
    }
}

/// Dials addresses that are permitted without a lookup first, so that a permitted name that does
/// not resolve delays only what depends on it.
pub(crate) async fn dial_target<S: Dialed>(
    target: &Target,
    permits: &Permits,
    lookups: &Lookups,
    ports: PeerPorts<'_>,
) -> Result<S, DialError> {
    // Without a lookup, if no permit covers the port.
    if !permits.may_admit_port(S::PROTOCOL, target.port) {
        return Err(StreamCode::NotPermitted.into());
    }
    let deadline = Instant::now() + DIAL_TIMEOUT;
    let found = timeout_at(deadline, resolve(&target.host, target.port, lookups)).await;
    let found = found.map_err(|_| StreamCode::TimedOut)?.map_err(|error| lookup_code_of(&error))?;

    let (permitted, unknown, inward) = sort(found, (S::PROTOCOL, target), permits);
    let names: HashSet<&str> = if unknown.is_empty() {
        HashSet::new()
    } else {
        permits.names_to_resolve(S::PROTOCOL, target).collect()
    };
    if names.is_empty() && !permitted.is_empty() {
        return Ok(connect_any(&permitted, deadline, ports).await?);
    }
    let mut failure = DialError { code: StreamCode::NotPermitted, inward };
    if !permitted.is_empty() {
        match connect_any(&permitted, Instant::now() + share_of(deadline, 2), ports).await {
            Ok(stream) => return Ok(stream),
            Err(code) => failure = code.into(),
        }
    }
    let names = addresses_of(names, lookups, deadline.min(Instant::now() + NAMES_TIMEOUT)).await;
    let of = |name: &str| names.get(name).map_or(&[][..], Vec::as_slice);
    // None of these leads inward.
    let admitted =
        |address: &SocketAddr| permits.admits(S::PROTOCOL, target, address.ip(), of, |_| false);
    let permitted: Vec<_> = unknown.into_iter().filter(admitted).collect();
    match permitted.is_empty() {
        true => Err(failure),
        false => Ok(connect_any(&permitted, deadline, ports).await?),
    }
}

/// Sorts the addresses of a target, without a lookup. Returns those that are permitted, those that
/// a permitted name may still admit, and one, if there is any, that no name admits because it leads
/// inward.
fn sort(
    found: Vec<SocketAddr>,
    (protocol, target): (Protocol, &Target),
    permits: &Permits,
) -> (Vec<SocketAddr>, Vec<SocketAddr>, Option<IpAddr>) {
    let (mut permitted, mut unknown, mut refused) = (Vec::new(), Vec::new(), None);
    for address in found {
        // Asked for once, whatever the number of permits.
        let inward = LazyCell::new(|| is_inward(address.ip()));
        if permits.admits(protocol, target, address.ip(), |_| &[], |_| *inward) {
            permitted.push(address);
        } else if *inward {
            refused = Some(address.ip());
        } else {
            unknown.push(address);
        }
    }
    (permitted, unknown, refused)
}

/// Resolves the permitted names concurrently. A name without an answer in time permits nothing.
async fn addresses_of(
    names: HashSet<&str>,
    lookups: &Lookups,
    deadline: Instant,
) -> HashMap<String, Vec<IpAddr>> {
    let mut running = JoinSet::new();
    for name in names {
        let (name, lookups) = (name.to_owned(), lookups.clone());
        running.spawn(async move {
            let found = resolve(&Host::Name(name.clone()), 0, &lookups).await.unwrap_or_default();
            (name, found.iter().map(SocketAddr::ip).collect())
        });
    }
    let mut found = HashMap::new();
    while let Ok(Some(done)) = timeout_at(deadline, running.join_next()).await {
        found.extend(done);
    }
    found
}

/// Tries the addresses in order; each gets an equal share of the time left.
async fn connect_any<S: Dialed>(
    addresses: &[SocketAddr],
    deadline: Instant,
    ports: PeerPorts<'_>,
) -> Result<S, StreamCode> {
    let mut failure = StreamCode::Unreachable;
    for (tried, address) in addresses.iter().enumerate() {
        let share = share_of(deadline, addresses.len() - tried);
        let code = match S::dial(*address, share, ports).await {
            Ok(socket) => return Ok(socket),
            Err(code) => code,
        };
        // Reports the most informative failure: no local port, refused, timed out, unreachable.
        failure = match (failure, code) {
            (StreamCode::LocalPorts, _) => StreamCode::LocalPorts,
            (StreamCode::Refused, code) if code != StreamCode::LocalPorts => StreamCode::Refused,
            (failure, StreamCode::Unreachable) => failure,
            (_, code) => code,
        };
    }
    Err(failure)
}

/// An equal share of the time left, for one of `left` attempts.
pub(crate) fn share_of(deadline: Instant, left: usize) -> Duration {
    let left = u32::try_from(left.max(1)).unwrap_or(u32::MAX);
    deadline.saturating_duration_since(Instant::now()) / left
}

fn is_self_connected(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

/// The code for a lookup that failed.
fn lookup_code_of(error: &io::Error) -> StreamCode {
    match error.kind() {
        // EAGAIN: no thread for it.
        ErrorKind::WouldBlock => StreamCode::Unreachable,
        _ => StreamCode::NameNotFound,
    }
}

/// The code for a TCP connection to this address that failed.
fn tcp_code_of(error: &io::Error, address: SocketAddr) -> StreamCode {
    // EADDRNOTAVAIL: each local port has a connection to this address (ip(7)), or this host has no
    // address to connect from. Only then UDP, whose ports are others, has none either.
    let is_reachable = || connect_udp(address).is_ok();
    match error.kind() {
        ErrorKind::AddrNotAvailable if is_reachable() => StreamCode::LocalPorts,
        _ => code_of(error),
    }
}

/// The code for a UDP socket that cannot be bound to any port or connected.
fn udp_code_of(error: &io::Error) -> StreamCode {
    match error.kind() {
        // Other sockets have every local port.
        ErrorKind::AddrInUse => StreamCode::LocalPorts,
        _ => code_of(error),
    }
}

fn code_of(error: &io::Error) -> StreamCode {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => StreamCode::Refused,
        io::ErrorKind::ConnectionReset => StreamCode::Reset,
        io::ErrorKind::TimedOut => StreamCode::TimedOut,
        _ => StreamCode::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs;

    use keypadd_provider::PrivateKey;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{limits::local_ports::LocalPorts, net::lookup::Resolver};

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    async fn try_dial(asked: String, permits: &[&str]) -> Result<SocketAddr, StreamCode> {
        let permits = permits.iter().map(|permit| permit.parse().unwrap()).collect();
        let (target, ports) = (asked.parse().unwrap(), LocalPorts::default());
        let dialed = dial_target(&target, &permits, &Lookups::default(), of_peer(&ports)).await;
        dialed.map(|dialed| address_of(&dialed)).map_err(|error| error.code)
    }

    fn of_peer(ports: &LocalPorts) -> PeerPorts<'_> {
        PeerPorts { ports, peer: PrivateKey::generate().unwrap().public() }
    }

    fn address_of(dialed: &DialedStream) -> SocketAddr {
        match &dialed.socket {
            ForwardedSocket::Tcp(stream) => stream.peer_addr().unwrap(),
            ForwardedSocket::Unix(_) => panic!("TCP was dialed"),
        }
    }

    #[tokio::test]
    async fn localhost_is_dialed_at_its_permitted_address() {
        let (listener, port) = listener().await;
        let address = listener.local_addr().unwrap();
        let only_v4: &str = &format!("127.0.0.1:{port}");
        assert_eq!(try_dial(format!("localhost:{port}"), &[only_v4]).await, Ok(address));
        assert_eq!(try_dial(format!("LOCALHOST.:{port}"), &["localhost:*"]).await, Ok(address));
        // ::1 is permitted and has no listener; 127.0.0.1 is not tried instead.
        let only_v6: &str = &format!("[::1]:{port}");
        let refused = try_dial(format!("localhost:{port}"), &[only_v6]).await;
        assert_eq!(refused, Err(StreamCode::Refused));
    }

    #[tokio::test]
    async fn what_no_permit_names_is_not_dialed() {
        let (_listener, port) = listener().await;
        for permits in [&[][..], &["*:1"], &["10.0.0.0/8:*"], &["[::1]:*"], &["127.0.0.2:*"]] {
            let refused = try_dial(format!("127.0.0.1:{port}"), permits).await;
            assert_eq!(refused, Err(StreamCode::NotPermitted), "{permits:?}");
        }
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_delays_only_targets_that_need_it() {
        let (listener, port) = listener().await;
        let lookups = Lookups::default();
        // No lookup runs: the limit is exhausted.
        let _exhausted = lookups.exhaust();
        let permits = ["dead.example:*", "127.0.0.1:*"].map(|permit| permit.parse().unwrap());
        let permits = Permits::new(permits.into());
        let target = format!("localhost:{port}").parse().unwrap();
        let ports = LocalPorts::default();
        let dialing = dial_target(&target, &permits, &lookups, of_peer(&ports));
        let dialed =
            timeout(NAMES_TIMEOUT / 2, dialing).await.expect("does not wait for a name").unwrap();
        assert_eq!(address_of(&dialed), listener.local_addr().unwrap());
    }

    #[tokio::test]
    async fn a_closed_port_is_refused_and_a_bad_name_not_found() {
        let (listener, port) = listener().await;
        drop(listener);
        let refused = try_dial(format!("127.0.0.1:{port}"), &["localhost:*"]).await;
        assert_eq!(refused, Err(StreamCode::Refused));
        let unknown = try_dial("no-such-name.invalid:1".into(), &["*:*"]).await;
        assert_eq!(unknown, Err(StreamCode::NameNotFound));
    }

    #[test]
    fn no_free_local_port_is_told_from_no_local_address() {
        let error = io::Error::from(ErrorKind::AddrNotAvailable);
        let reachable = "127.0.0.1:9".parse().unwrap();
        assert_eq!(tcp_code_of(&error, reachable), StreamCode::LocalPorts);
        // No socket connects to this address without asking for broadcasts.
        let unreachable = "255.255.255.255:9".parse().unwrap();
        assert_eq!(tcp_code_of(&error, unreachable), StreamCode::Unreachable);
        let refused = ErrorKind::ConnectionRefused.into();
        assert_eq!(tcp_code_of(&refused, reachable), StreamCode::Refused);
        assert_eq!(udp_code_of(&ErrorKind::AddrInUse.into()), StreamCode::LocalPorts);
        assert_eq!(udp_code_of(&error), StreamCode::Unreachable);
    }

    #[tokio::test]
    async fn a_permitted_name_that_resolves_inward_reaches_nothing() {
        let v4 = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = v4.local_addr().unwrap().port();
        let _v6 = TcpListener::bind(("::", port)).await;
        // What a hostile DNS may answer: this host in every form.
        let resolver: Resolver = |name, port| {
            let addresses: &[&str] = match name {
                "v4.example" => &["127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254"],
                "v6.example" => &["::1", "::", "::ffff:127.0.0.1", "::127.0.0.1", "fe80::1"],
                "nat64.example" => &["64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::1"],
                "cloud.example" => &["100.100.100.200", "168.63.129.16", "fd00:ec2::254"],
                _ => return Ok((name, port).to_socket_addrs()?.collect()),
            };
            Ok(addresses.iter().map(|ip| (ip.parse::<IpAddr>().unwrap(), port).into()).collect())
        };
        let names = ["v4.example", "v6.example", "nat64.example", "cloud.example"];
        let numbers = ["127.1", "0x7f.1", "2130706433"];
        let literals = ["127.0.0.1", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "localhost"];
        for host in names.into_iter().chain(numbers).chain(literals) {
            let target: Target = format!("{host}:{port}").parse().unwrap();
            for permit in [format!("{host}:*"), format!("*:{port}"), "*:*".into()] {
                // A permit that names an address or localhost means it.
                if literals.contains(&host) && !permit.starts_with('*') {
                    continue;
                }
                let permits = [permit.parse().unwrap()].into_iter().collect();
                let lookups = Lookups::with_resolver(resolver);
                let ports = LocalPorts::default();
                let dialing =
                    dial_target::<DialedStream>(&target, &permits, &lookups, of_peer(&ports));
                let error = dialing.await.map(drop).unwrap_err();
                assert_eq!(error.code, StreamCode::NotPermitted, "{host} by {permit}");
                assert!(error.inward.is_some());
            }
        }
    }
}

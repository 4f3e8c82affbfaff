//! Passes a daemon's state to the process that replaces it.
//!
//! First it shares the sockets that it listens on; then it is *suspended*: it accepts and dials
//! nothing, ends its sessions so that their streams are held, and describes those. The process that
//! continues with them, the other one or this one, is then resumed. Keys, pads and packet numbers
//! stay behind. Knows no processes and no format but serde's.

use std::{
    io::{self, ErrorKind},
    mem,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{fd::OwnedFd, unix::net::UnixListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keypadd_provider::{SESSION_TOKEN_BYTES, SessionToken};
use keypadd_transport::HandedStream;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::zeroize_stack;

pub use crate::net::socket_file::SocketFile;
use crate::{addresses::socket_path::SocketPath, suspension::Suspension};

/// Where a socket of the old process is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketRecord {
    /// One of the UDP sockets of a server.
    Udp(SocketAddr),
    /// The socket of a UDP forward.
    UdpForward(SocketAddr),
    /// A TCP listener.
    Tcp(SocketAddr),
    /// A TCP listener or UDP socket of a forward with port 0: no other forward gets it.
    Chosen {
        /// The name of the forward's client.
        owner: String,
        /// The forward as text.
        forward: String,
        /// Where it is bound.
        bound: Box<Self>,
    },
    /// A listening unix socket.
    Unix(SocketFile),
    /// A listener of a client's remote forward.
    Remote(RemoteRecord),
    /// A device of a peer's networks.
    Device(DeviceRecord),
}

/// A device of a peer's networks, as the process that has opened it knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u16,
    /// How its addresses, MTU and routes were set: two devices with the same text were set up in
    /// the same way. `None` if that process did not say.
    #[serde(default)]
    pub setup: Option<String>,
}

impl SocketRecord {
    fn port(&self) -> Option<u16> {
        match self {
            Self::Udp(at) | Self::UdpForward(at) | Self::Tcp(at) => Some(at.port()),
            Self::Chosen { bound, .. } => bound.port(),
            Self::Unix(_) | Self::Remote(_) | Self::Device(_) => None,
        }
    }
}

/// Whose remote forward a listener serves: nobody else gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRecord {
    pub(crate) key: String,
    pub(crate) instance: [u8; 16],
    /// The client's number for the forward.
    pub(crate) number: u16,
    pub(crate) bound: RemoteBound,
}

/// Where the listener of a remote forward is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RemoteBound {
    Tcp(SocketAddr),
    Unix(SocketFile),
}

/// A listening socket on its way to another process.
#[derive(Debug)]
pub struct HandedSocket {
    /// Where it is bound.
    pub record: SocketRecord,
    /// The socket.
    pub socket: OwnedFd,
}

/// What a server keeps for a client that is away.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LineageRecord {
    pub(crate) key: String,
    pub(crate) instance: [u8; 16],
    /// The token that the client has to prove, and the one before until it has confirmed this one.
    pub(crate) tokens: (HandedToken, Option<HandedToken>),
    pub(crate) epoch: u32,
    /// Until the streams are given up.
    pub(crate) remaining_millis: u64,
}

/// A session's token on its way to another process. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct HandedToken(pub(crate) SessionToken);

/// Upper bound on the stack of parsing a token.
const TOKEN_STACK_BYTES: usize = 16 << 10;

impl Serialize for HandedToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.as_bytes())
    }
}

impl<'de> Deserialize<'de> for HandedToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let token = parse_token(deserializer);
        zeroize_stack::<TOKEN_STACK_BYTES>();
        token
    }
}

/// Has its own stack frame, which the caller wipes.
#[inline(never)]
fn parse_token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HandedToken, D::Error> {
    let bytes = <[u8; SESSION_TOKEN_BYTES]>::deserialize(deserializer)?;
    Ok(HandedToken(SessionToken::from_bytes(&bytes)))
}

/// A client that is away, and its streams.
#[derive(Debug)]
pub struct HandedLineage {
    /// The server's record of it.
    pub record: LineageRecord,
    /// Its streams.
    pub streams: Vec<HandedStream>,
}

/// What a client keeps while its server is away.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientRecord {
    /// What the server knows this run of the client by.
    pub(crate) instance: [u8; 16],
    /// The key of the server that has the other ends of the streams. Any listed server is asked to
    /// resume them, and only one that proves to have the token goes on.
    pub(crate) server: String,
    pub(crate) token: Option<HandedToken>,
    /// The server's name in messages.
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// The server's ID, if a balancer has the address.
    pub(crate) home: Option<[u8; 8]>,
    pub(crate) rtt_micros: u64,
    pub(crate) remaining_millis: u64,
}

/// A client whose server is away, and its streams.
#[derive(Debug)]
pub struct HandedClient {
    /// Its record of the server.
    pub record: ClientRecord,
    /// Its streams.
    pub streams: Vec<HandedStream>,
}

/// Whether a daemon is suspended, and what it has inherited from the process that it replaces;
/// clones share it.
#[derive(Clone, Debug, Default)]
pub struct Handover(Arc<HandoverState>);

#[derive(Debug, Default)]
struct HandoverState {
    suspension: Suspension,
    inherited: Mutex<Inherited>,
}

#[derive(Debug, Default)]
struct Inherited {
    /// Sockets that the old process listened on itself.
    own: Vec<HandedSocket>,
    /// The listeners of its clients' remote forwards.
    remote: Vec<HandedSocket>,
}

impl Handover {
    /// A suspended daemon that reuses these sockets for the addresses in its settings.
    pub fn suspended_with(own: Vec<HandedSocket>) -> Self {
        let inherited = Mutex::new(Inherited { own, remote: Vec::new() });
        let handover =
            Self(Arc::new(HandoverState { suspension: Suspension::default(), inherited }));
        handover.suspend();
        handover
    }

    /// Accepts and dials nothing from now on.
    pub fn suspend(&self) {
        self.0.suspension.set(true);
    }

    /// Ends the suspension.
    pub fn resume(&self) {
        self.0.suspension.set(false);
    }

    /// Adds the listener of a remote forward, which its client will ask for again.
    pub fn inherit_remote(&self, socket: HandedSocket) {
        self.inherited().remote.push(socket);
    }

    /// The listeners of remote forwards that no client has asked for yet, for the process that
    /// follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn hand_over_remote(&self) -> io::Result<Vec<HandedSocket>> {
        let copy = |HandedSocket { record, socket }: &HandedSocket| {
            Ok(HandedSocket { record: record.clone(), socket: socket.try_clone()? })
        };
        self.inherited().remote.iter().map(copy).collect()
    }

    /// Closes the sockets that no setting names; returns the files of the unix sockets among them.
    pub fn close_unnamed(&self) -> Vec<SocketFile> {
        close(mem::take(&mut self.inherited().own))
    }

    /// Closes the listeners of remote forwards that no client has asked for; returns the files of
    /// the unix sockets among them.
    pub fn close_remote(&self) -> Vec<SocketFile> {
        close(mem::take(&mut self.inherited().remote))
    }

    /// The error for an address that cannot be bound: says so if the old process has its port,
    /// perhaps at other addresses.
    #[must_use]
    pub fn explain(&self, error: io::Error, port: u16) -> io::Error {
        let has_port = |socket: &HandedSocket| socket.record.port() == Some(port);
        match error.kind() {
            ErrorKind::AddrInUse if self.inherited().own.iter().any(has_port) => {
                let cause = "the process that is to be replaced listens there";
                io::Error::new(ErrorKind::ResourceBusy, cause)
            }
            _ => error,
        }
    }

    /// The flag that suspends this daemon's listeners.
    pub(crate) fn suspension(&self) -> &Suspension {
        &self.0.suspension
    }

    /// Whether the daemon is suspended.
    pub fn is_suspended(&self) -> bool {
        self.0.suspension.is_on()
    }

    /// Completes when the daemon is suspended.
    pub async fn suspended(&self) {
        self.0.suspension.becomes(true).await;
    }

    /// Completes when the daemon is not suspended.
    pub async fn resumed(&self) {
        self.0.suspension.becomes(false).await;
    }

    /// Takes the UDP sockets bound to an address, at most `count`.
    pub(crate) fn take_udp(&self, address: SocketAddr, count: usize) -> Vec<UdpSocket> {
        let next =
            || self.take(|record| matches!(record, SocketRecord::Udp(at) if serves(address, *at)));
        std::iter::from_fn(next).take(count).map(UdpSocket::from).collect()
    }

    /// Takes the device of this name.
    pub fn take_device(&self, wanted: &str) -> Option<(OwnedFd, DeviceRecord)> {
        let mut inherited = self.inherited();
        let found = inherited.own.iter().enumerate().find_map(|(at, one)| match &one.record {
            SocketRecord::Device(record) if record.name == wanted => Some((at, record.clone())),
            _ => None,
        });
        let (at, record) = found?;
        Some((inherited.own.remove(at).socket, record))
    }

    /// Takes the socket of a UDP forward.
    pub(crate) fn take_udp_forward(&self, address: SocketAddr) -> Option<UdpSocket> {
        self.take(|record| matches!(record, SocketRecord::UdpForward(at) if is_at(address, *at)))
            .map(UdpSocket::from)
    }

    /// Takes the listener of a TCP address; none for port 0.
    pub fn take_tcp(&self, address: SocketAddr) -> Option<TcpListener> {
        self.take(|record| matches!(record, SocketRecord::Tcp(at) if is_at(address, *at)))
            .map(TcpListener::from)
    }

    /// Takes the socket that this forward of this client had at an address whose port the system
    /// chose; port 0 is that port.
    pub(crate) fn take_chosen(
        &self,
        (wanted_owner, wanted): (&str, &str),
        address: SocketAddr,
        is_udp: bool,
    ) -> Option<OwnedFd> {
        self.take(|record| match record {
            SocketRecord::Chosen { owner, forward, bound } => {
                let is_there = match **bound {
                    SocketRecord::Tcp(at) => !is_udp && serves(address, at),
                    SocketRecord::UdpForward(at) => is_udp && serves(address, at),
                    _ => false,
                };
                (owner.as_str(), forward.as_str()) == (wanted_owner, wanted) && is_there
            }
            _ => false,
        })
    }

    /// Takes the listener of a remote forward at this address; port 0 takes the one with the same
    /// number.
    pub(crate) fn take_remote(&self, wanted: &RemoteRecord) -> Option<OwnedFd> {
        self.take(|record| match record {
            SocketRecord::Remote(RemoteRecord { key, instance, number, bound }) => {
                let is_there = match (&wanted.bound, bound) {
                    (RemoteBound::Tcp(wanted_at), RemoteBound::Tcp(at)) => {
                        serves(*wanted_at, *at)
                            && (wanted_at.port() != 0 || *number == wanted.number)
                    }
                    (wanted_at, at) => wanted_at == at,
                };
                (key, instance) == (&wanted.key, &wanted.instance) && is_there
            }
            _ => false,
        })
    }

    /// Takes the listener of a unix socket, if it can still be reached at its path.
    pub(crate) fn take_unix(&self, path: &SocketPath) -> Option<UnixListener> {
        let file = SocketFile::at(path).ok()?;
        self.take(|record| matches!(record, SocketRecord::Unix(at) if *at == file))
            .map(UnixListener::from)
    }

    fn take(&self, serves: impl Fn(&SocketRecord) -> bool) -> Option<OwnedFd> {
        let mut inherited = self.inherited();
        let Inherited { own, remote } = &mut *inherited;
        [own, remote].into_iter().find_map(|sockets| {
            let found = sockets.iter().position(|socket| serves(&socket.record))?;
            Some(sockets.remove(found).socket)
        })
    }

    /// A panic cannot leave the list half changed.
    fn inherited(&self) -> MutexGuard<'_, Inherited> {
        self.0.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes sockets; returns the files of the unix sockets among them.
fn close(sockets: Vec<HandedSocket>) -> Vec<SocketFile> {
    let file = |socket: HandedSocket| match socket.record {
        SocketRecord::Unix(file)
        | SocketRecord::Remote(RemoteRecord { bound: RemoteBound::Unix(file), .. }) => Some(file),
        _ => None,
    };
    sockets.into_iter().filter_map(file).collect()
}

/// Whether a socket is bound to this address.
fn is_at(wanted: SocketAddr, bound: SocketAddr) -> bool {
    wanted.port() != 0 && serves(wanted, bound)
}

/// Whether a socket bound there serves this address: port 0 takes any, and `[::]` is 0.0.0.0 on a
/// host without IPv6.
fn serves(wanted: SocketAddr, bound: SocketAddr) -> bool {
    let all = wanted.is_ipv6() && wanted.ip().is_unspecified();
    let same_ip = wanted.ip() == bound.ip() || (all && bound.ip() == Ipv4Addr::UNSPECIFIED);
    same_ip && (wanted.port() == bound.port() || wanted.port() == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A socket that listens in this directory, and its file.
    fn listener(directory: &tempfile::TempDir, name: &str) -> (UnixListener, SocketFile) {
        let path = directory.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let path = path.to_str().unwrap().parse().unwrap();
        (listener, SocketFile::at(&path).unwrap())
    }

    #[test]
    fn a_token_travels_as_the_numbers_of_its_bytes() {
        let token = HandedToken(SessionToken::from_bytes(&[7; SESSION_TOKEN_BYTES]));
        let text = serde_json::to_string(&token).unwrap();
        assert_eq!(text, format!("[{}]", ["7"; SESSION_TOKEN_BYTES].join(",")));
        let received: HandedToken = serde_json::from_str(&text).unwrap();
        assert_eq!(received.0.as_bytes(), token.0.as_bytes());
        assert!(serde_json::from_str::<HandedToken>("[7,7]").is_err());
    }

    #[test]
    fn a_socket_is_inherited_once_and_only_for_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        let record = SocketRecord::Tcp(bound);
        let handover =
            Handover::suspended_with(vec![HandedSocket { record, socket: listener.into() }]);
        assert!(handover.is_suspended());
        assert!(handover.take_tcp(([127, 0, 0, 2], bound.port()).into()).is_none());
        assert!(handover.take_udp(bound, 1).is_empty());
        let inherited = handover.take_tcp(bound).unwrap();
        assert_eq!(inherited.local_addr().unwrap(), bound);
        assert!(handover.take_tcp(bound).is_none());
    }

    #[test]
    fn a_port_that_the_system_chose_is_for_the_same_forward_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        let (owner, forward) = ("peer", "-L 0:localhost:22");
        let record = SocketRecord::Chosen {
            owner: owner.into(),
            forward: forward.into(),
            bound: Box::new(SocketRecord::Tcp(bound)),
        };
        let socket = HandedSocket { record, socket: listener.into() };
        let handover = Handover::suspended_with(vec![socket]);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        assert!(handover.take_tcp(any).is_none() && handover.take_tcp(bound).is_none());
        for other in [("other", forward), (owner, "-L 0:localhost:23")] {
            assert!(handover.take_chosen(other, any, false).is_none(), "{other:?}");
        }
        assert!(handover.take_chosen((owner, forward), any, true).is_none(), "not UDP");
        let taken = handover.take_chosen((owner, forward), any, false).map(TcpListener::from);
        assert_eq!(taken.unwrap().local_addr().unwrap(), bound);
    }

    #[test]
    fn a_remote_forwards_listener_is_for_its_client_only_and_named_if_nobody_takes_it() {
        let directory = tempfile::tempdir().unwrap();
        let [(a, of_a), (b, of_b), (_c, of_c)] =
            ["a", "b", "c"].map(|name| listener(&directory, name));
        let record = |key: &str, file: &SocketFile| RemoteRecord {
            key: key.into(),
            instance: [1; 16],
            number: 0,
            bound: RemoteBound::Unix(file.clone()),
        };
        let handover = Handover::default();
        for (socket, file) in [(a, &of_a), (b, &of_b)] {
            let record = SocketRecord::Remote(record("client", file));
            handover.inherit_remote(HandedSocket { record, socket: socket.into() });
        }
        assert!(handover.take_remote(&record("other", &of_a)).is_none());
        assert!(handover.take_remote(&record("client", &of_c)).is_none());
        assert!(handover.take_remote(&record("client", &of_a)).is_some());
        assert_eq!(handover.close_remote(), std::slice::from_ref(&of_b));
        assert!(handover.take_remote(&record("client", &of_b)).is_none());
    }

    #[test]
    fn a_unix_socket_is_inherited_and_its_file_removed_only_if_it_is_still_there() {
        let directory = tempfile::tempdir().unwrap();
        let inherited = || {
            let (socket, file) = listener(&directory, "x");
            let record = SocketRecord::Unix(file);
            Handover::suspended_with(vec![HandedSocket { record, socket: socket.into() }])
        };
        let path = directory.path().join("x");
        let wanted: SocketPath = path.to_str().unwrap().parse().unwrap();
        assert!(inherited().take_unix(&wanted).is_some());
        fs::remove_file(&path).unwrap();
        inherited().close_unnamed().iter().for_each(SocketFile::remove);
        assert!(!path.exists());

        let handover = inherited();
        fs::remove_file(&path).unwrap();
        assert!(handover.take_unix(&wanted).is_none(), "nobody could reach it");
        let _others = UnixListener::bind(&path).unwrap();
        assert!(handover.take_unix(&wanted).is_none(), "it is another program's");
        handover.close_unnamed().iter().for_each(SocketFile::remove);
        assert!(path.exists());
    }

    #[test]
    fn port_0_takes_any_port_and_all_addresses_stand_for_both_families() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (wanted, bound, does) in [
            ("[::]:4433", "[::]:4433", true),
            ("[::]:4433", "0.0.0.0:4433", true),
            ("0.0.0.0:4433", "[::]:4433", false),
            ("127.0.0.1:0", "127.0.0.1:999", true),
            ("127.0.0.1:998", "127.0.0.1:999", false),
        ] {
            assert_eq!(serves(at(wanted), at(bound)), does, "{wanted} {bound}");
        }
    }
}

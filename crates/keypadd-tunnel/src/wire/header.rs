//! Encodes and decodes stream headers: what a stream is to be connected to.
//!
//! Knows bytes; whether the target is permitted is decided elsewhere (`permits`).

use keypadd_transport::{Receipt, StreamName};

use crate::{
    addresses::{
        forward::Destination,
        target::{AddressError, HOST_BYTES_MAX, Host, Protocol, Target},
    },
    wire::error::WireError,
};

/// Bytes of a stream header before the host or path.
pub const STREAM_HEAD_BYTES: usize = 4;

/// The byte that answers a header once the target is connected.
pub const CONNECTED: u8 = 0;

const KIND_TCP: u8 = 1;
const KIND_UNIX: u8 = 2;
const KIND_REMOTE: u8 = 3;
const KIND_BENCH: u8 = 4;
const KIND_RESUME: u8 = 5;
const KIND_UDP: u8 = 6;
const KIND_NETWORK: u8 = 7;

/// What follows [`KIND_BENCH`].
const BENCH_TCP: u16 = 0;
const BENCH_UDP: u16 = 1;

/// Bytes of a claim, in the place of a host.
const CLAIM_BYTES: u8 = 20;

/// A held stream that a client resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which one.
    pub name: StreamName,
    /// What the client has written of it.
    pub receipt: Receipt,
}

/// What a stream is to be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamHeader {
    /// From a client: this target.
    Destination(Destination),
    /// From a server: the remote forward with this number of the client's. A server cannot name a
    /// host (invariant I10).
    Remote(u16),
    /// From a client: the server's bench service, if it has one: a connection, or a flow.
    Bench(Protocol),
    /// From a client: a stream that both ends hold. The answer is byte 0 and the server's receipt.
    Resume(Claim),
    /// From a client: the networks of both ends. Packets between them are DATAGRAM frames.
    Network,
}

/// The fixed part of a stream header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp { port: u16, host_bytes: u8 },
    Udp { port: u16, host_bytes: u8 },
    Unix { path_bytes: u8 },
    Remote { id: u16 },
    Bench(Protocol),
    Resume,
    Network,
}

impl StreamHead {
    /// Decodes the fixed part.
    pub fn decode(bytes: [u8; STREAM_HEAD_BYTES]) -> Result<Self, WireError> {
        let [kind, high, low, text_bytes] = bytes;
        let number = u16::from_be_bytes([high, low]);
        match (kind, number, text_bytes) {
            (KIND_TCP | KIND_UDP | KIND_UNIX, _, 0) => Err(WireError::NoHost),
            (KIND_TCP, port, host_bytes) => Ok(Self(Kind::Tcp { port, host_bytes })),
            (KIND_UDP, port, host_bytes) => Ok(Self(Kind::Udp { port, host_bytes })),
            (KIND_UNIX, 0, path_bytes) => Ok(Self(Kind::Unix { path_bytes })),
            (KIND_REMOTE, id, 0) => Ok(Self(Kind::Remote { id })),
            (KIND_BENCH, BENCH_TCP, 0) => Ok(Self(Kind::Bench(Protocol::Tcp))),
            (KIND_BENCH, BENCH_UDP, 0) => Ok(Self(Kind::Bench(Protocol::Udp))),
            (KIND_RESUME, 0, CLAIM_BYTES) => Ok(Self(Kind::Resume)),
            (KIND_NETWORK, 0, 0) => Ok(Self(Kind::Network)),
            (KIND_UNIX | KIND_REMOTE | KIND_BENCH | KIND_RESUME | KIND_NETWORK, ..) => {
                Err(WireError::NotZero)
            }
            _ => Err(WireError::UnknownKind(kind)),
        }
    }

    /// Length of the host, path or claim that follows, at most 255.
    pub fn text_bytes(self) -> usize {
        match self.0 {
            Kind::Tcp { host_bytes, .. } | Kind::Udp { host_bytes, .. } => host_bytes.into(),
            Kind::Unix { path_bytes } => path_bytes.into(),
            Kind::Remote { .. } | Kind::Bench(_) | Kind::Network => 0,
            Kind::Resume => CLAIM_BYTES.into(),
        }
    }

    /// Decodes the header from the fixed part and the bytes of the host, path or claim.
    pub fn header(self, bytes: &[u8]) -> Result<StreamHeader, WireError> {
        let text = || str::from_utf8(bytes).map_err(|_| WireError::NotText);
        match self.0 {
            Kind::Tcp { port: 0, .. } | Kind::Udp { port: 0, .. } => {
                Err(AddressError::BadPort("0".into()).into())
            }
            Kind::Tcp { port, .. } => {
                let host = text()?.parse::<Host>()?;
                Ok(StreamHeader::Destination(Destination::Tcp(Target { host, port })))
            }
            Kind::Udp { port, .. } => {
                let host = text()?.parse::<Host>()?;
                Ok(StreamHeader::Destination(Destination::Udp(Target { host, port })))
            }
            Kind::Unix { .. } => Ok(StreamHeader::Destination(Destination::Unix(text()?.parse()?))),
            Kind::Remote { id } => Ok(StreamHeader::Remote(id)),
            Kind::Bench(protocol) => Ok(StreamHeader::Bench(protocol)),
            Kind::Resume => Claim::decode(bytes).map(StreamHeader::Resume),
            Kind::Network => Ok(StreamHeader::Network),
        }
    }
}

impl Claim {
    fn encode(&self) -> Vec<u8> {
        let StreamName { epoch, stream } = self.name;
        let receipt = self.receipt.encode().to_be_bytes();
        [&epoch.to_be_bytes()[..], &stream.to_be_bytes(), &receipt].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let bytes: &[u8; CLAIM_BYTES as usize] = bytes.try_into().map_err(|_| WireError::NoHost)?;
        let (epoch, numbers) = bytes.split_first_chunk().ok_or(WireError::NoHost)?;
        let (stream, receipt) = numbers.split_first_chunk().ok_or(WireError::NoHost)?;
        let receipt = receipt.first_chunk().ok_or(WireError::NoHost)?;
        let name =
            StreamName { epoch: u32::from_be_bytes(*epoch), stream: u64::from_be_bytes(*stream) };
        Ok(Self { name, receipt: Receipt::decode(u64::from_be_bytes(*receipt)) })
    }
}

impl StreamHeader {
    /// Encodes the header.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, number, text) = match self {
            Self::Destination(Destination::Tcp(target)) => {
                (KIND_TCP, target.port, target.host.to_string())
            }
            Self::Destination(Destination::Udp(target)) => {
                (KIND_UDP, target.port, target.host.to_string())
            }
            Self::Destination(Destination::Unix(path)) => (KIND_UNIX, 0, path.to_string()),
            Self::Remote(id) => (KIND_REMOTE, *id, String::new()),
            Self::Bench(Protocol::Tcp) => (KIND_BENCH, BENCH_TCP, String::new()),
            Self::Bench(Protocol::Udp) => (KIND_BENCH, BENCH_UDP, String::new()),
            Self::Network => (KIND_NETWORK, 0, String::new()),
            Self::Resume(claim) => {
                return [&[KIND_RESUME, 0, 0, CLAIM_BYTES][..], &claim.encode()].concat();
            }
        };
        debug_assert!(text.len() <= HOST_BYTES_MAX, "hosts and paths are at most 255 bytes");
        let text_bytes = u8::try_from(text.len()).unwrap_or(u8::MAX);
        let [high, low] = number.to_be_bytes();
        let mut header = vec![kind, high, low, text_bytes];
        header.extend(text.bytes().take(text_bytes.into()));
        header
    }
}

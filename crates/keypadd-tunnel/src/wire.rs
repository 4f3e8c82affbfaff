//! The bytes that the two ends say to each other inside QUIC streams.
//!
//! The first bidirectional stream that the client opens is the control stream: frames of
//! `u16 length | u8 type | body`, the length being the body's, big-endian. Types that are not known
//! are skipped, so that later versions may say more. Every other stream starts with a header
//! `u8 kind | u16 port | u8 host length | host` and is answered by one byte 0, or by a reset whose
//! code says why not. Everything here is a total function on bytes: no sockets, no panics.

use thiserror::Error;

use crate::target::{AddressError, HOST_BYTES_MAX, Host, Target};

/// Version of the control protocol that this end speaks.
pub const VERSION: u8 = 1;

/// Bytes before a control frame's body: its length and its type.
pub const FRAME_HEAD_BYTES: usize = 3;

/// Bytes of a stream header before the host.
pub const STREAM_HEAD_BYTES: usize = 4;

/// The one byte with which the server says that the target is connected.
pub const CONNECTED: u8 = 0;

const TYPE_HELLO_CLIENT: u8 = 1;
const TYPE_HELLO_SERVER: u8 = 2;
const KIND_TCP: u8 = 1;

/// A random number that a client draws when it starts; it tells one run from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance(pub [u8; 16]);

/// A control frame whose type is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The client's first frame.
    HelloClient {
        /// Version the client speaks.
        version: u8,
        /// The client's run.
        instance: Instance,
    },
    /// The server's first frame: the client may now open streams.
    HelloServer {
        /// Version the server speaks.
        version: u8,
    },
}

/// The first three bytes of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of body that follow.
    pub body_bytes: u16,
    /// The frame's type, known or not.
    pub kind: u8,
}

/// Why a stream ended early: the code of RESET_STREAM and STOP_SENDING (RFC 9000 19.4, 19.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamCode {
    /// The target refused the connection.
    Refused,
    /// No permit of this client names the target.
    NotPermitted,
    /// The target's name does not resolve.
    NameNotFound,
    /// There is no way to the target.
    Unreachable,
    /// The target did not answer in time.
    TimedOut,
    /// The TCP connection at the other end was reset.
    Reset,
    /// The other end is shutting down.
    ShuttingDown,
    /// The stream's header made no sense.
    BadHeader,
    /// A code that this version does not know.
    Unknown(u64),
}

/// Why a connection was closed on purpose: the code of an application's CONNECTION_CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// This end is shutting down, or has nothing more to do.
    Shutdown,
    /// The peer broke the protocol.
    Protocol,
    /// The keys of the connection must not be used any more.
    KeyFault,
    /// The client's key has too many connections already.
    KeyFull,
    /// A newer session of the same run of the client takes this one's place.
    Replaced,
    /// Time has jumped at this end: the keys may be in use twice.
    ClockJump,
    /// The client's key is not listed any more.
    Unlisted,
}

impl CloseCode {
    /// The code on the wire.
    pub fn value(self) -> u32 {
        match self {
            Self::Shutdown => 0,
            Self::Protocol => 1,
            Self::KeyFault => 2,
            Self::KeyFull => 3,
            Self::Replaced => 4,
            Self::ClockJump => 5,
            Self::Unlisted => 6,
        }
    }
}

/// Why bytes of the peer make no sense. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A known frame whose body is shorter than its fields.
    #[error("control frame of type {kind} is too short")]
    ShortFrame {
        /// The frame's type.
        kind: u8,
    },
    /// A stream of a kind that is not known.
    #[error("stream of unknown kind {0}")]
    UnknownKind(u8),
    /// A header without a host.
    #[error("stream header without a host")]
    NoHost,
    /// A host that is not text.
    #[error("stream header whose host is not UTF-8")]
    NotText,
    /// A host or a port that cannot be one.
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl FrameHead {
    /// Reads the three bytes; every value is a possible head.
    pub fn decode(bytes: [u8; FRAME_HEAD_BYTES]) -> Self {
        let [high, low, kind] = bytes;
        Self { body_bytes: u16::from_be_bytes([high, low]), kind }
    }
}

impl Frame {
    /// Longest body of a frame that is known; a longer body has fields to be skipped.
    pub const BODY_BYTES_MAX: usize = 17;

    /// The whole frame: head and body.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::HelloClient { version, instance } => {
                (TYPE_HELLO_CLIENT, [&[*version][..], &instance.0].concat())
            }
            Self::HelloServer { version } => (TYPE_HELLO_SERVER, vec![*version]),
        };
        let length = u16::try_from(body.len()).expect("our own bodies are a few bytes");
        [&length.to_be_bytes()[..], &[kind], &body].concat()
    }

    /// Reads a body; `None` for a type that is not known. Bytes after the known fields are
    /// skipped, so that a frame may grow.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Option<Self>, WireError> {
        let short = WireError::ShortFrame { kind };
        match kind {
            TYPE_HELLO_CLIENT => {
                let (&version, rest) = body.split_first().ok_or_else(|| short.clone())?;
                let &instance = rest.first_chunk().ok_or(short)?;
                Ok(Some(Self::HelloClient { version, instance: Instance(instance) }))
            }
            TYPE_HELLO_SERVER => {
                let &version = body.first().ok_or(short)?;
                Ok(Some(Self::HelloServer { version }))
            }
            _ => Ok(None),
        }
    }
}

/// A stream header as far as its fixed part tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// TCP port of the target, not yet checked.
    pub port: u16,
    /// Bytes of host that follow, 1 to 255.
    pub host_bytes: usize,
}

impl StreamHead {
    /// Reads the fixed part.
    pub fn decode(bytes: [u8; STREAM_HEAD_BYTES]) -> Result<Self, WireError> {
        let [kind, high, low, host_bytes] = bytes;
        if kind != KIND_TCP {
            return Err(WireError::UnknownKind(kind));
        }
        if host_bytes == 0 {
            return Err(WireError::NoHost);
        }
        Ok(Self { port: u16::from_be_bytes([high, low]), host_bytes: host_bytes.into() })
    }

    /// Joins the fixed part with the host's bytes.
    pub fn target(self, host: &[u8]) -> Result<Target, WireError> {
        let host: Host = std::str::from_utf8(host).map_err(|_| WireError::NotText)?.parse()?;
        if self.port == 0 {
            return Err(AddressError::BadPort("0".into()).into());
        }
        Ok(Target { host, port: self.port })
    }
}

/// The header that asks for a TCP connection to `target`.
pub fn encode_stream_header(target: &Target) -> Vec<u8> {
    let host = target.host.to_string();
    debug_assert!((1..=HOST_BYTES_MAX).contains(&host.len()), "a host is 1 to 255 bytes");
    let host_bytes = u8::try_from(host.len()).unwrap_or(u8::MAX);
    let [high, low] = target.port.to_be_bytes();
    let mut header = vec![KIND_TCP, high, low, host_bytes];
    header.extend(host.bytes().take(host_bytes.into()));
    header
}

impl StreamCode {
    /// The code on the wire.
    pub fn value(self) -> u64 {
        match self {
            Self::Refused => 1,
            Self::NotPermitted => 2,
            Self::NameNotFound => 3,
            Self::Unreachable => 4,
            Self::TimedOut => 5,
            Self::Reset => 6,
            Self::ShuttingDown => 7,
            Self::BadHeader => 8,
            Self::Unknown(value) => value,
        }
    }

    /// The code of a value from the wire.
    pub fn from_value(value: u64) -> Self {
        match value {
            1 => Self::Refused,
            2 => Self::NotPermitted,
            3 => Self::NameNotFound,
            4 => Self::Unreachable,
            5 => Self::TimedOut,
            6 => Self::Reset,
            7 => Self::ShuttingDown,
            8 => Self::BadHeader,
            value => Self::Unknown(value),
        }
    }
}

impl std::fmt::Display for StreamCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::NotPermitted => "not permitted",
            Self::NameNotFound => "name not found",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Reset => "connection reset",
            Self::ShuttingDown => "the other end is shutting down",
            Self::BadHeader => "bad stream header",
            Self::Unknown(value) => return write!(f, "unknown code {value}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_frame(bytes: &[u8]) -> Result<Option<Frame>, WireError> {
        let head = FrameHead::decode(*bytes.first_chunk().unwrap());
        assert_eq!(usize::from(head.body_bytes), bytes.len() - FRAME_HEAD_BYTES);
        Frame::decode(head.kind, &bytes[FRAME_HEAD_BYTES..])
    }

    fn decode_header(bytes: &[u8]) -> Result<Target, WireError> {
        let head = StreamHead::decode(*bytes.first_chunk().unwrap())?;
        assert_eq!(head.host_bytes, bytes.len() - STREAM_HEAD_BYTES);
        head.target(&bytes[STREAM_HEAD_BYTES..])
    }

    #[test]
    fn hellos_are_these_bytes() {
        let client = Frame::HelloClient { version: VERSION, instance: Instance([7; 16]) };
        let mut bytes = vec![0, 17, 1, 1];
        bytes.extend([7; 16]);
        assert_eq!(client.encode(), bytes);
        assert_eq!(decode_frame(&bytes), Ok(Some(client)));

        let server = Frame::HelloServer { version: VERSION };
        assert_eq!(server.encode(), [0, 1, 2, 1]);
        assert_eq!(decode_frame(&[0, 1, 2, 1]), Ok(Some(server)));
    }

    #[test]
    fn unknown_types_are_skipped_and_short_bodies_refused() {
        assert_eq!(decode_frame(&[0, 2, 99, 1, 2]), Ok(None));
        assert_eq!(decode_frame(&[0, 0, 2]), Err(WireError::ShortFrame { kind: 2 }));
        assert_eq!(decode_frame(&[0, 2, 1, 1, 2]), Err(WireError::ShortFrame { kind: 1 }));
    }

    #[test]
    fn stream_header_is_these_bytes() {
        let target: Target = "db:5432".parse().unwrap();
        assert_eq!(encode_stream_header(&target), [1, 0x15, 0x38, 2, b'd', b'b']);
        assert_eq!(decode_header(&[1, 0x15, 0x38, 2, b'd', b'b']), Ok(target));
    }

    #[test]
    fn senseless_headers_are_refused() {
        assert_eq!(StreamHead::decode([9, 0, 22, 1]), Err(WireError::UnknownKind(9)));
        assert_eq!(StreamHead::decode([1, 0, 22, 0]), Err(WireError::NoHost));
        assert_eq!(decode_header(&[1, 0, 22, 1, 0xff]), Err(WireError::NotText));
        assert!(matches!(decode_header(b"\x01\0\0\x01a"), Err(WireError::Address(_))));
        assert!(matches!(decode_header(b"\x01\0\x16\x01\0"), Err(WireError::Address(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused_without_a_panic(
            head: [u8; 4], bytes in proptest::collection::vec(any::<u8>(), 0..300)
        ) {
            let _ = FrameHead::decode(*head.first_chunk().unwrap());
            let _ = Frame::decode(head[0], &bytes);
            if let Ok(head) = StreamHead::decode(head) {
                let _ = head.target(&bytes);
            }
        }

        #[test]
        fn frames_survive_the_wire(version: u8, instance: [u8; 16]) {
            for frame in [
                Frame::HelloClient { version, instance: Instance(instance) },
                Frame::HelloServer { version },
            ] {
                prop_assert!(frame.encode().len() <= FRAME_HEAD_BYTES + Frame::BODY_BYTES_MAX);
                prop_assert_eq!(decode_frame(&frame.encode()), Ok(Some(frame)));
            }
        }

        #[test]
        fn headers_survive_the_wire(host in "[a-z0-9.-]{1,255}", port in 1..=u16::MAX) {
            if let Ok(host) = host.parse() {
                let target = Target { host, port };
                prop_assert_eq!(decode_header(&encode_stream_header(&target)), Ok(target));
            }
        }

        #[test]
        fn codes_survive_the_wire(value: u64) {
            prop_assert_eq!(StreamCode::from_value(value).value(), value);
        }
    }
}

//! Implements the server side of SOCKS5 (RFC 1928) as a state machine on bytes, without I/O.
//!
//! Supports CONNECT only, without authentication: whoever can reach the listener may use it. The
//! handshake requests exactly the bytes it needs next, at most 257 at a time and 519 in all, so it
//! never reads data that follows the request. Names are not resolved here but by the tunnel's
//! server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    addresses::target::{Host, Target},
    wire::StreamCode,
};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const COMMAND_CONNECT: u8 = 1;
const ADDRESS_IPV4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_IPV6: u8 = 4;

/// The reply to a request (RFC 1928 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The target is connected.
    Succeeded = 0,
    /// Any failure without a code of its own.
    GeneralFailure = 1,
    /// No permit admits the target.
    NotAllowed = 2,
    /// The host is unreachable, does not answer, or its name does not resolve.
    HostUnreachable = 4,
    /// The target refused.
    Refused = 5,
    /// BIND and UDP ASSOCIATE are not supported.
    CommandNotSupported = 7,
    /// The address is not IPv4, IPv6 or a name.
    AddressTypeNotSupported = 8,
}

/// The result of feeding bytes to a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send these bytes, if any, and go on.
    More(&'static [u8]),
    /// The client requests this target; send a [`Reply`].
    Connect(Target),
    /// The handshake failed; send these bytes, if any, and close.
    Failed(Vec<u8>),
    /// The client speaks another protocol: no reply could be understood.
    OtherProtocol(&'static str),
}

/// A handshake in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake(HandshakeState);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeState {
    /// Expects the version and the number of methods.
    Greeting,
    Methods(u8),
    /// Expects version, command, a reserved byte and the address type.
    Request,
    NameLength(u8),
    /// Expects the address and the port.
    Address {
        command: u8,
        kind: u8,
        bytes: u8,
    },
    Over,
}

impl Default for Handshake {
    fn default() -> Self {
        Self(HandshakeState::Greeting)
    }
}

impl Handshake {
    /// Number of bytes that [`feed`](Self::feed) needs next; 0 when the handshake is over.
    pub fn wanted(&self) -> usize {
        match self.0 {
            HandshakeState::Greeting => 2,
            HandshakeState::Methods(methods) => methods.into(),
            HandshakeState::Request => 4,
            HandshakeState::NameLength(_) => 1,
            HandshakeState::Address { bytes, .. } => usize::from(bytes) + 2,
            HandshakeState::Over => 0,
        }
    }

    /// Feeds the wanted bytes; any other number of bytes fails the handshake.
    pub fn feed(&mut self, bytes: &[u8]) -> Step {
        let wanted = self.wanted();
        let state = std::mem::replace(&mut self.0, HandshakeState::Over);
        let (next, step) = match (state, bytes) {
            (HandshakeState::Greeting, &[VERSION, methods @ 1..=u8::MAX]) => {
                (HandshakeState::Methods(methods), Step::More(&[]))
            }
            (HandshakeState::Methods(_), methods) if methods.len() == wanted => {
                if !methods.contains(&NO_AUTHENTICATION) {
                    return Step::Failed(vec![VERSION, NO_ACCEPTABLE_METHOD]);
                }
                (HandshakeState::Request, Step::More(&[VERSION, NO_AUTHENTICATION]))
            }
            (HandshakeState::Request, &[VERSION, command, _, kind]) => {
                let next = match kind {
                    ADDRESS_IPV4 => HandshakeState::Address { command, kind, bytes: 4 },
                    ADDRESS_IPV6 => HandshakeState::Address { command, kind, bytes: 16 },
                    ADDRESS_NAME => HandshakeState::NameLength(command),
                    _ => return failed(Reply::AddressTypeNotSupported),
                };
                (next, Step::More(&[]))
            }
            (HandshakeState::NameLength(command), &[bytes @ 1..=u8::MAX]) => {
                (HandshakeState::Address { command, kind: ADDRESS_NAME, bytes }, Step::More(&[]))
            }
            (HandshakeState::Address { command, kind, .. }, bytes) if bytes.len() == wanted => {
                return match command {
                    COMMAND_CONNECT => target(kind, bytes).map_or_else(failed, Step::Connect),
                    // The request is read to its end: closing a connection with unread bytes would
                    // reset it, and the reply would be lost.
                    _ => failed(Reply::CommandNotSupported),
                };
            }
            (HandshakeState::Greeting, &[first, second]) if first != VERSION => {
                return Step::OtherProtocol(protocol(first, second));
            }
            // An invalid request: no reply.
            _ => return Step::Failed(Vec::new()),
        };
        self.0 = next;
        step
    }
}

/// The protocol that begins with these bytes.
fn protocol(first: u8, second: u8) -> &'static str {
    match first {
        4 => "SOCKS4",
        // A method (RFC 9110, section 9.3).
        _ if first.is_ascii_uppercase() && second.is_ascii_uppercase() => "HTTP",
        // A handshake record (RFC 8446, section 5.1).
        0x16 if second == 3 => "TLS",
        _ => "another protocol",
    }
}

fn target(kind: u8, bytes: &[u8]) -> Result<Target, Reply> {
    let (address, port) = bytes.split_last_chunk().ok_or(Reply::GeneralFailure)?;
    let host = match kind {
        ADDRESS_IPV4 => address.first_chunk::<4>().map(|&v4| IpAddr::from(Ipv4Addr::from(v4))),
        ADDRESS_IPV6 => address.first_chunk::<16>().map(|&v6| IpAddr::from(Ipv6Addr::from(v6))),
        _ => None,
    };
    let host = match host {
        Some(address) => Host::Address(address.to_canonical()),
        // An invalid name cannot be resolved.
        None => str::from_utf8(address)
            .ok()
            .and_then(|name| name.parse().ok())
            .ok_or(Reply::HostUnreachable)?,
    };
    match u16::from_be_bytes(*port) {
        0 => Err(Reply::GeneralFailure),
        port => Ok(Target { host, port }),
    }
}

fn failed(reply: Reply) -> Step {
    Step::Failed(reply.encode().to_vec())
}

impl Reply {
    /// Encodes the reply. The bound address is 0.0.0.0:0: it is not known at this end.
    pub fn encode(self) -> [u8; 10] {
        [VERSION, self as u8, 0, ADDRESS_IPV4, 0, 0, 0, 0, 0, 0]
    }

    /// The reply for a refused stream.
    pub fn of(code: StreamCode) -> Self {
        match code {
            StreamCode::NotPermitted => Self::NotAllowed,
            StreamCode::NameNotFound | StreamCode::Unreachable | StreamCode::TimedOut => {
                Self::HostUnreachable
            }
            StreamCode::Refused => Self::Refused,
            StreamCode::Reset
            | StreamCode::Shutdown
            | StreamCode::BadHeader
            | StreamCode::OpenFiles
            | StreamCode::NotHeld
            | StreamCode::Idle
            | StreamCode::NoDatagrams
            | StreamCode::LocalPorts
            | StreamCode::Unknown(_) => Self::GeneralFailure,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Runs a handshake on a client's bytes: returns what it sends, how it ends, and how many are
    /// left.
    fn run(mut bytes: &[u8]) -> (Vec<u8>, Option<Step>, usize) {
        let (mut handshake, mut sent) = (Handshake::default(), Vec::new());
        while handshake.wanted() > 0 {
            let Some((wanted, rest)) = bytes.split_at_checked(handshake.wanted()) else {
                return (sent, None, bytes.len());
            };
            bytes = rest;
            match handshake.feed(wanted) {
                Step::More(answer) => sent.extend(answer),
                step => return (sent, Some(step), bytes.len()),
            }
        }
        (sent, None, bytes.len())
    }

    fn connect(address: &[u8]) -> Option<Step> {
        let (sent, step, left) = run(&[b"\x05\x01\x00\x05\x01\x00", address].concat());
        assert_eq!((sent, left), (vec![5, 0], 0));
        step
    }

    fn replied(reply: u8) -> Option<Step> {
        Some(Step::Failed(vec![5, reply, 0, 1, 0, 0, 0, 0, 0, 0]))
    }

    #[test]
    fn connect_accepts_ipv4_ipv6_and_names() {
        for (address, target) in [
            (&b"\x01\x7f\x00\x00\x01\x00\x50"[..], "127.0.0.1:80"),
            (b"\x03\x07db.host\x15\x38", "db.host:5432"),
            (b"\x03\x0910.0.0.12\x00\x50", "10.0.0.12:80"),
            (b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50", "[::1]:80"),
            (b"\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\x00\x50", "10.0.0.1:80"),
        ] {
            assert_eq!(connect(address), Some(Step::Connect(target.parse().unwrap())), "{target}");
        }
    }

    #[test]
    fn unsupported_requests_get_their_reply_code() {
        assert_eq!(run(b"\x05\x01\x00\x05\x02\x00\x01\x0a\0\0\x01\0\x50").1, replied(7));
        assert_eq!(run(b"\x05\x01\x00\x05\x03\x00\x03\x01a\0\0").1, replied(7));
        assert_eq!(connect(b"\x02"), replied(8));
        assert_eq!(connect(b"\x03\x03a b\x00\x50"), replied(4));
        assert_eq!(connect(b"\x03\x01\xff\x00\x50"), replied(4));
        assert_eq!(connect(b"\x01\x7f\x00\x00\x01\x00\x00"), replied(1));
    }

    #[test]
    fn only_no_authentication_is_accepted() {
        assert_eq!(run(b"\x05\x02\x01\x02").1, Some(Step::Failed(vec![5, 0xff])));
        assert_eq!(run(b"\x05\x03\x02\x01\x00").0, [5, 0]);
    }

    #[test]
    fn another_protocol_gets_no_reply() {
        for bytes in [&b"\x05\x00"[..], b"\x05\x01\x00\x04\x01\0\x01"] {
            assert_eq!(run(bytes).1, Some(Step::Failed(Vec::new())), "{bytes:?}");
        }
        for (bytes, protocol) in [
            (&b"\x04\x01\x00\x50"[..], "SOCKS4"),
            (b"GET / ", "HTTP"),
            (b"CONNECT a:1", "HTTP"),
            (b"\x16\x03\x01", "TLS"),
            (b"\x00\x00", "another protocol"),
        ] {
            assert_eq!(run(bytes).1, Some(Step::OtherProtocol(protocol)), "{bytes:?}");
        }
        assert_eq!(connect(b"\x03\x00"), Some(Step::Failed(Vec::new())));
    }

    #[test]
    fn data_after_the_request_is_not_read() {
        let (_, step, left) = run(b"\x05\x01\x00\x05\x01\x00\x03\x01a\x00\x50early");
        assert_eq!((step, left), (Some(Step::Connect("a:80".parse().unwrap())), 5));
    }

    #[test]
    fn every_stream_code_has_a_reply() {
        for (code, reply) in [
            (StreamCode::NotPermitted, 2),
            (StreamCode::NameNotFound, 4),
            (StreamCode::Unreachable, 4),
            (StreamCode::TimedOut, 4),
            (StreamCode::Refused, 5),
            (StreamCode::Reset, 1),
            (StreamCode::Shutdown, 1),
            (StreamCode::BadHeader, 1),
            (StreamCode::LocalPorts, 1),
            (StreamCode::Unknown(99), 1),
        ] {
            assert_eq!(Reply::of(code).encode()[..2], [5, reply]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_or_need_few_more(bytes in vec(any::<u8>(), 0..1024)) {
            let (sent, _, left) = run(&bytes);
            prop_assert!(sent.len() <= 2);
            prop_assert!(bytes.len() - left <= 519);
        }

        #[test]
        fn any_request_ends_or_needs_more(
            command in 0..4_u8, address in 0..6_u8, rest in vec(any::<u8>(), 0..300)
        ) {
            let head = [5, 1, 0, 5, command, 0, address];
            let _ = run(&[&head[..], &rest].concat());
        }
    }
}

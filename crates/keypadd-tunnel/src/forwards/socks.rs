//! The server's side of SOCKS5 (RFC 1928) as a function on bytes: no sockets, no clock.
//!
//! CONNECT alone, without authentication: who may connect to the listener may use it. A handshake
//! asks for exactly the bytes it needs next, at most 257 at a time and 519 in all, so nothing that
//! follows the request is ever read by it. Names are taken as they come, for the server of the
//! tunnel to resolve.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    spec::target::{Host, Target},
    wire::StreamCode,
};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const COMMAND_CONNECT: u8 = 1;
const ADDRESS_IPV4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_IPV6: u8 = 4;

/// What a request is answered with (RFC 1928 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The target is connected.
    Succeeded = 0,
    /// Anything that has no number of its own.
    GeneralFailure = 1,
    /// No permit names the target.
    NotAllowed = 2,
    /// There is no way to the host, it does not answer, or its name does not resolve.
    HostUnreachable = 4,
    /// The target refused.
    Refused = 5,
    /// Neither BIND nor UDP ASSOCIATE is done here.
    CommandNotSupported = 7,
    /// An address that is neither IPv4, IPv6 nor a name.
    AddressTypeNotSupported = 8,
}

/// What a handshake has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It goes on; these bytes, perhaps none, are to be sent first.
    More(&'static [u8]),
    /// The client asks for this target, and is to be answered with a [`Reply`].
    Connect(Target),
    /// It has failed: these bytes, perhaps none, are the last that the client gets.
    Failed(Vec<u8>),
}

/// A handshake as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Version and number of methods.
    Greeting,
    Methods(u8),
    /// Version, command, a reserved byte, type of address.
    Request,
    NameLength(u8),
    /// The address and a port.
    Address {
        command: u8,
        kind: u8,
        bytes: u8,
    },
    Over,
}

impl Default for Handshake {
    fn default() -> Self {
        Self(State::Greeting)
    }
}

impl Handshake {
    /// Bytes that [`hear`](Self::hear) wants next; 0 when the handshake is over.
    pub fn wants(&self) -> usize {
        match self.0 {
            State::Greeting => 2,
            State::Methods(methods) => methods.into(),
            State::Request => 4,
            State::NameLength(_) => 1,
            State::Address { bytes, .. } => usize::from(bytes) + 2,
            State::Over => 0,
        }
    }

    /// Takes the bytes that were wanted; any other number of them ends the handshake.
    pub fn hear(&mut self, bytes: &[u8]) -> Step {
        let wanted = self.wants();
        let state = std::mem::replace(&mut self.0, State::Over);
        let (next, step) = match (state, bytes) {
            (State::Greeting, &[VERSION, methods @ 1..=u8::MAX]) => {
                (State::Methods(methods), Step::More(&[]))
            }
            (State::Methods(_), methods) if methods.len() == wanted => {
                if !methods.contains(&NO_AUTHENTICATION) {
                    return Step::Failed(vec![VERSION, NO_ACCEPTABLE_METHOD]);
                }
                (State::Request, Step::More(&[VERSION, NO_AUTHENTICATION]))
            }
            (State::Request, &[VERSION, command, _, kind]) => {
                let next = match kind {
                    ADDRESS_IPV4 => State::Address { command, kind, bytes: 4 },
                    ADDRESS_IPV6 => State::Address { command, kind, bytes: 16 },
                    ADDRESS_NAME => State::NameLength(command),
                    _ => return failed(Reply::AddressTypeNotSupported),
                };
                (next, Step::More(&[]))
            }
            (State::NameLength(command), &[bytes @ 1..=u8::MAX]) => {
                (State::Address { command, kind: ADDRESS_NAME, bytes }, Step::More(&[]))
            }
            (State::Address { command, kind, .. }, bytes) if bytes.len() == wanted => {
                return match command {
                    COMMAND_CONNECT => target(kind, bytes).map_or_else(failed, Step::Connect),
                    // Heard to its end: a connection closed with bytes unread would be reset, and
                    // the reply with it.
                    _ => failed(Reply::CommandNotSupported),
                };
            }
            // Another protocol, or a request that is none: there is nobody to answer to.
            _ => return Step::Failed(Vec::new()),
        };
        self.0 = next;
        step
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
        // What cannot be a name does not resolve either.
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
    /// The whole reply. The address that the target is reached from is the other end's business:
    /// it is given as 0.0.0.0:0.
    pub fn encode(self) -> [u8; 10] {
        [VERSION, self as u8, 0, ADDRESS_IPV4, 0, 0, 0, 0, 0, 0]
    }

    /// The reply for a stream that was refused.
    pub fn of(code: StreamCode) -> Self {
        match code {
            StreamCode::NotPermitted => Self::NotAllowed,
            StreamCode::NameNotFound | StreamCode::Unreachable | StreamCode::TimedOut => {
                Self::HostUnreachable
            }
            StreamCode::Refused => Self::Refused,
            StreamCode::Reset
            | StreamCode::ShuttingDown
            | StreamCode::BadHeader
            | StreamCode::Unknown(_) => Self::GeneralFailure,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Runs a handshake on what a client sends: what it is told, how it ends, what is left over.
    fn run(mut bytes: &[u8]) -> (Vec<u8>, Option<Step>, usize) {
        let (mut handshake, mut said) = (Handshake::default(), Vec::new());
        while handshake.wants() > 0 {
            let Some((wanted, rest)) = bytes.split_at_checked(handshake.wants()) else {
                return (said, None, bytes.len());
            };
            bytes = rest;
            match handshake.hear(wanted) {
                Step::More(answer) => said.extend(answer),
                step => return (said, Some(step), bytes.len()),
            }
        }
        (said, None, bytes.len())
    }

    fn connect(address: &[u8]) -> Option<Step> {
        let (said, step, left) = run(&[b"\x05\x01\x00\x05\x01\x00", address].concat());
        assert_eq!((said, left), (vec![5, 0], 0));
        step
    }

    fn replied(reply: u8) -> Option<Step> {
        Some(Step::Failed(vec![5, reply, 0, 1, 0, 0, 0, 0, 0, 0]))
    }

    #[test]
    fn connect_names_a_target_in_three_ways() {
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
    fn what_is_not_done_is_refused_by_its_number() {
        assert_eq!(run(b"\x05\x01\x00\x05\x02\x00\x01\x0a\0\0\x01\0\x50").1, replied(7));
        assert_eq!(run(b"\x05\x01\x00\x05\x03\x00\x03\x01a\0\0").1, replied(7));
        assert_eq!(connect(b"\x02"), replied(8));
        assert_eq!(connect(b"\x03\x03a b\x00\x50"), replied(4));
        assert_eq!(connect(b"\x03\x01\xff\x00\x50"), replied(4));
        assert_eq!(connect(b"\x01\x7f\x00\x00\x01\x00\x00"), replied(1));
    }

    #[test]
    fn a_client_that_wants_to_say_who_it_is_is_told_that_nobody_asks() {
        assert_eq!(run(b"\x05\x02\x01\x02").1, Some(Step::Failed(vec![5, 0xff])));
        assert_eq!(run(b"\x05\x03\x02\x01\x00").0, [5, 0]);
    }

    #[test]
    fn another_protocol_gets_no_answer() {
        for bytes in
            [&b"\x04\x01\x00\x50"[..], b"GET / ", b"\x05\x00", b"\x05\x01\x00\x04\x01\0\x01"]
        {
            assert_eq!(run(bytes).1, Some(Step::Failed(Vec::new())), "{bytes:?}");
        }
        assert_eq!(connect(b"\x03\x00"), Some(Step::Failed(Vec::new())));
    }

    #[test]
    fn what_follows_the_request_is_left_alone() {
        let (_, step, left) = run(b"\x05\x01\x00\x05\x01\x00\x03\x01a\x00\x50early");
        assert_eq!((step, left), (Some(Step::Connect("a:80".parse().unwrap())), 5));
    }

    #[test]
    fn every_refusal_has_its_reply() {
        for (code, reply) in [
            (StreamCode::NotPermitted, 2),
            (StreamCode::NameNotFound, 4),
            (StreamCode::Unreachable, 4),
            (StreamCode::TimedOut, 4),
            (StreamCode::Refused, 5),
            (StreamCode::Reset, 1),
            (StreamCode::ShuttingDown, 1),
            (StreamCode::BadHeader, 1),
            (StreamCode::Unknown(99), 1),
        ] {
            assert_eq!(Reply::of(code).encode()[..2], [5, reply]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_or_want_more_and_never_many(bytes in vec(any::<u8>(), 0..1024)) {
            let (said, _, left) = run(&bytes);
            prop_assert!(said.len() <= 2);
            prop_assert!(bytes.len() - left <= 519);
        }

        #[test]
        fn any_request_ends_or_wants_more(
            command in 0..4_u8, address in 0..6_u8, rest in vec(any::<u8>(), 0..300)
        ) {
            let head = [5, 1, 0, 5, command, 0, address];
            let _ = run(&[&head[..], &rest].concat());
        }
    }
}

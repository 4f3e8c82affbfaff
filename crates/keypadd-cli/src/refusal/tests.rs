//! Tests the hints, and records what a user reads of every failure to connect.

use std::fmt::Write;
use std::io;

use keypadd_tunnel::wire::StreamCode;
use keypadd_tunnel::{BindError, SessionEnd};

use super::*;

/// This host's key, and the server's.
const OWN: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const SERVER: &str = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
const OTHER: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

fn key(text: &str) -> PublicKey {
    text.parse().unwrap()
}

fn refused(cause: AuthError) -> ClientError {
    ClientError::Auth { server: "a.example".parse().unwrap(), cause }
}

fn unreachable(server: &str, cause: &str) -> ClientError {
    ClientError::Unreachable { server: server.parse().unwrap(), cause: cause.into() }
}

fn not_listening(code: ListenCode) -> ClientError {
    ClientError::NotListening { forward: "9:localhost:80".parse().unwrap(), code }
}

/// One error of each kind that a user can get from connecting, and of each cause.
fn errors() -> Vec<ClientError> {
    let in_use = io::ErrorKind::AddrInUse.into();
    let [offered, allowed] = ["a", "b, c"].map(Box::<str>::from);
    let dead = "no such host: failed to lookup address information: Name or service not known";
    let mut errors = vec![
        ClientError::Bind(BindError { address: "tcp 127.0.0.1:80".into(), source: in_use }),
        refused(AuthError::Refused(Refusal::NotPinned(key(OTHER)))),
        refused(AuthError::Refused(Refusal::KeyNotAllowed(key(OWN)))),
        refused(AuthError::Refused(Refusal::KeyExpired(key(OWN)))),
        refused(AuthError::Refused(Refusal::NoCommonSuite {
            offered: offered.clone(),
            allowed: allowed.clone(),
        })),
        refused(AuthError::Refused(Refusal::NoCommonKeyExchange { offered, allowed })),
        refused(AuthError::Handshake("a reason".into())),
        ClientError::TooManySessions {
            server: "a.example".parse().unwrap(),
            cause: "this key already has 16 sessions (max-sessions-per-key)".into(),
        },
        unreachable("a.exmaple", dead),
        unreachable("lcoalhost", dead),
        unreachable("_keypadd._udp.a.example", "no SRV record: DNS has no such name"),
        unreachable("_keypadd._udp.a.example", "no SRV record at this name"),
        unreachable("_keypadd._udp.a.example", "its SRV record says that there is no such service"),
        unreachable("_keypadd._udp.a.example", "the SRV lookup failed: 192.0.2.53:53: timed out"),
        unreachable("a.example", "timed out resolving the name"),
        unreachable("192.0.2.1", "no answer in 10s"),
        unreachable("fd77::2:4433", "no answer in 10s"),
        unreachable(
            "a.example",
            "the name resolves to this host: 127.0.1.1:4433: no answer in 10s",
        ),
        unreachable(
            "a.exmaple,192.0.2.1",
            &format!("a.exmaple:4433: {dead}; 192.0.2.1:4433: no answer in 10s"),
        ),
        unreachable(
            "192.0.2.1,lcoalhost",
            &format!("192.0.2.1:4433: no answer in 10s; lcoalhost:4433: {dead}"),
        ),
        unreachable(
            "_keypadd._udp.a.example,192.0.2.1",
            "_keypadd._udp.a.example: no SRV record: DNS has no such name; 192.0.2.1:4433: no \
             answer in 10s",
        ),
        unreachable(
            "192.0.2.1,a.example",
            "192.0.2.1:4433: no answer in 10s; a.example:4433: the name resolves to this host: \
             127.0.1.1:4433: no answer in 10s",
        ),
        unreachable("a.example", "192.0.2.1:4433: no answer after its handshake"),
        unreachable(
            "a.example",
            "192.0.2.1:4433: the server has given up the handshake for others, or has restarted",
        ),
        unreachable(
            "a.example",
            "192.0.2.1:4433: the server accepts no new connections now: it has too many, or is \
             shutting down",
        ),
        unreachable("a.example", "192.0.2.1:4433: timeout"),
        unreachable("0.0.0.0", "invalid remote address: 0.0.0.0:4433"),
        unreachable("a.example", "192.0.2.1:4433: the handshake did not authenticate a key"),
        unreachable("a.example", "192.0.2.1:4433: not a keypadd server"),
        unreachable(
            "a.example",
            "192.0.2.1:4433: the server uses version 9 of the control protocol",
        ),
        unreachable("a.example", "192.0.2.1:4433: the control stream ended"),
        unreachable("a.example", "192.0.2.1:4433: it does not answer as an inviting host"),
        unreachable("a.example", "the hypervisor restored, cloned or moved this machine"),
        unreachable("a.example", "suspended"),
        unreachable("a.example", "replaced by a newer session of the same client"),
        ClientError::Lost { server: "a.example".parse().unwrap(), cause: SessionEnd::Replaced },
        ClientError::Expired { server: "a.example".parse().unwrap() },
        ClientError::Refused {
            target: "db.example:5432".parse().unwrap(),
            code: StreamCode::NotPermitted,
        },
        ClientError::Local(io::ErrorKind::BrokenPipe.into()),
    ];
    errors.extend((1..=10).filter_map(ListenCode::from_value).map(not_listening));
    errors
}

#[test]
fn what_a_user_reads_of_a_failure_to_connect_is_as_recorded() {
    let mut all = String::new();
    for error in errors() {
        let error = explain(error, key(OWN), &[key(SERVER)]);
        writeln!(all, "exit {}\n{error}", error.exit() as u8).unwrap();
    }
    assert_eq!(all, include_str!("recorded.txt"), "\n{all}");
}

#[test]
fn brackets_are_suggested_where_an_address_may_end_in_a_port() {
    let hint = |server: &str| in_brackets(&server.parse().unwrap());
    let written = "if 4433 is the port, write [fd77::2]:4433";
    assert_eq!(hint("fd77::2:4433").as_deref(), Some(written));
    for clear in ["[fd77::2]:4433", "fd77::2:beef", "fd77::4433", "::1", "10.0.0.1:4433"] {
        assert_eq!(hint(clear), None, "{clear}");
    }
}

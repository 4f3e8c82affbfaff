//! Tests the hints, and records what a user reads of every failure to connect.

use std::fmt::Write;
use std::io;
use std::iter::successors;
use std::time::Duration;

use keypadd_transport::ConnectError;
use keypadd_tunnel::{
    BindAddress, BindError, ControlError, Jump, ServerAddresses, SessionEnd, SrvError,
};

use super::*;

/// This host's key, and the server's.
const OWN: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const SERVER: &str = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
const OTHER: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

const SILENT: Cause = Cause::Silent(Duration::from_secs(10));

fn key(text: &str) -> PublicKey {
    text.parse().unwrap()
}

fn tcp(address: &str) -> BindAddress {
    BindAddress::Tcp(address.parse().unwrap())
}

fn refused(cause: AuthError) -> ClientError {
    ClientError::Auth { server: "a.example".parse().unwrap(), cause }
}

/// The only server failed like this.
fn unreachable(server: &str, cause: Cause) -> ClientError {
    let one = Tried { server: None, is_here: false, failures: vec![Failure { at: None, cause }] };
    ClientError::Unreachable { server: server.parse().unwrap(), tried: vec![one] }
}

/// An address of `a.example` failed like this.
fn failed_at_address(cause: Cause) -> ClientError {
    let failures = vec![Failure { at: Some("192.0.2.1:4433".parse().unwrap()), cause }];
    let one = Tried { server: None, is_here: false, failures };
    ClientError::Unreachable { server: "a.example".parse().unwrap(), tried: vec![one] }
}

/// One of several servers failed like this.
fn tried(server: &str, cause: Cause) -> Tried {
    let failures = vec![Failure { at: None, cause }];
    Tried { server: Some(server.parse().unwrap()), is_here: false, failures }
}

/// The name of a server that resolves to this host.
fn here(server: Option<&str>) -> Tried {
    let at = Some("127.0.1.1:4433".parse().unwrap());
    let server = server.map(|server| server.parse().unwrap());
    Tried { server, is_here: true, failures: vec![Failure { at, cause: SILENT }] }
}

fn none_reached(tried: Vec<Tried>) -> ClientError {
    let servers = tried.iter().filter_map(|tried| tried.server.clone());
    let server = match ServerAddresses::new(servers) {
        Ok(server) => server,
        Err(_) => "a.example".parse().unwrap(),
    };
    ClientError::Unreachable { server, tried }
}

/// The server did not connect to the target.
fn refused_with(code: StreamCode) -> ClientError {
    ClientError::Refused { target: "db.example:5432".parse().unwrap(), code }
}

fn not_listening(code: ListenCode) -> ClientError {
    ClientError::NotListening { forward: "9:localhost:80".parse().unwrap(), code }
}

/// One error of each kind that a user can get from connecting, and of each cause.
fn errors() -> Vec<ClientError> {
    let (address, in_use) = (tcp("127.0.0.1:80"), io::ErrorKind::AddrInUse.into());
    let [offered, allowed] = ["a", "b, c"].map(Box::<str>::from);
    let dead = || {
        let text = "failed to lookup address information: Name or service not known";
        Cause::NoSuchHost(text.into())
    };
    let service = "_keypadd._udp.a.example";
    let timed_out = SrvError::Failed("192.0.2.53:53: timed out".into());
    let mut errors = vec![
        ClientError::Bind(BindError { address, source: in_use }),
        refused(AuthError::Refused(Refusal::NotPinned(key(OTHER)))),
        refused(AuthError::Refused(Refusal::KeyNotAllowed(key(OWN)))),
        refused(AuthError::Refused(Refusal::KeyExpired(key(OWN)))),
        refused(AuthError::Refused(Refusal::NoCommonSuite {
            offered: offered.clone(),
            allowed: allowed.clone(),
        })),
        refused(AuthError::Refused(Refusal::NoCommonKeyExchange { offered, allowed })),
        refused(AuthError::Handshake("a reason".into())),
        refused(AuthError::NotResumed),
        ClientError::TooManySessions {
            server: "a.example".parse().unwrap(),
            cause: "this key already has 16 sessions (max-sessions-per-key)".into(),
        },
        unreachable("a.exmaple", dead()),
        unreachable("lcoalhost", dead()),
        unreachable(service, Cause::Srv(SrvError::NoName)),
        unreachable(service, Cause::Srv(SrvError::NoRecord)),
        unreachable(service, Cause::Srv(SrvError::NoService)),
        unreachable(service, Cause::Srv(timed_out)),
        unreachable("a.example", Cause::SlowLookup),
        unreachable("192.0.2.1", SILENT),
        unreachable("fd77::2:4433", SILENT),
        unreachable("192.0.2.1", Cause::NotSent(NotSent::NoRoute)),
        unreachable("192.0.2.1", Cause::NotSent(NotSent::Rejected)),
        unreachable("192.0.2.255", Cause::NotSent(NotSent::Prohibited)),
        unreachable("192.0.2.1", Cause::NotSent(NotSent::TooLong)),
        none_reached(vec![
            tried("2001:db8::1", Cause::NotSent(NotSent::NoRoute)),
            tried("192.0.2.1", SILENT),
        ]),
        none_reached(vec![here(None)]),
        none_reached(vec![tried("a.exmaple", dead()), tried("192.0.2.1", SILENT)]),
        none_reached(vec![tried("192.0.2.1", SILENT), tried("lcoalhost", dead())]),
        none_reached(vec![
            tried(service, Cause::Srv(SrvError::NoName)),
            tried("192.0.2.1", SILENT),
        ]),
        none_reached(vec![tried("192.0.2.1", SILENT), here(Some("a.example"))]),
        failed_at_address(Cause::NoHello),
        failed_at_address(Cause::Forgotten),
        failed_at_address(Cause::Busy),
        failed_at_address(Cause::Connection(ConnectionError::TimedOut)),
        failed_at_address(Cause::OtherFamily),
        unreachable(
            "0.0.0.0",
            Cause::BadAddress(ConnectError::InvalidRemoteAddress("0.0.0.0:4433".parse().unwrap())),
        ),
        failed_at_address(Cause::NoKey),
        failed_at_address(Cause::NotKeypadd),
        failed_at_address(Cause::OtherVersion(9)),
        failed_at_address(Cause::Control(ControlError::Ended)),
        failed_at_address(Cause::NotInviting),
        unreachable("a.example", Cause::Clock(Jump::Machine)),
        unreachable("a.example", Cause::Suspended),
        unreachable("a.example", Cause::Ended(SessionEnd::Replaced)),
        ClientError::Lost { server: "a.example".parse().unwrap(), cause: SessionEnd::Replaced },
        ClientError::Expired { server: "a.example".parse().unwrap() },
        refused_with(StreamCode::NotPermitted),
        refused_with(StreamCode::Refused),
        refused_with(StreamCode::NameNotFound),
        refused_with(StreamCode::TimedOut),
        refused_with(StreamCode::OpenFiles),
        refused_with(StreamCode::Reset),
        ClientError::Local(io::ErrorKind::BrokenPipe.into()),
    ];
    errors.extend((1..=9).filter_map(ListenCode::from_value).map(not_listening));
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

/// The failure after this one: a new variant needs a place here, and in [`needs_no_hint`].
fn next(error: &ClientError) -> Option<ClientError> {
    let server = || "a.example".parse().unwrap();
    let failed = || io::ErrorKind::BrokenPipe.into();
    Some(match error {
        ClientError::Bind(_) => refused(AuthError::Handshake("a reason".into())),
        ClientError::Auth { .. } => {
            ClientError::TooManySessions { server: server(), cause: "a reason".into() }
        }
        ClientError::TooManySessions { server, .. } => {
            ClientError::NotPaired { server: server.clone(), cause: "a reason".into() }
        }
        ClientError::NotPaired { .. } => unreachable("a.example", SILENT),
        ClientError::Unreachable { server, .. } => {
            ClientError::Lost { server: server.clone(), cause: SessionEnd::Replaced }
        }
        ClientError::Lost { server, .. } => ClientError::Expired { server: server.clone() },
        ClientError::Expired { .. } => refused_with(StreamCode::Refused),
        ClientError::Refused { .. } => not_listening(ListenCode::Failed),
        ClientError::NotListening { .. } => ClientError::Local(failed()),
        ClientError::Local(_) => return None,
    })
}

/// The refusal after this one: a new variant needs a place here.
fn next_refusal(refusal: &Refusal) -> Option<Refusal> {
    let list = || Box::<str>::from("a");
    Some(match refusal {
        Refusal::KeyNotAllowed(key) => Refusal::KeyExpired(*key),
        Refusal::KeyExpired(key) => Refusal::NotPinned(*key),
        Refusal::NotPinned(_) => Refusal::NoCommonSuite { offered: list(), allowed: list() },
        Refusal::NoCommonSuite { .. } => {
            Refusal::NoCommonKeyExchange { offered: list(), allowed: list() }
        }
        Refusal::NoCommonKeyExchange { .. } => return None,
    })
}

/// The cause after this one: a new variant needs a place here.
fn next_cause(cause: &Cause) -> Option<Cause> {
    Some(match cause {
        Cause::NoSuchHost(_) => Cause::SlowLookup,
        Cause::SlowLookup => Cause::Srv(SrvError::NoName),
        Cause::Srv(_) => Cause::OtherFamily,
        Cause::OtherFamily => Cause::BadAddress(ConnectError::EndpointStopping),
        Cause::BadAddress(_) => Cause::NotSent(NotSent::Rejected),
        Cause::NotSent(_) => SILENT,
        Cause::Silent(_) => Cause::NoHello,
        Cause::NoHello => Cause::Forgotten,
        Cause::Forgotten => Cause::Busy,
        Cause::Busy => Cause::Connection(ConnectionError::TimedOut),
        Cause::Connection(_) => Cause::NoKey,
        Cause::NoKey => Cause::NotKeypadd,
        Cause::NotKeypadd => Cause::OtherVersion(9),
        Cause::OtherVersion(_) => Cause::Control(ControlError::Ended),
        Cause::Control(_) => Cause::NotInviting,
        Cause::NotInviting => Cause::OtherServer,
        Cause::OtherServer => Cause::Clock(Jump::Machine),
        Cause::Clock(_) => Cause::Suspended,
        Cause::Suspended => Cause::Expired,
        Cause::Expired => Cause::Ended(SessionEnd::Replaced),
        Cause::Ended(_) => return None,
    })
}

/// Why a failure needs no hint; `None` if it must have one.
fn needs_no_hint(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::NotPaired { .. } => Some("only `keypadd join` gets it, which has its own"),
        ClientError::Lost { .. } => Some("it was connected, so nothing is set wrong"),
        ClientError::Refused { code: StreamCode::Reset, .. } => Some("the target has answered so"),
        ClientError::Local(_) => Some("the program at the other end of the pipe has stopped"),
        ClientError::Bind(_)
        | ClientError::Auth { .. }
        | ClientError::TooManySessions { .. }
        | ClientError::Unreachable { .. }
        | ClientError::Expired { .. }
        | ClientError::Refused { .. }
        | ClientError::NotListening { .. } => None,
    }
}

#[test]
fn every_failure_to_connect_has_a_hint_or_a_reason_for_none() {
    let (address, in_use) = (tcp("127.0.0.1:80"), io::ErrorKind::AddrInUse.into());
    let first = ClientError::Bind(BindError { address, source: in_use });
    let refusals = successors(Some(Refusal::KeyNotAllowed(key(OWN))), next_refusal);
    let causes = successors(Some(Cause::NoSuchHost("a reason".into())), next_cause);
    let codes = (1..=u8::MAX).filter_map(ListenCode::from_value);
    let all = successors(Some(first), next)
        .chain(refusals.map(|refusal| refused(AuthError::Refused(refusal))))
        .chain(causes.map(|cause| unreachable("a.example", cause)))
        .chain(codes.map(not_listening));
    for error in all {
        let needs_one = needs_no_hint(&error).is_none();
        let error = explain(error, key(OWN), &[key(SERVER)]);
        assert!(error.parts().all(|(_, hint)| hint.is_some() == needs_one), "{error}");
    }
}

#[test]
fn firewalls_are_blamed_for_silence_alone() {
    for cause in successors(Some(Cause::NoSuchHost("a reason".into())), next_cause) {
        let is_silence =
            matches!(cause, Cause::Silent(_) | Cause::Connection(ConnectionError::TimedOut));
        // An answer says more than the silence of another address. What this host cannot send says
        // less, as it may have no IPv6.
        let is_unsent = matches!(cause, Cause::NotSent(_));
        let tried = vec![tried("192.0.2.1", SILENT), tried("a.example", cause.clone())];
        for (error, is_blamed) in [
            (unreachable("a.example", cause.clone()), is_silence),
            (none_reached(tried), is_silence || is_unsent),
        ] {
            let error = explain(error, key(OWN), &[key(SERVER)]).to_string();
            assert_eq!(error.contains("firewalls"), is_blamed, "{error}");
        }
    }
    for code in (1..=u8::MAX).filter_map(ListenCode::from_value) {
        let is_about_udp = code == ListenCode::NoDatagrams;
        let error = explain(not_listening(code), key(OWN), &[key(SERVER)]).to_string();
        assert_eq!(error.contains("`udp:`"), is_about_udp, "{error}");
    }
}

#[test]
fn a_name_is_blamed_in_a_list_as_it_is_alone() {
    let hint = |tried: Vec<Tried>| {
        let error = explain(none_reached(tried), key(OWN), &[key(SERVER)]);
        error.parts().find_map(|(_, hint)| hint.map(String::from)).unwrap()
    };
    let dead = || Cause::NoSuchHost("a reason".into());
    let silent = || tried("192.0.2.1", SILENT);
    let expected = "check the name and DNS, or use an address";
    assert_eq!(hint(vec![silent(), tried("a.exmaple", dead())]), expected);
    assert_eq!(hint(vec![silent(), tried("lcoalhost", dead())]), "did you mean localhost?");
    let service = tried("_keypadd._udp.a.example", Cause::Srv(SrvError::NoName));
    let expected = "check the name and DNS, or use the server's HOST:PORT";
    assert_eq!(hint(vec![service, silent()]), expected);
    let expected = "use an address of the server instead of its name";
    assert_eq!(hint(vec![here(None)]), expected);
    assert_eq!(hint(vec![silent(), here(Some("a.example"))]), expected);
    assert!(hint(vec![silent(), tried("192.0.2.2", SILENT)]).contains("firewalls"));
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

//! Explains why a client could not connect, with a hint.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use keypadd_config::nearest;
use keypadd_provider::{PublicKey, Refusal};
use keypadd_transport::{ConnectionError, NotSent};
use keypadd_tunnel::wire::{ListenCode, StreamCode};
use keypadd_tunnel::{
    AuthError, Cause, ClientError, DEFAULT_PORT, Failure, Host, ListenPermit, RemoteForward,
    ServerAddress, ServerEntry, Tried,
};

use crate::error::{Error, Exit, listen_hint, system};

/// The hint if the server has no file left.
const RAISE_OPEN_FILES: &str =
    "raise the server's limit of open files: `ulimit -n` or LimitNOFILE=";

/// Adds an exit code and a hint to the tunnel's errors. `own` is this host's key, `peer` the
/// server's keys.
pub fn explain(error: ClientError, own: PublicKey, peer: &[PublicKey]) -> Error {
    let cause = error.to_string();
    match error {
        ClientError::Bind(error) => Error::new(
            Exit::BindFailed,
            format!("cannot listen on {}: {}", error.address, system(&error.source)),
        )
        .hint(listen_hint(
            &error.address,
            &error.source,
            "-L 2223:localhost:22 or -D 1081",
        )),
        ClientError::Auth { server, cause: AuthError::Refused(refusal) } => {
            let cause = match &refusal {
                Refusal::NotPinned(got) => {
                    format!("{server}: SERVER KEY MISMATCH: expected {}, got {got}", one_of(peer))
                }
                _ => cause,
            };
            Error::new(Exit::Authentication, cause).hint(hint_of_refusal(&refusal, own))
        }
        ClientError::Auth { cause: AuthError::Handshake(_), .. } => {
            Error::new(Exit::Authentication, cause)
                .hint("run the same version of keypadd on both ends")
        }
        ClientError::Auth { cause: AuthError::NotResumed, .. } => {
            Error::new(Exit::Authentication, cause).hint(
                "somebody may have answered in its place with a stolen key of it; remove that key \
                 from its public-key here",
            )
        }
        ClientError::Unreachable { server, tried } => {
            let of_name = |tried: &Tried| {
                hint_of_name(tried.server.as_ref().unwrap_or_else(|| server.first()), tried)
            };
            let hint = tried
                .iter()
                .find_map(of_name)
                .or_else(|| tried.iter().find_map(hint_of_answer))
                .or_else(|| hint_of_sending(&tried))
                .or_else(|| in_brackets(server.first()))
                .unwrap_or_else(|| {
                    "check that keypadd is running there (`run` or `serve`) on that port, and that \
                     firewalls allow UDP to it"
                        .into()
                });
            Error::new(Exit::Unreachable, cause).hint(hint)
        }
        ClientError::Expired { .. } => Error::new(Exit::Authentication, cause)
            .hint("set a later valid-until for the peer in the configuration file"),
        ClientError::TooManySessions { .. } => Error::new(Exit::Authentication, cause)
            .hint("end another session of this key, or raise max-sessions-per-key on the server"),
        ClientError::NotListening { forward, code } => not_listening(forward, code),
        ClientError::Refused { target, code: StreamCode::NotPermitted } => {
            Error::new(Exit::Authentication, cause).hint(permit_on_server("permit-open", &target))
        }
        ClientError::Refused { code, .. } => {
            let error = Error::new(Exit::Runtime, cause);
            match hint_of_target(code) {
                Some(hint) => error.hint(hint),
                None => error,
            }
        }
        // The cause says all that this host knows.
        ClientError::NotPaired { .. } | ClientError::Lost { .. } | ClientError::Local(_) => {
            Error::new(Exit::Runtime, cause)
        }
    }
}

/// The error for a remote forward that the server refuses.
pub fn not_listening(forward: RemoteForward, code: ListenCode) -> Error {
    let permit = ListenPermit::for_listen(&forward.listen);
    let cause = ClientError::NotListening { forward, code }.to_string();
    match code {
        ListenCode::NotPermitted => {
            Error::new(Exit::Authentication, cause).hint(permit_on_server("permit-listen", &permit))
        }
        ListenCode::TooMany => Error::new(Exit::Runtime, cause).hint("use fewer -R flags"),
        ListenCode::OpenFiles => Error::new(Exit::Runtime, cause).hint(RAISE_OPEN_FILES),
        ListenCode::NoDatagrams => {
            Error::new(Exit::BindFailed, cause).hint("forward TCP: leave out `udp:`")
        }
        _ => Error::new(Exit::BindFailed, cause)
            .hint("choose a free address on the server, as in -R 8081:localhost:80"),
    }
}

/// What to do about a refusal of this host, whose key is `own`, or of the server.
fn hint_of_refusal(refusal: &Refusal, own: PublicKey) -> String {
    match refusal {
        // Suggests no command to paste: before accepting a new key, the user must check it on the
        // server.
        Refusal::NotPinned(_) => {
            "somebody may be intercepting this connection, or the server's key was replaced; \
             compare with `keypadd pubkey`, run on the server itself, before you trust it"
        }
        Refusal::KeyNotAllowed(_) => {
            return format!(
                "on the server, allow it: `keypadd serve --allow {own} ...`, or for `keypadd run` \
                 public-key = \"{own}\" in a [peer.NAME] of its file, and reload"
            );
        }
        Refusal::KeyExpired(_) => {
            "set a later valid-until for this host on the server, and reload it"
        }
        Refusal::NoCommonSuite { .. } => {
            "choose one of the server's with --suite, or add yours to the server's --suite"
        }
        Refusal::NoCommonKeyExchange { .. } => {
            "choose one of the server's with --kex, or add yours to the server's --kex"
        }
    }
    .into()
}

/// What to do if the server could not connect to a target; other codes are the target's answer.
fn hint_of_target(code: StreamCode) -> Option<&'static str> {
    Some(match code {
        StreamCode::Refused => {
            "the tunnel is up, but nothing listens on that port: start the service"
        }
        StreamCode::NameNotFound => {
            "the server resolves this name: choose one that it knows, or an address"
        }
        StreamCode::Unreachable | StreamCode::TimedOut => {
            "the tunnel is up: check that the server reaches the target"
        }
        StreamCode::OpenFiles => RAISE_OPEN_FILES,
        StreamCode::NotPermitted
        | StreamCode::Reset
        | StreamCode::Shutdown
        | StreamCode::BadHeader
        | StreamCode::NotHeld
        | StreamCode::Idle
        | StreamCode::NoDatagrams
        | StreamCode::LocalPorts
        | StreamCode::Unknown(_) => return None,
    })
}

/// How to permit something on the server, whether it runs from flags or from a file.
fn permit_on_server(key: &str, permit: &impl fmt::Display) -> String {
    format!(
        "on the server, permit it: `keypadd serve --{key} {permit} ...`, or for `keypadd run` \
         {key} = [\"{permit}\"] in its file, and reload"
    )
}

/// These keys as one text.
fn one_of(keys: &[PublicKey]) -> String {
    match keys {
        [_, _, _, ..] => format!("one of the {} keys listed", keys.len()),
        _ => keys.iter().map(PublicKey::to_string).collect::<Vec<_>>().join(" or "),
    }
}

/// What to do if the name of an entry is to blame.
fn hint_of_name(entry: &ServerEntry, tried: &Tried) -> Option<String> {
    if tried.is_here {
        return Some("use an address of the server instead of its name".into());
    }
    tried.failures.iter().find_map(|failure| match failure.cause {
        Cause::NoSuchHost(_) => Some(match nearest(&host_of(entry), ["localhost"]) {
            Some(name) => format!("did you mean {name}?"),
            None => "check the name and DNS, or use an address".into(),
        }),
        Cause::SlowLookup => Some("check DNS, or use an address".into()),
        Cause::Srv(_) => Some("check the name and DNS, or use the server's HOST:PORT".into()),
        // The name is not to blame.
        Cause::OtherFamily
        | Cause::BadAddress(_)
        | Cause::NotSent(_)
        | Cause::Silent(_)
        | Cause::NoHello
        | Cause::Forgotten
        | Cause::Busy
        | Cause::Connection(_)
        | Cause::NoKey
        | Cause::NotKeypadd
        | Cause::OtherVersion(_)
        | Cause::Control(_)
        | Cause::NotInviting
        | Cause::OtherServer
        | Cause::Clock(_)
        | Cause::Suspended
        | Cause::Expired
        | Cause::Ended(_) => None,
    })
}

/// What to do if something answered there, or this host ended the attempt: no firewall is to blame.
fn hint_of_answer(tried: &Tried) -> Option<String> {
    let hint = |failure: &Failure| match failure.cause {
        Cause::OtherFamily => Some("leave out -4 or -6, or use an address of that family"),
        Cause::BadAddress(_) => Some("use the server's own address, with its port"),
        Cause::NoHello | Cause::Busy | Cause::Forgotten => {
            Some("the server is up: try again later, and see what its log says")
        }
        Cause::NoKey | Cause::NotKeypadd => {
            Some("check address and port: something else answers there")
        }
        Cause::OtherVersion(_) | Cause::Control(_) => {
            Some("run the same version of keypadd on both ends")
        }
        Cause::NotInviting => Some("check that `keypadd invite` is still waiting there"),
        Cause::OtherServer => Some("the new server is used once the open connections have ended"),
        Cause::Expired => Some("set a later valid-until for the peer in the configuration file"),
        Cause::Clock(_) | Cause::Suspended => Some("try again: this host interrupted the attempt"),
        Cause::Ended(_) => Some("try again: the server had accepted this host"),
        Cause::Connection(ConnectionError::TimedOut) | Cause::Silent(_) => None,
        Cause::Connection(_) => {
            Some("check address and port, and that both ends have the same version of keypadd")
        }
        // About the name, or this host.
        Cause::NoSuchHost(_) | Cause::SlowLookup | Cause::Srv(_) | Cause::NotSent(_) => None,
    };
    tried.failures.iter().find_map(hint).map(Into::into)
}

/// What to do if this host let no packet out. Where it lets some out, as without IPv6, the servers
/// at those addresses are to blame.
fn hint_of_sending(all: &[Tried]) -> Option<String> {
    let mut failures = all.iter().flat_map(|tried| &tried.failures);
    let Cause::NotSent(first) = failures.next()?.cause else { return None };
    if !failures.all(|failure| matches!(failure.cause, Cause::NotSent(_))) {
        return None;
    }
    let hint = match first {
        NotSent::NoRoute | NotSent::NoHost | NotSent::InterfaceDown | NotSent::NoAddress => {
            "this host has no route there: see `ip address` and `ip route`"
        }
        NotSent::Rejected => "allow UDP to that port in the firewall of this host",
        NotSent::Prohibited => {
            "use the server's own address, not a broadcast address; see `ip route` for routes that \
             prohibit it"
        }
        NotSent::TooLong => {
            "the MTU of the interface must be at least 1228 for IPv4, and 1248 for IPv6: see \
             `ip link`"
        }
    };
    Some(hint.into())
}

/// The host of an address.
fn host_of(server: &ServerEntry) -> String {
    match server {
        ServerEntry::Address(address) => address.host.to_string(),
        ServerEntry::Service(name) => name.to_string(),
    }
}

/// The bracketed form of an IPv6 address whose last group may have been meant as the port, as in
/// `fd00::2:4433`.
fn in_brackets(server: &ServerEntry) -> Option<String> {
    let ServerEntry::Address(ServerAddress {
        host: Host::Address(IpAddr::V6(address)),
        port: DEFAULT_PORT,
    }) = server
    else {
        return None;
    };
    let text = address.to_string();
    let (before, port) = text.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_address = before.parse::<Ipv6Addr>().is_ok();
    (is_port && is_address).then(|| format!("if {port} is the port, write [{before}]:{port}"))
}

#[cfg(test)]
mod tests;

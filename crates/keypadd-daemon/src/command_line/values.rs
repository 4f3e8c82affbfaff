//! Parses the values that only the daemon's command line has. `keypadd-cli` parses those of both
//! programs, `keypadd-config` those of a configuration file too.

use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, is_private, shown};
pub(super) use keypadd_config::values::{
    BadValue, Ranged, cipher_backend, dynamic_forward, local_forwards, public_key, remote_forwards,
    switch, target,
};
use keypadd_config::values::{bad, duration, peer_name, servers};
use keypadd_provider::PublicKey;
use keypadd_tunnel::{DEFAULT_PORT, Host, Invitation, InvitationError};

/// A peer of `--allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Its name in logs and metrics, if given.
    pub(crate) name: Option<String>,
    /// Its key.
    pub(crate) key: PublicKey,
}

/// The server of `connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// Its addresses, as typed; they are valid.
    At(String),
    /// Its name in the configuration file.
    Named(String),
}

/// Where `join` finds the invitation.
#[derive(Clone, Debug)]
pub(crate) enum InvitationFrom {
    /// On standard input.
    Stdin,
    /// On the command line.
    Given(Arc<Invitation>),
}

/// A value that is checked after clap, with its flag in the error.
pub(crate) fn checked<T>(flag: &str, value: Result<T, BadValue>) -> Result<T, Error> {
    value.map_err(|BadValue { cause, hint }| {
        Error::new(Exit::Usage, format!("{flag}: {cause}")).hint(hint)
    })
}

/// Longest lifetime of an invitation: others may have seen it.
const EXPIRES_MAX: Duration = Duration::from_secs(600);

/// `-` or an invitation, which is never quoted.
pub(super) fn invitation_or_stdin(text: &str) -> Result<InvitationFrom, BadValue> {
    match text {
        "-" => Ok(InvitationFrom::Stdin),
        text => invitation(text).map(|invitation| InvitationFrom::Given(Arc::new(invitation))),
    }
}

/// An invitation.
pub(crate) fn invitation(text: &str) -> Result<Invitation, BadValue> {
    text.parse().map_err(|error: InvitationError| {
        let hint = match error {
            InvitationError::Version(_) => "run the same version of keypadd on both ends",
            _ => "copy the whole invitation that `keypadd invite` prints on the other host",
        };
        bad(error.to_string(), hint)
    })
}

/// How long an invitation lasts.
pub(crate) fn expires(text: &str) -> Result<Duration, BadValue> {
    match duration(text)? {
        time if time <= EXPIRES_MAX => Ok(time),
        _ => Err(bad(format!("{} is too long", shown(text)), "at most 10m")),
    }
}

/// A host without a port.
pub(crate) fn host(text: &str) -> Result<Host, BadValue> {
    let hint = "a name or an address, as in lab.example or 192.0.2.7";
    match text.parse() {
        Ok(host) if !is_private(text) => Ok(host),
        _ => Err(bad(format!("{} is not a host", shown(text)), hint)),
    }
}

/// A port to connect to.
pub(super) fn port(text: &str) -> Result<u16, BadValue> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(bad(format!("{} is not a port", shown(text)), "from 1 to 65535, as in 4433")),
    }
}

/// `HOST[:PORT][,HOST[:PORT]]...` or `@NAME`.
pub(super) fn server_or_name(text: &str) -> Result<Server, BadValue> {
    match text.split_once('@') {
        Some(("", name)) if name.contains(':') => Err(bad(
            format!("{}: a peer's port is in the configuration file", shown(text)),
            "leave it out, or name a host",
        )),
        Some(("", name)) => peer_name(name).map(Server::Named),
        Some(_) => Err(bad(
            format!("{}: keypadd takes no user name", shown(text)),
            "leave it out: HOST, or @NAME from the configuration file",
        )),
        None => servers(text, DEFAULT_PORT).map(|_| Server::At(text.to_owned())),
    }
}

/// `@NAME`, without the `@`.
pub(super) fn at_name(text: &str) -> Result<String, BadValue> {
    peer_name(text.strip_prefix('@').unwrap_or(text))
}

/// `[NAME=]PUBKEY`. A key ends in `=`, so a name is what has text after the `=`.
pub(super) fn allowed(text: &str) -> Result<Allowed, BadValue> {
    let text = text.trim();
    let (name, key) = match text.split_once('=') {
        Some((name, key)) if !key.is_empty() && !is_private(name) => (Some(name), key),
        _ => (None, text),
    };
    let key = public_key(key)?;
    Ok(Allowed { name: name.map(peer_name).transpose()?, key })
}

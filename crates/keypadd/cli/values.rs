//! Parses the values that only the daemon's command line has. `keypadd-cli` parses those of both
//! programs, `keypadd-config` those of a configuration file too.

pub(super) use keypadd_config::values::{BadValue, cipher_backend, public_key, switch, target};
use keypadd_config::values::{peer_name, server};
use keypadd_provider::PublicKey;
use keypadd_tunnel::ServerAddress;

use crate::error::is_private;

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
    /// Its address.
    At(ServerAddress),
    /// Its name in the configuration file.
    Named(String),
}

/// `HOST[:PORT]` or `@NAME`.
pub(super) fn server_or_name(text: &str) -> Result<Server, BadValue> {
    match text.strip_prefix('@') {
        Some(name) => peer_name(name).map(Server::Named),
        None => server(text).map(Server::At),
    }
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

//! Reads what only the daemon's command line has: peers of `--allow`. What `keypadd-bench` has as well is read by
//! `keypadd-cli`, and what a configuration file can say by `keypadd-config`.

pub(super) use keypadd_cli::values::{path_parser, pool_budget, switch};
use keypadd_config::values::peer_name;
pub(super) use keypadd_config::values::{
    BadValue, cipher_backend, congestion, cpu_percent, drain_timeout, duration, dynamic_forward,
    kex, listen_permit, local_forward, loops, max_forwards, permit, pool_mode, public_key,
    remote_forward, server, socket, spin, suite, target,
};
use keypadd_provider::PublicKey;

use crate::error::is_private;

/// A peer of `--allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// What it is called in logs and metrics, if the user named it.
    pub(crate) name: Option<String>,
    /// Its key.
    pub(crate) key: PublicKey,
}

/// `[NAME=]PUBKEY`. A key's text ends in `=`, a name is followed by more.
pub(super) fn allowed(text: &str) -> Result<Allowed, BadValue> {
    let text = text.trim();
    let (name, key) = match text.split_once('=') {
        Some((name, key)) if !key.is_empty() && !is_private(name) => (Some(name), key),
        _ => (None, text),
    };
    let key = public_key(key)?;
    Ok(Allowed { name: name.map(peer_name).transpose()?, key })
}

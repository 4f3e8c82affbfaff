//! What only a command line has: peers of `--allow`, switches, this host's memory as a bound. Everything
//! that a configuration file can say as well is read by `keypadd-config`. `usage` puts the flag's name in
//! front of what is wrong.

use keypadd_config::values as config;
use keypadd_config::values::peer_name;
pub(super) use keypadd_config::values::{
    BadValue, cipher_backend, congestion, drain_timeout, duration, dynamic_forward, kex,
    listen_permit, local_forward, log_filter, path, permit, public_key, remote_forward, server,
    socket, suite, target,
};
use keypadd_provider::PublicKey;

use crate::error::{is_private, shown};

fn bad(cause: impl Into<String>, hint: impl Into<String>) -> BadValue {
    BadValue { cause: cause.into(), hint: hint.into() }
}

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

/// A flag without a value is on; its variable says yes or no.
pub(super) fn switch(text: &str) -> Result<bool, BadValue> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(bad(format!("{} is neither true nor false", shown(text)), "true or false")),
    }
}

/// `KEYPADD_VERBOSE`: how often `-v` would stand there.
pub(super) fn verbosity(text: &str) -> Result<u8, BadValue> {
    let cause = || format!("{} is not a number", shown(text));
    text.parse().map_err(|_| bad(cause(), "a number: 1 for -v, 2 for -vv"))
}

/// `--pool-budget`, which this host's memory bounds.
pub(super) fn pool_budget(text: &str) -> Result<usize, BadValue> {
    config::pool_budget(text, memory_bytes())
}

/// This host's memory.
pub(crate) fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Fields of C's types, 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

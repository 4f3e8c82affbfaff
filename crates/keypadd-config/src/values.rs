//! Parses the value of a flag or a key of the file. An invalid one becomes a [`BadValue`]: a cause
//! that quotes it and a hint with a valid one; the caller prepends the name of the flag or key.
//! Does not know where the text came from.
//!
//! Every function here returns an error if the text is not a valid value.

mod addresses;
mod amounts;
mod names;
mod networks;
mod ranges;

use std::error::Error as StdError;
use std::fmt;

pub use addresses::{
    dynamic_forward, listen_permit, local_forward, local_forwards, permit, public_key,
    remote_forward, remote_forwards, server, server_entry, servers, socket, target,
};
pub use amounts::{
    cpu_percent, duration, duration_or_zero, key_lifetime, loops, max_forwards, max_rate,
    max_sessions, peer_timeout, pool_budget, pool_budget_of_host, size_or_zero, spin, valid_until,
};
pub use names::{
    LogFormat, PoolMode, cipher_backend, congestion, file, kex, log_filter, log_format, on_off,
    path, peer_name, pool_mode, server_id, suite, switch, user_name,
};
pub(crate) use networks::DEVICE_CHARS_MAX;
pub use networks::{
    DeviceAddress, RouteMode, device_address, device_mtu, device_name, network, network_permit,
    route_mode,
};
pub use ranges::Ranged;

/// Why a value is invalid, and a valid one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// Follows the flag's or the key's name: `'x' is not ...`.
    pub cause: String,
    /// A valid value, or where to find one.
    pub hint: String,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl StdError for BadValue {}

/// The error for a value.
pub fn bad(cause: impl Into<String>, hint: impl Into<String>) -> BadValue {
    BadValue { cause: cause.into(), hint: hint.into() }
}

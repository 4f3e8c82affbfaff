//! Reads what only command lines have: switches, counted flags, paths, this host's memory as a bound. What a
//! configuration file can say as well is read by `keypadd-config`.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use keypadd_config::values::{self as config, BadValue};

use crate::error::shown;

/// A value that cannot be used, and one that can.
pub fn bad(cause: impl Into<String>, hint: impl Into<String>) -> BadValue {
    BadValue { cause: cause.into(), hint: hint.into() }
}

/// The path of a file or directory.
pub fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(config::path)
}

/// A flag without a value is on; its variable says yes or no.
pub fn switch(text: &str) -> Result<bool, BadValue> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(bad(format!("{} is neither true nor false", shown(text)), "true or false")),
    }
}

/// `KEYPADD_VERBOSE`: how often `-v` would stand there.
pub(crate) fn verbosity(text: &str) -> Result<u8, BadValue> {
    let cause = || format!("{} is not a number", shown(text));
    text.parse().map_err(|_| bad(cause(), "a number: 1 for -v, 2 for -vv"))
}

/// `--pool-budget`, which this host's memory bounds.
pub fn pool_budget(text: &str) -> Result<usize, BadValue> {
    config::pool_budget(text, memory_bytes())
}

/// This host's memory.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Fields of C's types, 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

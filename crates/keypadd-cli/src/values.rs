//! Parses the values that only command lines have: counted flags, paths, sizes bounded by
//! this host's memory. `keypadd-config` parses those of a configuration file too.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use keypadd_config::values::{self as config, BadValue, bad};

use crate::error::shown;
use crate::memory::host_bytes;

/// The path of a file or directory.
pub fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(config::path)
}

/// `KEYPADD_VERBOSE`: the number of `-v` flags.
pub(crate) fn verbosity(text: &str) -> Result<u8, BadValue> {
    let cause = || format!("{} is not a number", shown(text));
    text.parse().map_err(|_| bad(cause(), "1 for -v, 2 for -vv"))
}

/// `--pool-budget`, which this host's memory bounds.
pub fn pool_budget(text: &str) -> Result<usize, BadValue> {
    config::pool_budget_of_host(text, host_bytes())
}

//! Reads a command line, starts logging, reads key files, ends on signals and says what went wrong: what the
//! programs `keypadd` and `keypadd-bench` have in common. Knows no verb of either.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod error;
pub mod keyfile;
pub mod logging;
mod parse;
pub mod refusal;
pub mod results;
pub mod shutdown;
mod usage;
pub mod values;

pub use parse::{definition, read};
pub use shutdown::block_on;

//! Parses command lines, sets up logging, reads key files, handles signals and reports errors, for
//! both programs, `keypadd` and `keypadd-bench`. Knows no command of either.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod error;
pub mod flags;
pub mod keyfile;
mod log_output;
pub mod logging;
pub mod manual;
pub mod memory;
mod parse;
pub mod refusal;
pub mod results;
pub mod shutdown;
pub mod staged;
mod usage;
mod user_directory;
pub mod values;

pub use parse::{inconsistencies, read};
pub use shutdown::block_on;
pub use user_directory::{state_directory, user_directory};

//! The configuration file: from text to settings that make sense together.
//!
//! Also what command line and file have in common: the texts of values and how text from outside may be
//! repeated. Knows no files, sockets or processes: the program reads the file, and says what is
//! wrong with it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod changes;
mod config;
mod document;
mod fault;
pub mod keys;
mod peer;
pub mod quote;
pub mod values;

pub use changes::Changes;
pub use config::{CONNECT_TIMEOUT, Config, DRAIN_TIMEOUT, KeyPlace, POOL_BUDGET_BYTES, Refused};
pub use fault::Fault;
pub use peer::{Dialled, Incoming, Peer};

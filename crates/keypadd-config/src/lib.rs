//! Reads the configuration file, and files with more peers, into checked settings, and parses the
//! values that file and command line share.
//!
//! Text in, settings or faults out: knows no files, sockets, processes or clocks.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addition;
mod changes;
mod config;
mod document;
mod expiry;
mod fault;
mod key;
mod networks;
mod peer;
pub mod quote;
mod settings;
mod similar;
pub mod values;

pub use addition::{AddPeerError, Addition, NewPeer, Role};
pub use changes::Changes;
pub use config::{Config, InvalidConfig, KeyPlace, Part, Texts};
pub use expiry::Expiry;
pub use fault::{Fault, Place};
pub use key::{Flag, Key, Kind, Reload, Scope};
pub use networks::Networks;
pub use peer::{Incoming, Outgoing, Peer};
pub use settings::{PeerSettings, Setting, Settings, Shown, Source, offered, values_of};
pub use similar::nearest;

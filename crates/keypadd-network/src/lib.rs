//! Decides about the packets of routed networks: which are valid, which may pass and which are
//! answered with an error.
//!
//! A packet comes from a peer or goes to one. [`Packet::parse`] reads its headers; [`Routes`] says
//! which peer an address is behind; a [`Permit`] says what a peer may begin here. Any bytes give a
//! packet or an error: a peer chooses them. Must never know devices, sockets, keys, logs, a clock or
//! a source of random numbers.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod checksum;
mod dropped;
mod martian;
mod packet;
mod permit;
mod prefix;
mod routes;
#[cfg(test)]
mod samples;

pub use dropped::{Dropped, Reason, Verdict};
pub use packet::{Malformed, Packet, Part, Ports, Transport};
pub use permit::{Permit, PermitError, PermitFault};
pub use prefix::{Prefix, PrefixError};
pub use routes::{Overlap, Routes};

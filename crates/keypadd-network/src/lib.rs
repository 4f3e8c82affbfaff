//! Decides about the packets of routed networks: which are valid, which may pass and which are
//! answered with an error.
//!
//! A packet comes from a peer or goes to one. [`Packet::parse`] reads its headers, and the
//! [`Rules`] of the peer decide: [`Routes`] say which peer an address is behind, a [`Permit`] what
//! a peer may begin here, [`Flows`] what began here and may be answered. [`Answers`] makes errors
//! of ICMP, and [`clamp_mss`] has TCP begin with segments that fit. [`PacketQueue`] shares the path
//! among flows; [`SuperPacket`] and [`Coalescer`] exchange up to 64 KiB with a device at once. Any
//! bytes give a packet or an error: a peer chooses them. Must never know devices, sockets, keys,
//! logs, a clock or a source of randomness.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod checksum;
mod coalescer;
mod codel;
mod device_header;
mod dropped;
mod flows;
mod host;
#[cfg(test)]
mod limits;
mod martian;
mod mss;
mod packet;
mod packet_queue;
mod permit;
mod port_range;
mod prefix;
mod routes;
mod rules;
#[cfg(test)]
mod samples;
mod super_packet;

pub use answers::{ANSWER_BYTES_MAX, Answers, Problem};
pub use coalescer::{Coalescer, Joined};
pub use device_header::DEVICE_HEADER_BYTES;
pub use dropped::{Reason, Verdict};
pub use flows::Flows;
pub use host::HostAddresses;
pub use mss::clamp_mss;
pub use packet::{Malformed, Packet, Part, Ports, Transport};
pub use packet_queue::{Class, Classes, PacketQueue, Signals};
pub use permit::{Permit, PermitError, PermitFault};
pub use port_range::{PortRange, PortRangeError};
pub use prefix::{Prefix, PrefixError};
pub use routes::{Overlap, Routes};
pub use rules::Rules;
pub use super_packet::{Shape, SuperPacket};

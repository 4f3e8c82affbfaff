//! Generates request/response traffic with known bytes and measures latency through a tunnel.
//! Provides both ends of a tunnel in one process, slow links between them, the bench service, and
//! pool counters.
//!
//! Used by `demo` and `keypadd-bench`. Knows no workloads, statistics or reports.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod counts;
mod datagrams;
mod ends;
mod exchange;
mod host;
mod latencies;
mod link;
mod path;
mod requester;
mod service;

pub use counts::{Counts, Gauges};
pub use datagrams::{SetOnDrop, Stamp, clock_ns, open_datagrams};
pub use ends::{EndSettings, TunnelArm, connect, ethernet, listen, new_key, serve};
pub use exchange::{Exchange, HEADER_BYTES, PatternBytes, STEP_BYTES};
pub use host::Host;
pub use latencies::Latencies;
pub use link::{Forwarder, Link, LinkCounts, LinkSettings};
pub use path::{Addresses, End, Path, PathFault, Void};
pub use requester::{Answered, Broken, Due, PATIENCE, Requester, Requests, even};
pub use service::Service;

//! Measurements of keypadd: seeded traffic, arms that take turns, statistics, reports.
//!
//! Runs both ends of a tunnel, or the near end of one whose far end permits it, sends traffic through
//! it and says what that cost, with intervals. It measures what ships and adds nothing to the way of
//! the data. Knows no command line and prints nothing.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arm;
mod background;
mod counts;
mod emulate;
mod exchange;
mod exhaustion;
mod figure;
mod host;
mod interleave;
mod kex;
mod latencies;
mod link;
pub mod machine;
#[cfg(test)]
mod made_up;
mod namespace;
pub mod output;
mod path;
mod quota;
mod rehearsal;
pub mod report;
mod reproduce;
mod requester;
pub mod results;
mod schedule;
mod service;
pub mod statistics;
pub mod text;
pub mod verdict;
mod workload;

pub use arm::{Arm, TunnelArm};
pub use counts::{Counts, Gauges};
pub use emulate::CipherRate;
pub use exchange::Exchange;
pub use exhaustion::{Exhausted, Exhaustion, Patience};
pub use host::Host;
pub use interleave::{
    INTERRUPTED, Progress, Rounds, Runs, Tell, Turn, Workload, take_turns, try_out,
};
pub use kex::{Handshakes, Kex};
pub use latencies::Latencies;
pub use link::{Link, LinkSettings};
pub use namespace::FourHosts;
pub use path::{Path, PathError, PathFault, PathSettings, Place};
pub use rehearsal::{CannotOffer, rehearse};
pub use reproduce::{Effort, Notebook, OtherRun, Paper, Reproduced, Reproduction};
pub use requester::{Answered, Broken, PATIENCE, Requester, Requests};
pub use schedule::{Due, Typing, arrivals, even, typing};
pub use service::Service;
pub use workload::{
    Bulk, BulkMeasured, FileMix, Files, FilesMeasured, Mixed, MixedMeasured, Terminal,
};

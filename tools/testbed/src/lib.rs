//! Builds test networks on one machine: a line model, emulated paths, network namespaces, tunnels,
//! CPU quotas, and an attacking relay. Knows nothing of the payload.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod capture;
mod cleanup;
pub mod dns;
mod hosts;
pub mod limits;
pub mod line;
mod namespace;
pub mod path;
mod processes;
pub mod procstat;
pub mod programs;
mod quota;
mod relay;
pub mod tunnel;

pub use capture::{Capture, LinkAddress, Seen};
pub use cleanup::Cleanup;
pub use hosts::TwoHosts;
pub use line::{Line, LineCounts, LineSettings};
pub use namespace::{FourHosts, Namespace};
pub use path::{End, Path};
pub use processes::Processes;
pub use quota::{PERIOD, Quota};
pub use relay::{Counts, Datagram, Direction, Relay};

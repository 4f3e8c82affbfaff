//! Builds networks to measure and test on, on one machine: a line as a model, links and paths that behave like
//! it, hosts that the kernel tells apart, tunnels between them, a slower processor, a relay that loses, alters
//! and repeats. Knows nothing of what is carried.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cleanup;
mod hosts;
pub mod line;
pub mod link;
mod namespace;
pub mod path;
pub mod procstat;
pub mod programs;
mod quota;
mod relay;
pub mod tunnel;

pub use cleanup::Cleanup;
pub use hosts::{End, TwoHosts};
pub use line::{Line, LineCounts, LineSettings};
pub use link::{Link, LinkSettings};
pub use namespace::{FourHosts, Namespace};
pub use path::Path;
pub use quota::{PERIOD, Quota};
pub use relay::{Counts, Direction, Relay};

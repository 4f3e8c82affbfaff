//! Builds networks to measure and test on, on one machine: a link with a delay and a rate, hosts that the kernel
//! tells apart, a slower processor, a relay that loses, alters and repeats. Knows nothing of what is carried.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod line;
pub mod link;
mod namespace;
mod quota;
mod relay;

pub use link::{Link, LinkSettings};
pub use namespace::{FourHosts, Namespace};
pub use quota::{PERIOD, Quota};
pub use relay::{Counts, Direction, Fate, Impairments, Relay};

//! Precomputes keystream on idle CPU and hands it to packets.
//!
//! The unit is a chunk: the keystream of 64 consecutive packet numbers of one key, bound to those
//! numbers. A filler thread of class SCHED_IDLE generates chunks and pushes them through a
//! wait-free queue to a [`Lane`], the consumer's end, which belongs to one (connection, direction,
//! key phase). Nobody waits: if a lane has no chunk for a packet, the caller generates the same
//! bytes inline.
//!
//! Knows chunks, queues, budgets and fillers; no suites, TLS, packet headers or tokio types. The
//! idea is Mark Lomas's, "Encrypting Network Traffic".

mod arena;
mod chunk;
mod cpu_share;
mod demand;
mod feed;
mod filler;
mod filler_state;
mod free_units;
mod lane;
mod lane_state;
mod lane_view;
mod plan;
mod pool;
mod saturation;
mod sync;
mod targets;
mod thread;

pub use chunk::{BODY_BYTES, HEAD_BYTES, PAD_BYTES, Part};
pub use demand::{Direction, PoolAllowance, Traffic};
pub use filler::{Filler, Step};
pub use lane::{Coverage, Lane, PartLevel, Peek, Taken};
pub use lane_view::Stage;
pub use pool::{NotLocked, Pool, PoolSettings, PoolSnapshot};
pub use thread::{FillerFault, FillerHost, Kernel, Priority};

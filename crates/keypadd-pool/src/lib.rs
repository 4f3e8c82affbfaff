//! A pool of keystream that idle CPU fills ahead of need.
//!
//! Knows chunks, queues, budgets and fillers; never TLS, a packet header or a tokio type.
//! What moves is a chunk: the keystream of 64 consecutive packet numbers of one key, bound to
//! those numbers. A filler of class SCHED_IDLE makes chunks and pushes them through a wait-free
//! queue to a [`Lane`], the consumer's end, which belongs to one (connection, direction, key
//! phase). Nobody waits: a lane that has no chunk for a packet says so, and the caller generates
//! the same bytes inline.
//!
//! The idea is Mark Lomas's, "Encrypting Network Traffic".

mod arena;
mod chunk;
mod cpu_share;
mod demand;
mod filler;
mod lane;
mod plan;
mod pool;
mod shared;
mod stock;
mod sync;
mod targets;
mod thread;

pub use chunk::{BODY_BYTES, HEAD_BYTES, PAD_BYTES, Part};
pub use demand::{Allowance, Direction, Traffic};
pub use filler::{Filler, Step};
pub use lane::{Coverage, Lane, PartLevel, Peek, Taken};
pub use plan::Stage;
pub use pool::{NotLocked, Pool, PoolSettings, PoolSnapshot};
pub use thread::{FillerFault, FillerHost, Kernel, Priority};

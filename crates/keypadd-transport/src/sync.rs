//! Names the atomics for which `tests/loom.rs` substitutes loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

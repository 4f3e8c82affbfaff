//! Names the atomics for which `tests/loom.rs` substitutes those of loom.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

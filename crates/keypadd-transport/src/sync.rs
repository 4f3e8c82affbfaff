//! Names the atomics that `tests/loom.rs` replaces by loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

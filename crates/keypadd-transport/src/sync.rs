//! Re-exports the atomics that `tests/loom.rs` replaces with loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

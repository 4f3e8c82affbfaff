//! Selects the synchronization primitives: std and rtrb, or loom's under `cfg(loom)`, with which
//! `tests/loom.rs` explores thread interleavings.

#[cfg(not(loom))]
mod shipped {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
    pub(crate) use std::sync::{Mutex, mpsc};
    pub(crate) use std::thread;

    pub(crate) use rtrb::{Consumer, Producer, RingBuffer};
}

#[cfg(loom)]
mod modeled {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, mpsc};
    pub(crate) use loom::thread;

    pub(crate) use super::queue::{Consumer, Producer, RingBuffer};
}

#[cfg(loom)]
mod queue;

#[cfg(loom)]
pub(crate) use modeled::*;
#[cfg(not(loom))]
pub(crate) use shipped::*;

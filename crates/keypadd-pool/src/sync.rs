//! What threads share, in two makings: the one that ships, and under `cfg(loom)` the one with which
//! `tests/loom.rs` goes through the orders in which things can happen. Of the queues only the inside
//! is another there: a list behind a lock.

#[cfg(not(loom))]
mod shipped {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard, mpsc};
    pub(crate) use std::thread;

    pub(crate) use rtrb::{Consumer, Producer, RingBuffer};
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard, mpsc};
    pub(crate) use loom::thread;

    pub(crate) use super::queue::{Consumer, Producer, RingBuffer};
}

#[cfg(loom)]
mod queue;

#[cfg(loom)]
pub(crate) use modelled::*;
#[cfg(not(loom))]
pub(crate) use shipped::*;

//! Signals that a sending phase has reached its usage limit.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// The usage limit of the sending phases of one connection, in bytes (`limits.rs`).
#[derive(Debug, Default)]
pub(crate) struct UsageLimit {
    /// One above the last phase that has reached it.
    phases: AtomicU64,
    waiter: AtomicWaker,
}

impl UsageLimit {
    pub(crate) fn reach(&self, phase: u64) {
        self.phases.fetch_max(phase + 1, Relaxed);
        self.waiter.wake();
    }

    pub(crate) fn is_reached(&self, phase: u64) -> bool {
        self.phases.load(Relaxed) > phase
    }

    /// Waits until this phase, or a later one, has reached it. One waiter at a time.
    pub(crate) async fn wait(&self, phase: u64) {
        poll_fn(|context| {
            self.waiter.register(context.waker());
            if self.is_reached(phase) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

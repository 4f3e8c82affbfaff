//! Lets a key request that its connection be closed.
//!
//! A key must neither panic nor return an error to quinn, which would panic under its connection
//! lock. It latches a fault instead, which the connection's supervisor waits for.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// The peer did not follow a key update in time (docs/protocol.md, "Key phases and limits").
    #[error("a key reached its confidentiality limit")]
    LimitReached = 1,
    /// quinn tried to seal a packet number not above the last one.
    #[error("a packet number was about to repeat under one key")]
    NumberRepeated = 2,
    /// quinn tried to seal a payload too long for the counter.
    #[error("a packet was too long for the suite's block counter")]
    PayloadTooLong = 3,
    /// quinn tried to seal with a key phase that it had left.
    #[error("a retired key was used to seal a packet")]
    KeyRetired = 4,
    /// A bug of ours, or a packet after any other fault.
    #[error("internal error in packet protection")]
    Internal = 5,
}

/// One connection's fault; the first one stays.
#[derive(Debug, Default)]
pub(crate) struct FaultLatch {
    fault: AtomicU8,
    supervisor: AtomicWaker,
}

impl FaultLatch {
    pub(crate) fn latch(&self, fault: KeyFault) {
        if self.fault.compare_exchange(0, fault as u8, Relaxed, Relaxed).is_ok() {
            self.supervisor.wake();
        }
    }

    /// Waits for the first fault. One waiter at a time.
    pub(crate) async fn wait(&self) -> KeyFault {
        poll_fn(|context| {
            self.supervisor.register(context.waker());
            match self.fault() {
                Some(fault) => Poll::Ready(fault),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn fault(&self) -> Option<KeyFault> {
        match self.fault.load(Relaxed) {
            1 => Some(KeyFault::LimitReached),
            2 => Some(KeyFault::NumberRepeated),
            3 => Some(KeyFault::PayloadTooLong),
            4 => Some(KeyFault::KeyRetired),
            5 => Some(KeyFault::Internal),
            _ => None,
        }
    }
}

//! Limits how long one connection's datagrams and deliveries hold up the other connections of its loop.
//!
//! A packet may have hundreds of frames with a few bytes each for as many sockets, and each takes a
//! system call. Whoever handles packets or delivers bytes asks after each whether to leave the rest for
//! later. Knows times only.

use std::time::{Duration, Instant};

/// Calls that go without a reading of the clock: most rounds of a connection make fewer.
const CALLS: u32 = 8;

/// What a connection may take of a round.
#[derive(Debug)]
pub(crate) struct TimeShare {
    /// `None` for a share without end.
    clock: Option<fn() -> Instant>,
    share: Duration,
    /// Set at the first reading.
    until: Option<Instant>,
    calls: u32,
}

impl TimeShare {
    pub(crate) fn new(clock: Option<fn() -> Instant>, share: Duration) -> Self {
        Self { clock, share, until: None, calls: 0 }
    }

    /// Begins the share then, and not at the first reading.
    pub(crate) fn since(self, began: Option<Instant>) -> Self {
        Self { until: began.map(|at| at + self.share), ..self }
    }

    /// Counts a call, and returns whether to stop after it.
    pub(crate) fn is_used_up(&mut self) -> bool {
        self.calls += 1;
        let Some(clock) = self.clock.filter(|_| self.calls.is_multiple_of(CALLS)) else {
            return false;
        };
        let now = clock();
        now >= *self.until.get_or_insert(now + self.share)
    }
}

//! Limits how long one connection holds up the other connections of its loop.
//!
//! A packet may have hundreds of frames with a few bytes each for as many sockets, and each takes a
//! system call. Whoever does something of which there may be much asks after each piece whether to
//! leave the rest for later. Knows times only.

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
    is_over: bool,
}

impl TimeShare {
    pub(crate) fn new(clock: Option<fn() -> Instant>, share: Duration) -> Self {
        Self { clock, share, until: None, calls: 0, is_over: false }
    }

    /// No share of this round.
    pub(crate) fn none() -> Self {
        Self { is_over: true, ..Self::new(None, Duration::ZERO) }
    }

    /// Begins the share then, and not at the first reading.
    pub(crate) fn since(self, began: Option<Instant>) -> Self {
        Self { until: began.map(|at| at + self.share), ..self }
    }

    /// Counts a call, and returns whether to stop after it.
    pub(crate) fn is_used_up(&mut self) -> bool {
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS) { self.is_used_up_by_now() } else { self.is_over }
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    /// Returns whether to stop after a call that takes much longer than reading the clock.
    pub(crate) fn is_used_up_by_now(&mut self) -> bool {
        if let Some(clock) = self.clock {
            let now = clock();
            self.is_over = now >= *self.until.get_or_insert(now + self.share);
        }
        self.is_over
    }

    /// Whether to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Lets other work begin: none waits for good because others always use up the share.
    pub(crate) fn go_on(&mut self) {
        self.is_over = false;
    }
}

//! Limits the CPU time that one connection's datagrams take from the others of its loop.
//!
//! A datagram is usually handled in microseconds, but a peer can make one that takes a thousand
//! times as long: single bytes with gaps between them, which `quinn-proto` puts in order. Many of
//! them would keep everyone's datagrams waiting in the socket. So rounds that take long are
//! measured, CPU time beyond the usual is charged to its connection, and the datagrams of one that
//! has used up its share are dropped, as a network may do. Knows times only.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A round that receives for longer may contain costly datagrams. Rounds of bulk take 2 ms.
const LONG_ROUND: Duration = Duration::from_millis(5);

/// How long rounds are measured after a long one. Reading the clock of a thread takes as long as
/// handling a datagram.
const MEASURED_TIME: Duration = Duration::from_secs(1);

/// CPU time within which handling a datagram is usual, also as a multiple of the shortest of the
/// loop: on a slow machine the usual takes longer.
const USUAL: Duration = Duration::from_micros(100);
const USUAL_TIMES: u32 = 100;

/// The share of a core that the excess may take: one in this many.
const SHARE: u32 = 10;

/// The longest excess that a connection may have used in advance of its share.
const ADVANCE: Duration = Duration::from_millis(20);

/// Time between warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Measures a loop's handling of datagrams.
#[derive(Debug)]
pub(crate) struct CostMeter {
    /// CPU time of this thread.
    clock: fn() -> Duration,
    measured_until: Option<Instant>,
    /// Whether this round is measured.
    measures: bool,
    /// The last reading of `clock`.
    reading: Duration,
    /// Datagrams handled since.
    handled: u32,
    shortest: Duration,
    warned: Option<Instant>,
}

impl CostMeter {
    pub(crate) fn of_this_thread() -> Self {
        let clock = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        Self::new(clock, None)
    }

    /// A meter with a clock of CPU time, which measures all rounds until this time.
    pub(crate) fn new(clock: fn() -> Duration, measured_until: Option<Instant>) -> Self {
        Self {
            clock,
            measured_until,
            measures: false,
            reading: Duration::ZERO,
            handled: 0,
            shortest: Duration::MAX,
            warned: None,
        }
    }

    /// Begins a round.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.measures = self.measured_until.is_some_and(|until| until > now);
        if self.measures {
            (self.reading, self.handled) = ((self.clock)(), 0);
        }
    }

    /// Ends a round that began to receive at `began`.
    pub(crate) fn end(&mut self, began: Instant, now: Instant) {
        self.measures = false;
        if now.saturating_duration_since(began) >= LONG_ROUND {
            self.measured_until = self.measured_until.max(Some(now + MEASURED_TIME));
        }
    }

    /// Counts a datagram that a connection has handled.
    pub(crate) fn count(&mut self) {
        self.handled += u32::from(self.measures);
    }

    /// CPU time beyond the usual that the datagrams counted since the last reading have taken.
    pub(crate) fn excess(&mut self) -> Duration {
        let handled = std::mem::take(&mut self.handled);
        if handled == 0 {
            return Duration::ZERO;
        }
        let before = std::mem::replace(&mut self.reading, (self.clock)());
        let spent = self.reading.saturating_sub(before);
        self.shortest = self.shortest.min(spent / handled);
        let usual = USUAL.max(self.shortest.saturating_mul(USUAL_TIMES));
        spent.saturating_sub(usual * handled)
    }

    /// Whether a warning is due.
    pub(crate) fn may_warn(&mut self, now: Instant) -> bool {
        let is_due =
            self.warned.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL);
        if is_due {
            self.warned = Some(now);
        }
        is_due
    }
}

/// The excess of one connection that its share has not paid for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExcessCost {
    /// When the share will have paid for it.
    paid_at: Option<Instant>,
}

impl ExcessCost {
    pub(crate) fn charge(&mut self, excess: Duration, now: Instant) {
        if !excess.is_zero() {
            let from = self.paid_at.map_or(now, |at| at.max(now));
            self.paid_at = Some(from + excess * SHARE);
        }
    }

    /// Whether there is any.
    pub(crate) fn is_any(&self, now: Instant) -> bool {
        self.paid_at.is_some_and(|at| at > now)
    }

    /// Whether the connection's datagrams are dropped.
    pub(crate) fn is_too_high(&self, now: Instant) -> bool {
        self.paid_at.is_some_and(|at| at.saturating_duration_since(now) > ADVANCE * SHARE)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    thread_local! {
        static CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    fn handle(meter: &mut CostMeter, each: Duration, datagrams: u32) -> Duration {
        CPU.set(CPU.get() + each * datagrams);
        for _ in 0..datagrams {
            meter.count();
        }
        meter.excess()
    }

    /// Begins a round; returns whether it is measured.
    fn begins(meter: &mut CostMeter, now: Instant) -> bool {
        meter.begin(now);
        meter.measures
    }

    fn measuring(now: Instant) -> CostMeter {
        let mut meter = CostMeter::new(|| CPU.get(), None);
        assert!(!begins(&mut meter, now));
        meter.end(now, now + LONG_ROUND);
        assert!(begins(&mut meter, now + LONG_ROUND));
        meter
    }

    #[test]
    fn rounds_are_measured_for_a_second_after_a_long_one() {
        let now = Instant::now();
        let mut meter = measuring(now);
        let end = now + LONG_ROUND + MEASURED_TIME;
        assert!(begins(&mut meter, end - MICROSECOND));
        assert!(!begins(&mut meter, end));
        meter.end(end, end + LONG_ROUND - MICROSECOND);
        assert!(!begins(&mut meter, end + LONG_ROUND));
    }

    #[test]
    fn only_time_beyond_the_usual_is_charged() {
        let mut meter = measuring(Instant::now());
        assert_eq!(handle(&mut meter, 3 * MICROSECOND, 64), Duration::ZERO);
        assert_eq!(handle(&mut meter, 300 * MICROSECOND, 10), Duration::ZERO);
        assert_eq!(handle(&mut meter, 1_000 * MICROSECOND, 10), 7_000 * MICROSECOND);
        // Without datagrams of connections there is nobody to charge.
        assert_eq!(handle(&mut meter, MICROSECOND, 0), Duration::ZERO);
    }

    #[test]
    fn the_usual_is_at_least_a_hundred_microseconds() {
        let mut meter = measuring(Instant::now());
        assert_eq!(handle(&mut meter, Duration::from_nanos(10), 64), Duration::ZERO);
        assert_eq!(handle(&mut meter, 101 * MICROSECOND, 2), 2 * MICROSECOND);
    }

    #[test]
    fn a_connection_may_use_twenty_milliseconds_in_advance_and_a_tenth_of_a_core() {
        let now = Instant::now();
        let mut cost = ExcessCost::default();
        assert!(!cost.is_any(now));
        cost.charge(ADVANCE, now);
        assert!(cost.is_any(now) && !cost.is_too_high(now));
        cost.charge(MICROSECOND, now);
        assert!(cost.is_too_high(now));
        assert!(!cost.is_too_high(now + SHARE * MICROSECOND));
        let later = now + Duration::from_secs(10);
        assert!(!cost.is_any(later));
        cost.charge(ADVANCE, later);
        assert!(!cost.is_too_high(later));
    }

    #[test]
    fn warnings_are_a_minute_apart() {
        let now = Instant::now();
        let mut meter = CostMeter::of_this_thread();
        assert!(meter.may_warn(now));
        assert!(!meter.may_warn(now + WARNING_INTERVAL - MICROSECOND));
        assert!(meter.may_warn(now + WARNING_INTERVAL));
    }
}

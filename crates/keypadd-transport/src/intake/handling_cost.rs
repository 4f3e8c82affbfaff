//! Limits the CPU time that one connection's datagrams take from the others of its loop.
//!
//! A datagram is usually handled in microseconds, but a peer can make one that takes a thousand
//! times as long: single bytes with gaps between them, which `quinn-proto` puts in order. One full
//! of the smallest frames takes fifty times as long. Many of them would keep everyone's datagrams
//! waiting. So after datagrams that took long, the CPU time of each connection's datagrams is
//! measured for a while, and what exceeds the usual is charged to the connection. The datagrams of
//! one that has used up its share are dropped, as a network may do. Knows times and numbers only.

use std::time::{Duration, Instant};

use keypadd_share::{Bucket, Rate};
use rustix::time::{ClockId, clock_gettime};

/// How long connections are measured after datagrams that took long. Reading a thread's CPU clock
/// takes a tenth as long as handling a datagram.
const MEASURED_TIME: Duration = Duration::from_secs(1);

/// CPU time within which handling a datagram is usual, beside opening it. Also as a multiple of the
/// shortest of the loop: on a slow machine the usual takes longer.
const USUAL: Duration = Duration::from_micros(100);
const USUAL_TIMES: u32 = 100;

/// How many times the calibrated time opening datagrams may take: a thread that shares its core's
/// units and caches with others takes up to twice as long.
const OPENING_TIMES: u32 = 2;

/// Bulk delays only bulk, and an ACK for much of it takes long: it is measured after datagrams that
/// took this many times as long.
const BULK_TIMES: u32 = 5;

/// Datagrams with more frames than this are given a part of it: what takes long is not opening
/// them.
const MANY_FRAMES: u64 = 64;
const PART_OF_MANY: u32 = 5;

/// CPU time allowed for each packet number that an acknowledgment advances by. A peer that was slow
/// for a moment acknowledges hundreds of packets at once, but never more than this end has sent.
const ACKNOWLEDGMENT: Duration = Duration::from_micros(1);

/// The share of a core that the excess may take: one in this many.
pub(crate) const SHARE: u32 = 10;

/// The longest excess that a connection may have used in advance of its share.
pub(crate) const ADVANCE: Duration = Duration::from_millis(20);

/// What a client has left of it once it has proved a key: one that connects again and again does
/// not have all of it each time.
const ADVANCE_OF_PROVED: Duration = Duration::from_millis(2);

/// Measures a loop's handling of datagrams.
#[derive(Debug)]
pub(crate) struct CostMeter {
    /// CPU time of this thread.
    clock: fn() -> Duration,
    measured_until: Option<Instant>,
    shortest: Duration,
    warnings: Bucket,
}

/// What a connection has handled since a measurement began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handled {
    pub(crate) datagrams: u32,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// How long it took, with whatever else ran meanwhile.
    pub(crate) took: Duration,
    pub(crate) is_bulk: bool,
    pub(crate) frames: u64,
    /// Packets of this end that they acknowledge.
    pub(crate) acknowledged: u64,
    /// How long opening a KiB takes on this machine.
    pub(crate) opening: Duration,
}

impl Handled {
    /// How long opening may take: what its bytes justify.
    fn opening_time(&self) -> Duration {
        let nanos = (self.opening.as_nanos() * u128::from(self.bytes)) >> 10;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).saturating_mul(OPENING_TIMES)
    }
}

impl CostMeter {
    pub(crate) fn of_this_thread() -> Self {
        let clock = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        Self::new(clock, None)
    }

    /// A meter with a clock of CPU time, which measures until this time whatever takes how long.
    pub(crate) fn new(clock: fn() -> Duration, measured_until: Option<Instant>) -> Self {
        Self { clock, measured_until, shortest: Duration::MAX, warnings: Bucket::FULL }
    }

    /// Begins to measure what a connection handles, if that is due.
    pub(crate) fn begin(&self, now: Instant) -> Option<Duration> {
        self.measured_until.is_some_and(|until| until > now).then(self.clock)
    }

    /// Ends what began then; returns the CPU time beyond the usual.
    pub(crate) fn excess(
        &mut self,
        began: Option<Duration>,
        handled: Handled,
        now: Instant,
    ) -> Duration {
        let Handled { datagrams, took, is_bulk, frames, acknowledged, .. } = handled;
        if datagrams == 0 {
            return Duration::ZERO;
        }
        let opening = handled.opening_time();
        let times = if is_bulk { BULK_TIMES } else { 1 };
        let unmeasured = USUAL.max(USUAL / PART_OF_MANY * datagrams) * times;
        if took > opening.saturating_add(unmeasured) {
            self.measured_until = self.measured_until.max(Some(now + MEASURED_TIME));
        }
        let Some(began) = began else { return Duration::ZERO };
        let spent = (self.clock)().saturating_sub(began);
        self.shortest = self.shortest.min(spent / datagrams);
        let mut usual = USUAL.max(self.shortest.saturating_mul(USUAL_TIMES)) * datagrams;
        if frames > MANY_FRAMES * u64::from(datagrams) {
            usual /= PART_OF_MANY;
        }
        let acknowledged = u32::try_from(acknowledged).unwrap_or(u32::MAX);
        usual = usual.saturating_add(ACKNOWLEDGMENT.saturating_mul(acknowledged));
        spent.saturating_sub(opening).saturating_sub(usual)
    }

    /// Whether a warning is due.
    pub(crate) fn may_warn(&mut self, now: Instant) -> bool {
        self.warnings.take(Rate::ONE_A_MINUTE, now).is_ok()
    }
}

/// The excess of one connection that its share has not paid for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExcessCost {
    /// Full once the share has paid for it.
    unpaid: Bucket,
}

impl ExcessCost {
    pub(crate) fn charge(&mut self, excess: Duration, now: Instant) {
        self.unpaid.charge(excess * SHARE, now);
    }

    /// Leaves a client that has just proved a key a part of its advance.
    pub(crate) fn proved(&mut self, now: Instant) {
        let least = (ADVANCE - ADVANCE_OF_PROVED) * SHARE;
        self.unpaid.charge(least.saturating_sub(self.unpaid.full_in(now)), now);
    }

    /// Whether the connection's datagrams are dropped.
    pub(crate) fn is_too_high(&self, now: Instant) -> bool {
        self.unpaid.full_in(now) > ADVANCE * SHARE
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

    /// Handles datagrams that take this long each.
    fn handle(meter: &mut CostMeter, each: Duration, datagrams: u32, frames: u64) -> Duration {
        let now = Instant::now();
        let began = meter.begin(now);
        assert!(began.is_some());
        CPU.set(CPU.get() + each * datagrams);
        let took = each * datagrams;
        meter.excess(began, Handled { took, frames, ..some(datagrams) }, now)
    }

    /// Full datagrams, whose opening takes no time.
    fn some(datagrams: u32) -> Handled {
        let (bytes, took, opening) = (1_024 * u64::from(datagrams), Duration::ZERO, Duration::ZERO);
        Handled { datagrams, bytes, took, is_bulk: false, frames: 0, acknowledged: 0, opening }
    }

    fn measuring() -> CostMeter {
        CostMeter::new(|| CPU.get(), Some(Instant::now() + MEASURED_TIME))
    }

    #[test]
    fn connections_are_measured_for_a_second_after_datagrams_that_took_long() {
        let now = Instant::now();
        let mut meter = CostMeter::new(|| CPU.get(), None);
        for (datagrams, usual) in [(1, USUAL), (6, 120 * MICROSECOND)] {
            let handled = Handled { took: usual, ..some(datagrams) };
            assert!(meter.excess(meter.begin(now), handled, now).is_zero());
            assert!(meter.begin(now).is_none());
        }
        let took = 121 * MICROSECOND;
        let handled = Handled { took, ..some(6) };
        assert!(meter.excess(None, handled, now).is_zero());
        assert!(meter.begin(now + MEASURED_TIME - MICROSECOND).is_some());
        assert!(meter.begin(now + MEASURED_TIME).is_none());
    }

    #[test]
    fn bulk_is_measured_after_datagrams_that_took_five_times_as_long() {
        let now = Instant::now();
        let mut meter = CostMeter::new(|| CPU.get(), None);
        for (took, is_measured) in [(500 * MICROSECOND, false), (501 * MICROSECOND, true)] {
            let handled = Handled { took, is_bulk: true, ..some(1) };
            assert!(meter.excess(None, handled, now).is_zero());
            assert_eq!(meter.begin(now).is_some(), is_measured);
        }
    }

    #[test]
    fn only_time_beyond_the_usual_is_charged() {
        let mut meter = measuring();
        assert_eq!(handle(&mut meter, 3 * MICROSECOND, 64, 64), Duration::ZERO);
        assert_eq!(handle(&mut meter, 300 * MICROSECOND, 10, 10), Duration::ZERO);
        assert_eq!(handle(&mut meter, 1_000 * MICROSECOND, 10, 10), 7_000 * MICROSECOND);
        // Without datagrams there is nothing to charge.
        assert_eq!(handle(&mut meter, MICROSECOND, 0, 0), Duration::ZERO);
    }

    #[test]
    fn the_usual_is_at_least_a_hundred_microseconds_and_a_fifth_of_that_for_many_frames() {
        let mut meter = measuring();
        assert_eq!(handle(&mut meter, Duration::from_nanos(10), 64, 64), Duration::ZERO);
        assert_eq!(handle(&mut meter, 101 * MICROSECOND, 2, 128), 2 * MICROSECOND);
        assert_eq!(handle(&mut meter, 20 * MICROSECOND, 2, 129), Duration::ZERO);
        assert_eq!(handle(&mut meter, 70 * MICROSECOND, 6, 8_400), 300 * MICROSECOND);
    }

    #[test]
    fn an_acknowledgment_of_many_packets_may_take_long() {
        let mut meter = measuring();
        assert_eq!(handle(&mut meter, MICROSECOND, 64, 64), Duration::ZERO);
        let mut handle_one = |acknowledged, took| {
            let (now, began) = (Instant::now(), meter.begin(Instant::now()));
            CPU.set(CPU.get() + took);
            meter.excess(began, Handled { acknowledged, took, frames: 1, ..some(1) }, now)
        };
        // As many as a gateway sends in 2 ms, at half of a microsecond each.
        assert_eq!(handle_one(1_000, 500 * MICROSECOND), Duration::ZERO);
        assert_eq!(handle_one(100, 500 * MICROSECOND), 300 * MICROSECOND);
        assert_eq!(handle_one(u64::MAX, Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn what_opening_takes_with_the_suite_is_usual_however_many_frames_there_are() {
        // As measured under 3DES, one block at a time.
        let opening = 118 * MICROSECOND;
        let mut meter = measuring();
        // Another connection's datagrams, or those that find precomputed keystream.
        assert_eq!(handle(&mut meter, MICROSECOND, 64, 64), Duration::ZERO);
        assert_eq!(handle(&mut meter, 130 * MICROSECOND, 10, 10), 300 * MICROSECOND);
        let mut handle_opened = |each: Duration, frames| {
            let (now, datagrams, took) = (Instant::now(), 10, each * 10);
            let began = meter.begin(now);
            CPU.set(CPU.get() + took);
            meter.excess(began, Handled { took, frames, opening, ..some(datagrams) }, now)
        };
        for frames in [10, 6_400] {
            assert_eq!(handle_opened(130 * MICROSECOND, frames), Duration::ZERO);
            assert_eq!(handle_opened(2 * opening + USUAL / PART_OF_MANY, frames), Duration::ZERO);
        }
        assert_eq!(handle_opened(2 * opening + USUAL, 10), Duration::ZERO);
        assert_eq!(handle_opened(2 * opening + 2 * USUAL, 10), 10 * USUAL);
        assert_eq!(handle_opened(2 * opening + USUAL, 6_400), 8 * USUAL);
    }

    #[test]
    fn opening_may_take_what_the_bytes_of_a_datagram_justify_and_no_more() {
        // 3DES, one block at a time, takes 118 us for 1,400 bytes.
        let opening = 118 * MICROSECOND * 1_024 / 1_400;
        let mut meter = measuring();
        // Another connection's datagrams, or those that find precomputed keystream.
        assert_eq!(handle(&mut meter, MICROSECOND, 64, 64), Duration::ZERO);
        let mut handle_one = |bytes, took| {
            let (now, began) = (Instant::now(), meter.begin(Instant::now()));
            CPU.set(CPU.get() + took);
            meter.excess(began, Handled { bytes, took, opening, ..some(1) }, now)
        };
        // The longest that Ethernet carries, and a jumbo frame: 121 and 774 us.
        assert_eq!(handle_one(1_452, 130 * MICROSECOND), Duration::ZERO);
        assert_eq!(handle_one(9_188, 800 * MICROSECOND), Duration::ZERO);
        // A peer's that costs as much with 40 bytes is not what the suite takes.
        let beyond = handle_one(40, 330 * MICROSECOND);
        assert!(beyond > 220 * MICROSECOND, "{beyond:?}");
        // Nor is what costs beyond twice the time of its bytes.
        assert!(handle_one(9_188, 2_000 * MICROSECOND) > 300 * MICROSECOND);
    }

    #[test]
    fn a_slow_suite_alone_does_not_begin_a_measurement() {
        let (now, opening) = (Instant::now(), 118 * MICROSECOND);
        for is_bulk in [false, true] {
            let mut meter = CostMeter::new(|| CPU.get(), None);
            let took = 8 * (opening + 10 * MICROSECOND);
            let handled = Handled { took, is_bulk, frames: 8, opening, ..some(8) };
            assert!(meter.excess(None, handled, now).is_zero());
            assert!(meter.begin(now).is_none());
        }
    }

    #[test]
    fn a_connection_may_use_twenty_milliseconds_in_advance_and_a_tenth_of_a_core() {
        let now = Instant::now();
        let mut cost = ExcessCost::default();
        assert!(!cost.is_too_high(now));
        cost.charge(ADVANCE, now);
        assert!(!cost.is_too_high(now));
        cost.charge(MICROSECOND, now);
        assert!(cost.is_too_high(now));
        assert!(!cost.is_too_high(now + SHARE * MICROSECOND));
        let later = now + Duration::from_secs(10);
        cost.charge(ADVANCE, later);
        assert!(!cost.is_too_high(later));
    }

    #[test]
    fn a_client_that_has_just_proved_a_key_has_two_milliseconds_at_most() {
        let now = Instant::now();
        for (before, left) in [(0, 2), (10, 2), (19, 1)] {
            let mut cost = ExcessCost::default();
            cost.charge(1_000 * MICROSECOND * before, now);
            cost.proved(now);
            cost.charge(1_000 * MICROSECOND * left, now);
            assert!(!cost.is_too_high(now));
            cost.charge(MICROSECOND, now);
            assert!(cost.is_too_high(now));
        }
    }

    #[test]
    fn warnings_are_a_minute_apart() {
        let now = Instant::now();
        let mut meter = CostMeter::of_this_thread();
        assert!(meter.may_warn(now));
        assert!(!meter.may_warn(now + Rate::ONE_A_MINUTE.interval - MICROSECOND));
        assert!(meter.may_warn(now + Rate::ONE_A_MINUTE.interval));
    }
}
